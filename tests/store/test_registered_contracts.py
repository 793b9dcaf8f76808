"""Contracts as they were first registered: kept once, with the events of a hold, in their order."""

import asyncio

from counterseal.audit import EventType
from counterseal.ledger.records import RegisteredContract
from counterseal.ledger.requests import EventFilter

RECORD = {"identity": {"name": "save", "version": "1.0.0"}, "note": "naïve ✓", "limit": 1.5}


def registered(version="1.0.0", digest="sha256:1", tool="save", held=()):
    return RegisteredContract(tool, version, digest, RECORD, held)


async def test_contract_is_read_as_it_was_stored(store, make):
    held = ("effect-raised: effect changed", "scope-dropped: a scope is gone")
    await store.register_contracts([(registered(held=held), ())])
    (row,) = await store.contracts({"save", "other"})
    assert row._replace(registered_at=0.0) == registered(held=held)
    assert row.registered_at > 0
    assert await store.contracts({"other"}) == []


async def test_contract_that_is_known_stays_as_it_is_and_records_nothing_again(store, make):
    event = make.event(EventType.VERSION_HELD, tenant="*")
    await store.register_contracts([(registered(held=("a: b",)), [event])])
    await store.register_contracts([(registered(), [event]), (registered("2.0.0"), [event])])
    found = await store.contracts({"save"})
    assert [(row.version, row.held) for row in found] == [("1.0.0", ("a: b",)), ("2.0.0", ())]
    events = await store.search("*", EventFilter(types=[EventType.VERSION_HELD]))
    assert len(events) == 2


async def test_contracts_that_two_workers_register_at_once_are_kept_once(store, make):
    event = make.event(EventType.VERSION_HELD, tenant="*")
    new = [(registered(digest=f"sha256:{i}"), [event]) for i in range(3)]
    await asyncio.gather(*(store.register_contracts(new) for _ in range(4)))
    assert len(await store.contracts({"save"})) == 3
    assert len(await store.search("*", EventFilter(types=[EventType.VERSION_HELD]))) == 3


async def test_contracts_come_in_the_order_of_their_registration(store, make):
    for version in ("2.0.0", "1.0.0", "1.5.0"):
        await store.register_contracts([(registered(version), ())])
    found = await store.contracts({"save"})
    assert [row.version for row in found] == ["2.0.0", "1.0.0", "1.5.0"]
