"""Sessions of people are rows: signing out holds at once, for every worker."""

import time

from counterseal.ledger.records import SessionRow
from counterseal.ledger.requests import ExpiryRequest

FACTS = {"tenant": "acme", "roles": ["approver"], "csrf": "ab" * 16}


def row(session="5e" * 32, user="ann", created=1000.0, seen=None, expires=2000.0, facts=FACTS):
    return SessionRow(session, user, created, created if seen is None else seen, expires, facts)


async def test_a_saved_session_is_found_as_it_was_saved(store):
    assert await store.save_session(row())
    assert await store.find_session("5e" * 32) == row()
    assert await store.find_session("00" * 32) is None


async def test_a_session_that_was_used_again_is_refreshed(store):
    await store.save_session(row())
    assert await store.save_session(row(seen=1500.0, expires=3000.0))
    assert await store.find_session("5e" * 32) == row(seen=1500.0, expires=3000.0)


async def test_an_ended_session_is_not_brought_back_by_a_late_refresh(store):
    await store.save_session(row())
    assert await store.end_session("5e" * 32)
    assert not await store.save_session(row(seen=1500.0))
    assert await store.find_session("5e" * 32) is None
    assert not await store.end_session("5e" * 32)


async def test_all_sessions_of_a_user_end_together(store):
    for session, user in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
        await store.save_session(row(session, user))
    assert await store.end_sessions("ann") == 2
    assert await store.end_sessions("ann") == 0
    assert await store.find_session("b1") == row("b1", "bob")


async def test_sessions_that_are_over_are_removed_in_batches(store):
    for number in range(3):
        await store.save_session(row(f"a{number}", expires=1000.0 + number))
    await store.save_session(row("b", expires=time.time() + 1000))
    batches = [(await store.expire(ExpiryRequest(limit=2)))["sessions"] for _ in range(3)]
    assert batches == [2, 1, 0]
    assert await store.find_session("b") is not None
