"""All upstreams together: connected to when they are opened, closed with all that they started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from counterseal.execution.secrets import Credentials, Secrets
from counterseal.upstream.settings import Settings
from counterseal.upstream.upstream import Upstream

__all__ = ["Upstreams"]


class Upstreams(Mapping[str, Upstream]):
    """All of them by name. `async with Upstreams(settings, secrets=...)` connects and closes."""

    def __init__(self, settings: Iterable[Settings], *, secrets: Secrets | None = None) -> None:
        credentials = Credentials({} if secrets is None else secrets)
        self._all = {one.name: Upstream(one, credentials) for one in settings}

    def __getitem__(self, name: str) -> Upstream:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    async def __aenter__(self) -> Self:
        """Start connecting to all of them. Does not wait, and fails for none; see `settle`."""
        for upstream in self._all.values():
            upstream.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(upstream.close() for upstream in self._all.values()))

    async def settle(self) -> None:
        """Until each is ready, or has failed once."""
        await asyncio.gather(*(upstream.settle() for upstream in self._all.values()))
