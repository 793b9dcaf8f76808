"""What operators changed: numbered, in one order for everybody, and checked by every admission."""

import asyncio

from counterseal.audit import EventType
from counterseal.ledger.requests import AdmissionRefusal


async def test_changes_are_numbered_and_read_from_where_one_is(store, make):
    assert await store.changes(0) == []
    told = make.event(EventType.REGISTRY_CHANGED)
    whats = [{"kill": "save", "who": ["a", None, 1.5]}, {"enable": {"ü": True}}, {}]
    for number, what in enumerate(whats, 1):
        assert await store.change(number, what, [told]) is True
    numbered = list(enumerate(whats, 1))
    assert [list(await store.changes(after)) for after in (0, 2, 3, 9)] == [
        numbered,
        numbered[2:],
        [],
        [],
    ]
    assert [event for _, event in await store.events("acme")] == [told] * 3


async def test_a_number_that_is_taken_or_leaves_a_gap_is_refused(store, make):
    assert await store.change(1, {"n": 1}, [])
    event = make.event(EventType.REGISTRY_CHANGED)
    for number in (0, 1, 3, -1):
        assert await store.change(number, {"n": 2}, [event]) is False
    assert list(await store.changes(0)) == [(1, {"n": 1})]
    assert await store.events("acme") == []


async def test_of_many_who_change_at_once_one_does(store):
    changes = [store.change(1, {"n": n}, []) for n in range(5)]
    assert sorted(await asyncio.gather(*changes)) == [False] * 4 + [True]
    assert len(await store.changes(0)) == 1


async def test_a_decision_that_did_not_know_of_a_change_is_not_admitted(store, make, snapshot):
    await store.open_run(make.run())
    await store.change(1, {"kill": "save"}, [])
    before = await snapshot(store)
    # Other things are in the way too; the registry comes first.
    stale = make.admit(
        epoch=0,
        entry=make.entry(),
        approval_id="appr_none",
        charges=[make.charge(0)],
        reads={"*": 7},
    )
    admission = await store.admit(stale)
    assert (admission.refused, admission.entry) == (AdmissionRefusal.EPOCH, None)
    ahead = make.admit(epoch=2, entry=make.entry())
    assert (await store.admit(ahead)).refused is AdmissionRefusal.EPOCH
    assert await snapshot(store) == before
    assert (await store.admit(make.admit(epoch=1, entry=make.entry()))).refused is None


async def test_the_registry_is_checked_for_a_run_that_was_not_opened(store, make):
    assert (await store.admit(make.admit(epoch=1))).refused is AdmissionRefusal.EPOCH
    assert (await store.admit(make.admit(epoch=0))).refused is None
