"""Settlement: the outcome of an execution, written once by the holder of the entry."""

from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus, Phase


async def test_an_outcome_is_written_with_all_that_belongs_to_it(store, make):
    await store.open_run(make.run())
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    done = make.done(entry)
    settled = await store.settle(
        make.settle(entry=done, seen={"case:1": 4}, state=[("last", "replace", "case_1")])
    )
    assert settled is True
    assert (await store.recall("acme", "run_1", "k")).entry == done
    run = await store.find_run("acme", "run_1")
    assert (run.seen, run.state) == ({"case:1": 4}, {"last": "case_1"})
    assert [event.type for _, event in await store.events("acme")] == [
        EventType.STARTED,
        EventType.SUCCEEDED,
    ]


async def test_an_outcome_under_an_old_fence_changes_nothing(store, make, snapshot):
    await store.open_run(make.run())
    old = (await store.admit(make.admit(entry=make.entry()))).entry
    await store.settle(make.settle(entry=make.done(old, status=EntryStatus.FAILED_RETRYABLE)))
    new = (await store.admit(make.admit(entry=make.entry(call_id="call_2")))).entry
    assert new.fence > old.fence

    before = await snapshot(store)
    late = make.settle(
        entry=make.done(old), seen={"case:1": 9}, state=[("last", "replace", 9)], events=()
    )
    assert await store.settle(late) is False
    assert await snapshot(store) == before
    assert await store.settle(make.settle(entry=make.done(new))) is True


async def test_an_outcome_without_a_reservation_changes_nothing(store, make, snapshot):
    await store.open_run(make.run())
    before = await snapshot(store)
    stray = make.settle(entry=make.done(make.entry()), seen={"case:1": 1}, events=())
    assert await store.settle(stray) is False
    assert await snapshot(store) == before


async def test_an_outcome_is_written_once(store, make, snapshot):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    assert await store.settle(make.settle(entry=make.done(entry))) is True
    before = await snapshot(store)
    again = make.done(entry, status=EntryStatus.FAILED_FINAL, observation={"n": 2})
    assert await store.settle(make.settle(entry=again)) is False
    assert await snapshot(store) == before


async def test_an_unknown_outcome_stays_pending_in_its_phase(store, make):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    unknown = make.done(entry, status=EntryStatus.PENDING, phase=Phase.UNKNOWN, observation=None)
    await store.settle(make.settle(entry=unknown))
    found = (await store.recall("acme", "run_1", "k")).entry
    assert (found.status, found.phase) == (EntryStatus.PENDING, Phase.UNKNOWN)


async def test_later_sights_of_a_resource_replace_earlier_ones(store, make):
    await store.open_run(make.run())
    await store.settle(make.settle(seen={"case:1": 1, "case:2": "a"}))
    await store.settle(make.settle(seen={"case:1": 2}))
    assert (await store.find_run("acme", "run_1")).seen == {"case:1": 2, "case:2": "a"}


async def test_state_of_an_unopened_run_goes_nowhere(store, make):
    assert await store.settle(make.settle(run_id="run_9", state=[("x", "replace", 1)]))
    assert await store.find_run("acme", "run_9") is None


values = st.one_of(st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=3))
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)
effects = st.one_of(
    st.tuples(st.just("list"), st.just("append"), values),
    st.tuples(st.just("map"), st.just("merge_dict"), objects),
    st.tuples(st.just("last"), st.just("replace"), values),
)


@settings(deadline=None)
@given(commits=st.lists(st.lists(effects, max_size=4), max_size=6))
async def test_run_state_is_merged_in_the_order_of_commits(new_store, make, commits):
    async with new_store() as store:
        await store.open_run(make.run())
        for commit in commits:
            await store.settle(make.settle(state=commit))
        state = (await store.find_run("acme", "run_1")).state
    flat = [effect for commit in commits for effect in commit]
    of = {key: [value for name, _, value in flat if name == key] for key in ("list", "map", "last")}
    assert state.get("list", []) == of["list"]
    assert state.get("last") == (of["last"][-1] if of["last"] else None)
    merged = {}
    for value in of["map"]:
        merged.update(value)
    assert state.get("map", {}) == merged


async def test_a_merge_does_not_change_what_was_read_before(store, make):
    await store.open_run(make.run(state={"list": [1], "map": {"a": 1}}))
    before = await store.find_run("acme", "run_1")
    await store.settle(
        make.settle(state=[("list", "append", 2), ("map", "merge_dict", {"a": 2, "b": 3})])
    )
    assert before.state == {"list": [1], "map": {"a": 1}}
    after = await store.find_run("acme", "run_1")
    assert after.state == {"list": [1, 2], "map": {"a": 2, "b": 3}}
