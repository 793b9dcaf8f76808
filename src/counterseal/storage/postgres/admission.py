"""The transactions around an execution: admit, settle, renew; and watching somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from counterseal.ledger.entry import Entry, Status
from counterseal.ledger.rules import reservable, usable
from counterseal.storage.base import Admission, Admit, HeldStatus, Refused, Settle
from counterseal.storage.postgres.holds import change_held
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.rows import Line, RunRow, read, shown, written
from counterseal.storage.postgres.runs import advance, need_progress
from counterseal.storage.postgres.work import need_due, put_down
from counterseal.storage.postgres.world import Needs, World, told

__all__ = ["Admitting", "Renewing", "Settling", "Watching", "let_go"]

_ADMITTED: Final = Admission()


class Admitting(Job):
    """Everything is looked at before anything is changed, so what is refused leaves no trace."""

    __slots__ = ("_request", "_told")
    vain = True

    def __init__(self, request: Admit) -> None:
        super().__init__()
        self._request = request
        self._told = told(request.events)

    @property
    def lasting(self) -> bool:
        # What only spends, and leaves nothing that anybody could miss, does not wait for the disk.
        request = self._request
        return bool(request.entry or request.approval_id or self._told)

    def need(self, needs: Needs) -> None:
        request = self._request
        tenant, run_id = request.tenant, request.run_id
        needs.registry = True
        needs.runs.add((tenant, run_id))
        needs.state.update((tenant, run_id, key) for key in request.reads if key != "*")
        needs.counters.update(
            (tenant, run_id if one.of_run else "", one.counter) for one in request.charges
        )
        needs.rates.update((tenant, one.counter) for one in request.rates)
        if request.entry is not None:
            needs.entries.add((tenant, request.entry.key))
        if request.approval_id is not None:
            needs.held.add((tenant, request.approval_id))

    def work(self, world: World) -> Admission:
        request = self._request
        obstacle = _obstacle(world, request) or _spend(world, request)
        if obstacle is not None:
            return obstacle
        _pin(world, request)
        world.record(self._told)
        if request.approval_id is not None:
            change_held(world, (request.tenant, request.approval_id), status=HeldStatus.SPENT)
        if request.entry is None:
            return _ADMITTED
        return Admission(entry=_reserve(world, request, request.entry))


def _obstacle(world: World, request: Admit) -> Admission | None:
    """The first thing that has changed since the decision, and forbids it now."""
    if request.epoch != world.epoch:
        return Admission(Refused.EPOCH)
    tenant = request.tenant
    run = world.runs.get((tenant, request.run_id))
    if run is not None:
        if read(run.pins).get(request.tool, request.version) != request.version:
            return Admission(Refused.PIN)
        if request.reads and _moved(world, request, run):
            return Admission(Refused.STATE)
    if request.entry is not None:
        line = world.entries.get((tenant, request.entry.key))
        if line is not None:
            there = shown(line, world.now)
            if not reservable(there, request.takes_over):
                return Admission(Refused.DUPLICATE, there)
    if request.approval_id is not None:
        held = world.held.get((tenant, request.approval_id))
        if held is None or not usable(held.held, request.now):
            return Admission(Refused.APPROVAL)
    return None


def _moved(world: World, request: Admit, run: RunRow) -> bool:
    """Whether the state that the decision rests on is another by now."""
    for key, version in request.reads.items():
        if key == "*":
            now = run.changes
        else:
            row = world.state.get((request.tenant, request.run_id, key))
            now = 0 if row is None else row.version
        if now != version:
            return True
    return False


def _spend(world: World, request: Admit) -> Admission | None:
    """Spend everything, or nothing and say which limit is in the way."""
    tenant, now = request.tenant, request.now
    counters: dict[tuple[str, str, str], float] = {}
    for charge in request.charges:
        counter = (tenant, request.run_id if charge.of_run else "", charge.counter)
        spent = counters.get(counter)
        if spent is None:
            spent = world.counters.get(counter) or 0.0
        if charge.exceeds(spent):
            return Admission(Refused.BUDGET, charge=charge, spent=spent)
        counters[counter] = spent + charge.amount
    arrivals: dict[tuple[str, str], float] = {}
    for rate in request.rates:
        name = (tenant, rate.counter)
        arrival = arrivals.get(name)
        if arrival is None:
            arrival = world.rates.get(name) or 0.0
        wait = rate.wait(arrival, now)
        if wait > 0:
            return Admission(Refused.RATE, rate=rate, retry_after=wait)
        arrivals[name] = rate.next(arrival, now)
    for counter, spent in counters.items():
        world.counters.put(counter, spent)
    for name, arrival in arrivals.items():
        world.rates.put(name, arrival)
    return None


def _pin(world: World, request: Admit) -> None:
    where = (request.tenant, request.run_id)
    run = world.runs.get(where)
    if run is None:
        return
    pins = read(run.pins)
    if request.tool not in pins:
        kept = written({**pins, request.tool: request.version})
        world.runs.put(where, run._replace(pins=kept))


def _reserve(world: World, request: Admit, entry: Entry) -> Entry:
    """The entry under its next fence; what was there before is over."""
    where = (request.tenant, entry.key)
    before = world.entries.get(where)
    awaited = False
    if before is not None:
        there, awaited = before.entry, before.awaited
        entry = entry._replace(fence=there.fence + 1, attempts=there.attempts + 1)
    until = world.now + request.lease
    line = Line(entry, until, None, awaited, anew=True, resume=request.resume)
    world.entries.put(where, line)
    return entry


class Settling(Job):
    """False, and nothing is changed, when somebody else holds or has settled the entry by now."""

    __slots__ = ("_request", "_told")

    def __init__(self, request: Settle) -> None:
        super().__init__()
        self._request = request
        self._told = told(request.events)

    def need(self, needs: Needs) -> None:
        request = self._request
        if request.entry is not None:
            needs.entries.add((request.tenant, request.entry.key))
        if request.gives_back is not None:
            needs.held.add((request.tenant, request.gives_back))
        need_progress(needs, request)
        need_due(needs, request.due)

    def work(self, world: World) -> bool:
        request = self._request
        if request.entry is not None and not _let_go_of(world, request, request.entry):
            return False
        advance(world, request)
        if request.gives_back is not None:
            spent = (request.tenant, request.gives_back)
            found = world.held.get(spent)
            if found is not None and found.held.status is HeldStatus.SPENT:
                change_held(world, spent, status=HeldStatus.APPROVED)
        put_down(world, request.due)
        world.record(self._told)
        return True


def _mine(line: Line | None, fence: int) -> bool:
    return line is not None and line.entry.fence == fence and line.entry.status is Status.PENDING


def _let_go_of(world: World, request: Settle, entry: Entry) -> bool:
    """Write an outcome. False when somebody else holds the entry by now, or has settled it."""
    where = (request.tenant, entry.key)
    line = world.entries.get(where)
    if line is None or not _mine(line, entry.fence):
        return False
    if entry.worker is not None or entry.lapsed:
        entry = entry._replace(worker=None, lapsed=False)
    pending = entry.status is Status.PENDING
    after = request.again_after if pending else request.keep_for
    until = None if after is None else world.now + after
    let_go(world, where, line)
    world.entries.put(
        where,
        line._replace(
            entry=entry,
            lease_until=until if pending else None,
            expires_at=None if pending else until,
            awaited=False,
        ),
    )
    return True


def let_go(world: World, where: tuple[str, str], line: Line) -> None:
    """Whoever waits for the entry is told."""
    if line.awaited:
        world.woken.append(where)


class Renewing(Job):
    """Hold entries for some time from now."""

    __slots__ = ("_entries", "_lease")
    durable: ClassVar[bool] = False  # a lease that is lost with the power is just over sooner

    def __init__(self, entries: Sequence[Entry], lease: float) -> None:
        super().__init__()
        self._entries = entries
        self._lease = lease

    def need(self, needs: Needs) -> None:
        needs.entries.update((entry.tenant, entry.key) for entry in self._entries)

    def work(self, world: World) -> Sequence[bool]:
        return [self._renew(world, entry) for entry in self._entries]

    def _renew(self, world: World, entry: Entry) -> bool:
        where = (entry.tenant, entry.key)
        line = world.entries.get(where)
        if line is None or not _mine(line, entry.fence) or line.entry.worker is None:
            return False
        world.entries.put(where, line._replace(lease_until=world.now + self._lease))
        return True


class Watching(Job):
    """Mark an entry as awaited. For how many seconds it is held at most; None: it is not."""

    __slots__ = ("_where",)
    durable: ClassVar[bool] = False
    vain = True

    def __init__(self, tenant: str, key: str) -> None:
        super().__init__()
        self._where = (tenant, key)

    def need(self, needs: Needs) -> None:
        needs.entries.add(self._where)

    def work(self, world: World) -> float | None:
        line = world.entries.get(self._where)
        if line is None or not shown(line, world.now).held:
            return None
        if not line.awaited:
            world.entries.put(self._where, line._replace(awaited=True))
        return float("inf") if line.lease_until is None else line.lease_until - world.now
