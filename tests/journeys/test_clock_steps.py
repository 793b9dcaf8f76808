"""Clocks that are set while calls are under way: by suspension, by NTP, by hand."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Context, Grant, Proposal, Runtime, tool
from counterseal.codes import Code
from counterseal.errors import NotSentError
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.reconcile import Reconciler
from counterseal.storage import open_store
from counterseal.storage.sqlite import SqliteStore
from counterseal.testing import FakeClock, someone
from tests.postgres_server import fresh_database, set_clock, settable_clock
from tests.waiting import until

KEY = "call:charge:k"
TIMEOUT, LEASE, STEP = 8, 30, 45
Amount = Annotated[int, Field(ge=1, le=100, description="How much.")]


class World:
    """A bank, and the workers that charge there: all on one database, with a clock to set."""

    def __init__(self, stack, path, url):
        self.clock, self.effects, self.begun = FakeClock(time.time()), [], []
        self.arrives = asyncio.Event()
        """Until then, the first requests are on their way to the bank."""
        self.on_the_way, self.raises = 1, []
        self._stack, self._path, self._url, self._ahead = stack, path, url, 0.0

    def step_database(self, seconds):
        """Set the clock of the database alone, as on a machine of its own."""
        self._ahead += seconds
        if self._url:
            set_clock(self._url, self._ahead)

    def _now(self):
        return self.clock() + self._ahead

    def step(self, seconds):
        self.clock.step(seconds)
        if self._url:
            self.step_database(seconds)

    def advance(self, seconds):
        self.clock.advance(seconds)
        if self._url:
            self.step_database(seconds)

    def find(self, ctx: Context):
        return {"charged": 7} if ctx.key in self.effects else None

    async def worker(self, on_unknown="read_back", **options):
        async def charge(amount: Amount, ctx: Context) -> dict[str, int]:
            """Charge an amount."""
            self.begun.append(ctx.key)
            if self.raises:
                raise self.raises.pop()
            if len(self.begun) <= self.on_the_way:
                await self.arrives.wait()
            if on_unknown != "retry_same_key" or ctx.key not in self.effects:
                self.effects.append(ctx.key)
            return {"charged": amount}

        more = {"read_back": self.find} if on_unknown == "read_back" else {"on_unknown": on_unknown}
        declared = {"effect": "draft", "version": "1.0.0", "owner": "tests", **more}
        store = open_store(self._url) if self._url else SqliteStore(self._path, clock=self._now)
        clocks = {"clock": self.clock, "steady": self.clock.steady}
        runtime = Runtime(store, lease=LEASE, **clocks, **options)
        runtime.register(
            tool(**declared, max_retries=2, timeout_ms=TIMEOUT * 1000)(charge),
            grants=[Grant(agent="agent", tool="charge")],
        )
        return await self._stack.enter_async_context(runtime)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def world(request, tmp_path):
    url = ""
    if request.param == "postgres":
        url = fresh_database()
        settable_clock(url)
    async with AsyncExitStack() as stack:
        yield World(stack, tmp_path / "s.db", url)


async def charge(runtime):
    proposal = Proposal(tool="charge", arguments={"amount": 7}, run_id="run_1", key="k")
    return await runtime.submit(proposal, someone())


async def under_way(world, runtime):
    """A call whose request has not arrived yet."""
    call = asyncio.ensure_future(charge(runtime))
    await until(lambda: world.begun)
    return call


async def entry_of(runtime):
    return (await runtime.store.look_up("acme", KEY)).entry


# --- a step forward -------------------------------------------------------------------------------


@pytest.mark.parametrize("other_is", ["there before", "started after", "on another machine"])
@pytest.mark.parametrize("reconciles", [True, False], ids=["reconciler", "callers"])
async def test_a_healthy_call_happens_once_when_the_clock_leaps(world, reconciles, other_is):
    mine = await world.worker()
    other = None if other_is == "started after" else await world.worker()
    step = world.step_database if other_is == "on another machine" else world.step
    call = await under_way(world, mine)
    refused = []
    for _ in range(2):
        step(STEP)  # longer than the lease and the timeout together
        other = other or await world.worker()
        if reconciles:
            await Reconciler(other).once()
        refused.append(await charge(other))
        world.advance((TIMEOUT - 1) / 2)
    world.arrives.set()
    assert (await call).ok
    assert len(world.effects) == 1
    assert {one.code for one in refused} == {Code.IDEMPOTENCY_CONFLICT}
    world.advance(LEASE + STEP)
    await Reconciler(other).once()
    answer = await charge(other)
    assert (answer.ok, answer.idempotency_hit, answer.data) == (True, True, {"charged": 7})
    assert len(world.effects) == 1


async def test_what_never_arrived_is_not_done_after_two_looks_of_one_process(world):
    dead, *others = [await world.worker() for _ in range(3)]
    call = await under_way(world, dead)
    dead.leases.close()  # nothing renews its lease, and the request is lost
    world.advance(LEASE)
    first, second = map(Reconciler, others)
    assert await first.once() == {"resting": 1}
    world.advance(TIMEOUT)
    assert await second.once() == {"resting": 1}, "its first look"
    world.advance(TIMEOUT)
    assert await first.once() == {"not_done": 1}, "what the other did in between changes nothing"
    assert (await charge(others[0])).ok
    assert len(world.effects) == 1
    call.cancel()
    await asyncio.wait({call})


async def test_a_new_reservation_is_watched_from_its_own_beginning(world):
    dead, other, third = [await world.worker() for _ in range(3)]
    calls = [await under_way(world, dead)]
    dead.leases.close()
    world.advance(LEASE)
    assert await Reconciler(other).once() == {"resting": 1}
    world.advance(TIMEOUT)
    assert await Reconciler(third).once() == {"resting": 1}
    world.advance(TIMEOUT)
    world.on_the_way = 2
    calls.append(asyncio.ensure_future(charge(third)))
    await until(lambda: len(world.begun) == 2)
    third.leases.close()
    world.advance(LEASE)
    assert await Reconciler(other).once() == {"resting": 1}
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_the_only_pass_of_a_process_waits_for_its_second_look(world):
    async def pause(seconds):
        waited.append(seconds)
        world.advance(seconds)

    waited, dead = [], await world.worker()
    call = await under_way(world, dead)
    dead.leases.close()
    world.advance(LEASE)
    only = await world.worker(pause=pause)
    assert await Reconciler(only).once(last=True) == {"not_done": 1}
    assert waited == [pytest.approx(TIMEOUT)]
    call.cancel()
    await asyncio.wait({call})


async def test_a_worker_that_was_taken_for_gone_begins_no_other_attempt(world):
    async def pause(_seconds):
        world.step_database(STEP)
        seen.append(await charge(await world.worker()))

    seen, mine = [], await world.worker(pause=pause)
    world.raises.append(NotSentError("no route"))
    assert not (await charge(mine)).ok
    assert seen[0].code is Code.IDEMPOTENCY_CONFLICT
    assert (len(world.begun), world.effects) == (1, [])


async def test_a_destination_that_honours_the_key_acts_once_when_the_clock_leaps(world):
    mine = await world.worker("retry_same_key")
    call = await under_way(world, mine)
    world.step(STEP)
    other = await world.worker("retry_same_key")
    assert await Reconciler(other).once() == {"retried": 1}
    world.arrives.set()
    assert (await call).ok
    assert len(world.effects) == 1


@pytest.mark.parametrize("on_unknown", ["escalate", "retry_same_key", "read_back"])
async def test_who_saw_the_clock_leap_lets_live_workers_renew_their_leases(world, on_unknown):
    mine, other = await world.worker(on_unknown), await world.worker(on_unknown)
    call = await under_way(world, mine)
    world.step(STEP)
    assert await Reconciler(other).once() == {}
    refused = await charge(other)
    assert (refused.code, refused.next_action) == (Code.IDEMPOTENCY_CONFLICT, "retry_later")
    assert await mine.leases.still_held(await entry_of(mine))
    world.advance(LEASE - 1)
    assert await Reconciler(other).once() == {}
    world.arrives.set()
    assert (await call).ok
    assert (await entry_of(mine)).status is EntryStatus.COMPLETED
    assert (len(world.effects), len(world.begun)) == (1, 1)


# --- a step back ----------------------------------------------------------------------------------


async def test_a_lease_ends_although_the_clock_was_set_back(world):
    dead, other = await world.worker("escalate"), await world.worker("escalate")
    call = await under_way(world, dead)
    dead.leases.close()
    world.step(-365 * 86_400)
    assert await Reconciler(other).once() == {}, "its worker may live, and renew it"
    world.advance(LEASE)
    assert await Reconciler(other).once() == {"escalated": 1}
    entry = await entry_of(other)
    assert entry.phase is Phase.ESCALATED
    assert entry.unknown_since < world.clock.now + 3600
    call.cancel()
    await asyncio.wait({call})


async def test_a_live_worker_keeps_its_call_when_the_clock_is_set_back(world):
    mine, other = await world.worker(), await world.worker()
    call = await under_way(world, mine)
    world.step(-365 * 86_400)
    assert await Reconciler(other).once() == {}
    assert await mine.leases.still_held(await entry_of(mine))
    world.advance(LEASE - 1)
    assert await Reconciler(other).once() == {}
    world.arrives.set()
    assert (await call).ok
    assert (await entry_of(mine)).status is EntryStatus.COMPLETED
    assert len(world.effects) == 1
