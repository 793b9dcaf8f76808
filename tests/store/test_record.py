"""The record: found again, narrowed down, chained, sealed."""

import time
from dataclasses import replace

import pytest

from counterseal.audit import EventType, Head
from counterseal.audit.chain import BODY, Checkpoint
from counterseal.errors import CountersealError
from counterseal.ledger.requests import EventFilter
from tests.store.chains import NOWHERE, check_chain, log_of
from tests.store.kept import keep

KINDS = [EventType.REQUESTED, EventType.STARTED, EventType.SUCCEEDED]


@pytest.fixture
def filled(store, make):
    """Two runs of two calls each, with three events for each call, and somebody else's."""

    async def filled():
        for number in range(4):
            where = {"run_id": f"run_{number % 2}", "call_id": f"call_{number}"}
            events = [make.event(kind, **where) for kind in KINDS]
            if number == 3:
                events = [
                    event._replace(caller=event.caller._replace(tool="send")) for event in events
                ]
            await store.settle(make.settle(events=events))
        await store.settle(make.settle("other"))
        return await store.events("acme")

    return filled


# --- made when they are written -------------------------------------------------------------------


async def test_an_event_that_cannot_be_made_costs_no_other_event_and_no_other_caller(store, make):
    def broken():
        raise RuntimeError("no event")

    store.note_later(lambda: (make.event(call_id="call_before"), None))
    store.note_later(broken)
    store.note_later(lambda: (make.event(call_id="call_after"), None))
    await store.settle(make.settle(events=[make.event(call_id="call_other")]))
    calls = [event.caller.call_id for _, event in await store.events("acme")]
    assert calls == ["call_before", "call_after", "call_other"]


# --- searching ------------------------------------------------------------------------------------


async def test_a_search_for_nothing_in_particular_finds_everything_oldest_first(store, filled):
    everything = await filled()
    assert len(everything) == 12
    assert list(await store.search("acme", EventFilter())) == list(everything)
    newest = await store.search("acme", EventFilter(newest_first=True))
    assert list(newest) == list(everything)[::-1]
    assert await store.search("nobody", EventFilter()) == []
    ids = [event_id for event_id, _ in everything]
    assert ids == sorted(ids)


async def test_a_search_is_narrowed_by_each_word_and_by_all_together(store, filled):
    everything = await filled()

    async def found(**narrow):
        return [one[0] for one in await store.search("acme", EventFilter(**narrow))]

    def expected(true):
        return [event_id for event_id, event in everything if true(event)]

    assert await found(call_id="call_2") == expected(lambda one: one.caller.call_id == "call_2")
    assert await found(run_id="run_1") == expected(lambda one: one.caller.run_id == "run_1")
    assert await found(tool="send") == expected(lambda one: one.caller.tool == "send")
    types = ["tool.started", EventType.SUCCEEDED]
    assert await found(types=types) == expected(lambda one: one.type in types)
    assert await found(types=[]) == []
    assert await found(types=[], run_id="run_1") == []  # by an index, too
    together = {"run_id": "run_1", "tool": "send", "types": {EventType.STARTED}}
    assert len(await found(**together)) == 1
    assert await found(**together, call_id="call_3") == await found(**together)
    assert await found(**together, call_id="call_1") == []
    assert await found(run_id="run_1", call_id="call_2") == []


async def test_a_search_is_narrowed_by_when_something_was_recorded(store, filled):
    everything = await filled()
    ids = [event_id for event_id, _ in everything]

    async def found(**narrow):
        return [one[0] for one in await store.search("acme", EventFilter(**narrow))]

    numbers = [row.link.number for row in await log_of(store)]
    moment = (numbers[5] + 0.5) / 1e6  # in the middle of a microsecond, which a float can't miss
    assert await found(since=moment) == ids[5:]
    assert await found(until=moment) == ids[:5]
    assert await found(since=moment, until=(numbers[8] + 0.5) / 1e6) == ids[5:8]
    day = 86_400
    assert await found(since=time.time() - day, until=time.time() + day) == ids
    assert await found(since=time.time() + day) == []
    assert await found(until=time.time() - day) == []


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("narrow", [{}, {"run_id": "run_1"}, {"types": ["tool.started"]}])
async def test_a_search_goes_on_behind_an_event_in_either_order(
    store, filled, narrow, newest_first
):
    await filled()
    search = EventFilter(**narrow, newest_first=newest_first)
    whole = list(await store.search("acme", search))
    paged, after = [], None
    while page := await store.search("acme", search._replace(after=after, limit=2)):
        assert len(page) <= 2
        paged += page
        after = page[-1][0]
    assert paged == whole
    assert await store.search("acme", search._replace(limit=0)) == []


async def test_a_search_behind_an_event_that_does_not_match_goes_on_from_its_place(store, filled):
    everything = await filled()
    second = everything[1][0]
    found = await store.search("acme", EventFilter(types=["tool.requested"], after=second))
    assert [one[0] for one in found] == [everything[n][0] for n in (3, 6, 9)]


@pytest.mark.parametrize("after", ["", "evt_", "call_1", "evt_zz", "0123456789abcdef01"])
async def test_a_search_behind_what_is_no_event_is_refused(store, filled, after):
    with pytest.raises(CountersealError, match="is not the id of an event"):
        await store.search("acme", EventFilter(after=after))


