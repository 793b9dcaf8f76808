"""Passwords: the rules for them, and their argon2 hashes.

A hash costs 46 MiB and about fifty milliseconds of one core, on purpose. So only a few are computed
at a time, in threads of their own, and only a limited number may wait: an attacker who tries
passwords by the thousand slows down sign-ins, and nothing else.
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

MIN_LENGTH: Final = 12
"""Characters."""
MAX_BYTES: Final = 1024
_MAX_WAITING: Final = 64
"""Passwords that may wait to be hashed."""

T = TypeVar("T")


class BusyError(CountersealError):
    """Raised when too many passwords wait to be hashed."""


def check_password(password: str) -> None:
    """Raise RegistryError if the password breaks the rules. The message does not repeat it."""
    raw = _bytes(password)
    if raw is None:
        raise RegistryError("password: contains a character that is not text")
    if len(raw) > MAX_BYTES:
        raise RegistryError(f"password: must be at most {MAX_BYTES:,} bytes, got {len(raw):,}")
    if len(_normal(password)) < MIN_LENGTH:
        raise RegistryError(
            f"password: must be at least {MIN_LENGTH} characters; several words are fine"
        )


class Passwords:
    """Computes argon2id hashes and compares passwords with them."""

    def __init__(
        self,
        *,
        time_cost: int = 1,
        memory_kib: int = 47_104,
        at_once: int | None = None,
        waiting: int = _MAX_WAITING,
    ) -> None:
        self._time_cost = time_cost
        self._memory_kib = memory_kib
        self._at_once = at_once or max(1, min(4, (os.cpu_count() or 1) // 2))
        self._waiting = waiting
        self._pending = 0

    async def hashed(self, password: str) -> str:
        """Return the hash to store. Raises BusyError."""
        text = _normal(password)
        return await self._in_thread(lambda: self._hasher.hash(text))

    async def matches(self, stored: str | None, password: str) -> bool:
        """Return whether a password matches a stored hash. Raises BusyError.

        For a user who does not exist, pass None: it takes as long, and is False.
        """
        raw = _bytes(password)
        fits = raw is not None and len(raw) <= MAX_BYTES
        text = _normal(password) if fits else ""

        def compare() -> bool:
            if stored is None:
                self._hasher.hash(text)  # the same work
                return False
            return self._same(stored, text) and fits

        return await self._in_thread(compare)

    def outdated(self, stored: str) -> bool:
        """Return whether a hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(stored)

    def _same(self, stored: str, text: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - loaded

        try:
            return self._hasher.verify(stored, text)
        except (VerificationError, InvalidHashError):
            return False

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._pending >= self._waiting + self._at_once:
            raise BusyError("Too many people are signing in. Try again in a moment.")
        self._pending += 1
        task = asyncio.get_running_loop().run_in_executor(self._threads, work)
        # The thread goes on when the caller is cancelled, so its place stays taken until it ends.
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs it when the caller was cancelled

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._at_once, thread_name_prefix="counterseal-password")

    @cached_property
    def _hasher(self) -> PasswordHasher:
        from argon2 import PasswordHasher  # noqa: PLC0415 - an optional extra

        # One lane: a sign-in takes one core, and not all of them.
        return PasswordHasher(
            time_cost=self._time_cost, memory_cost=self._memory_kib, parallelism=1
        )


def _normal(password: str) -> str:
    """Normalise a password: keyboards encode the same letter in different ways."""
    return unicodedata.normalize("NFKC", password)


def _bytes(password: str) -> bytes | None:
    try:
        raw = _normal(password).encode()
    except UnicodeEncodeError:
        return None
    return None if b"\0" in raw else raw
