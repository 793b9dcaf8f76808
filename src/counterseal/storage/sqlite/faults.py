"""Explains errors of SQLite to operators."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from counterseal.errors import StoreError

_OTHERWISE: Final = "can't be used; nothing was changed"
MEANINGS: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another program; end that program, or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another program; end that program, or try again",
    sqlite3.SQLITE_FULL: "has no room left on its disk; free some, and it goes on by itself",
    sqlite3.SQLITE_READONLY: (
        "can't be written; allow this user to write the file and the folder that it is in"
    ),
    sqlite3.SQLITE_PERM: "may not be used by this user; change the file's permissions",
    sqlite3.SQLITE_AUTH: "may not be used by this user; change the file's permissions",
    sqlite3.SQLITE_CANTOPEN: (
        "can't be opened; check that it is a file, and that this user may write its folder"
    ),
    sqlite3.SQLITE_NOTADB: "is no database; name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_IOERR: "could not be read or written; check its disk, and the room left on it",
    sqlite3.SQLITE_NOMEM: "could not be used for want of memory",
    sqlite3.SQLITE_TOOBIG: "can't keep a value as large as this one",
    sqlite3.SQLITE_PROTOCOL: "is being opened by too many at once; try again",
    sqlite3.SQLITE_NOLFS: "is too large for its file system; put it on another",
}
"""By primary error code. Any other code is a fault of this program."""
_OF_ONE: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


class LockedError(StoreError):
    """Another program holds the file for the moment."""


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """Return an error that an operator can act on."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    meaning = MEANINGS.get(code, _OTHERWISE)
    locked = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    kind = LockedError if locked else StoreError
    return kind(f"{path} {meaning} (SQLite: {error})")


def is_own(error: Exception) -> bool:
    """Return True when one request is at fault, so that others of its batch can succeed."""
    return not isinstance(error, sqlite3.Error) or isinstance(error, _OF_ONE)
