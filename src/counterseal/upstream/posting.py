"""A request to an upstream with a URL that is answered at once, without the library in between.

Only what is plainly a result is read here. Whatever else comes back (questions, notifications, an
error, another status, nothing) is handed to the library, as if it had sent the request itself: it
knows what to do with it, and `web` what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx2
from pydantic_core import from_json, to_json

from counterseal.upstream.exchange import Exchange
from counterseal.upstream.wire import EVENTS, JSON, Rest, Wire, Wires

__all__ = ["Posting", "is_plain"]

_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
}
_ANSWER: Final = frozenset({"jsonrpc", "id", "result"})
_RESULT: Final = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_TEXT: Final = frozenset({"type", "text"})


class Posting:
    """Sends requests to one URL."""

    def __init__(self, client: httpx2.AsyncClient, url: str, most: int, connect: float) -> None:
        request = client.build_request("POST", url, headers=_HEADERS)
        self._head = _head(request)
        self._names = {name.lower() for name in request.headers}
        self._wires = Wires(request.url, most, connect)

    def close(self) -> None:
        self._wires.close()

    async def result(
        self,
        number: str,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        exchange: Exchange,
    ) -> dict[str, Any] | None:
        """The result, if it came plainly. Else what came is in the exchange, if it was sent."""
        request = self._written(number, method, params, headers)
        if request is None or self._wires.full:
            return None
        try:
            wire = await self._wires.get()
        except httpx2.TransportError as error:
            exchange.came = error
            return None
        exchange.sent = True
        try:
            await wire.ask(request)
        except BaseException:
            self._wires.give_back(wire)  # who does not wait for an answer hangs up
            raise
        found = _plain_result(wire, number)
        if found is not None:
            self._wires.give_back(wire, ending=True)
            return found
        exchange.came = self._came(wire)
        return None

    def _written(
        self, number: str, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> bytes | None:
        """The request as it goes out, or None for what the library is to look at."""
        if self._head is None:
            return None
        try:
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            body = to_json(message)
        except ValueError:
            return None
        if any(name.lower() in self._names for name in headers):
            return None
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not lines.isascii() or lines.count("\n") != len(headers) or "\0" in lines:
            return None
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (self._head, lines.encode(), len(body), body)

    def _came(self, wire: Wire) -> httpx2.Response | httpx2.TransportError:
        if wire.error is not None and not wire.status:
            self._wires.give_back(wire)
            return wire.error
        return httpx2.Response(wire.status, headers=wire.headers, stream=Rest(self._wires, wire))


def _head(request: httpx2.Request) -> bytes | None:
    """The part of all requests that is the same; None where that can't be written down plainly."""
    if request.url.scheme not in ("http", "https") or request.url.userinfo:
        return None
    lines = [b"POST %b HTTP/1.1" % request.url.raw_path]
    for name, value in request.headers.raw:
        if name.lower() == b"content-length":
            continue
        if value != value.strip() or any(sign in value for sign in b"\r\n\0"):
            return None
        lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join(lines) + b"\r\n"


def _plain_result(wire: Wire, number: str) -> dict[str, Any] | None:
    """The result in an answer that holds nothing else."""
    if wire.status != 200 or wire.error is not None or _is_coded(wire):
        return None
    body = b"".join(wire.parts)
    if wire.kind == EVENTS:
        body = _only_event(body)
    elif wire.kind != JSON or not wire.complete:
        return None
    try:
        message = from_json(body, cache_strings="keys")
    except ValueError:
        return None
    if type(message) is not dict or message.keys() != _ANSWER or message["id"] != number:
        return None
    result = message["result"]
    return result if message["jsonrpc"] == "2.0" and type(result) is dict else None


def _is_coded(wire: Wire) -> bool:
    return any(name.lower() == b"content-encoding" for name, _ in wire.headers)


def _only_event(body: bytes) -> bytes:
    """What the one event says, if there is one, whole, and without a name to come back to."""
    text = body.replace(b"\r\n", b"\n")
    if not text.endswith(b"\n\n"):
        return b""
    lines = text.strip(b"\n").split(b"\n")
    if lines and lines[0] == b"event: message":
        del lines[0]
    return lines[0][6:] if len(lines) == 1 and lines[0].startswith(b"data: ") else b""


def is_plain(result: Mapping[str, Any], *, modern: bool) -> bool:
    """Whether a result of a call is one without a second look: texts, and perhaps an object."""
    content = result.get("content")
    return (
        result.keys() <= _RESULT
        and type(content) is list
        and all(_is_text(block) for block in content)
        and type(result.get("structuredContent", {})) is dict
        and type(result.get("isError", False)) is bool
        and type(result.get("_meta", {})) is dict
        and result.get("resultType") == ("complete" if modern else None)
    )


def _is_text(block: Any) -> bool:
    return (
        type(block) is dict
        and block.keys() == _TEXT
        and block["type"] == "text"
        and type(block["text"]) is str
    )
