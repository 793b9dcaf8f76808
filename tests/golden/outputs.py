"""What Counterseal says to programs, kept in files: a change of it is a decision, not an accident.

PRODUCERS makes the outputs by name; each is a few files under `files/`. After a change on purpose:

    python -m tests.golden --write
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.golden import commands, databases, demo, gateway

FILES = Path(__file__).parent / "files"
PRODUCERS: dict[str, Callable[[], dict[str, str]]] = {
    "commands": commands.outputs,
    "gateway": gateway.outputs,
    "databases": databases.outputs,
    "demo": demo.outputs,
}
FIX = "If this is meant: python -m tests.golden --write {name}, and look at the diff."
LINES_SHOWN = 150


def kept(name: str) -> dict[str, str]:
    """The golden files of one producer, by their names under `files/`."""
    folder = FILES / name
    return {
        str(file.relative_to(FILES)): file.read_text(encoding="utf-8")
        for file in sorted(folder.glob("*.json"))
    }


def differences(name: str, made: Mapping[str, str]) -> str:
    """Return a readable diff between the golden files and the outputs; empty if there is none."""
    lines: list[str] = []
    before = kept(name)
    for file in sorted(before.keys() | made.keys()):
        old, new = before.get(file, "").splitlines(), made.get(file, "").splitlines()
        lines += difflib.unified_diff(old, new, f"{file} (golden)", f"{file} (now)", "", "", 4, "")
    if not lines:
        return ""
    left_out = len(lines) - LINES_SHOWN
    shown = [*lines[:LINES_SHOWN], *([f"… and {left_out} more lines"] if left_out > 0 else [])]
    return "\n".join([*shown, "", FIX.format(name=name)])


def write(name: str, made: Mapping[str, str]) -> str:
    """Replace the golden files of one producer; say what was written."""
    before = kept(name)
    for file in before.keys() - made.keys():
        (FILES / file).unlink()
    for file, text in made.items():
        (FILES / file).parent.mkdir(parents=True, exist_ok=True)
        (FILES / file).write_text(text, encoding="utf-8")
    changed = sorted(file for file in before | dict(made) if before.get(file) != made.get(file))
    return f"{len(made)} files, {len(changed)} changed {' '.join(changed)}".rstrip()
