"""What was spent, by runs and by tenants, and how fast."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from counterseal.storage.base import Admission, Admit, Refused

__all__ = ["Counters"]

_Counters = dict[str, float]
_NOTHING: Final[Mapping[str, float]] = {}
_OF_A_DAY: Final = re.compile(r"/([0-9]+)$")
"""How the name of a counter ends that counts for a day."""


class Counters:
    def __init__(self) -> None:
        self._runs: defaultdict[tuple[str, str], _Counters] = defaultdict(dict)
        self._tenants: defaultdict[str, _Counters] = defaultdict(dict)
        self._rates: defaultdict[str, _Counters] = defaultdict(dict)

    def of(
        self, tenant: str, run_id: str
    ) -> tuple[Mapping[str, float], Mapping[str, float], Mapping[str, float]]:
        """The run's, the tenant's, and the rates."""
        return (
            self._runs.get((tenant, run_id), _NOTHING),
            self._tenants.get(tenant, _NOTHING),
            self._rates.get(tenant, _NOTHING),
        )

    def spend(self, request: Admit) -> Admission | None:
        """Spend everything, or nothing and say which limit is in the way."""
        own = self._runs[request.tenant, request.run_id]
        shared, rates = self._tenants[request.tenant], self._rates[request.tenant]
        done: list[tuple[_Counters, str, float | None]] = []
        for charge in request.charges:
            _, name, amount, limit, of_run = charge
            counters = own if of_run else shared
            before = counters.get(name)
            spent = before or 0.0
            if spent + amount > limit and charge.exceeds(spent):
                _undo(done)
                return Admission(Refused.BUDGET, charge=charge, spent=spent)
            counters[name] = spent + amount
            done.append((counters, name, before))
        now = request.now
        for rate in request.rates:
            counter, interval, _ = rate
            before = rates.get(counter)
            arrival = before or 0.0
            if arrival <= now:
                rates[counter] = now + interval
            else:
                wait = rate.wait(arrival, now)
                if wait > 0:
                    _undo(done)
                    return Admission(Refused.RATE, rate=rate, retry_after=wait)
                rates[counter] = rate.next(arrival, now)
            done.append((rates, counter, before))
        return None

    def forget_days(self, before: int, limit: int) -> int:
        """Forget what tenants spent on days before this one. How many counters."""
        old = sorted(
            (int(day[1]), tenant, name)
            for tenant, counters in self._tenants.items()
            for name in counters
            if (day := _OF_A_DAY.search(name)) is not None and int(day[1]) < before
        )
        for _, tenant, name in old[:limit]:
            del self._tenants[tenant][name]
        return len(old[:limit])


def _undo(done: list[tuple[_Counters, str, float | None]]) -> None:
    for counters, name, before in reversed(done):
        if before is None:
            del counters[name]
        else:
            counters[name] = before
