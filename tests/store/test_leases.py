"""Leases: for how long a worker holds an entry, and which one gets it afterwards.

No test waits for a lease to end: one of no seconds is over at once, and a long one does not end.
"""

import asyncio

import pytest

from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.ledger.requests import AdmissionRefusal

FOREVER = 3600.0


@pytest.fixture
def found(store):
    async def found(key="k"):
        return (await store.recall("acme", "run_1", key)).entry

    return found


# --- reading --------------------------------------------------------------------------------------


async def test_an_entry_is_its_workers_until_its_lease_is_over(reserve, found):
    entry = await reserve("held")
    assert (entry.worker, entry.held, await found("held")) == ("w_1", True, entry)
    entry = await reserve("over", lease=0)
    over = await found("over")
    assert (over.lapsed, over.held) == (True, False)
    assert over._replace(lapsed=False) == entry


async def test_who_comes_second_is_told_whether_the_first_is_still_there(store, make, reserve):
    for key, lease in (("held", FOREVER), ("over", 0)):
        await reserve(key, lease=lease)
        second = await store.admit(make.admit(entry=make.entry(key)))
        assert (second.refused, second.entry.lapsed) == (AdmissionRefusal.DUPLICATE, lease == 0)


async def test_an_entry_is_found_with_what_is_needed_to_go_on(store, reserve):
    entry = await reserve("k", resume=b"\0resume")
    assert (await store.look_up("acme", "k"))[:2] == (entry, b"\0resume")
    over = await reserve("over", lease=0)
    assert (await store.look_up("acme", "over"))[:2] == (over._replace(lapsed=True), None)
    assert await store.look_up("acme", "nowhere") is None
    assert await store.look_up("other", "k") is None


async def test_a_settled_entry_does_not_lapse(store, make, reserve, found):
    for status in EntryStatus:
        entry = await reserve(status, lease=0)
        assert await store.settle(make.settle(entry=make.done(entry, status=status)))
        assert not (await found(status)).lapsed, "nobody is to look at it"


async def test_an_escalated_entry_does_not_lapse(store, make, reserve, found):
    entry = await reserve()
    escalated = make.unknown(entry, phase=Phase.ESCALATED)
    assert await store.settle(make.settle(entry=escalated, again_after=0))
    assert await found() == escalated


async def test_an_outcome_ends_the_lease(store, make, reserve, found):
    entry = await reserve()
    await store.settle(make.settle(entry=make.unknown(entry)._replace(worker="w_1", looks=3)))
    after = await found()
    assert (after.worker, after.held, after.lapsed, after.looks) == (None, False, False, 3)


async def test_an_entry_that_was_read_as_lapsed_is_settled_like_any_other(
    store, make, reserve, found
):
    await reserve(lease=0)
    lapsed = (await store.look_up("acme", "k")).entry
    assert lapsed.lapsed
    assert await store.settle(make.settle(entry=make.done(lapsed)))
    assert await found() == make.done(lapsed._replace(lapsed=False))


# --- renewing -------------------------------------------------------------------------------------


async def test_a_renewed_lease_goes_on(store, make, reserve, found):
    entry = await reserve(lease=0)
    assert list(await store.renew([entry], FOREVER)) == [True]
    assert await found() == entry
    assert await store.claim_orphans(make.claim()) == []


async def test_only_ones_own_leases_are_renewed(store, make, reserve, found):
    mine = await reserve("mine", lease=0)
    lost = await reserve("lost", lease=0, tool="send")
    (orphan,) = await store.claim_orphans(make.claim(lease=0, tools={"send"}))
    done = await reserve("done")
    await store.settle(make.settle(entry=make.done(done)))
    let_go = await reserve("let_go")
    await store.settle(make.settle(entry=make.unknown(let_go), again_after=0))
    never = make.entry("never")
    other = mine._replace(tenant="other")
    entries = [mine, lost, done, let_go, never, other, orphan.entry]
    assert list(await store.renew(entries, FOREVER)) == [True, *[False] * 5, True]
    lapsed = {key: (await found(key)).lapsed for key in ("mine", "lost", "done", "let_go")}
    assert lapsed == {"mine": False, "lost": False, "done": False, "let_go": True}
    assert list(await store.renew([], FOREVER)) == []


# --- taking over ----------------------------------------------------------------------------------


async def test_a_lapsed_entry_is_taken_over_by_its_fence_only(store, make, reserve, found):
    old = await reserve(lease=0, resume=b"old")
    again = make.admit(
        entry=make.entry(call_id="call_2", worker="w_2"), lease=FOREVER, resume=b"new"
    )
    assert (await store.admit(again)).refused is AdmissionRefusal.DUPLICATE
    assert (await store.admit(again._replace(takes_over=old.fence + 1))).refused is not None
    taken = await store.admit(again._replace(takes_over=old.fence))
    assert (taken.refused, taken.entry.fence, taken.entry.attempts) == (None, 2, 2)
    assert (taken.entry.worker, taken.entry.looks) == ("w_2", 0)
    assert (await store.look_up("acme", "k"))[:2] == (taken.entry, b"new")
    late = await store.admit(again._replace(takes_over=taken.entry.fence))
    assert late.refused is AdmissionRefusal.DUPLICATE, "it is held again"


async def test_an_entry_that_is_held_is_not_taken_over(store, make, reserve):
    entry = await reserve()
    again = make.admit(entry=make.entry(call_id="call_2"), takes_over=entry.fence)
    assert (await store.admit(again)).refused is AdmissionRefusal.DUPLICATE
    # Unknown, and nobody at work on it: now it is free for whoever knows its fence.
    await store.settle(make.settle(entry=make.unknown(entry), again_after=FOREVER))
    assert (await store.admit(again)).refused is None


