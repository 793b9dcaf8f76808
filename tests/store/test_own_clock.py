"""The moments at which leases, answers and counters are over, by a clock that is set by hand."""

import pytest

from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import DueKind
from counterseal.ledger.requests import EventFilter, ExpiryRequest, FinishRequest
from counterseal.storage.memory import MemoryStore
from counterseal.storage.sqlite import SqliteStore
from tests.store.kept import keep

DAY = 86_400


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, clock, tmp_path):
    if request.param == "memory":
        store = MemoryStore(clock)
    else:
        store = SqliteStore(tmp_path / "store.db", clock=clock)
    yield store
    await store.close()


async def test_a_lease_is_over_at_its_end(store, make, clock):
    await store.admit(make.admit(entry=make.entry(), lease=30))
    seen = []
    for clock.now in (1029.9, 1030.0, 1031.0):
        entry = (await store.recall("acme", "run_1", "k")).entry
        seen.append((entry.lapsed, await store.wait("acme", "k", 0)))
    assert seen == [(False, False), (True, True), (True, True)]


async def test_a_lease_is_renewed_from_now_on_even_to_less(store, make, clock):
    entry = (await store.admit(make.admit(entry=make.entry(), lease=30))).entry
    clock.now = 1010.0
    await store.renew([entry], 5)
    seen = []
    for clock.now in (1014.9, 1015.0):
        seen.append((await store.recall("acme", "run_1", "k")).entry.lapsed)
    assert seen == [False, True]


async def test_an_orphan_has_been_unknown_since_its_lease_was_over(store, make, clock):
    await store.admit(make.admit(entry=make.entry(), lease=30))
    claim = make.claim(lease=10, lapsed_for=5)
    clock.now = 1034.9
    assert await store.claim_orphans(claim) == []
    clock.now = 1040.0
    (orphan,) = await store.claim_orphans(claim)
    assert orphan.entry.unknown_since == 1030.0
    clock.now = 1049.9
    assert await store.claim_orphans(make.claim()) == []
    clock.now = 1050.0
    (again,) = await store.claim_orphans(make.claim())
    assert (again.entry.unknown_since, again.entry.looks) == (1030.0, 2)


async def test_orphans_of_one_moment_are_claimed_in_the_order_of_their_names(store, make):
    for key in ("b", "c", "a"):
        for tenant in ("other", "acme"):
            entry = make.entry(key, tenant=tenant)
            await store.admit(make.admit(tenant, entry=entry, lease=0))
    claimed = await store.claim_orphans(make.claim(limit=4))
    names = [orphan.entry.tenant + orphan.entry.key for orphan in claimed]
    assert names == ["acmea", "acmeb", "acmec", "othera"]


async def test_work_is_due_when_its_time_has_come_and_again_when_its_lease_is_over(
    store, make, clock
):
    await store.schedule(60, make.due(), [])
    seen = []
    for clock.now in (1059.9, 1060.0, 1069.9, 1070.0):
        seen.append([work.since for work in await store.claim_due(make.claim(lease=10))])
    assert seen == [[], [1000.0], [], [1000.0]]
    work = await store.find_due("acme", DueKind.VERIFY, "k")
    await store.finish(FinishRequest(work, failed="no"))
    assert (await store.concerns())[0].since == 1070.0


async def test_an_answer_is_kept_for_its_time(store, make, clock):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    await store.settle(make.settle(entry=make.done(entry), keep_for=100))
    seen = []
    for clock.now in (1099.9, 1100.0):
        await store.expire(ExpiryRequest())
        seen.append((await store.look_up("acme", "k")).entry.status)
    assert seen == [EntryStatus.COMPLETED, EntryStatus.EXPIRED]


async def test_raw_results_and_events_are_kept_for_their_time(store, make, clock):
    pointer = keep(store, "acme", b"raw")
    await store.settle(make.settle())
    told = []
    for clock.now in (1049.9, 1050.1):
        told.append(await store.expire(ExpiryRequest(vault_after=50, events_after=50)))
    assert [(one["vault"], one["events"]) for one in told] == [(0, 0), (1, 1)]
    assert await store.fetch("acme", pointer) is None
    ((_, erased),) = await store.events("acme")
    assert (erased.occurred_at, erased.body["until"]) == (1050.1, 1_000_000_000)


async def test_a_search_is_narrowed_by_the_moment_of_recording(store, make, clock):
    for clock.now in (1000.0, 1001.0, 1002.0):
        await store.settle(make.settle(events=[make.event(call_id=f"{clock.now:g}")]))
    found = await store.search("acme", EventFilter(since=1001.0, until=1002.0))
    assert [event.caller.call_id for _, event in found] == ["1001"]


async def test_counters_are_kept_for_today_and_two_days_before(store, make, clock):
    names = [f"writes/{day}" for day in range(95, 102)]
    await store.admit(make.admit(charges=[make.charge(9, name, of_run=False) for name in names]))
    clock.now = 100.0 * DAY
    assert (await store.expire(ExpiryRequest()))["counters"] == 3
    assert set((await store.recall("acme", "run_1", None)).tenant_counters) == set(names[3:])
