"""Explains errors of Postgres to operators, and says which of them can be retried."""

from __future__ import annotations

import asyncpg

from counterseal.errors import StoreError

MEANINGS = {
    "08": "can't be reached; start the server, and it goes on by itself",
    "25006": "can't be written: this server is a replica, or read-only; name the primary",
    "28": "refuses this user; check user, password and pg_hba.conf",
    "3D000": "is no database of this server; create it",
    "3F000": "has no schema to use; set the user's search_path",
    "40": "could not do what many want at once; try again",
    "42704": "does not know an option in its URL; take it out, or correct it",
    "42501": "does not allow this to its user; make the user the tables' owner",
    "42": "has another schema than this program expects; restore what was changed",
    "53100": "has no room left on its disk; free some, and it goes on by itself",
    "53200": "could not be used for want of memory",
    "53300": "has no connection left; raise max_connections, or start fewer workers",
    "54": "can't keep a value as large as this one",
    "55P03": "was locked for too long; end the session that holds the lock, or try again",
    "57P": "is starting, or was shut down; it goes on by itself when the server is back",
    "57014": "took too long for a statement; try again",
    "58": "could not be read or written; check its disk",
    "22": "can't keep such a value",
    "23": "can't keep such a value",
    "XX": "is damaged; look into the server's log",
}
"""By SQLSTATE, or the beginning of one. Any other code is a fault of this program."""
_OTHERWISE = "can't be used; look into the server's log"


class ConflictError(Exception):
    """Another worker has inserted a row since this transaction looked for it."""


class UncertainError(StoreError):
    """The connection was lost during a commit: it is not known whether it took place."""


class UnfitError(StoreError):
    """A value that this database can never store."""


def explained(error: BaseException, where: str) -> StoreError:
    """Return an error that an operator can act on, without stored values or a password."""
    if isinstance(error, StoreError):
        return error
    code = getattr(error, "sqlstate", None)
    if isinstance(error, asyncpg.PostgresError) and code:
        kind = UnfitError if is_own(error) else StoreError
        return kind(f"{where} {_meaning(code)} (Postgres: {code}, {type(error).__name__})")
    if isinstance(error, ConflictError):
        return StoreError(f"{where} {MEANINGS['40']}")
    if isinstance(error, asyncpg.ClientConfigurationError | ValueError):
        return StoreError(f"{where} can't be reached with this URL; check its host and its options")
    if isinstance(error, TimeoutError):
        return StoreError(f"{where} did not answer in time; check the server and its load")
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return StoreError(f"{where} {MEANINGS['08']} ({type(error).__name__})")
    return StoreError(f"{where} {_OTHERWISE} ({type(error).__name__})")


def _meaning(code: str) -> str:
    for length in (5, 3, 2):
        if code[:length] in MEANINGS:
            return MEANINGS[code[:length]]
    return _OTHERWISE


def is_lost(error: BaseException) -> bool:
    """Return True when the connection cannot be used any more."""
    lost = (
        OSError,
        TimeoutError,
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        asyncpg.exceptions.AdminShutdownError,
        asyncpg.exceptions.CrashShutdownError,
        asyncpg.exceptions.CannotConnectNowError,
        asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
    )
    return isinstance(error, lost)


def is_again(error: BaseException) -> bool:
    """Return True when another attempt would probably succeed."""
    again = (ConflictError, asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
    return isinstance(error, again)


def is_own(error: BaseException) -> bool:
    """Return True when one request is at fault, so that others of its batch can succeed."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in ("22", "23", "54")
    return is_mistake(error)


def is_mistake(error: BaseException) -> bool:
    """Return True when the caller gave an invalid request, and the server is not at fault."""
    server = (StoreError, ConflictError, asyncpg.PostgresError, asyncpg.InterfaceError)
    return isinstance(error, Exception) and not isinstance(error, server) and not is_lost(error)
