"""Exceptions as codes: each exception that an execution can raise has exactly one code.

A tool may run in another process, so an exception is first described as plain data (`describe`),
and the code is derived from the description (`code_of`): from the contract's own mapping, else from
a status number in the table, else from the nearest class in the table.
"""

from __future__ import annotations

import errno
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from counterseal.codes import FAILURES, Code
from counterseal.errors import SpokenError

if TYPE_CHECKING:
    from counterseal.contract.model import Contract

# --- the table ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the table: within `scope` (a kind of number, or modules), `names` mean `code`."""

    scope: str
    code: Code
    names: str


_KINDS_OF_NUMBERS: Final = ("HTTP", "SMTP", "SQLSTATE", "SQLite", "errno")

_FILE: Final = Path(__file__).with_name("failures.txt").read_text("utf-8")
_CELLS: Final = (line.split(" | ") for line in _FILE.splitlines() if " | " in line)
ROWS: Final = tuple(Row(scope, Code(code), names) for scope, code, names in _CELLS)
"""The whole table, in reading order, as the reference page shows it."""

NUMBERS: Final[Mapping[str, Mapping[str, Code]]] = {
    scope: {name: row.code for row in ROWS if row.scope == scope for name in row.names.split()}
    for scope in _KINDS_OF_NUMBERS
}
"""Codes by number, for each kind of number."""

TABLE: Final[Mapping[str, Code]] = {
    f"{module}.{name}": row.code
    for row in ROWS
    if row.scope not in NUMBERS
    for module in row.scope.split()
    for name in row.names.split()
}
"""Codes by class name. The nearest class of an exception's bases decides."""

SEVERITY: Final = (
    *(Code.POLICY_VIOLATION, Code.PERMISSION_DENIED, Code.BUDGET_EXHAUSTED, Code.UNKNOWN_ERROR),
    *(Code.OBSERVATION_NORMALIZATION_FAIL, Code.TIMEOUT, Code.DEPENDENCY_UNAVAILABLE),
    *(Code.STALE_STATE, Code.SEMANTIC_INVALIDITY, Code.RATE_LIMITED),
)
"""The codes of the table, worst first: in an exception group, the worst one decides."""


T = TypeVar("T")

_MOST_KINDS, _LONGEST_KIND = 64, 200
_LONGEST_WAIT = 86_400.0
_STATUSES, _ERRNOS = (100, 599), (-(2**31), 2**31)
_HTTP_STATUS = "httpx.HTTPStatusError"
_SQLSTATE = re.compile(r"[0-9A-Z]{5}", re.ASCII)


class Fault(NamedTuple):
    """An exception as plain data, without its message, which may quote a secret."""

    kinds: tuple[str, ...]
    """`module.QualName` of the class and its bases, nearest first, down to BaseException."""
    status: int | None = None
    """The HTTP status of the response; for smtplib, the reply code."""
    sqlstate: str | None = None
    errno: int | None = None
    """The operating system's error number; for sqlite3, SQLite's result code."""
    retry_after: float | None = None
    """The seconds to wait that the destination asked for."""
    reported: tuple[str, ...] = ()
    """The tool's own names for a failure that it reported, the most precise one first."""

    def record(self) -> dict[str, Any]:
        return {**self._asdict(), "kinds": list(self.kinds), "reported": list(self.reported)}

    @classmethod
    def from_record(cls, data: object) -> Fault:
        """Read a record, which may come from a sandbox: invalid fields are dropped."""
        fields: Any = data
        fault = _safely(
            lambda: cls(
                _texts(fields["kinds"]) or _UNKNOWN.kinds,
                _whole(fields.get("status"), *_STATUSES),
                _state(fields.get("sqlstate")),
                _whole(fields.get("errno"), *_ERRNOS),
                _wait(fields.get("retry_after")),
                _texts(fields.get("reported") or ()),
            )
        )
        return fault or _UNKNOWN


