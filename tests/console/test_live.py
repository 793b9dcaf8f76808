"""Pages are told that something has changed, whoever changed it, while their session lasts."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from counterseal import Runtime
from counterseal.errors import StoreError
from counterseal.ledger.records import HeldStatus
from counterseal.web.console.live import Broker, FullError
from tests.console.conftest import client_of
from tests.console.test_sign_in import sent
from tests.console.world import PATIENCE

STREAM = "/events?tenant=acme"


@asynccontextmanager
async def listening(client, path=STREAM):
    """The events of a stream, one after the other."""
    async with client.stream("GET", path) as answer:
        pieces = answer.aiter_lines()

        async def event():
            found = {}
            async with asyncio.timeout(PATIENCE):
                async for line in pieces:
                    name, _, value = line.partition(": ")
                    if name in ("event", "data"):
                        found[name] = value
                    elif not line and "data" in found:
                        return found["event"], found["data"]
            return None

        event.answer = answer
        yield event


async def until(so):
    """Wait for what somebody else brings about."""
    async with asyncio.timeout(PATIENCE):
        while not so():  # noqa: ASYNC110 - nobody tells when it is
            await asyncio.sleep(0.01)


async def marks(event):
    kind, told = await event()
    assert kind == "marks"
    return json.loads(told)


async def test_a_stream_begins_with_what_is_and_goes_on_when_something_changes(bank, ann):
    async with listening(ann) as event:
        assert event.answer.headers["content-type"].startswith("text/event-stream")
        assert event.answer.headers["cache-control"] == "no-store"
        first = await marks(event)
        approval_id = await bank.closing()
        second = await marks(event)
        assert second["approvals"] != first["approvals"]
        assert second["kills"] == first["kills"]
        await sent(
            ann,
            f"/approvals/{approval_id}/decision",
            choice="approve",
            typed="account:acc_4711",
        )
        third = await marks(event)  # one vote of two: it still waits
        assert third["approvals"] != second["approvals"]
        await bank.runtime.operator("root").kill(reason="An exercise.")
        assert (await marks(event))["kills"] != third["kills"]


async def test_what_another_worker_changes_is_told_too(bank, ann):
    approval_id = await bank.notice()
    async with listening(ann) as event:
        before = await marks(event)
        async with Runtime.open(bank.store_url, clock=bank.clock) as other:
            await other.store.decide("acme", approval_id, HeldStatus.REJECTED, [])
            assert (await marks(event))["approvals"] != before["approvals"]
            await other.operator("root").kill(reason="An exercise.")
            assert (await marks(event))["kills"] != before["kills"]


async def test_another_tenants_changes_are_not_told(bank, ann):
    async with (
        client_of(bank, "zed") as zed,
        listening(ann) as ours,
        listening(zed, "/events?tenant=zeta") as theirs,
    ):
        await marks(ours)
        first = await marks(theirs)
        await bank.notice(tenant="zeta")
        second = await marks(theirs)
        assert second["approvals"] != first["approvals"]
        await bank.notice()
        heard = await marks(ours)  # nothing came before its own
        assert heard == bank.broker.latest("acme")
        assert bank.broker.latest("zeta") == second


async def test_a_stream_ends_with_its_session(bank, ann):
    async with listening(ann) as event:
        await marks(event)
        bank.clock.advance(3601)
        await bank.notice()
        assert (await event())[0] == "over"
        assert await event() is None


async def test_there_is_no_stream_for_strangers_or_for_another_tenant(bank, ann):
    async with client_of(bank) as stranger:
        assert (await stranger.get(STREAM)).status_code == 204
    assert (await ann.get("/events?tenant=zeta")).status_code == 204
    assert (await ann.get("/events")).status_code == 204


async def test_when_the_server_stops_streams_end(bank, ann):
    async with listening(ann) as event:
        await marks(event)
        bank.broker.close()
        assert await event() is None
    assert (await ann.get(STREAM)).status_code == 503


async def test_when_the_last_page_is_closed_the_store_is_not_polled_any_more(bank, ann):
    async with listening(ann) as event:
        await marks(event)
        assert bank.broker.latest("acme")
    await until(lambda: not bank.broker.latest("acme"))
    assert bank.broker._polling is None


# --- the broker alone -----------------------------------------------------------------------------


class Told:
    """Marks as a store would give them, and how often it was asked."""

    def __init__(self):
        self.mark, self.asked, self.down = "1", 0, False

    async def __call__(self, tenant):
        self.asked += 1
        if self.down:
            raise StoreError("away")
        return {"approvals": f"{tenant} {self.mark}"}


@pytest.fixture
def told():
    return Told()


async def test_so_many_pages_and_no_more(told):
    broker = Broker(told, limit=3, limit_each=2)
    with broker.listening("acme", "ann"), broker.listening("acme", "ann"):
        with pytest.raises(FullError), broker.listening("acme", "ann"):
            pass
        with (
            broker.listening("acme", "bob"),
            pytest.raises(FullError),
            broker.listening("zeta", "eve"),
        ):
            pass
        with broker.listening("zeta", "eve"):
            pass
    with broker.listening("acme", "ann"):
        pass


async def test_the_store_is_asked_once_for_all_pages_of_a_tenant(told):
    broker = Broker(told, interval=3600)
    with broker.listening("acme", "ann") as one, broker.listening("acme", "bob") as two:
        assert await one.changed(PATIENCE)
        assert await two.changed(PATIENCE)
        assert (told.asked, one.marks) == (1, {"approvals": "acme 1"})
        with broker.listening("acme", "eve") as late:
            assert await late.changed(PATIENCE)  # what is known is told at once
        assert told.asked == 1


async def test_a_store_that_is_away_ends_no_stream(told):
    broker = Broker(told, interval=0.01)
    told.down = True
    with broker.listening("acme", "ann") as page:
        await until(lambda: told.asked >= 3)
        told.down = False
        assert await page.changed(PATIENCE)


async def test_what_is_the_same_is_not_told_again(told):
    broker = Broker(told, interval=0.01)
    with broker.listening("acme", "ann") as page:
        assert await page.changed(PATIENCE)
        asked = told.asked
        await until(lambda: told.asked >= asked + 3)
        assert not await page.changed(0.01)
        told.mark = "2"
        assert await page.changed(PATIENCE)
