"""Definitions and overlays for the tests to start from."""

import pytest

from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.overlay_files import read_overlay

COMMIT = {
    "name": "git_commit",
    "title": "Commit",
    "description": "Record changes to the repository.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "repo_path": {"type": "string", "description": "Where the repository is."},
            "message": {"type": "string", "description": "What was changed."},
            "sign": {"type": "boolean", "description": "Whether to sign it."},
        },
        "required": ["repo_path", "message"],
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": False},
}


def wire(**changes):
    """A tool as tools/list has it; None takes a field out."""
    return {key: value for key, value in {**COMMIT, **changes}.items() if value is not None}


@pytest.fixture
def define():
    """A definition like that of `git_commit`, with changes."""
    return lambda **changes: Definition.of(wire(**changes))


@pytest.fixture
def takes(define):
    """A definition whose input has these properties."""

    def takes(properties, required=(), **more):
        schema = {"type": "object", "properties": properties, "required": list(required), **more}
        return define(inputSchema=schema, annotations=None)

    return takes


@pytest.fixture
def overlay(tmp_path):
    """Read an overlay from text."""

    def overlay(text):
        file = tmp_path / "git.yaml"
        file.write_text(text, encoding="utf-8")
        return read_overlay(file)

    return overlay
