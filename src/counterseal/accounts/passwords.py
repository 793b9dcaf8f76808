"""Passwords: what may be one, and argon2 hashes of them, made aside from everything else.

A hash costs 46 MiB and some fifty milliseconds of one core, on purpose. So few are made at a time,
in threads of their own, and only so many may wait: whoever tries passwords by the thousand slows
down nobody but those who sign in at the same moment.
"""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from counterseal.errors import CountersealError, RegistryError

if TYPE_CHECKING:
    from argon2 import PasswordHasher

__all__ = ["LEAST", "MOST_BYTES", "BusyError", "Passwords", "refuse_unfit"]

LEAST: Final = 12
"""Characters that a password has at least."""
MOST_BYTES: Final = 1024
_WAITING: Final = 64
"""How many passwords may wait to be looked at."""

T = TypeVar("T")


class BusyError(CountersealError):
    """Too many passwords wait to be looked at. Come back in a moment."""


def refuse_unfit(password: str) -> None:
    """RegistryError for what can't be a password; it does not repeat it."""
    raw = _bytes(password)
    if raw is None:
        raise RegistryError("password: holds a character that is no text")
    if len(raw) > MOST_BYTES:
        raise RegistryError(f"password: takes at most {MOST_BYTES:,} bytes, this has {len(raw):,}")
    if len(_normal(password)) < LEAST:
        raise RegistryError(f"password: takes at least {LEAST} characters; several words are fine")


class Passwords:
    """Makes hashes and compares with them. The parameters are argon2id's."""

    def __init__(
        self,
        *,
        time_cost: int = 1,
        memory_kib: int = 47_104,
        at_once: int | None = None,
        waiting: int = _WAITING,
    ) -> None:
        self._time_cost = time_cost
        self._memory_kib = memory_kib
        self._at_once = at_once or max(1, min(4, (os.cpu_count() or 1) // 2))
        self._waiting = waiting
        self._asked = 0

    async def hashed(self, password: str) -> str:
        """To be kept. BusyError."""
        text = _normal(password)
        return await self._aside(lambda: self._hasher.hash(text))

    async def matches(self, kept: str | None, password: str) -> bool:
        """Whether it is the password of which this hash was kept. BusyError.

        None, for somebody who is not there, takes as long as any other.
        """
        raw = _bytes(password)
        fits = raw is not None and len(raw) <= MOST_BYTES
        text = _normal(password) if fits else ""

        def compared() -> bool:
            if kept is None:
                self._hasher.hash(text)  # the same work
                return False
            return self._same(kept, text) and fits

        return await self._aside(compared)

    def outdated(self, kept: str) -> bool:
        """Whether it was made with other parameters than these."""
        return self._hasher.check_needs_rehash(kept)

    def _same(self, kept: str, text: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - loaded

        try:
            return self._hasher.verify(kept, text)
        except (VerificationError, InvalidHashError):
            return False

    async def _aside(self, work: Callable[[], T]) -> T:
        if self._asked >= self._waiting + self._at_once:
            raise BusyError("Too many people sign in just now. Try again in a moment.")
        self._asked += 1
        task = asyncio.get_running_loop().run_in_executor(self._threads, work)
        # A caller that goes away takes no place from the work, which goes on.
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[T]) -> None:
        self._asked -= 1
        if not task.cancelled():
            task.exception()  # or else asyncio complains where the caller has gone

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._at_once, thread_name_prefix="counterseal-password")

    @cached_property
    def _hasher(self) -> PasswordHasher:
        from argon2 import PasswordHasher  # noqa: PLC0415 - only who signs people in has it

        # One lane: a sign-in takes one core, and not all of them.
        return PasswordHasher(
            time_cost=self._time_cost, memory_cost=self._memory_kib, parallelism=1
        )


def _normal(password: str) -> str:
    """Keyboards write the same letter in different ways."""
    return unicodedata.normalize("NFKC", password)


def _bytes(password: str) -> bytes | None:
    try:
        raw = _normal(password).encode()
    except UnicodeEncodeError:
        return None
    return None if b"\0" in raw else raw