_UNKNOWN: Final = Fault(("builtins.BaseException",))
UNSENT: Final = "counterseal.errors.NotSentError"
_TOO_LATE: Final = "counterseal.errors.TooLateError"
_NOT_DONE: Final = "counterseal.errors.NotDoneError"
_REPORTED: Final = "counterseal.errors.ToolFailedError"
MAY_HAVE_HAPPENED: Final = frozenset(
    {Code.TIMEOUT, Code.DEPENDENCY_UNAVAILABLE, Code.UNKNOWN_ERROR}
)
"""After these codes the tool may have acted."""


def reports_not_sent(fault: Fault) -> bool:
    """Return whether the tool itself reported that nothing was sent.

    Its HTTP client's word is not the tool's: it may have done something before that request.
    """
    return UNSENT in fault.kinds and _TOO_LATE not in fault.kinds


# --- from an exception to its fault ---------------------------------------------------------------


def describe(error: BaseException) -> Fault:
    """Return the exception as data. Never raises, whatever the exception's properties do.

    A group is described by the worst of its leaves, in the order of SEVERITY.
    """
    faults = dict.fromkeys(_fault(leaf) for leaf in _leaves(error))
    return min(faults, key=lambda fault: SEVERITY.index(code_of(fault)), default=_UNKNOWN)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if not issubclass(type(one), BaseExceptionGroup):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            # Read through the base class: a subclass may override the property.
            waiting.extend(BaseExceptionGroup.exceptions.__get__(one))


