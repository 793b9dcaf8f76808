"""The `counterseal` command: one file a command group, and no logic but what a terminal needs.

Starting must stay fast: nothing heavier than Typer is imported before a command runs.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ends the process with 0, 1 for problems found, or 2 for wrong use."""
    from counterseal.cli.app import app

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed: nobody wants to read it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - until the end; fast
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
    """The same exit code, once everything is written, or nobody reads on (`… | head`)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
