"""What is written to connections goes out when a turn of the event loop is over, for all at once.

Each answer that is sent by itself wakes a client that sleeps, which costs the server as much as all
the gates; of those that go out together, one does, and finds the others there. Who is alone is
answered at once: a trip through the event loop would only make them wait.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

__all__ = ["Gathering", "Outbox"]


class Outbox:
    """Of one event loop."""

    _all: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Gathering] = []
        self._last: Gathering | None = None
        """Who was answered last."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Outbox:
        """The one of this loop."""
        found = cls._all.get(loop)
        if found is None:
            found = cls._all[loop] = cls(loop)
        return found

    def add(self, one: Gathering) -> None:
        """Flush it when the turn is over."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(one)

    def is_alone(self, one: Gathering) -> bool:
        """Whether it was also the last that was answered, and nobody waits for the turn to end."""
        alone = one is self._last and not self._waiting
        self._last = one
        return alone

    def forget(self, one: Gathering) -> None:
        """It is over."""
        if one is self._last:
            self._last = None

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.flush()


class Gathering:
    """A transport that gathers what is written to it until the turn is over."""

    def __init__(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        self._transport = transport
        self._outbox = outbox
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._outbox.add(self)
        self._held.append(data)

    def write_whole(self, data: bytes) -> None:
        """The same for something with which nothing else will go."""
        if not self._held and self._outbox.is_alone(self):
            self._transport.write(data)
        else:
            self.write(data)

    def flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        self.flush()
        self._outbox.forget(self)
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        # What is asked for is kept, so that it is looked for once.
        found = getattr(self._transport, name)
        setattr(self, name, found)
        return found
