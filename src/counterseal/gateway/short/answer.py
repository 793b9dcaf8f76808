"""One answer over HTTP: at once as a whole, or as a stream of events where it takes its time.

What is answered soon, and that is nearly everything, costs one message. A call that goes on is
looked after by a task of its own: it notices a client that has hung up, and lets the others along
the way know, now and then, that something is still coming.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic_core import to_json
from starlette.types import Message, Receive, Scope, Send

__all__ = ["Answer"]

_SOON: Final = 0.2
"""Seconds after which somebody looks whether the client is still there."""
_PING: Final = 15.0
"""Seconds between signs of life, and, since 2026-07-28, until an answer becomes a stream."""
_ALIVE: Final = b": ping\r\n\r\n"
_JSON_TYPE: Final = (b"content-type", b"application/json")
_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class Answer:
    """The answer to one request. `session` is that of 2025-11-25, where all answers are events."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, session: str | None) -> None:
        self._receive = receive
        self._send = send
        self._session = session
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_SOON, self._slow)
        self._keeper: asyncio.Task[None] | None = None
        self._turn: asyncio.Lock | None = None
        self.begun = False
        """Whether it is a stream already, that can't be anything else any more."""
        self.gone = False
        """Whether the client hung up, and has the call stopped by that."""

    async def event(self, message: Mapping[str, Any]) -> None:
        """Something to be told before the end."""
        await self._stream(_event(message))

    async def end(self, message: Mapping[str, Any], status: int = 200) -> None:
        """The last of it."""
        await self.leave()
        if self.begun:
            last = {"type": "http.response.body", "body": _event(message), "more_body": False}
            await self._send(last)
            return
        if self._session is None:
            body, own = _dumped(message), [_JSON_TYPE]
        else:
            body, own = _event(message), self._stream_headers()
        headers = [(b"content-length", b"%d" % len(body)), *own]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def leave(self) -> None:
        """Look after it no more: it is complete, or somebody else's."""
        self._timer.cancel()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait({keeper})

    # --- where it takes its time ------------------------------------------------------------------

    def _slow(self) -> None:
        work = self._watch() if self._session is None else self._keep_alive()
        self._keeper = asyncio.get_running_loop().create_task(work)

    async def _watch(self) -> None:
        """Since 2026-07-28, who hangs up has changed their mind."""
        pinging = asyncio.ensure_future(self._keep_alive())
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.gone = True
            if self._task is not None:
                self._task.cancel()
        finally:
            pinging.cancel()

    async def _keep_alive(self) -> None:
        if self._session is not None:
            await self._stream(b"")
        with suppress(OSError):  # a server may say so when the client is gone
            while True:
                await asyncio.sleep(_PING)
                await self._stream(_ALIVE)

    async def _stream(self, part: bytes) -> None:
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:
            if not self.begun:
                self.begun = True
                headers = self._stream_headers()
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            body: Message = {"type": "http.response.body", "body": part, "more_body": True}
            await self._send(body)

    def _stream_headers(self) -> list[tuple[bytes, bytes]]:
        if self._session is None:
            return _STREAM
        return [*_STREAM, (b"mcp-session-id", self._session.encode("latin-1"))]


def _dumped(message: Mapping[str, Any]) -> bytes:
    try:
        return to_json(message)
    except ValueError:  # half a character, which JSON can spell and UTF-8 can't
        return json.dumps(message, separators=(",", ":")).encode()


def _event(message: Mapping[str, Any]) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % _dumped(message)
