"""`counterseal init`: a small working project, written where nothing is."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from counterseal.cli.output import fail, print_json, safe

__all__ = ["TARGETS", "init"]

TARGETS = {
    "counterseal.toml": "counterseal.toml",
    "tools.py": "tools.py",
    "contracts/search_policy.yaml": "contracts/search_policy.yaml",
    "README.md": "README.md",
    ".gitignore": "gitignore",  # under its own name it would rule in this repository
}
"""Each file of the project, and the template that it is a copy of."""

STEPS = ("counterseal lint", "counterseal show", "counterseal show send_approved_notice")


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write into.")
    ] = Path(),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Write a small working project to start from.

    It holds three Python tools and a YAML contract, and passes lint. Nothing is overwritten: when
    one of its files exists already, it says which and writes none.
    """
    targets = [directory / name for name in TARGETS]
    standing = [str(path) for path in targets if os.path.lexists(path)]
    if standing:
        fail(
            f"{', '.join(standing)} already {'exists' if len(standing) == 1 else 'exist'}.",
            "Nothing was written. Choose another folder: counterseal init DIR",
        )
    try:
        _write(directory)
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror}.", "Nothing was written.")
    steps = [*_change_folder(directory), *STEPS]
    if as_json:
        print_json({"created": [str(path) for path in targets], "next": steps})
        return
    for path in targets:
        print(f"created  {safe(str(path))}")
    print("\nNext:")
    for step in steps:
        print(f"  {safe(step)}")


def _change_folder(directory: Path) -> list[str]:
    return [] if directory.resolve() == Path.cwd() else [f"cd {directory}"]


def _write(directory: Path) -> None:
    """All of it, or nothing."""
    templates = files("counterseal.cli.templates")
    made: list[Path] = []
    try:
        for name, template in TARGETS.items():
            target = directory / name
            missing = [folder for folder in target.parents if not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            made.extend(reversed(missing))
            with target.open("xb") as stream:
                made.append(target)
                stream.write(templates.joinpath(template).read_bytes())
    except OSError:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise
