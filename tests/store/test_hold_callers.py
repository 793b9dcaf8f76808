"""Requests for approval: each caller has their own; what is over neither blocks nor stays."""

import asyncio

import pytest

from counterseal.ledger.records import HeldStatus
from counterseal.ledger.requests import ExpiryRequest
from counterseal.storage import open_store
from tests.store.same import DURABLE

MINE, THEIRS, NOBODYS = ("agent", "u_1"), ("agent", "u_2"), ("agent", None)
LATER = -1e12
"""An age that everything has reached."""


@pytest.fixture
def last(store):
    """The id of the last request under a key."""

    async def last(who=None, key="k", tenant="acme"):
        held = (await store.recall(tenant, "run_1", key, who)).held
        return None if held is None else held.approval_id

    return last


@pytest.fixture
def decided(store, make):
    """A request that somebody has decided."""

    async def decided(approval_id="appr_1", status=HeldStatus.APPROVED, **more):
        await store.hold(make.held(approval_id, **more), [])
        if status in (HeldStatus.SPENT, HeldStatus.VOID):
            ballot = make.ballot("ann", approval_id=approval_id, token="t.1")
            await store.vote(ballot._replace(status=HeldStatus.APPROVED))
        if status is HeldStatus.SPENT:
            await store.admit(make.admit(approval_id=approval_id))
        elif status is not HeldStatus.WAITING:
            await store.decide("acme", approval_id, status, [])
        return await store.find_held("acme", approval_id)

    return decided


# --- whose it is ----------------------------------------------------------------------------------


async def test_each_caller_finds_their_own_last_request(store, make, last):
    for name, (agent, user) in {"a": MINE, "b": NOBODYS, "c": THEIRS}.items():
        await store.hold(make.held(name, agent=agent, user=user), [])
    assert [await last(who) for who in (MINE, NOBODYS, THEIRS)] == ["a", "b", "c"]
    assert await last(("other", "u_1")) is None
    assert await last(MINE, key="other") is await last(MINE, tenant="other") is None
    assert await last() == "c", "anybody's"
    await store.hold(make.held("a2", approval_hash="sha256:b"), [])
    assert [await last(who) for who in (MINE, NOBODYS, THEIRS)] == ["a2", "b", "c"]
    assert await last() == "a2"


@pytest.mark.parametrize("other", [{"agent": "other"}, {"user": "u_2"}, {"user": None}])
async def test_what_others_ask_under_the_same_key_leaves_an_approval_alone(
    store, make, last, decided, other
):
    approved = await decided()
    await store.hold(make.held("appr_2", **other), [])
    assert await last(MINE) == "appr_1"
    assert await store.hold(make.held("appr_3"), []) == approved
    again = await store.hold(make.held("appr_4", **other), [])
    assert again.approval_id == "appr_2"


async def test_an_empty_name_matches_no_caller(store, make, last):
    await store.hold(make.held("a", user=None), [])
    await store.hold(make.held("b", user=""), [])
    assert [await last(("agent", user)) for user in (None, "")] == ["b", "b"]


@pytest.mark.parametrize("back_end", DURABLE)
async def test_of_many_callers_who_ask_at_once_by_two_stores_each_asks_once(make, back_end):
    place, _ = DURABLE[back_end]
    with place() as url:
        stores = [open_store(url), open_store(url)]
        for key in ("a", "b", "c"):
            asked = [
                stores[number % 2].hold(make.held(f"{key}_{number}", key=key, user=user), [])
                for number, user in enumerate([None, None, "u_1", "u_1"] * 3)
            ]
            answers = await asyncio.gather(*asked)
            assert len({one.approval_id for one in answers}) == 2
            for user in (None, "u_1"):
                (only,) = {one.approval_id for one in answers if one.user == user}
                assert (await stores[0].recall("acme", "r", key, ("agent", user))).held == (
                    await stores[1].find_held("acme", only)
                )
        for store in stores:
            await store.close()


# --- what ended -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [HeldStatus.WAITING, HeldStatus.APPROVED, HeldStatus.EXPIRED])
async def test_what_ended_stands_for_as_long_again_and_then_people_are_asked_anew(
    store, make, last, decided, status
):
    ended = await decided(status=status)
    assert await store.hold(make.held("appr_2", created_at=make.now + 1199), []) == ended
    anew = make.held("appr_3", created_at=make.now + 1200, expires_at=make.now + 1800)
    assert await store.hold(anew, []) == anew
    assert await last(MINE) == "appr_3"
    assert await store.find_held("acme", "appr_1") == ended


@pytest.mark.parametrize("status", [HeldStatus.WAITING, HeldStatus.APPROVED, HeldStatus.EXPIRED])
async def test_what_ended_in_one_run_blocks_no_other(store, make, decided, status):
    ended = await decided(status=status)
    if status is not HeldStatus.EXPIRED:
        early = make.held("appr_2", run_id="run_2", created_at=make.now + 599)
        assert await store.hold(early, []) == ended
    other = make.held("appr_3", run_id="run_2", created_at=make.now + 600)
    assert await store.hold(other, []) == other


async def test_a_rejection_stands_for_every_run_and_whatever_the_time(store, make, decided):
    rejected = await decided(status=HeldStatus.REJECTED)
    again = make.held("appr_2", run_id="run_2", created_at=make.now + 1e6)
    assert await store.hold(again, []) == rejected


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_lists_are_narrowed_by_when_requests_end_and_turned_round(store, make, tenant):
    for name, end in {"a": 1, "c": 7, "b": 7, "d": 9}.items():
        await store.hold(make.held(name, key=name, expires_at=make.now + end), [])

    async def listed(limit=100, **more):
        found = await store.list_held(tenant, HeldStatus.WAITING, limit, **more)
        return "".join(one.approval_id for one in found)

    assert await listed() == "abcd"
    assert await listed(after=make.now + 1) == "bcd"
    assert await listed(1, after=make.now + 7) == "d"
    assert await listed(after=make.now + 9) == ""
    assert await listed(newest_first=True) == "dcba"
    assert await listed(2, newest_first=True) == "dc"
    assert await listed(newest_first=True, after=make.now + 1) == "dcb"


# --- forgetting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(HeldStatus))
async def test_of_what_was_decided_the_call_and_the_token_are_forgotten(store, decided, status):
    held = await decided(status=status)
    assert (await store.expire(ExpiryRequest()))["requests"] == 0, "never by itself"
    assert (await store.expire(ExpiryRequest(vault_after=1e12)))["requests"] == 0, "not old enough"
    assert await store.find_held("acme", "appr_1") == held
    waits = status is HeldStatus.WAITING
    assert (await store.expire(ExpiryRequest(vault_after=LATER)))["requests"] == (not waits)
    left = await store.find_held("acme", "appr_1")
    assert (left.sealed, left.token) == (held.sealed if waits else b"", None)
    assert (left.status, left.votes, left.demand) == (held.status, held.votes, held.demand)
    assert (await store.expire(ExpiryRequest(vault_after=LATER)))["requests"] == 0, "once"


async def test_requests_are_forgotten_in_batches_what_ended_first_before_the_others(
    store, make, decided
):
    for number, end in enumerate([5, 1, 3]):
        name = f"appr_{number}"
        await decided(name, HeldStatus.REJECTED, key=name, expires_at=make.now + end)

    async def kept():
        found = await store.list_held("acme", HeldStatus.REJECTED, 9)
        return [one.approval_id for one in found if one.sealed]

    assert (await store.expire(ExpiryRequest(2, vault_after=LATER)))["requests"] == 2
    assert await kept() == ["appr_0"]
    assert (await store.expire(ExpiryRequest(2, vault_after=LATER)))["requests"] == 1
    assert await kept() == []


async def test_a_void_approval_has_no_token_and_a_spent_one_keeps_it(decided):
    assert (await decided("appr_1", HeldStatus.SPENT)).token == "t.1"
    assert (await decided("appr_2", HeldStatus.VOID, key="other")).token is None


def test_neither_the_call_nor_the_token_is_shown_by_accident(make):
    shown = repr(make.held(sealed=b"SECRET", token="PROOF"))
    assert "appr_1" in shown
    assert "SECRET" not in shown
    assert "PROOF" not in shown
