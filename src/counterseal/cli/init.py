"""`counterseal init`: write a small working project."""

from __future__ import annotations

import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, Literal

from typer import Argument, Option

from counterseal.cli.render import fail, render, write_files

ProjectTemplate = Literal["cases", "refunds", "http", "mcp", "agent"]
_USER: Final = "counterseal users add NAME --tenant acme --role approver"
STEPS: Final[dict[str, tuple[str, ...]]] = {
    "cases": (
        "counterseal lint",
        "counterseal show send_approved_notice",
        """counterseal call get_case_summary '{"case_id": "case_1001"}' --as intake-agent""",
    ),
    "refunds": ("counterseal check", _USER, "counterseal serve --anonymous-as support"),
    "http": ("python service.py", _USER, "counterseal serve --anonymous-as support"),
    "mcp": ("counterseal diff --accept", _USER, "counterseal serve --anonymous-as assistant"),
    "agent": (_USER, "counterseal serve --anonymous-as writer", "python agent.py"),
}
"""The first commands in each project."""


def targets_of(template: ProjectTemplate) -> dict[str, Traversable]:
    """Return the files of a project by their paths, with the files that they copy."""
    templates = files("counterseal.cli") / "templates"
    targets = dict(_below(templates / template, ""))
    # Under its own name it would apply to this repository.
    return {**targets, ".gitignore": templates / "gitignore"}


def _below(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found += _below(item, f"{prefix}{item.name}/") if item.name != "__pycache__" else []
        else:
            found.append((f"{prefix}{item.name}", item))
    return found


def init(
    directory: Annotated[Path, Argument(metavar="DIR", help="Folder to write into.")] = Path(),
    template: Annotated[ProjectTemplate, Option(help="Which project to write.")] = "cases",
    as_json: Annotated[bool, Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Write a small working project to start from.

    cases: notices about cases, with Python tools and a YAML contract. refunds: money, with a limit
    above which a person approves. http: tools that are HTTP requests. mcp: a gateway in front of an
    MCP server. agent: an agent loop in plain Python. Each passes `counterseal check`, and its
    README.md leads to a first approval. Nothing is overwritten: if one of the files exists, the
    command names it and writes nothing.
    """
    written = {directory / name: file for name, file in targets_of(template).items()}
    existing = [str(path) for path in written if os.path.lexists(path)]
    if existing:
        fail(
            f"{', '.join(existing)} already {'exists' if len(existing) == 1 else 'exist'}.",
            "Nothing was written. Choose another folder: counterseal init DIR",
        )
    write_files({path: file.read_text("utf-8") for path, file in written.items()})
    here = directory.resolve() == Path.cwd()
    steps = [*([] if here else [f"cd {directory}"]), *STEPS[template]]
    created = [str(path) for path in written]
    page = [
        *(f"created  {path}" for path in created),
        "",
        "Next:",
        *(f"  {step}" for step in steps),
        "README.md goes on from there, to an approval in the console.",
    ]
    render({"created": created, "next": steps}, lambda: page, as_json=as_json)
