"""Forgetting: what is over goes, a batch at a time; keys, hashes and the chain stay.

Ages are extremes: what is kept for no time is over at once, and an age below zero is the future.
"""

import time

import pytest

from counterseal.audit import EventType
from counterseal.ledger.entry import Answer, EntryStatus, Phase, duplicate
from counterseal.ledger.records import DueKind
from counterseal.ledger.requests import AdmissionRefusal, EventFilter, ExpiryRequest, FinishRequest
from tests.store.chains import check_chain, log_of
from tests.store.kept import keep

FOREVER = 3600.0
EVERYTHING = ExpiryRequest(vault_after=-FOREVER, events_after=-FOREVER)
NOTHING = {"keys": 0, "vault": 0, "requests": 0, "events": 0, "counters": 0, "sessions": 0}
OVER = (
    EntryStatus.COMPLETED,
    EntryStatus.FAILED_FINAL,
    EntryStatus.COMPENSATED,
    EntryStatus.FAILED_RETRYABLE,
)


@pytest.fixture
def settled(store, make):
    """A key that was used, and what came of it."""

    async def settled(key="k", status=EntryStatus.COMPLETED, keep_for=0, **more):
        request = make.admit(entry=make.entry(key), resume=b"resume", events=())
        entry = (await store.admit(request)).entry
        done = make.done(entry, status=status, **more)
        assert await store.settle(make.settle(entry=done, keep_for=keep_for, events=()))
        return done

    return settled


async def test_an_empty_store_has_nothing_to_forget(store):
    assert await store.expire(EVERYTHING) == NOTHING


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", OVER)
async def test_a_key_stays_with_its_hash_when_its_answer_is_forgotten(store, make, settled, status):
    done = await settled(status=status)
    assert await store.expire(ExpiryRequest()) == {**NOTHING, "keys": 1}
    kept = await store.look_up("acme", "k")
    free = status is EntryStatus.FAILED_RETRYABLE
    expected = make.done(done, status=status if free else EntryStatus.EXPIRED, observation=None)
    assert kept[:3] == (expected, None, None)
    again = await store.admit(make.admit(entry=make.entry()))
    if free:
        assert again.refused is None
        assert (again.entry.fence, again.entry.attempts) == (2, 2)
    else:
        assert again.refused is AdmissionRefusal.DUPLICATE
        assert duplicate(again.entry, b"r") is Answer.EXPIRED
        assert duplicate(again.entry, b"other") is Answer.MISMATCH
    assert await store.expire(ExpiryRequest()) == NOTHING, "once"


async def test_what_is_kept_for_long_or_for_ever_is_not_forgotten(store, settled):
    entries = [await settled("long", keep_for=FOREVER), await settled("ever", keep_for=None)]
    assert await store.expire(EVERYTHING) == NOTHING
    for entry in entries:
        assert (await store.look_up("acme", entry.key))[:2] == (entry, b"resume")


@pytest.mark.parametrize("phase", Phase)
async def test_what_is_pending_never_expires(store, make, phase):
    entry = (await store.admit(make.admit(entry=make.entry(), lease=0, events=()))).entry
    pending = make.unknown(entry, phase=phase)
    await store.settle(make.settle(entry=pending, keep_for=0, events=()))
    assert await store.expire(EVERYTHING) == NOTHING
    assert (await store.look_up("acme", "k")).entry == pending


async def test_a_key_that_was_free_and_is_used_again_does_not_expire_meanwhile(
    store, make, settled
):
    await settled(status=EntryStatus.FAILED_RETRYABLE)
    again = (await store.admit(make.admit(entry=make.entry(), events=()))).entry
    assert await store.expire(ExpiryRequest()) == NOTHING
    assert (await store.look_up("acme", "k")).entry == again


async def test_what_was_reversed_is_kept_as_long_as_what_was_done(store, make, settled):
    for key, keep_for in (("over", 0), ("kept", FOREVER)):
        await settled(key, keep_for=keep_for)
        await store.schedule(0, make.due(key, DueKind.COMPENSATE), [])
        (work,) = await store.claim_due(make.claim())
        await store.finish(FinishRequest(work, compensated={"undone": key}))
    assert await store.expire(ExpiryRequest()) == {**NOTHING, "keys": 1}
    entries = [(await store.look_up("acme", key)).entry for key in ("over", "kept")]
    assert [entry.status for entry in entries] == [EntryStatus.EXPIRED, EntryStatus.COMPENSATED]
    assert [entry.observation for entry in entries] == [None, {"undone": "kept"}]


