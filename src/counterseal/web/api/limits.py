"""How often somebody may ask: a token bucket for each credential, and for each address without one.

In memory, for one process. What a contract or a tenant's budget limits is limited elsewhere.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from counterseal.web.api.problems import ProblemError

__all__ = ["ADDRESS", "CREDENTIAL", "Limits", "Rate", "place_of"]

_MOST: Final = 10_000
"""Buckets that are kept; who was not heard of for longest has a full one again."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second on average, and so many at once after a rest."""

    each_second: float
    at_once: int

    def __post_init__(self) -> None:
        if not (self.each_second > 0 and self.at_once >= 1):
            raise ValueError("a rate lets at least something pass")


CREDENTIAL: Final = Rate(200.0, 1000)
ADDRESS: Final = Rate(5.0, 100)
"""What is let pass unless it is said otherwise."""


class Limits:
    """Both kinds. `take` raises where there is nothing left; what it returns tells what is."""

    def __init__(
        self,
        *,
        credential: Rate = CREDENTIAL,
        address: Rate = ADDRESS,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = _Buckets("credential", credential, steady)
        self._addresses = _Buckets("address", address, steady)

    def by_credential(self, name: str) -> tuple[bytes, bytes] | None:
        """For every request of somebody who is known. A header that says how much is left.

        None as long as that is more than half.
        """
        return self._credentials.take(name)

    def by_address(self, address: str) -> None:
        """For every request of somebody who is not."""
        self._addresses.take(place_of(address))


class _Buckets:
    def __init__(self, name: str, rate: Rate, steady: Callable[[], float]) -> None:
        self._rate = rate
        self._steady = steady
        self._full = float(rate.at_once)
        self._half = self._full / 2
        self._left: OrderedDict[str, list[float]] = OrderedDict()
        """How much is in each bucket, and since when."""
        window = max(1, math.ceil(rate.at_once / rate.each_second))
        self._policy = f'"{name}";q={rate.at_once};w={window}'
        self._format = f'"{name}";r=%d;t=%d'.encode()

    def take(self, who: str) -> tuple[bytes, bytes] | None:
        now = self._steady()
        bucket = self._left.get(who)
        if bucket is None:
            bucket = self._left[who] = [self._full, now]
            if len(self._left) > _MOST:
                self._left.popitem(last=False)
        else:
            self._left.move_to_end(who)
        left = bucket[0] + (now - bucket[1]) * self._rate.each_second
        left = min(left, self._full)
        bucket[1] = now
        if left < 1.0:
            bucket[0] = left
            raise self._refusal(left)
        bucket[0] = left - 1.0
        return None if left > self._half else self._standing(left - 1.0)

    def _standing(self, left: float) -> tuple[bytes, bytes]:
        wait = 0 if left >= 1.0 else math.ceil((1.0 - left) / self._rate.each_second)
        return b"ratelimit", self._format % (int(left), wait)

    def _refusal(self, left: float) -> ProblemError:
        wait = max(1, math.ceil((1.0 - left) / self._rate.each_second))
        headers = {
            "Retry-After": str(wait),
            "RateLimit-Policy": self._policy,
            "RateLimit": self._standing(left)[1].decode(),
        }
        return ProblemError("rate-limited", f"Try again in {wait} s.", headers=headers)


def place_of(address: str) -> str:
    """Under which a caller is counted: of IPv6, whoever has one address has all of its network."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is not None:
            return str(known.ipv4_mapped)
        return str(ipaddress.ip_network((known, 64), strict=False))
    return str(known)
