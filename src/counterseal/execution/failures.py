"""What an exception means to a caller: each that an execution can raise has exactly one code.

A tool may run in another process, so an exception is first described as plain data (`describe`),
and the code is found from the description (`code_of`): the contract's own word for it, else what
the table says of a number that the other side gave, else of the nearest class that it knows.
"""

from __future__ import annotations

import errno
import math
import re
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from counterseal.codes import FAILURES, Code
from counterseal.execution.failure_table import NUMBERS, ROWS, SEVERITY, SQLITE, TABLE, Row

if TYPE_CHECKING:
    from counterseal.contract.model import Contract

__all__ = [
    "SEVERITY",
    "TABLE",
    "UNSENT",
    "Fault",
    "Row",
    "code_of",
    "describe",
    "said_not_done",
    "said_unsent",
    "table_rows",
]

T = TypeVar("T")

_MOST_KINDS, _LONGEST_KIND = 64, 200
_LONGEST_WAIT = 86_400.0
_STATUSES, _ERRNOS = (100, 599), (-(2**31), 2**31)
_HTTP_STATUS = "httpx.HTTPStatusError"
_SQLSTATE = re.compile(r"[0-9A-Z]{5}", re.ASCII)


class Fault(NamedTuple):
    """An exception as plain data. Holds no message: that may quote what nobody should see."""

    kinds: tuple[str, ...]
    """`module.QualName` of its class and its bases, nearest first, down to BaseException."""
    status: int | None = None
    """Of the response that it carries; SMTP's reply code where it is from smtplib."""
    sqlstate: str | None = None
    errno: int | None = None
    """The system's; SQLite's result code where it is from sqlite3."""
    retry_after: float | None = None
    """Seconds that the other side asked to wait."""

    def record(self) -> dict[str, Any]:
        return {**self._asdict(), "kinds": list(self.kinds)}

    @classmethod
    def from_record(cls, data: object) -> Fault:
        """What a record says. It may come from a sandbox: what makes no sense is left out."""
        return _safely(lambda: _from_record(data)) or _UNKNOWN


_UNKNOWN: Final = Fault(("builtins.BaseException",))
UNSENT: Final = "counterseal.errors.NotSentError"
_NOT_DONE: Final = "counterseal.errors.NotDoneError"


def said_not_done(fault: Fault | None) -> bool:
    """Whether a tool says itself that it has done nothing."""
    return fault is not None and _NOT_DONE in fault.kinds


def said_unsent(fault: Fault) -> bool:
    """Whether a tool says itself that nothing has left it."""
    return UNSENT in fault.kinds


def table_rows() -> tuple[Row, ...]:
    """The table, to be read by people."""
    return ROWS


# --- from an exception to its fault ---------------------------------------------------------------


def describe(error: BaseException) -> Fault:
    """The exception as data. Never raises, whatever its own properties do.

    A group is told by its leaves: by the worst of them, in the order of SEVERITY.
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
            # Asked of the base class: a group of somebody's own may say anything.
            waiting.extend(BaseExceptionGroup.exceptions.__get__(one))


def _from_record(data: Any) -> Fault:
    kinds = [kind[:_LONGEST_KIND] for kind in data["kinds"][:_MOST_KINDS] if type(kind) is str]
    return Fault(
        tuple(kinds) or _UNKNOWN.kinds,
        _whole(data.get("status"), *_STATUSES),
        _state(data.get("sqlstate")),
        _whole(data.get("errno"), *_ERRNOS),
        _wait(data.get("retry_after")),
    )


def _fault(error: BaseException) -> Fault:
    return Fault(
        _safely(lambda: _kinds(type(error))) or _UNKNOWN.kinds,
        _safely(lambda: _status(error)),
        _safely(lambda: _state(_first(error, "sqlstate", "pgcode"))),
        _safely(lambda: _whole(_first(error, "sqlite_errorcode", "errno"), *_ERRNOS)),
        _safely(lambda: _retry_after(error)),
    )


def _safely(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except BaseException:  # noqa: BLE001 - an attribute may be a property, and raise anything
        return None


def _first(thing: object, *names: str) -> Any:
    """The first of these attributes that is there and says something."""
    found = (_safely(partial(getattr, thing, name, None)) for name in names)
    return next((value for value in found if value is not None), None)


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
    headers = _first(_first(error, "response"), "headers") or _first(error, "headers")
    value = headers.get("retry-after") or headers.get("Retry-After")
    try:
        return _wait(float(value))
    except ValueError:
        return _wait(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()))


def _whole(value: object, least: int, most: int) -> int | None:
    """A whole number within bounds. An enumeration's member counts, a truth value doesn't."""
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


def code_of(fault: Fault, contract: Contract | None = None) -> Code:
    """The fault's one code: the contract's word for it, else a number's, else its class's.

    A contract names a status ("404"), or a class with or without its module; a status goes first,
    then the nearest class. It can't make a success of a failure.
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
    return _by_number(fault) or _by_class(fault)


def _names(fault: Fault) -> Iterator[str]:
    if fault.status is not None:
        yield str(fault.status)
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
        # The extended code where it has a name here, else the primary one in its low byte.
        name = SQLITE.get(fault.errno) or SQLITE.get(fault.errno & 0xFF, "")
        return NUMBERS["SQLite"].get(name, Code.UNKNOWN_ERROR)
    return None


def _longest(scope: str, number: str) -> Code | None:
    table = NUMBERS[scope]
    beginnings = (number[:length] for length in range(len(number), 0, -1))
    return next((table[part] for part in beginnings if part in table), None)


def _by_class(fault: Fault) -> Code:
    kind = next((kind for kind in fault.kinds if kind in TABLE), "builtins.BaseException")
    if kind == "builtins.OSError" and fault.errno is not None:
        # Only here: ssl and socket keep numbers of their own in it.
        return NUMBERS["errno"].get(errno.errorcode.get(fault.errno, ""), TABLE[kind])
    return TABLE[kind]