async def test_keys_expire_oldest_first_in_batches(store, settled):
    keys = ["d", "b", "a", "c", "e"]
    for key in keys:
        await settled(key)
    told = [(await store.expire(ExpiryRequest(limit=2)))["keys"] for _ in range(4)]
    assert told == [2, 2, 1, 0]
    assert {(await store.look_up("acme", key)).entry.status for key in keys} == {
        EntryStatus.EXPIRED
    }


async def test_the_oldest_keys_are_the_first_to_expire(store, settled):
    for key in ("b", "a", "c"):
        await settled(key)
    await store.expire(ExpiryRequest(limit=1))
    kept = [await store.look_up("acme", key) for key in ("b", "a", "c")]
    assert [one.resume for one in kept] == [None, b"resume", b"resume"]


@pytest.mark.parametrize("status", OVER)
async def test_a_key_is_expired_from_its_time_on_before_anything_is_deleted(
    store, make, settled, status
):
    done = await settled(status=status)
    free = status is EntryStatus.FAILED_RETRYABLE
    expected = done._replace(status=status if free else EntryStatus.EXPIRED, observation=None)
    memory = await store.recall("acme", "run_1", "k")
    assert memory.entry == expected
    kept = await store.look_up("acme", "k")
    assert (kept.entry, kept.unexpired) == (expected, done)
    again = await store.admit(make.admit(entry=make.entry()))
    assert again.refused is (None if free else AdmissionRefusal.DUPLICATE)
    if not free:
        assert duplicate(again.entry, b"r") is Answer.EXPIRED


async def test_an_entry_knows_when_it_was_admitted_and_completed(store, make, settled):
    began = time.time()
    entry = (await store.admit(make.admit(entry=make.entry("open")))).entry
    kept = await store.look_up("acme", "open")
    assert kept.completed_at is None
    assert began - 1 <= kept.created_at <= time.time() + 1
    unknown = entry._replace(phase=Phase.UNKNOWN, worker=None)
    assert await store.settle(make.settle(entry=unknown, again_after=60.0, events=()))
    assert (await store.look_up("acme", "open")).completed_at is None, "its outcome is unknown"
    await settled("done", keep_for=None)
    kept = await store.look_up("acme", "done")
    assert kept.created_at <= kept.completed_at <= time.time() + 1


# --- the vault ------------------------------------------------------------------------------------


async def test_raw_results_are_forgotten_oldest_first_in_batches(store):
    pointers = [keep(store, "acme", b"raw") for _ in range(5)]
    assert await store.expire(ExpiryRequest(vault_after=FOREVER)) == NOTHING
    assert await store.expire(ExpiryRequest()) == NOTHING
    left = []
    for _ in range(4):
        told = await store.expire(ExpiryRequest(limit=2, vault_after=-1))
        found = [await store.fetch("acme", pointer) for pointer in pointers]
        left.append((told["vault"], found.count(b"raw"), found[-1]))
    assert left == [(2, 3, b"raw"), (2, 1, b"raw"), (1, 0, None), (0, 0, None)]
    new = keep(store, "acme", b"new")
    assert new not in pointers


async def test_a_value_with_a_time_of_its_own_is_deleted_then_and_the_others_stay(store):
    short, long, ever = (
        keep(store, "acme", b"raw", keep_for=seconds) for seconds in (-1.0, FOREVER, None)
    )
    assert (await store.expire(ExpiryRequest()))["vault"] == 1
    found = [await store.fetch("acme", pointer) for pointer in (short, long, ever)]
    assert found == [None, b"raw", b"raw"]


async def test_what_is_forgotten_is_gone_and_on_record(store, make):
    kept, other = keep(store, "acme", b"raw"), keep(store, "acme", b"other")
    await store.forget("acme", [kept], [make.event(call_id="call_7")])
    assert [await store.fetch("acme", pointer) for pointer in (kept, other)] == [None, b"other"]
    assert [event.caller.call_id for _, event in await store.events("acme")] == ["call_7"]


# --- events ---------------------------------------------------------------------------------------


async def record(store, make, count, tenant="acme"):
    events = [make.event(tenant=tenant, call_id=f"call_{n}") for n in range(count)]
    await store.settle(make.settle(tenant, events=events))