async def test_an_escalated_entry_is_a_persons_and_not_taken_over(store, make, reserve):
    entry = await reserve()
    escalated = make.unknown(entry, phase=Phase.ESCALATED)
    await store.settle(make.settle(entry=escalated, again_after=0))
    again = make.admit(entry=make.entry(call_id="call_2"), takes_over=entry.fence)
    assert (await store.admit(again)).refused is AdmissionRefusal.DUPLICATE
    assert await store.claim_orphans(make.claim()) == []


async def test_a_worker_whose_lease_was_taken_over_changes_nothing(store, make, reserve, snapshot):
    await store.open_run(make.run())
    old = await reserve(lease=0)
    taken = await store.admit(
        make.admit(entry=make.entry(call_id="call_2"), takes_over=old.fence, lease=FOREVER)
    )
    await store.hold(make.held(), [])
    await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    await store.admit(make.admit(approval_id="appr_1"))
    before = await snapshot(store)
    late = make.settle(
        entry=make.done(old),
        seen={"case:1": 9},
        state=[("n", "replace", 9)],
        again_after=0,
        keep_for=0,
        gives_back="appr_1",
        due=[(0, make.due())],
    )
    assert await store.settle(late) is False
    assert await snapshot(store) == before
    assert await store.find_due("acme", DueKind.VERIFY, "k") is None
    assert await store.settle(make.settle(entry=make.done(taken.entry)))


# --- orphans --------------------------------------------------------------------------------------


async def test_an_orphan_is_claimed_with_all_that_is_needed_to_go_on(store, make, reserve, found):
    entry = await reserve(lease=0, resume=b"resume")
    (orphan,) = await store.claim_orphans(make.claim("w_2"))
    assert orphan.resume == b"resume"
    since = orphan.entry.unknown_since
    assert orphan.entry == entry._replace(
        fence=2, worker="w_2", phase=Phase.UNKNOWN, unknown_since=since, looks=1
    )
    assert since > 0, "when its lease was over"
    assert await found() == orphan.entry
    assert await store.claim_orphans(make.claim("w_3")) == []
    assert await store.settle(make.settle(entry=make.done(entry))) is False
    assert await store.settle(make.settle(entry=make.done(orphan.entry))) is True


async def test_an_orphan_that_stays_unknown_is_looked_at_again_as_often_as_is_said(
    store, make, reserve
):
    await reserve(lease=0)
    (first,) = await store.claim_orphans(make.claim())
    unknown = make.unknown(first.entry, unknown_since=first.entry.unknown_since)
    await store.settle(make.settle(entry=unknown, again_after=0))
    (second,) = await store.claim_orphans(make.claim())
    assert (second.entry.looks, second.entry.fence, second.entry.attempts) == (2, 3, 1)
    assert second.entry.unknown_since == first.entry.unknown_since, "it has been since then"
    await store.settle(make.settle(entry=make.unknown(second.entry), again_after=FOREVER))
    assert await store.claim_orphans(make.claim()) == [], "not yet"


async def test_an_unknown_entry_without_a_next_look_is_not_claimed(store, make, reserve):
    entry = await reserve()
    await store.settle(make.settle(entry=make.unknown(entry)))
    assert await store.claim_orphans(make.claim()) == []


async def test_only_what_is_pending_and_over_is_claimed(store, make, reserve):
    await reserve("held")
    await reserve("orphan", lease=0)
    for status in set(EntryStatus) - {EntryStatus.PENDING}:
        entry = await reserve(status, lease=0)
        await store.settle(make.settle(entry=make.done(entry, status=status), again_after=0))
    claimed = await store.claim_orphans(make.claim())
    assert [orphan.entry.key for orphan in claimed] == ["orphan"]


async def test_orphans_are_claimed_oldest_first_and_not_more_than_asked_for(store, reserve, make):
    keys = ["c", "a", "d", "b"]
    for key in keys:
        await reserve(key, lease=0)
    claimed = [await store.claim_orphans(make.claim(limit=limit)) for limit in (0, 3, 3, 3)]
    assert [[one.entry.key for one in some] for some in claimed] == [[], keys[:3], keys[3:], []]


async def test_a_claim_can_be_narrowed_to_tools_and_to_what_has_waited_long(store, make, reserve):
    await reserve("a", lease=0, tool="save")
    await reserve("b", lease=0, tool="send")
    assert await store.claim_orphans(make.claim(lapsed_for=FOREVER)) == []
    assert await store.claim_orphans(make.claim(tools=())) == []
    assert await store.claim_orphans(make.claim(tools=["drop"])) == []
    (orphan,) = await store.claim_orphans(make.claim(tools={"send", "drop"}))
    assert orphan.entry.key == "b"
    (orphan,) = await store.claim_orphans(make.claim(lapsed_for=-1))
    assert orphan.entry.key == "a"


async def test_no_two_workers_get_the_same_orphan(store, make, reserve):
    keys = {f"k{n}" for n in range(12)}
    for key in keys:
        await reserve(key, lease=0)
    claims = [make.claim(f"w_{n}", limit=5) for n in range(6)]
    claimed = await asyncio.gather(*map(store.claim_orphans, claims))
    got = [orphan.entry.key for some in claimed for orphan in some]
    assert len(got) == len(keys) == len(set(got))
    assert max(map(len, claimed)) <= 5


async def test_a_worker_claims_orphans_of_all_tenants(store, make):
    for tenant in ("acme", "other"):
        request = make.admit(tenant, entry=make.entry(tenant=tenant), lease=0)
        await store.admit(request)
    claimed = await store.claim_orphans(make.claim())
    assert [orphan.entry.tenant for orphan in claimed] == ["acme", "other"]
