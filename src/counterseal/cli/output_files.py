"""Writes the files that a command makes, after a check that none is in the way."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from counterseal.cli.render import fail

_MAX_NAMED = 3


def check_overwrite(files: Sequence[Path], *, force: bool, out: str) -> None:
    """End the command if a file exists and `force` is not given. `out` is the option's form."""
    existing = [file for file in files if os.path.lexists(file)]
    if existing and not force:
        fail(
            f"{_named(existing)} already {'exists' if len(existing) == 1 else 'exist'}.",
            f"Nothing was written. Give --force to overwrite, or --out {out}.",
        )


def write_files(texts: Mapping[Path, str]) -> None:
    """Write all files. On an error, end the command and say which files were written.

    Each text is first written beside its file, so that a full disk leaves every file as it was.
    """
    folder = next((file for file in texts if file.is_dir()), None)
    if folder is not None:
        fail(f"{relative(folder)} is a folder.", "Nothing was written.")
    parents = {parent for file in texts for parent in file.parents}
    new_folders = sorted((one for one in parents if not one.exists()), key=_depth, reverse=True)
    mark = secrets.token_hex(4)
    beside = {file: file.with_name(f".{file.name}.{mark}.part") for file in texts}
    written: list[Path] = []
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            beside[file].write_text(text, encoding="utf-8")
        for file in texts:
            beside[file].replace(file)
            written.append(file)
    except OSError as error:
        for part in beside.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
        for created in new_folders:
            with suppress(OSError):
                created.rmdir()  # fails, as it should, if something was written to it
        failed = error.filename or relative(next(iter(texts)))
        result = f"Written before: {_named(written)}." if written else "Nothing was written."
        fail(f"Can't write {failed}: {error.strerror}.", result)


def relative(file: Path) -> str:
    """Return a path as seen from the current folder, if it is below it."""
    absolute = file.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _depth(folder: Path) -> int:
    return len(folder.parts)


def _named(files: Sequence[Path]) -> str:
    names = ", ".join(map(relative, files[:_MAX_NAMED]))
    more = len(files) - _MAX_NAMED
    return f"{names} and {more} more" if more > 0 else names
