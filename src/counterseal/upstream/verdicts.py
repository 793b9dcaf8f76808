"""Verdicts on failed requests to an upstream: one exception for each case.

The deciding question is whether the upstream can have done anything. It can't if nothing of the
request was sent, or if it was refused before it was looked at, also in the protocol's own words.
Other errors, and results with `isError`, are answers of which the contract says what they mean
(`not_done_errors`). In all other cases the answer is lost, and the outcome is unknown.

A transport records in a `Delivery` what happened to a request, because the SDK reports little more
than "an error". The transport finds the record in `DELIVERY`, since the SDK runs the sending of a
message in the context of its sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from counterseal.codes import Code
from counterseal.contract.tool_context import AgentClient, RefusedError
from counterseal.errors import (
    AnswerLostError,
    NotDoneError,
    NotSentError,
    ResponseTooLargeError,
    SpokenError,
    ToolFailedError,
)

_LONGEST: Final = 2_000
_MADE_UP: Final = frozenset(
    {
        mcp_types.PARSE_ERROR,
        mcp_types.CONNECTION_CLOSED,
        mcp_types.INVALID_REQUEST,
        mcp_types.INTERNAL_ERROR,
    }
)
"""Codes that the SDK itself uses when HTTP failed. After a lost answer they prove nothing."""
_NO_SESSION: Final = frozenset(
    {mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT, mcp_types.INVALID_REQUEST}
)
_REJECTED: Final = frozenset(
    {mcp_types.PARSE_ERROR, mcp_types.INVALID_REQUEST, mcp_types.METHOD_NOT_FOUND}
    | {mcp_types.INVALID_PARAMS, mcp_types.HEADER_MISMATCH, -32002}
)
"""Codes that say that a request was wrong, and so was not carried out."""
TOO_LARGE: Final = object()
"""The data of an error that a transport puts in the place of too long an answer."""


@dataclass(eq=False, slots=True)
class Delivery:
    """The state of one request on its way to the upstream and back."""

    client: AgentClient
    """The client in front of it, which receives the log messages of the upstream."""
    too_late: Callable[[], str] = str
    """Returns why it may not be sent any more; empty if it may."""
    sent: bool = False
    """True once any of it can have reached the upstream."""
    lost: bool = False
    """True if the answer broke off, or could not be read."""
    too_large: bool = False
    reason: str = ""
    """The failure on the way, in a few words for an operator."""
    status: int | None = None
    """The HTTP status of the answer."""
    json: bool = False
    """True if the HTTP answer is JSON, which may hold an error in the protocol's words."""
    retry_after: str | None = None

    def lose(self, reason: str) -> None:
        """Record that the answer is lost."""
        self.lost, self.reason = True, reason


DELIVERY: Final[ContextVar[Delivery | None]] = ContextVar("counterseal_delivery", default=None)
"""The record of the request that is being sent in this context."""


class ExpiredError(NotSentError):
    """The upstream does not know the session any more, and did nothing."""


class TooManyRequestsError(NotSentError):
    """The upstream refused the request because there were too many of them."""

    status = 429

    def __init__(self, message: str, retry_after: str | None) -> None:
        super().__init__(message)
        self.headers = {} if retry_after is None else {"retry-after": retry_after}


class LackingError(RefusedError, NotSentError):
    """The upstream did nothing, because the client lacks a capability that it may need."""


class AbsentError(ToolFailedError):
    """The upstream has no such resource or prompt, or not with these arguments."""

    status = 404


def verdict(
    name: str, what: str, error: Exception, delivery: Delivery, *, modern: bool, closed: bool
) -> Exception:
    """Return the one exception that a caller gets for `error`.

    A request for `what` to the upstream `name` raised it. `closed`: the connection has ended.
    `modern`: the revision has no session that could expire.
    """
    reason = delivery.reason or shortened(str(error)) or type(error).__name__
    if not delivery.sent:
        return NotSentError(f"upstream {name} was not reached: {reason}")
    code = error.code if isinstance(error, MCPError) else None
    if delivery.too_large or (isinstance(error, MCPError) and error.data is TOO_LARGE):
        return ResponseTooLargeError(f"the answer of upstream {name} to {what} is too long")
    if isinstance(error, ValidationError):
        return AnswerLostError(f"upstream {name} answered {what} with an invalid result")
    ended = connection_closed(error) or (closed and code == mcp_types.CONNECTION_CLOSED)
    if code is None or ended or (delivery.lost and code in _MADE_UP):
        return AnswerLostError(f"upstream {name} did not answer {what}: {reason}")
    return _by_status(name, what, code, delivery, modern=modern) or _by_code(name, what, error)


