"""What a failed request to an upstream means to the caller: exactly one exception each.

The question that everything hangs on is whether the upstream can have done anything. It can't have
when nothing of the request left, or when it was refused before anybody looked into it; whoever says
"error" in the protocol's own words has looked. All else is an answer that was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from counterseal.contract.tool_context import RefusedError
from counterseal.errors import (
    AnswerLostError,
    NotSentError,
    ResponseTooLargeError,
    SpokenError,
    ToolFailedError,
)
from counterseal.upstream.exchange import TOO_LARGE, Exchange

__all__ = [
    "AbsentError",
    "BusyError",
    "ExpiredError",
    "failed_tool",
    "is_cut",
    "short",
    "verdict",
    "wants_other_headers",
]

_LONGEST: Final = 2_000
_SPOKEN: Final = {
    mcp_types.PARSE_ERROR,
    mcp_types.CONNECTION_CLOSED,
    mcp_types.INVALID_REQUEST,
    mcp_types.INTERNAL_ERROR,
}
"""Codes that the library makes up where HTTP broke off: an upstream that says them is not believed
after its answer was lost."""
_NO_SESSION: Final = {mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT} | {
    mcp_types.INVALID_REQUEST
}


class ExpiredError(NotSentError):
    """The upstream does not know the session any more, and did nothing."""


class BusyError(NotSentError):
    """The upstream refused the request, because there were too many of them."""

    status = 429

    def __init__(self, message: str, retry_after: str | None) -> None:
        super().__init__(message)
        self.headers = {} if retry_after is None else {"retry-after": retry_after}


_ANSWERED: Final = frozenset({mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND, -32002})
"""What is said of the request itself, in words for whoever made it."""


class LackingError(RefusedError, NotSentError):
    """The upstream begins nothing for a client that can't be asked what it may have to ask."""


class AbsentError(ToolFailedError):
    """The upstream has no such resource or prompt, or not with these arguments."""

    status = 404


def verdict(
    name: str, what: str, error: Exception, exchange: Exchange, *, modern: bool, closed: bool
) -> Exception:
    """The one exception for `error`, which a request for `what` to the upstream `name` raised.

    `closed`: the connection has ended. `modern`: it has no session that could expire.
    """
    why = exchange.trouble or short(str(error)) or type(error).__name__
    if not exchange.sent:
        return NotSentError(f"upstream {name} was not reached: {why}")
    code = error.code if isinstance(error, MCPError) else None
    if exchange.too_large or (isinstance(error, MCPError) and error.data is TOO_LARGE):
        return ResponseTooLargeError(f"upstream {name} answered {what} with more than is read")
    if isinstance(error, ValidationError):
        return AnswerLostError(f"upstream {name} answered {what} with what is no result of it")
    if code is None or is_cut(error) or (closed and code == mcp_types.CONNECTION_CLOSED):
        return AnswerLostError(f"upstream {name} did not answer {what}: {why}")
    if exchange.lost and code in _SPOKEN:
        return AnswerLostError(f"upstream {name} did not answer {what}: {why}")
    return _by_status(name, what, code, exchange, modern=modern) or _said(name, what, error)


def is_cut(error: Exception) -> bool:
    """Whether the library says that the connection has ended, which it knows before others do."""
    closed = isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED
    return closed and str(error) == "Connection closed"


def _by_status(
    name: str, what: str, code: int, exchange: Exchange, *, modern: bool
) -> Exception | None:
    """What an HTTP status says, where the answer holds nothing better."""
    status = exchange.status
    if status is None or status == 200:
        # The library's own word for an answer that it could not read.
        if status is not None and code == mcp_types.PARSE_ERROR:
            return AnswerLostError(f"upstream {name} answered {what} with what can't be read")
        return None
    told = f"upstream {name} answered {what} with HTTP status {status}"
    if status == 429:
        return BusyError(told, exchange.retry_after)
    if status in (401, 403):
        return NotSentError(f"{told}: it does not take our credentials")
    if not modern and (status == 404 or (status == 400 and code in _NO_SESSION)):
        return ExpiredError(f"{told}: the session is gone")
    if status in (400, 404) and exchange.in_json and code not in _SPOKEN:
        return None  # an error in the protocol's words, with a status that goes with it
    if status in (301, 302, 307, 308) or 400 <= status < 500:
        return NotSentError(told)
    return AnswerLostError(told)


def _said(name: str, what: str, error: Exception) -> Exception:
    """What the upstream said itself, in the protocol's words."""
    if not isinstance(error, MCPError):
        return AnswerLostError(f"upstream {name} did not answer {what}")
    if error.code == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY:
        return LackingError(
            f"upstream {name} can't do {what} for this client: {short(error.message)}",
            missing=_missing(error.data),
        )
    if error.code == mcp_types.URL_ELICITATION_REQUIRED:
        return RefusedError(
            f"upstream {name} can't do {what} before a person has opened a page: "
            f"{short(error.message)}",
            missing="elicitation.url",
        )
    details = {"code": error.code, "message": short(error.message)}
    if error.code not in _ANSWERED:
        return ToolFailedError(what, details)
    spoken = SpokenError(what, short(error.message))
    spoken.details = details
    return spoken


def wants_other_headers(error: ToolFailedError) -> bool:
    """Whether the upstream misses arguments in the headers of a request."""
    details = error.details
    return isinstance(details, Mapping) and details.get("code") == mcp_types.HEADER_MISMATCH


def _missing(data: Any) -> str | None:
    named = data.get("requiredCapabilities") if isinstance(data, Mapping) else None
    if not isinstance(named, Mapping) or not named:
        return None
    name = str(next(iter(named)))
    inside = named[name]
    return f"{name}.url" if isinstance(inside, Mapping) and "url" in inside else name


def failed_tool(tool: str, result: Mapping[str, Any]) -> SpokenError:
    """For a result that calls itself an error, with the words that it has for it."""
    texts = [
        block["text"]
        for block in result.get("content", ())
        if isinstance(block, Mapping) and isinstance(block.get("text"), str)
    ]
    return SpokenError(tool, short("\n".join(texts[:10])))


def short(text: str) -> str:
    """Somebody else's words, as many as anybody will read."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