async def test_all_tenants_on_record_are_listed_by_name(store, make):
    assert await store.tenants() == []
    for tenant in ("zeta", "acme", "Zorn", "acme"):
        await store.settle(make.settle(tenant))
    await store.open_run(make.run(tenant="silent"))
    assert list(await store.tenants()) == ["Zorn", "acme", "zeta"]
    store.note(make.event(tenant="noted"))
    assert "noted" in await store.tenants()


async def test_who_has_checkpoints_is_on_record_even_without_an_event(store, make):
    for tenant in ("sealed", "acme", "yes"):
        checkpoint = Checkpoint(tenant=tenant, number=1, sealed_at=1.0, heads={})
        await store.seal(checkpoint)
        await store.seal(replace(checkpoint, number=2))
    assert await store.checkpoints("nobody") == []
    for tenant in ("b", "sealed", "zeta"):
        await store.settle(make.settle(tenant))
    assert list(await store.tenants()) == ["acme", "b", "sealed", "yes", "zeta"]


# --- the chain ------------------------------------------------------------------------------------


async def test_every_event_follows_from_all_before_it(store, make, filled):
    everything = await filled()
    store.note(make.event()._replace(body={"deep": [{"ü": None}], "n": 1.5}))
    rows = await log_of(store)
    assert len(rows) == 13
    check_chain(rows)
    ids = [row.link.event_id for row in rows]
    assert ids[:12] == [event_id for event_id, _ in everything]
    assert rows[12].columns[BODY] == '{"deep":[{"ü":null}],"n":1.5}'
    assert rows[0].columns[:4] == ("tool.requested", "acme", "run_0", "call_0")
    check_chain(await log_of(store, "other"), "other")


async def test_a_chain_shows_what_was_changed(store, filled):
    await filled()
    rows = await log_of(store)
    said = rows[4]
    lies = [
        said._replace(columns=(*said.columns[:10], "deny", *said.columns[11:])),
        said._replace(link=said.link._replace(number=said.link.number - 1)),
        said._replace(link=said.link._replace(digest=b"\1" * 32)),
    ]
    for lie in lies:
        with pytest.raises(AssertionError):
            check_chain([*rows[:4], lie, *rows[5:]])
    with pytest.raises(AssertionError):
        check_chain([*rows[:4], *rows[5:]])


@pytest.mark.parametrize("page", [1, 5, 12, 100])
async def test_the_log_is_read_in_pages(store, filled, page):
    await filled()
    assert await log_of(store, page=page) == list(await store.recorded("acme", NOWHERE, 100))
    assert await store.recorded("nobody", NOWHERE, 9) == []


async def test_salts_are_never_the_same(store, filled):
    await filled()
    salts = [row.link.salt for row in await log_of(store)]
    assert len(set(salts)) == len(salts)


async def test_heads_are_where_segments_end(store, make, filled):
    assert await store.heads("acme", 0) == {}
    await filled()
    rows = await log_of(store)
    heads = await store.heads("acme", 0)
    assert heads == check_chain(rows)
    last = rows[-1].link
    assert heads[last.segment] == Head(last.number, last.seq, last.hash)
    assert await store.heads("acme", last.number) == heads
    assert await store.heads("acme", last.number + 1) == {}
    await store.settle(make.settle())
    assert (await store.heads("acme", last.number + 1))[last.segment].seq == last.seq + 1


# --- checkpoints ----------------------------------------------------------------------------------


async def test_checkpoints_are_kept_whole_and_in_order(store):
    first = Checkpoint(
        tenant="acme",
        number=1,
        sealed_at=1000.5,
        heads={"a1b2": Head(2**53, 7, b"\1" * 32), "c3": Head(1, 1, b"\xff" * 32)},
        hash=b"\2" * 32,
        key_id="key_1",
        signature=b"\0sig",
    )
    second = replace(first, number=2, heads={}, previous=first.hash)
    assert await store.checkpoints("acme") == []
    assert await store.seal(second) is True
    assert await store.seal(first) is True
    assert list(await store.checkpoints("acme")) == [first, second]
    assert await store.checkpoints("other") == []


async def test_of_two_checkpoints_with_one_number_the_first_is_kept(store):
    first = Checkpoint(tenant="acme", number=1, sealed_at=1.0, heads={}, key_id="one")
    assert await store.seal(first) is True
    assert await store.seal(replace(first, key_id="two")) is False
    assert await store.seal(replace(first)) is False, "not even the same once more"
    assert list(await store.checkpoints("acme")) == [first]
    assert await store.seal(replace(first, tenant="other")) is True


# --- the vault ------------------------------------------------------------------------------------


async def test_what_a_pointer_leads_to_is_its_tenants(store):
    raw = bytes(range(256))
    pointer = keep(store, "acme", raw)
    assert await store.fetch("acme", pointer) == raw
    assert await store.fetch("other", pointer) is None
    assert await store.fetch("acme", "vault:call_1/nowhere") is None


async def test_evidence_is_never_overwritten(store):
    pointers = [keep(store, "acme", bytes([n])) for n in range(20)]
    assert [await store.fetch("acme", pointer) for pointer in pointers] == [
        bytes([n]) for n in range(20)
    ]
