"""Bodies of requests to the API: bounded in size and time, and strict JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final
from urllib.parse import parse_qsl

import jiter
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterseal.canonical import pointer
from counterseal.web.api.context import context_of
from counterseal.web.api.problems import RequestProblemError

MAX_BYTES: Final = 1024 * 1024
_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_REPEATABLE: Final = ("type",)
"""Query parameters that may be given several times."""
_BLANK: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder()


class QueryParameters:
    """Refuses a parameter that is given twice: each reader on the way could take another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and b"&" in scope["query_string"]:
            query = scope["query_string"].decode("latin-1")
            names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
            for name in names:
                if name not in _REPEATABLE and names.count(name) > 1:
                    raise RequestProblemError(
                        "invalid-request",
                        f'Parameter "{name[:100]}" is given twice. Send it once.',
                        param=pointer(name[:100]),
                        where="query",
                    )
        await self._app(scope, receive, send)


class JsonBodies:
    """Reads bodies within a size and a time, and refuses what is not JSON.

    The application gets the whole body in one message. `lenient` are paths whose route checks the
    JSON itself.
    """

    def __init__(self, app: ASGIApp, seconds: float, lenient: tuple[str, ...] = ()) -> None:
        self._app = app
        self._seconds = seconds
        self._lenient = lenient

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _METHODS:
            await self._app(scope, receive, send)
            return
        headers = context_of(scope).headers
        body = await self._read(receive, headers.get("content-length", "0"))
        if body and not _is_json(headers.get("content-type")):
            detail = "Content-Type must be application/json, in UTF-8."
            raise RequestProblemError(
                "unsupported-media-type", detail, param="/content-type", where="header"
            )
        if body and scope["path"] not in self._lenient:
            _parsed_body(body)
        await self._app(scope, _replayed(body, receive), send)

    async def _read(self, receive: Receive, announced: str) -> bytes:
        if announced.isdecimal() and int(announced[:20]) > MAX_BYTES:
            raise _too_large()
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    if len(body) > MAX_BYTES:
                        raise _too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            detail = f"The body did not arrive within {self._seconds:g} s."
            raise RequestProblemError(
                "request-timeout", detail, headers={"Connection": "close"}
            ) from None
        return bytes(body)


def _too_large() -> RequestProblemError:
    detail = f"The body must be at most {MAX_BYTES:,} bytes."
    return RequestProblemError("too-large", detail, headers={"Connection": "close"})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, and then what comes after it."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def receive_again() -> Message:
        nonlocal first
        if first is None:
            return await receive()
        message, first = first, None
        return message

    return receive_again


def _is_json(media_type: str | None) -> bool:
    kind, _, more = (media_type or "").lower().partition(";")
    if kind.strip() != "application/json":
        return False
    return more.strip().replace('"', "") in ("", "charset=utf-8")


def body_object(body: bytes) -> dict[str, Any]:
    """Return the object that a call's body is, read as strictly as a model's arguments.

    If only the arguments are invalid (for example, with a key twice), they are returned as text:
    the parse gate refuses and records them. Raises RequestProblemError.
    """
    try:
        value = _parsed(body)
    except ValueError as error:
        value = _with_arguments_as_text(body, error)
    if not isinstance(value, dict):
        raise _malformed("The body must be one JSON object.")
    return value


def _with_arguments_as_text(body: bytes, error: ValueError) -> dict[str, Any]:
    try:
        members = _members(body.decode())
        arguments = members.pop("arguments")
        value = {name: _parsed(text.encode()) for name, text in members.items()}
    except (ValueError, LookupError, RecursionError):
        raise _not_json(error) from None
    return {**value, "arguments": arguments}


def _parsed_body(body: bytes) -> Any:
    try:
        return _parsed(body)
    except ValueError as error:
        raise _not_json(error) from None


def _parsed(data: bytes) -> Any:
    return jiter.from_json(data, allow_inf_nan=False, cache_mode="none", catch_duplicate_keys=True)


def _members(text: str) -> dict[str, str]:
    """Return the members of an object, each as its text. Raises ValueError or IndexError."""
    members: dict[str, str] = {}
    place = _expect(text, 0, "{")
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, _skip(text, place))
        start = _skip(text, _expect(text, _skip(text, place), ":"))
        _, end = _DECODER.raw_decode(text, start)
        if not isinstance(name, str) or name in members:
            raise ValueError(name)
        members[name] = text[start:end]
        place = _skip(text, end)
        if text[place] != "}":
            place = _skip(text, _expect(text, place, ","))
            if text[place] == "}":
                raise ValueError(place)
    if _skip(text, place + 1) != len(text):
        raise ValueError(place)
    return members


def _expect(text: str, place: int, sign: str) -> int:
    """Return the place after a sign and the blanks after it."""
    place = _skip(text, place)
    if text[place] != sign:
        raise ValueError(place)
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _BLANK:
        place += 1
    return place


def _not_json(error: ValueError) -> RequestProblemError:
    """Return the problem, with the parser's reason and place."""
    reason = str(error).replace("Detected duplicate", "duplicate").partition(" column ")[0]
    return _malformed(f"The body is not valid JSON: {reason[:200]}.")


def _malformed(detail: str) -> RequestProblemError:
    return RequestProblemError("malformed-json", detail, param="", where="body")
