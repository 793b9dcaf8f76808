"""Lock-out: who has failed too often waits, and longer each time. Nobody waits for ever. Pure.

Failures are counted by name and by address, in memory, in each process for itself; they are
forgotten an hour after the last one. Names that nobody has are counted like others, or else the
wait would tell which there are. Whoever has signed in from an address is not kept out there by
guesses made elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from time import monotonic
from typing import Final, Generic, TypeVar

__all__ = ["Lockout", "address_of"]

_FIRST: Final = 30.0
"""Seconds that the first wait takes; each further failure doubles it."""
_LONGEST: Final = 900.0
_FORGOTTEN: Final = 3600.0
"""Seconds without a failure after which none is remembered."""
_MOST: Final = 20_000
"""How many names and addresses are remembered; the one not seen for longest goes first."""

K = TypeVar("K", bound=Hashable)


def address_of(source: str) -> str:
    """What counts as one address: a network of 64 bits in IPv6, for one customer has all of it."""
    try:
        found = ip_address(source.strip().partition("%")[0])
    except ValueError:
        return source[:100]
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Network((found, 64), strict=False))
    return str(found)


@dataclass(slots=True)
class _Count:
    failures: int = 0
    last: float = 0.0
    """When the last one was."""
    until: float = 0.0
    """Until when nobody may try."""


class _Counts(Generic[K]):
    """Failures under some kind of key."""

    def __init__(self, allowed: int, most: int) -> None:
        self._allowed = allowed
        self._most = most
        self._all: OrderedDict[K, _Count] = OrderedDict()

    def wait(self, key: K, now: float) -> float:
        found = self._all.get(key)
        return 0.0 if found is None else max(0.0, found.until - now)

    def failed(self, key: K, now: float) -> None:
        count = self._all.pop(key, None)
        if count is None or now - max(count.last, count.until) >= _FORGOTTEN:
            count = _Count()
        count.failures += 1
        count.last = now
        over = count.failures - self._allowed
        if over >= 0:
            count.until = now + min(_LONGEST, _FIRST * 2.0 ** min(over, 32))
        self._all[key] = count
        while len(self._all) > self._most:
            self._all.popitem(last=False)

    def took_back(self, key: K) -> None:
        """One failure was none."""
        found = self._all.get(key)
        if found is not None and found.failures > 0:
            found.failures -= 1
            found.until = 0.0  # it began when no wait was left

    def forget(self, key: K) -> None:
        self._all.pop(key, None)


class Lockout:
    """`begin` an attempt, and say if it `passed`: one that did not has failed already.

    So a thousand guesses that are made at once are no more than one after the other.
    """

    def __init__(
        self,
        *,
        by_name: int = 5,
        by_address: int = 20,
        steady: Callable[[], float] = monotonic,
        most: int = _MOST,
    ) -> None:
        self._names: _Counts[str] = _Counts(by_name, most)
        self._addresses: _Counts[str] = _Counts(by_address, most)
        self._pairs: _Counts[tuple[str, str]] = _Counts(by_name, most)
        self._steady = steady
        self._most = most
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Who has signed in from where."""

    def begin(self, name: str, address: str) -> float:
        """Count an attempt as failed. More than 0: it may not be made before so many seconds."""
        wait = self.wait(name, address)
        if wait > 0:
            return wait
        now, pair = self._steady(), (name, address)
        if pair in self._known:
            self._pairs.failed(pair, now)
        else:
            self._names.failed(name, now)
        self._addresses.failed(address, now)
        return 0.0

    def wait(self, name: str, address: str) -> float:
        """For how many seconds no attempt may be made."""
        now, pair = self._steady(), (name, address)
        known = pair in self._known
        by_name = self._pairs.wait(pair, now) if known else self._names.wait(name, now)
        return max(by_name, self._addresses.wait(address, now))

    def passed(self, name: str, address: str) -> None:
        """It has not failed. Of the address only this attempt is forgotten."""
        pair = (name, address)
        if pair not in self._known:
            self._names.forget(name)
        self._pairs.forget(pair)
        self._addresses.took_back(address)
        self._known[pair] = None
        self._known.move_to_end(pair)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def withdraw(self, name: str, address: str) -> None:
        """It was not made after all."""
        pair = (name, address)
        if pair in self._known:
            self._pairs.took_back(pair)
        else:
            self._names.took_back(name)
        self._addresses.took_back(address)