def _texts(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(value[:_LONGEST_KIND] for value in values[:_MOST_KINDS] if type(value) is str)


def _fault(error: BaseException) -> Fault:
    return Fault(
        _safely(lambda: _kinds(type(error))) or _UNKNOWN.kinds,
        _safely(lambda: _status(error)),
        _safely(lambda: _state(_first(error, "sqlstate", "pgcode"))),
        _safely(lambda: _whole(_first(error, "sqlite_errorcode", "errno"), *_ERRNOS)),
        _safely(lambda: _retry_after(error)),
        _safely(lambda: _texts(error.reported) if isinstance(error, SpokenError) else ()) or (),
    )


def _safely(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except BaseException:  # noqa: BLE001 - an attribute may be a property, and raise anything
        return None


def _first(thing: object, *names: str) -> Any:
    """Return the first of these attributes that exists and is not None."""
    values = (_safely(partial(getattr, thing, name, None)) for name in names)
    return next((value for value in values if value is not None), None)


def _kinds(kind: type[BaseException]) -> tuple[str, ...]:
    classes = kind.__mro__[: kind.__mro__.index(BaseException) + 1]
    names = [f"{one.__module__}.{one.__qualname__}"[:_LONGEST_KIND] for one in classes]
    return (*names[: _MOST_KINDS - 1], names[-1])


def _status(error: BaseException) -> int | None:
    said = [
        _first(_first(error, "response"), "status_code", "status"),
        _first(error, "status_code", "status"),
        _first(error, "smtp_code"),
    ]
    refused = _first(error, "recipients")  # smtplib's: a reply for each address
    if type(refused) is dict and refused:
        said.append(max(code for code, _ in refused.values()))
    fitting = (_whole(value, *_STATUSES) for value in said)
    return next((status for status in fitting if status is not None), None)


def _retry_after(error: BaseException) -> float | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - slow to import, seldom needed

    headers = _first(_first(error, "response"), "headers") or _first(error, "headers")
    value = headers.get("retry-after") or headers.get("Retry-After")
    try:
        return _wait(float(value))
    except ValueError:
        return _wait(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()))


def _whole(value: object, least: int, most: int) -> int | None:
    """Return an integer within bounds, else None. Enum members count, booleans do not."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    number = int.__int__(value)
    return number if least <= number <= most else None


def _state(value: object) -> str | None:
    return value if type(value) is str and _SQLSTATE.fullmatch(value) else None


def _wait(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(min(value, _LONGEST_WAIT)) if 0 <= value < math.inf else None


# --- from a fault to its code ---------------------------------------------------------------------


def judge(fault: Fault, words: str, contract: Contract) -> tuple[Code, bool]:
    """Return a fault's code, and whether the tool did nothing according to itself or its contract.

    A tool that reports a failure of a change may have done a part of it. So the outcome is unknown,
    unless the contract names the failure in `not_done_errors`; `words` are the tool's message.
    """
    code = code_of(fault, contract)
    if not reported(fault):
        return code, False
    named = any(
        pattern in fault.reported or fnmatchcase(words, _LITERAL.sub(r"[\g<0>]", pattern))
        for pattern in contract.not_done_errors
    )
    if named or _NOT_DONE in fault.kinds:
        return code, True
    unknown = contract.mutates and code not in MAY_HAVE_HAPPENED
    return Code.UNKNOWN_ERROR if unknown else code, False


def reported(fault: Fault | None) -> bool:
    """Return whether the tool has answered, and its answer is a failure."""
    return fault is not None and _REPORTED in fault.kinds


_LITERAL: Final = re.compile(r"[\[?]")
"""Characters that would have a meaning in a pattern, where only `*` has one."""


def code_of(fault: Fault, contract: Contract | None = None) -> Code:
    """Return the fault's code: from the contract's mapping, else by number, else by class.

    A contract maps a status ("404"), a name that the tool reported, or a class with or without its
    module; a status is looked up first, then the names, then the nearest class. A mapping can't
    turn a failure into a success.
    """
    if contract is not None and contract.http is not None and _HTTP_STATUS in fault.kinds:
        meant = contract.http.code_for(fault.status or 0)
        if meant is not None:
            return meant
    own = contract.observability.error_taxonomy_mapping if contract is not None else {}
    if own:
        for name in _names(fault):
            if own.get(name) in FAILURES:
                return Code(own[name])
    code = _by_number(fault) or _by_report(fault)
    if code is not None:
        return code
    kind = next((kind for kind in fault.kinds if kind in TABLE), "builtins.BaseException")
    if kind == "builtins.OSError" and fault.errno is not None:
        # Only for plain OSError: ssl and socket use errno for their own numbers.
        return NUMBERS["errno"].get(errno.errorcode.get(fault.errno, ""), TABLE[kind])
    return TABLE[kind]


def _names(fault: Fault) -> Iterator[str]:
    if fault.status is not None:
        yield str(fault.status)
    yield from fault.reported
    for kind in fault.kinds:
        yield kind
        yield kind.rpartition(".")[2]


def _by_number(fault: Fault) -> Code | None:
    if fault.status is not None and "smtplib.SMTPConnectError" not in fault.kinds:
        scope = "SMTP" if "smtplib.SMTPException" in fault.kinds else "HTTP"
        code = _longest(scope, str(fault.status))
        if code is not None:
            return code
    if fault.sqlstate is not None:
        return _longest("SQLSTATE", fault.sqlstate) or Code.UNKNOWN_ERROR
    if fault.errno is not None and "sqlite3.Error" in fault.kinds:
        # The extended code if the table names it, else the primary code in its low byte.
        codes = _sqlite_codes()
        return codes.get(fault.errno) or codes.get(fault.errno & 0xFF, Code.UNKNOWN_ERROR)
    return None


def _by_report(fault: Fault) -> Code | None:
    """Return the code that the tool named: itself, or by a class that has one meaning."""
    for name in fault.reported:
        if name in SEVERITY:
            return Code(name)
        codes = {code for kind, code in TABLE.items() if name in (kind, kind.rpartition(".")[2])}
        if len(codes) == 1 and codes != {Code.UNKNOWN_ERROR}:
            return codes.pop()
    return None


@cache
def _sqlite_codes() -> dict[int, Code]:
    import sqlite3  # noqa: PLC0415 - loaded by whatever raised the error

    return {getattr(sqlite3, f"SQLITE_{name}"): code for name, code in NUMBERS["SQLite"].items()}


def _longest(scope: str, number: str) -> Code | None:
    table = NUMBERS[scope]
    beginnings = (number[:length] for length in range(len(number), 0, -1))
    return next((table[part] for part in beginnings if part in table), None)
