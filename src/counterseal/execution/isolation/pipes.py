"""The three pipes to a child: messages in both directions, and what it prints."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

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
    before and after, nobody hears it.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Whether all that the call printed was heard."""
        self._receive: Callable[[str], None] | None = None
        self._fence = b""
        self._line = bytearray()
        self._tail = bytearray()

    def begin(self, receive: Callable[[str], None] | None, fence: str) -> None:
        self._line.clear()
        self._tail.clear()
        self.ended.clear()
        self._receive = receive
        self._fence = fence.encode()

    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    def data_received(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-_TAIL]
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._flush()
        self._add(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._flush()
        self.ended.set()

    def _add(self, piece: bytes) -> None:
        self._line += piece[: _LONGEST_LINE - len(self._line)]

    def _flush(self) -> None:
        if self._line == self._fence and self._fence:
            self._receive = None
            self.ended.set()
        elif self._line and self._receive is not None:
            self._receive(self._line.decode(errors="replace"))
        self._line.clear()


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