async def test_erased_events_leave_their_links_and_are_told_of(store, make):
    await record(store, make, 5)
    before = await log_of(store)
    assert await store.expire(ExpiryRequest(events_after=FOREVER)) == NOTHING
    assert await store.expire(ExpiryRequest()) == NOTHING
    assert await store.expire(EVERYTHING) == {**NOTHING, "events": 5}
    after = await log_of(store)
    assert [row.columns for row in after[:5]] == [None] * 5
    assert [row.link for row in after[:5]] == [row.link._replace(salt=None) for row in before]
    heads = check_chain(after)
    assert heads == await store.heads("acme", 0)
    ((event_id, told),) = await store.events("acme")
    assert told.type is EventType.ERASED
    assert told.body == {"events": 5, "until": before[-1].link.number}
    assert abs(told.occurred_at - time.time()) < FOREVER
    assert event_id == after[5].link.event_id


async def test_what_tells_of_an_erasure_is_never_erased(store, make):
    await record(store, make, 3)
    assert (await store.expire(EVERYTHING))["events"] == 3
    assert await store.expire(EVERYTHING) == NOTHING
    await record(store, make, 2)
    assert (await store.expire(EVERYTHING))["events"] == 2
    told = [event for _, event in await store.events("acme")]
    assert [(event.type, event.body["events"]) for event in told] == [
        (EventType.ERASED, 3),
        (EventType.ERASED, 2),
    ]
    check_chain(await log_of(store))


async def test_events_of_all_tenants_are_erased_in_batches(store, make):
    for tenant, count in (("b", 3), ("a", 4), ("c", 1)):
        await record(store, make, count, tenant)
    batch = EVERYTHING._replace(limit=3)
    assert [(await store.expire(batch))["events"] for _ in range(4)] == [3, 3, 2, 0]
    for tenant, counts in (("a", [3, 1]), ("b", [2, 1]), ("c", [1])):
        told = [event.body["events"] for _, event in await store.events(tenant)]
        assert told == counts
        check_chain(await log_of(store, tenant), tenant)
    assert list(await store.tenants()) == ["a", "b", "c"]


async def test_erased_events_are_found_no_more_by_any_way(store, make):
    await record(store, make, 2)
    await store.expire(EVERYTHING)
    assert await store.events("acme", call_id="call_1") == []
    assert await store.events("acme", run_id="run_1") == []
    assert await store.search("acme", EventFilter(tool="save")) == []
    assert len(await store.search("acme", EventFilter(newest_first=True))) == 1
    await record(store, make, 1)
    assert len(await store.events("acme", call_id="call_0")) == 1


# --- counters -------------------------------------------------------------------------------------


async def test_what_a_tenant_spent_on_past_days_is_forgotten(store, make):
    today = int(time.time() // 86_400)
    days = {name: f"{name}/{today + days}" for name, days in {"a": -9, "b": -4, "c": -1}.items()}
    others = ["writes", f"tool/{today - 9}x", f"x{today - 9}", f"d/{today + 1}", "e/"]
    names = [*days.values(), *others]
    charges = [make.charge(9, name, of_run=of_run) for name in names for of_run in (True, False)]
    await store.admit(make.admit(charges=charges, events=()))
    assert [(await store.expire(ExpiryRequest(limit=1)))["counters"] for _ in range(3)] == [1, 1, 0]
    memory = await store.recall("acme", "run_1", None)
    assert set(memory.tenant_counters) == {days["c"], *others}
    assert set(memory.run_counters) == set(names), "a run keeps its own"


@pytest.mark.parametrize("kind", [DueKind.VERIFY, DueKind.COMPENSATE])
async def test_what_is_still_to_be_verified_or_reversed_keeps_its_entry(store, make, settled, kind):
    done = await settled()
    await store.schedule(0.0, make.due(kind=kind), ())
    assert await store.expire(ExpiryRequest()) == NOTHING
    kept = await store.look_up("acme", "k")
    assert (kept.entry.status, kept.unexpired) == (EntryStatus.EXPIRED, done)
    (work,) = await store.claim_due(make.claim())
    await store.finish(FinishRequest(work))
    assert await store.expire(ExpiryRequest()) == {**NOTHING, "keys": 1}


async def test_values_are_fetched_together_and_only_those_of_the_tenant(store):
    pointers = [keep(store, "acme", raw) for raw in (b"one", b"two")]
    other = keep(store, "umbrella", b"other")
    found = await store.fetch_all("acme", [*pointers, other, "vault:call_9/0"])
    assert found == dict(zip(pointers, (b"one", b"two"), strict=True))
    assert await store.fetch_all("acme", []) == {}
