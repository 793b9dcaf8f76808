"""`counterseal init`: write a small working project."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from counterseal.cli.render import fail, render, write_files

TARGETS = {
    "counterseal.toml": "counterseal.toml",
    "tools.py": "tools.py",
    "contracts/search_policy.yaml": "contracts/search_policy.yaml",
    "README.md": "README.md",
    ".gitignore": "gitignore",  # under its own name it would apply to this repository
}
"""Each file of the project, and the template that it copies."""

STEPS = (
    "counterseal lint",
    "counterseal show send_approved_notice",
    """counterseal call get_case_summary '{"case_id": "case_1001"}' --as intake-agent""",
)


def init(
    directory: Annotated[Path, Argument(metavar="DIR", help="Folder to write into.")] = Path(),
    as_json: Annotated[bool, Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Write a small working project to start from.

    It has three Python tools and a YAML contract, and passes lint. Nothing is overwritten: if one
    of its files exists, the command names it and writes nothing.
    """
    targets = [directory / name for name in TARGETS]
    existing = [str(path) for path in targets if os.path.lexists(path)]
    if existing:
        fail(
            f"{', '.join(existing)} already {'exists' if len(existing) == 1 else 'exist'}.",
            "Nothing was written. Choose another folder: counterseal init DIR",
        )
    templates = files("counterseal.cli.templates")
    contents = map(templates.joinpath, TARGETS.values())
    write_files({path: one.read_text("utf-8") for path, one in zip(targets, contents, strict=True)})
    steps = [*([] if directory.resolve() == Path.cwd() else [f"cd {directory}"]), *STEPS]
    created = [str(path) for path in targets]
    page = [
        *(f"created  {path}" for path in created),
        "",
        "Next:",
        *(f"  {step}" for step in steps),
        "README.md goes on from there: a draft, an approval, one e-mail.",
    ]
    render({"created": created, "next": steps}, lambda: page, as_json=as_json)
