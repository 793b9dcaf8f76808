"""`counterseal init`: write a small working project."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from counterseal.cli.render import fail, render

TARGETS = {
    "counterseal.toml": "counterseal.toml",
    "tools.py": "tools.py",
    "contracts/search_policy.yaml": "contracts/search_policy.yaml",
    "README.md": "README.md",
    ".gitignore": "gitignore",  # under its own name it would apply to this repository
}
"""Each file of the project, and the template that it copies."""

STEPS = ("counterseal lint", "counterseal show", "counterseal show send_approved_notice")


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
    try:
        _write(directory)
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror}.", "Nothing was written.")
    steps = [*_change_folder(directory), *STEPS]
    created = [str(path) for path in targets]
    page = [
        *(f"created  {path}" for path in created),
        "",
        "Next:",
        *(f"  {step}" for step in steps),
    ]
    render({"created": created, "next": steps}, lambda: page, as_json=as_json)


def _change_folder(directory: Path) -> list[str]:
    return [] if directory.resolve() == Path.cwd() else [f"cd {directory}"]


def _write(directory: Path) -> None:
    """Write all files, or none."""
    templates = files("counterseal.cli.templates")
    written: list[Path] = []
    try:
        for name, template in TARGETS.items():
            target = directory / name
            missing = [folder for folder in target.parents if not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            written.extend(reversed(missing))
            with target.open("xb") as stream:
                written.append(target)
                stream.write(templates.joinpath(template).read_bytes())
    except OSError:
        for path in reversed(written):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise
