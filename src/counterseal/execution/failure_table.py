"""Which code an exception has: one table, by the number that the other side gave or by class.

Classes are known by name, so that no library is imported for its errors. The rules behind it:

- A bug of the tool is UNKNOWN_ERROR. So is all that nothing here names: somebody has to look.
- What is down, or busy, or broke off: DEPENDENCY_UNAVAILABLE. Any time-out: TIMEOUT.
- The other side refused the values: SEMANTIC_INVALIDITY. The target is gone, was changed or exists
  already: STALE_STATE. Both let an agent plan anew, and nothing was done.
- The other side answered, and the answer can't be read: OBSERVATION_NORMALIZATION_FAIL, because
  what was asked for may well have been done.
- Codes about the arguments' form, approvals, keys and reversals belong to the gates and the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from counterseal.codes import Code

__all__ = ["NUMBERS", "ROWS", "SEVERITY", "SQLITE", "TABLE", "Row"]


class Row(NamedTuple):
    """In `scope` (a kind of number, or modules) these `names` mean `code`."""

    scope: str
    code: Code
    names: str


_KINDS_OF_NUMBERS: Final = ("HTTP", "SMTP", "SQLSTATE", "SQLite", "errno")

_ROWS: Final = (
    # What the other side said, in numbers. A shorter one stands for all that begin with it.
    ("HTTP", Code.SEMANTIC_INVALIDITY, "400 413 422"),
    ("HTTP", Code.PERMISSION_DENIED, "401 403 407"),
    ("HTTP", Code.BUDGET_EXHAUSTED, "402"),
    # 423 is locked, and 428 wants to be told a version: the target has to be looked at again.
    ("HTTP", Code.STALE_STATE, "404 409 410 412 423 428"),
    ("HTTP", Code.TIMEOUT, "408 504 524"),
    ("HTTP", Code.RATE_LIMITED, "425 429"),
    ("HTTP", Code.POLICY_VIOLATION, "451"),
    ("HTTP", Code.DEPENDENCY_UNAVAILABLE, "421 424 5"),
    ("HTTP", Code.UNKNOWN_ERROR, "501 505"),  # will never work, however often it is tried
    ("SMTP", Code.DEPENDENCY_UNAVAILABLE, "4"),
    ("SMTP", Code.PERMISSION_DENIED, "530 534 535 538"),
    ("SMTP", Code.SEMANTIC_INVALIDITY, "550 551 552 553"),
    ("SQLSTATE", Code.DEPENDENCY_UNAVAILABLE, "08 40 53 55006 55P03 57 58 72 HV00N"),
    ("SQLSTATE", Code.SEMANTIC_INVALIDITY, "22 23 44"),
    # A row is there already, or is not there, or something still refers to it.
    ("SQLSTATE", Code.STALE_STATE, "23001 23503 23505 23P01 P0002"),
    ("SQLSTATE", Code.PERMISSION_DENIED, "25006 28 42501"),
    ("SQLSTATE", Code.TIMEOUT, "25P03 25P04 57014"),
    ("SQLite", Code.DEPENDENCY_UNAVAILABLE, "BUSY LOCKED NOMEM IOERR FULL CANTOPEN"),
    ("SQLite", Code.DEPENDENCY_UNAVAILABLE, "PROTOCOL SCHEMA"),
    ("SQLite", Code.STALE_STATE, "CONSTRAINT_FOREIGNKEY CONSTRAINT_PRIMARYKEY"),
    ("SQLite", Code.STALE_STATE, "CONSTRAINT_UNIQUE CONSTRAINT_ROWID"),
    ("SQLite", Code.SEMANTIC_INVALIDITY, "CONSTRAINT TOOBIG MISMATCH"),
    ("SQLite", Code.PERMISSION_DENIED, "PERM AUTH READONLY"),
    ("SQLite", Code.TIMEOUT, "INTERRUPT"),
    ("errno", Code.PERMISSION_DENIED, "EACCES EPERM EROFS"),
    ("errno", Code.TIMEOUT, "ETIMEDOUT"),
    ("errno", Code.UNKNOWN_ERROR, "ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY ELOOP ENAMETOOLONG"),
    ("errno", Code.UNKNOWN_ERROR, "EINVAL EBADF EXDEV EFBIG E2BIG ENOEXEC"),
    # This package's own.
    ("counterseal.errors", Code.POLICY_VIOLATION, "EgressError FilesError"),
    ("counterseal.errors", Code.DEPENDENCY_UNAVAILABLE, "SecretUnavailableError IsolationError"),
    ("counterseal.errors", Code.OBSERVATION_NORMALIZATION_FAIL, "ResponseTooLargeError"),
    ("counterseal.errors", Code.DEPENDENCY_UNAVAILABLE, "NotSentError AnswerLostError"),
    ("counterseal.errors", Code.UNKNOWN_ERROR, "ToolFailedError"),
    # It answered, and said no: the words say what to do otherwise.
    ("counterseal.errors", Code.SEMANTIC_INVALIDITY, "SpokenError"),
    ("counterseal.contract.tool_context", Code.DEPENDENCY_UNAVAILABLE, "RefusedError"),
    ("counterseal.execution.request", Code.SEMANTIC_INVALIDITY, "UnsendableError"),
    ("counterseal.execution.http", Code.OBSERVATION_NORMALIZATION_FAIL, "AnswerError"),
    # Python and its library. An OSError that is named here is not looked at by its errno.
    ("builtins", Code.TIMEOUT, "TimeoutError"),
    ("builtins", Code.PERMISSION_DENIED, "PermissionError"),
    ("builtins", Code.UNKNOWN_ERROR, "FileNotFoundError FileExistsError IsADirectoryError"),
    ("builtins", Code.UNKNOWN_ERROR, "NotADirectoryError ChildProcessError ProcessLookupError"),
    ("io", Code.UNKNOWN_ERROR, "UnsupportedOperation"),
    ("shutil", Code.UNKNOWN_ERROR, "Error SpecialFileError ReadError ExecError"),
    ("subprocess", Code.TIMEOUT, "TimeoutExpired"),
    ("multiprocessing.context", Code.TIMEOUT, "TimeoutError"),
    ("concurrent.futures._base", Code.DEPENDENCY_UNAVAILABLE, "BrokenExecutor"),
    ("asyncio.exceptions", Code.DEPENDENCY_UNAVAILABLE, "IncompleteReadError"),
    ("anyio", Code.DEPENDENCY_UNAVAILABLE, "BrokenResourceError EndOfStream IncompleteRead"),
    ("socket", Code.DEPENDENCY_UNAVAILABLE, "gaierror herror"),
    ("ssl", Code.DEPENDENCY_UNAVAILABLE, "SSLError"),
    ("json.decoder", Code.OBSERVATION_NORMALIZATION_FAIL, "JSONDecodeError"),
    # A model may be of the arguments or of an answer: its class does not say which.
    ("pydantic_core._pydantic_core", Code.UNKNOWN_ERROR, "ValidationError"),
    # HTTP.
    ("http.client", Code.DEPENDENCY_UNAVAILABLE, "BadStatusLine IncompleteRead LineTooLong"),
    ("http.client", Code.DEPENDENCY_UNAVAILABLE, "UnknownProtocol UnknownTransferEncoding"),
    ("urllib.error", Code.DEPENDENCY_UNAVAILABLE, "URLError"),
    ("urllib.error", Code.UNKNOWN_ERROR, "HTTPError"),
    ("httpx httpx2", Code.TIMEOUT, "TimeoutException"),
    ("httpx httpx2", Code.DEPENDENCY_UNAVAILABLE, "TransportError"),
    ("httpx httpx2", Code.UNKNOWN_ERROR, "LocalProtocolError UnsupportedProtocol"),
    ("httpx httpx2", Code.OBSERVATION_NORMALIZATION_FAIL, "DecodingError"),
    ("httpx2", Code.OBSERVATION_NORMALIZATION_FAIL, "SSEError"),
    ("httpcore httpcore2", Code.TIMEOUT, "TimeoutException"),
    ("httpcore httpcore2", Code.DEPENDENCY_UNAVAILABLE, "NetworkError RemoteProtocolError"),
    ("httpcore httpcore2", Code.DEPENDENCY_UNAVAILABLE, "ProxyError ConnectionNotAvailable"),
    ("urllib3.exceptions", Code.TIMEOUT, "TimeoutError"),
    ("urllib3.exceptions", Code.DEPENDENCY_UNAVAILABLE, "NewConnectionError MaxRetryError"),
    ("urllib3.exceptions", Code.DEPENDENCY_UNAVAILABLE, "EmptyPoolError ProtocolError"),
    ("urllib3.exceptions", Code.DEPENDENCY_UNAVAILABLE, "ProxyError SSLError"),
    ("urllib3.exceptions", Code.OBSERVATION_NORMALIZATION_FAIL, "DecodeError"),
    ("requests.exceptions", Code.TIMEOUT, "Timeout ConnectTimeout"),
    ("requests.exceptions", Code.DEPENDENCY_UNAVAILABLE, "ConnectionError ChunkedEncodingError"),
    ("requests.exceptions", Code.DEPENDENCY_UNAVAILABLE, "RetryError"),
    ("requests.exceptions", Code.OBSERVATION_NORMALIZATION_FAIL, "ContentDecodingError"),
    ("requests.exceptions", Code.OBSERVATION_NORMALIZATION_FAIL, "JSONDecodeError"),
    ("requests.exceptions", Code.UNKNOWN_ERROR, "RequestException"),
    ("aiohttp.client_exceptions", Code.TIMEOUT, "ServerTimeoutError"),
    ("aiohttp.client_exceptions", Code.DEPENDENCY_UNAVAILABLE, "ClientConnectionError"),
    ("aiohttp.client_exceptions", Code.DEPENDENCY_UNAVAILABLE, "ClientPayloadError"),
    ("aiohttp.client_exceptions", Code.OBSERVATION_NORMALIZATION_FAIL, "ContentTypeError"),
    # Databases, where there is no SQLSTATE or result code.
    ("asyncpg.exceptions._base", Code.DEPENDENCY_UNAVAILABLE, "TargetServerAttributeNotMatched"),
    ("asyncpg.exceptions._base", Code.DEPENDENCY_UNAVAILABLE, "OutdatedSchemaCacheError"),
    ("psycopg psycopg2", Code.DEPENDENCY_UNAVAILABLE, "OperationalError"),
    ("psycopg.errors", Code.TIMEOUT, "ConnectionTimeout"),
    ("psycopg_pool", Code.TIMEOUT, "PoolTimeout"),
    ("sqlite3", Code.DEPENDENCY_UNAVAILABLE, "OperationalError"),
    ("sqlite3", Code.SEMANTIC_INVALIDITY, "IntegrityError DataError"),
    # Mail, where there is no reply code.
    ("smtplib", Code.DEPENDENCY_UNAVAILABLE, "SMTPServerDisconnected SMTPConnectError"),
    ("smtplib", Code.PERMISSION_DENIED, "SMTPAuthenticationError"),
    ("smtplib", Code.SEMANTIC_INVALIDITY, "SMTPRecipientsRefused"),
    ("smtplib", Code.UNKNOWN_ERROR, "SMTPException"),
    # The rest: an OSError with any other errno, and last of all everything.
    ("builtins", Code.DEPENDENCY_UNAVAILABLE, "ConnectionError OSError"),
    ("builtins", Code.UNKNOWN_ERROR, "BaseException"),
)

ROWS: Final = tuple(map(Row._make, _ROWS))
"""The whole table, in an order to be read."""

NUMBERS: Final[Mapping[str, Mapping[str, Code]]] = {
    scope: {name: row.code for row in ROWS if row.scope == scope for name in row.names.split()}
    for scope in _KINDS_OF_NUMBERS
}
"""Number to code, for each kind of number."""

TABLE: Final[Mapping[str, Code]] = {
    f"{module}.{name}": row.code
    for row in ROWS
    if row.scope not in NUMBERS
    for module in row.scope.split()
    for name in row.names.split()
}
"""Class to code. Of an exception's classes the nearest that stands here decides."""