def connection_closed(error: Exception) -> bool:
    """Return True for the SDK's error that says that the whole connection has ended."""
    closed = isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED
    return closed and str(error) == "Connection closed"


def _by_status(
    name: str, what: str, code: int, delivery: Delivery, *, modern: bool
) -> Exception | None:
    """Return what an HTTP status means, or None if the answer's own error says more."""
    status = delivery.status
    if status is None or status == 200:
        # The SDK's own code for an answer that it could not read.
        if status is not None and code == mcp_types.PARSE_ERROR:
            return AnswerLostError(f"the answer of upstream {name} to {what} can't be read")
        return None
    message = f"upstream {name} answered {what} with HTTP status {status}"
    if status == 429:
        return TooManyRequestsError(message, delivery.retry_after)
    if status in (401, 403):
        return NotSentError(f"{message}: it does not accept our credentials")
    if not modern and (status == 404 or (status == 400 and code in _NO_SESSION)):
        return ExpiredError(f"{message}: the session has expired")
    if status in (400, 404) and delivery.json and code not in _MADE_UP:
        return None  # an error in the protocol's words, with the status that belongs to it
    if status in (301, 302, 307, 308) or 400 <= status < 500:
        return NotSentError(message)
    return AnswerLostError(message)


def _by_code(name: str, what: str, error: Exception) -> Exception:
    """Return what the upstream's own error means."""
    if not isinstance(error, MCPError):
        return AnswerLostError(f"upstream {name} did not answer {what}")
    if error.code == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY:
        return LackingError(
            f"upstream {name} can't do {what} for this client: {shortened(error.message)}",
            missing=_missing_capability(error.data),
        )
    if error.code == mcp_types.URL_ELICITATION_REQUIRED:
        return RefusedError(
            f"upstream {name} can't do {what} before a person has opened a page: "
            f"{shortened(error.message)}",
            missing="elicitation.url",
        )
    words = shortened(error.message)
    if error.code in _REJECTED:
        failure: SpokenError = NotDoneError(words)
        failure.reported = (str(error.code),)
    else:
        # It is the server that failed, and not the request.
        failure = SpokenError(what, words, (str(error.code), Code.DEPENDENCY_UNAVAILABLE.value))
    failure.details = {"code": error.code, "message": words}
    return failure


def header_mismatch(error: ToolFailedError) -> bool:
    """Return True if the upstream expects other headers with this request."""
    details = error.details
    return isinstance(details, Mapping) and details.get("code") == mcp_types.HEADER_MISMATCH


def _missing_capability(data: Any) -> str | None:
    required = data.get("requiredCapabilities") if isinstance(data, Mapping) else None
    if not isinstance(required, Mapping) or not required:
        return None
    name = str(next(iter(required)))
    parts = required[name]
    return f"{name}.url" if isinstance(parts, Mapping) and "url" in parts else name


def failed_tool(tool: str, result: Mapping[str, Any]) -> SpokenError:
    """Return the exception for a result that says `isError`, with its texts."""
    texts = [
        block["text"]
        for block in result.get("content", ())
        if isinstance(block, Mapping) and isinstance(block.get("text"), str)
    ]
    structured = result.get("structuredContent")
    fields = structured if isinstance(structured, Mapping) else {}
    inner = fields.get("error")
    fields = inner if isinstance(inner, Mapping) else fields
    named = [fields.get(key) for key in ("code", "type")]
    names = tuple(str(name) for name in named if isinstance(name, str | int) and name)
    return SpokenError(tool, shortened("\n".join(texts[:10])), names)


def shortened(text: str) -> str:
    """Return a text of the upstream's, cut to the length that an error can show."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def error_line(error: BaseException) -> str:
    """Return one line for an exception; for a group, of its first exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
