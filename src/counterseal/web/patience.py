"""Whoever takes too long to send a request is hung up on: its head, or the rest of its body.

A server that waits for ever can be kept busy with nothing. Routes have their own, shorter patience
with bodies, and say so; this is for what never gets to a route. It looks at connections now and
then, so requests pay nothing for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Final

__all__ = ["Patience"]

_LONGEST: Final = 30.0


class Patience:
    """`seconds` is how long a connection may go without a whole request."""

    def __init__(
        self, seconds: float = _LONGEST, *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._steady = steady
        self._since: dict[Any, tuple[object, float]] = {}
        """Connections that we wait for: after which request, and since when."""

    def hang_up(self, connections: Collection[Any]) -> None:
        """End those of uvicorn's connections that have had their time."""
        now, before = self._steady(), self._since
        self._since = {}
        for one in connections:
            request = getattr(one, "cycle", None)
            if not _waited_for(request):
                continue
            last = (request, getattr(one, "repeated", 0))
            known, since = before.get(one, (last, now))
            self._since[one] = (last, since if known == last else now)
            if known == last and now - since >= self._seconds:
                one.transport.close()


def _waited_for(request: Any) -> bool:
    """Whether more of a request has to come, after this one or of it."""
    return request is None or bool(request.response_complete or request.more_body)