SQLITE: Final = {
    3: "PERM",
    5: "BUSY",
    6: "LOCKED",
    7: "NOMEM",
    8: "READONLY",
    9: "INTERRUPT",
    10: "IOERR",
    13: "FULL",
    14: "CANTOPEN",
    15: "PROTOCOL",
    17: "SCHEMA",
    18: "TOOBIG",
    19: "CONSTRAINT",
    20: "MISMATCH",
    23: "AUTH",
    787: "CONSTRAINT_FOREIGNKEY",
    1555: "CONSTRAINT_PRIMARYKEY",
    2067: "CONSTRAINT_UNIQUE",
    2579: "CONSTRAINT_ROWID",
}
"""SQLite's result codes by name."""

SEVERITY: Final = (
    Code.POLICY_VIOLATION,
    Code.PERMISSION_DENIED,
    Code.BUDGET_EXHAUSTED,
    Code.UNKNOWN_ERROR,
    Code.OBSERVATION_NORMALIZATION_FAIL,
    Code.TIMEOUT,
    Code.DEPENDENCY_UNAVAILABLE,
    Code.STALE_STATE,
    Code.SEMANTIC_INVALIDITY,
    Code.RATE_LIMITED,
)
"""All that the table can say, the worst first: what ends a run is not hidden by what can wait."""
