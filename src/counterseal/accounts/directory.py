"""Who people are: the seam between those who ask it and where users are kept.

Sessions and personal keys ask a directory at every request, so that a role that was taken away is
gone at once. Local users are one; what asks an OpenID Connect provider can be another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from counterseal.operations.operator import News
from counterseal.registry.identities import User

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Directory", "LocalUsers"]


class Directory(Protocol):
    """StoreError where it can't be told now; then nobody is let in."""

    async def user(self, name: str) -> User | None:
        """Who that is now, be they active or not; None when there is no such user."""

    async def user_now(self, name: str) -> User | None:
        """The same, as of this very moment: for those who are about to be let in."""

    async def holder(self, key_id: str) -> User | None:
        """Whose personal key it is; None when it is nobody's."""


class LocalUsers:
    """The users whom operators have made: what is known of them is at most a second old."""

    def __init__(self, runtime: Runtime, *, steady: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._news = News(runtime, steady)
        self._doubts = News(runtime, steady)

    async def user(self, name: str) -> User | None:
        await self._news.heard()
        return self._runtime.registry.user(name)

    async def user_now(self, name: str) -> User | None:
        await self._runtime.catch_up()
        return self._runtime.registry.user(name)

    async def holder(self, key_id: str) -> User | None:
        await self._news.heard()
        found = self._runtime.registry.key_holder(key_id)
        if found is None:
            await self._doubts.heard()  # it may have been issued just now, elsewhere
            found = self._runtime.registry.key_holder(key_id)
        return found
