"""uvicorn's connections, with the head of an answer and its content written at once.

uvicorn writes them one after the other, and uvloop writes at once: two system calls, two packets,
and a client that wakes up twice. Here, what is written in one turn of the event loop goes out at
the end of that turn.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["OneWriteProtocol"]


class OneWriteProtocol(HttpToolsProtocol):
    """To be given to uvicorn as `http`."""

    def connection_made(self, transport: Any) -> None:
        gathering: Any = _Gathering(transport, self.loop)
        super().connection_made(gathering)


class _Gathering:
    """A transport that gathers what is written to it until the turn is over."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        # What is asked for is kept, so that it is looked for once.
        found = getattr(self._transport, name)
        setattr(self, name, found)
        return found
