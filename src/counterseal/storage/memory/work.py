"""Work that is due at some time. Who takes it has it for a while; then it is due again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from counterseal.ledger.rules import parked
from counterseal.storage.base import Claim, Concern, Due, DueKind, Finish

__all__ = ["Work"]

_Key = tuple[str, DueKind, str]


class Work:
    """By tenant, kind and ledger key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[_Key, Due] = {}
        self._due_at: dict[_Key, float] = {}

    def put_down(self, due: Iterable[tuple[float, Due]]) -> bool:
        """Work to be done later, but for what is there. Whether anything is new."""
        return self._put_down(due, self._clock())

    def _put_down(self, due: Iterable[tuple[float, Due]], now: float) -> bool:
        new = False
        for after, work in due:
            where = _key(work)
            if where not in self._due:
                self._due[where] = work._replace(fence=0, tries=0, failed=None, since=now)
                self._due_at[where] = now + after
                new = True
        return new

    def find(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        return self._due.get((tenant, kind, key))

    def about(self) -> set[tuple[str, str]]:
        """Tenants and keys of calls that are still to be verified or reversed."""
        kinds = (DueKind.VERIFY, DueKind.COMPENSATE)
        return {(tenant, key) for tenant, kind, key in self._due if kind in kinds}

    def claim(self, claim: Claim) -> Sequence[Due]:
        now = self._clock()
        found = []
        for where, due_at in self._due_at.items():
            work = self._due[where]
            if due_at > now - claim.lapsed_for or work.failed is not None:
                continue
            if claim.tools is None or work.tool in claim.tools:
                found.append((due_at, where))
        return [
            self._claimed(where, now + claim.lease) for _, where in sorted(found)[: claim.limit]
        ]

    def _claimed(self, where: _Key, until: float) -> Due:
        work = self._due[where]
        claimed = work._replace(fence=work.fence + 1, tries=work.tries + 1)
        self._due[where], self._due_at[where] = claimed, until
        return claimed

    def finish(self, request: Finish) -> bool:
        """What comes of it, and what follows; False for who has an old fence."""
        where = _key(request.work)
        there = self._due.get(where)
        if there is None or there.fence != request.work.fence:
            return False
        now = self._clock()
        if request.failed is not None:
            self._due[where] = there._replace(failed=request.failed, since=now)
        elif request.again_after is not None:
            self._due[where] = there._replace(failed=None)
            self._due_at[where] = now + request.again_after
        else:
            del self._due[where], self._due_at[where]
        self._put_down(request.due, now)
        return True

    def concerns(self, tenant: str | None) -> list[Concern]:
        return [
            parked(work)
            for work in self._due.values()
            if work.failed is not None and tenant in (None, work.tenant)
        ]


def _key(work: Due) -> _Key:
    return work.tenant, work.kind, work.key
