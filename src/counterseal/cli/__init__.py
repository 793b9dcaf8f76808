"""The `counterseal` command: one file a command or command group.

Commands read options, ask a view or an operation, and hand the result to `render`. Beside them are
`options` (shared options), `project` (what a command works on) and `contract_card` (the page of
`show`). The start must stay fast: nothing heavier than Typer is imported before a command runs.
"""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and end the process with the command's exit code."""
    # A command that imports a thousand modules would be searched for garbage hundreds of times.
    gc.set_threshold(20_000, 20, 50)
    from counterseal.cli.app import app

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the stream was closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - stays open until the end; no import of pathlib
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character gets a substitute, not a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="counterseal")
    except SystemExit as stop:
        sys.exit(_after_flush(stop.code))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"Error: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)


def _after_flush(code: str | int | None) -> str | int | None:
    """Flush stdout, which may be a closed pipe (`… | head`), and return the exit code."""
    gc.freeze()  # the process ends: its objects need no last search for garbage
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes again at exit, and would print an error there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
