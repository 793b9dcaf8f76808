"""Bodies of requests: read whole, but no more than so much and no longer than so long; as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import jiter
from starlette.types import Message, Receive

from counterseal.web.api.problems import ProblemError

__all__ = [
    "MOST_BYTES",
    "GoneError",
    "is_json",
    "object_in",
    "read_body",
    "refuse_unsound",
    "replayed",
]

MOST_BYTES: Final = 1024 * 1024
_BLANK: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder()


class GoneError(Exception):
    """The caller hung up before the body was there: nobody waits for an answer."""


async def read_body(receive: Receive, announced: str, seconds: float) -> bytes:
    """All of it. ProblemError where it is too much, as announced or in truth, or takes too long."""
    if announced.isdecimal() and int(announced[:20]) > MOST_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                parts.append(_part(message))
                size += len(parts[-1])
                if size > MOST_BYTES:
                    raise _too_large()
                more = message.get("more_body", False)
    except TimeoutError:
        told = f"The body was not there within {seconds:g} s."
        raise ProblemError("request-timeout", told, headers={"Connection": "close"}) from None
    return b"".join(parts)


def _part(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise GoneError
    body: bytes = message.get("body", b"")
    return body


def _too_large() -> ProblemError:
    told = f"At most {MOST_BYTES:,} bytes are read."
    return ProblemError("too-large", told, headers={"Connection": "close"})


def replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for whoever reads it next."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def again() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        given, message = message, None
        return given

    return again


def is_json(media: str | None) -> bool:
    """Whether a body is said to be JSON, in UTF-8."""
    kind, _, more = (media or "").lower().partition(";")
    if kind.strip() != "application/json":
        return False
    return more.strip().replace('"', "") in ("", "charset=utf-8")


def refuse_unsound(body: bytes) -> None:
    """ProblemError for JSON that one reader would take differently from another."""
    try:
        _sound(body)
    except ValueError:
        raise _malformed("The body is not JSON that every reader reads alike.") from None


def object_in(body: bytes) -> dict[str, Any]:
    """The object that a body is, read as strictly as a model's arguments are. ProblemError.

    Where only the arguments are not sound (a key stands twice in them, say), they are given as the
    text that came: to refuse them, and to put that on record, is the first gate's work.
    """
    try:
        value = _sound(body)
    except ValueError:
        value = _in_slices(body)
    if not isinstance(value, dict):
        raise _malformed("The body has to be one JSON object.")
    return value


def _in_slices(body: bytes) -> dict[str, Any]:
    """The same of a body that is no sound JSON as a whole: the arguments are left as text."""
    try:
        members = _members(body.decode())
        arguments = members.pop("arguments")
        read = {name: _sound(text.encode()) for name, text in members.items()}
    except (ValueError, LookupError, RecursionError):
        raise _malformed("The body is not JSON that every reader reads alike.") from None
    return {**read, "arguments": arguments}


def _sound(data: bytes) -> Any:
    return jiter.from_json(data, allow_inf_nan=False, cache_mode="none", catch_duplicate_keys=True)


def _members(text: str) -> dict[str, str]:
    """The members of an object, each as its text. ValueError or IndexError for anything else."""
    found: dict[str, str] = {}
    place = _expect(text, 0, "{")
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, _skip(text, place))
        start = _skip(text, _expect(text, _skip(text, place), ":"))
        _, end = _DECODER.raw_decode(text, start)
        if not isinstance(name, str) or name in found:
            raise ValueError(name)
        found[name] = text[start:end]
        place = _skip(text, end)
        if text[place] != "}":
            place = _skip(text, _expect(text, place, ","))
            if text[place] == "}":
                raise ValueError(place)
    if _skip(text, place + 1) != len(text):
        raise ValueError(place)
    return found


def _expect(text: str, place: int, sign: str) -> int:
    """The place behind a sign, and behind what is blank."""
    place = _skip(text, place)
    if text[place] != sign:
        raise ValueError(place)
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _BLANK:
        place += 1
    return place


def _malformed(detail: str) -> ProblemError:
    return ProblemError("malformed-json", detail, param="", where="body")
