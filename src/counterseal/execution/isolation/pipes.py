"""The three pipes to a child: messages in both directions, and what it prints."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from counterseal.execution.isolation.cover import NO_COVER, Cover
from counterseal.execution.isolation.framing import LONGEST_MESSAGE, framed, is_too_much

__all__ = ["Lines", "Link", "Messages"]

_LONGEST_LINE = 2 * 1024
_TAIL = 16 * 1024


class Messages(asyncio.Protocol):
    """Cuts what a child writes into messages. Stops at the first that is none."""

    def __init__(self, receive: Callable[[list[Any]], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._data = bytearray()
        self._over = False
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and not self._over:
            size = int.from_bytes(self._data[:4], "big")
            if size > LONGEST_MESSAGE:
                self._give_up()
                return
            if len(self._data) < 4 + size:
                return
            body = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            try:
                message = None if is_too_much(body) else json.loads(body)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, list):
                self._receive(message)
            else:
                self._give_up()

    def _give_up(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.close()
        self._lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


class Lines(asyncio.Protocol):
    """Cuts what a child prints into lines, each bounded, and keeps the end of it.

    What is printed belongs to a call from its `begin` until the child prints the call's fence;
    before and after, nobody hears it. A secret may be printed over several lines, so while there
    are some to hide, the last lines are held back until more follow, or the call is over.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Whether all that the call printed was heard."""
        self._receive: Callable[[str], None] | None = None
        self._fence = b""
        self._cover = NO_COVER
        self._line = bytearray()
        self._held = ""
        self._tail = bytearray()

    def begin(
        self, receive: Callable[[str], None] | None, fence: str, cover: Cover = NO_COVER
    ) -> None:
        self._line.clear()
        self._held = ""
        self._tail.clear()
        self.ended.clear()
        self._receive = receive
        self._fence = fence.encode()
        self._cover = cover

    def finish(self) -> None:
        """The call is over, however it ended: tell what was held back, and nothing more."""
        self._flush()
        self._tell(0)
        self._receive = None

    def tail(self) -> str:
        cut = len(self._tail) >= self._cover.kept(_TAIL)
        return self._cover.ending(self._tail.decode(errors="replace"), _TAIL, cut=cut)

    def data_received(self, data: bytes) -> None:
        self._tail += data
        del self._tail[: -self._cover.kept(_TAIL)]
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._flush()
        self._add(rest)
        if len(self._held) > 2 * self._cover.margin:
            self._tell(self._cover.margin)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish()
        self.ended.set()

    def _add(self, piece: bytes) -> None:
        self._line += piece[: self._cover.kept(_LONGEST_LINE) - len(self._line)]

    def _flush(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if line == self._fence and self._fence:
            self.finish()
            self.ended.set()
        elif line and self._receive is not None:
            text = line.decode(errors="replace")
            if len(line) > _LONGEST_LINE:
                cut = len(line) >= self._cover.kept(_LONGEST_LINE)
                text = self._cover.beginning(text, _LONGEST_LINE, cut=cut)
            self._held += f"{text}\n"

    def _tell(self, margin: int) -> None:
        """Pass on what is held, but for so much of the end, in which half a secret may stand."""
        clean = self._cover.text(self._held)
        told = clean.rfind("\n", 0, len(clean) - margin) + 1 if margin else len(clean)
        self._held = clean[told:]
        for line in clean[:told].split("\n"):
            if line and self._receive is not None:
                self._receive(line[:_LONGEST_LINE])


class Link:
    """Our ends of the three pipes, which it owns from now on."""

    def __init__(self, jobs: int, messages: int, output: int) -> None:
        self._files = (
            os.fdopen(jobs, "wb", buffering=0),
            os.fdopen(messages, "rb", buffering=0),
            os.fdopen(output, "rb", buffering=0),
        )
        self._jobs: asyncio.WriteTransport | None = None
        self._open: list[asyncio.BaseTransport] = []

    async def open(self, messages: Messages, lines: Lines) -> None:
        loop = asyncio.get_running_loop()
        to_child, from_child, printed = self._files
        self._jobs, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, to_child)
        self._open.append(self._jobs)
        transport, _ = await loop.connect_read_pipe(lambda: messages, from_child)
        self._open.append(transport)
        transport, _ = await loop.connect_read_pipe(lambda: lines, printed)
        self._open.append(transport)

    def send(self, message: bytes) -> None:
        if self._jobs is not None and not self._jobs.is_closing():
            self._jobs.write(framed(message))

    def hang_up(self) -> None:
        if self._jobs is not None:
            self._jobs.close()

    async def close(self) -> None:
        for transport in self._open:
            transport.close()
        for file in self._files[len(self._open) :]:
            with suppress(OSError):
                file.close()
        await asyncio.sleep(0)
