"""One request on its way: what came with it, and what every answer to it bears."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import getrandbits
from typing import Final, NamedTuple

from starlette.routing import Route
from starlette.types import Message, Scope, Send

from counterseal.accounts import Person
from counterseal.gateway.catalogue import Catalogue
from counterseal.runtime import Runtime
from counterseal.views import TenantView
from counterseal.web.api.callers import Caller
from counterseal.web.api.cursors import Cursors
from counterseal.web.api.problems import MEDIA, ProblemError

__all__ = ["JSON", "Answer", "Exchange", "House", "Raw", "request_id"]

Raw = list[tuple[bytes, bytes]]
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_OF_READING: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"private, no-cache"),
    (b"vary", b"Authorization, Cookie"),
)
"""What is no GET, no browser shows, and nobody keeps."""
JSON: Final = b"application/json"
_MOST_MARKED: Final = 1024 * 1024
"""Bytes of an answer for which an ETag is worked out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What all requests have in common."""

    runtime: Runtime
    view_for: Callable[[Person], TenantView]
    catalogue: Catalogue
    cursors: Cursors
    public: str
    """Our URL, without a slash at its end."""
    routes: Sequence[Route]


class Answer(NamedTuple):
    """One that is all there."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media: bytes = JSON


class Exchange:
    """A request, and the way back to whoever made it."""

    __slots__ = (
        "_send",
        "_start",
        "begun",
        "caller",
        "ended",
        "headers",
        "house",
        "limit",
        "method",
        "request_id",
    )

    def __init__(self, scope: Scope, send: Send, house: House) -> None:
        self.house = house
        self.method: str = scope["method"]
        self.headers = _read(scope["headers"])
        self.request_id = request_id(self.headers.get("x-request-id"))
        self.caller: Caller | None = None
        self.limit: tuple[bytes, bytes] | None = None
        """What is said of how often the caller may ask."""
        self.begun = self.ended = False
        self._send = send
        self._start: Message | None = None

    async def answer(self, answer: Answer) -> None:
        """Send something that is all there."""
        own: Raw = [(b"content-type", answer.media), *answer.headers]
        status, headers, body = self._dressed(answer.status, own, answer.body, whole=True)
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        body = b"" if self.method == "HEAD" else body
        await self._send({"type": "http.response.body", "body": body})
        self.ended = True

    async def refuse(self, problem: ProblemError) -> None:
        headers = tuple((n.lower().encode(), v.encode()) for n, v in problem.headers.items())
        body = problem.body(self.request_id)
        await self.answer(Answer(problem.known.status, body, headers, MEDIA))

    async def send(self, message: Message) -> None:
        """Pass an answer on, with what every answer bears. A short one waits for its body."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body = message.get("body", b"")
        if self._start is not None:
            start, self._start = self._start, None
            whole = not message.get("more_body")
            own = [one for one in start["headers"] if one[0] != b"content-length"]
            status, headers, body = self._dressed(start["status"], own, body, whole=whole)
            self.begun = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if self.method == "HEAD":
            body = b""
        await self._send({**message, "body": body})
        self.ended = not message.get("more_body")

    def _dressed(
        self, status: int, own: Raw, body: bytes, *, whole: bool
    ) -> tuple[int, Raw, bytes]:
        """Status, headers and body as they are sent."""
        headers: Raw = [(b"x-request-id", self.request_id.encode())]
        if self.limit is not None:
            headers.append(self.limit)
        if self.method != "POST":
            headers += _OF_READING
        headers += own
        if not whole:
            return status, headers, body
        if status == 200 and self.method in ("GET", "HEAD") and len(body) <= _MOST_MARKED:
            mark = f'"{sha256(body).hexdigest()[:32]}"'
            headers.append((b"etag", mark.encode()))
            if _matches(self.headers.get("if-none-match"), mark):
                return 304, [one for one in headers if one[0] != b"content-type"], b""
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        return status, headers, body


def request_id(given: str | None) -> str:
    """The caller's, where it is a sane one; else a new one."""
    if given is None or _REQUEST_ID.fullmatch(given) is None:
        return f"req_{getrandbits(96):024x}"
    return given


def _read(raw: Raw) -> Mapping[str, str]:
    """Headers by lower-case name. Of what comes twice both are there, so that neither counts."""
    found: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        joint = "; " if key == "cookie" else ", "
        found[key] = f"{found[key]}{joint}{text}" if key in found else text
    return found


def _matches(given: str | None, mark: str) -> bool:
    if given is None:
        return False
    if given.strip() == "*":
        return True
    return any(one.strip().removeprefix("W/") == mark for one in given.split(","))
