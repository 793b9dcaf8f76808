"""Those in this process who wait for something to change, and how they are woken."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["SHORTEST", "Waiting"]

SHORTEST: Final = 0.001
"""Nobody looks again sooner than after so many seconds, unless woken."""

_Where = tuple[str, str]


class Waiting:
    """By tenant and key. For one event loop at a time."""

    __slots__ = ("_who",)

    def __init__(self) -> None:
        self._who: dict[_Where, list[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._who)

    def wake(self, tenant: str, key: str) -> None:
        """Something has changed there."""
        for one in self._who.get((tenant, key), ()):
            _end(one)

    def wake_all(self) -> None:
        """Something has changed, and nobody knows where."""
        for waiting in self._who.values():
            for one in waiting:
                _end(one)

    async def change(self, tenant: str, key: str, seconds: float) -> None:
        """Return when something has changed there, or when the time is over."""
        woken = asyncio.get_running_loop().create_future()
        others = self._who.setdefault((tenant, key), [])
        others.append(woken)
        try:
            await asyncio.wait((woken,), timeout=max(seconds, SHORTEST))
        finally:
            others.remove(woken)
            if not others:
                self._who.pop((tenant, key), None)


def _end(one: asyncio.Future[None]) -> None:
    if not one.done():
        one.set_result(None)
