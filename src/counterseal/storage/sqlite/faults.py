"""What SQLite's errors mean for whoever runs the store, and what to do about each."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from counterseal.errors import StoreError

__all__ = ["MEANINGS", "LockedError", "explained", "is_own"]

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
"""SQLite's primary error codes. What is not here is a fault of this program's, or unheard of."""
_OF_ONE: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


class LockedError(StoreError):
    """Somebody else holds the file for the moment."""


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """The same in words that an operator can act on."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    meaning = MEANINGS.get(code, _OTHERWISE)
    locked = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    kind = LockedError if locked else StoreError
    return kind(f"{path} {meaning} (SQLite: {error})")


def is_own(error: Exception) -> bool:
    """Whether an error is of one request, so that others beside it can still be carried out."""
    return not isinstance(error, sqlite3.Error) or isinstance(error, _OF_ONE)
