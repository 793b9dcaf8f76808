"""Deadlines, attempts and unknown outcomes: a charge must never be made twice by guessing."""

import asyncio
import itertools
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Context, ContractError, Grant, Proposal, Runtime, tool
from counterseal.codes import Code
from counterseal.ledger.records import Budgets
from counterseal.testing import HANG, FakeClock, fake_tool, runtime_for, someone
from tests.waiting import until_now

WRITES = {"effect": "draft", "version": "1.0.0", "owner": "tests"}
READS = {**WRITES, "effect": "read_only"}
Amount = Annotated[int, Field(ge=1, le=100, description="How much.")]


def ask(name, arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=name, arguments=arguments or {}, **more)


class Bank:
    """Somebody else's service, which honours keys and sometimes does not answer."""

    def __init__(self, *answers):
        self.charges = {}
        self.asked = []
        self.answers = iter(answers)

    async def charge(self, key, amount):
        self.asked.append(key)
        self.charges.setdefault(key, amount)
        answer = next(self.answers, None)
        if answer is not None:
            raise answer
        return {"charged": self.charges[key]}

    def find(self, ctx: Context):
        found = self.charges.get(ctx.key)
        return None if found is None else {"charged": found}


def charging(bank, **more):
    async def charge(amount: Amount, ctx: Context) -> dict[str, int]:
        """Charge an amount."""
        return await bank.charge(ctx.key, amount)

    return tool(**{**WRITES, **more})(charge)


async def events_of(runtime):
    return [event for _, event in await runtime.store.events("acme")]


# --- the destination honours the key --------------------------------------------------------------


async def test_a_lost_answer_is_tried_again_under_the_same_key():
    bank = Bank(TimeoutError(), ConnectionResetError())
    runtime = runtime_for(charging(bank, on_unknown="retry_same_key"))
    seen = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert seen.ok
    assert seen.data == {"charged": 7}
    assert len(set(bank.asked)) == 1
    assert len(bank.asked) == 3
    assert list(bank.charges.values()) == [7]
    last = (await events_of(runtime))[-1]
    assert (last.type, last.body["attempts"]) == ("tool.succeeded", 3)


async def test_when_no_answer_comes_at_all_the_same_call_may_be_made_again():
    bank = Bank(*[TimeoutError()] * 3)
    runtime = runtime_for(charging(bank, on_unknown="retry_same_key"))
    first = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert (first.code, first.response.retryable) == (Code.TIMEOUT, True)
    assert first.response.next_action == "retry_same_key"
    second = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert second.ok
    third = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert third.idempotency_hit
    assert len(bank.asked) == 4
    assert len(bank.charges) == 1


async def test_two_who_try_again_at_once_are_one():
    bank = Bank(*[TimeoutError()] * 3)
    runtime = runtime_for(charging(bank, on_unknown="retry_same_key"))
    await runtime.submit(ask("charge", {"amount": 7}), someone())
    again = [runtime.submit(ask("charge", {"amount": 7}), someone()) for _ in range(5)]
    seen = await asyncio.gather(*again)
    assert len(bank.asked) == 4, "one of them took it over"
    assert all(one.ok or one.code is Code.IDEMPOTENCY_CONFLICT for one in seen)
    assert sum(one.ok for one in seen) >= 1


def test_a_key_that_the_function_can_not_pass_on_is_no_reason_to_try_again():
    @tool(**WRITES, on_unknown="retry_same_key")
    async def charge(amount: Amount) -> dict[str, int]:
        """Charge an amount."""
        return {"charged": amount}

    with pytest.raises(ContractError, match="key-unused"):
        runtime_for(charge)


# --- a person must find out -----------------------------------------------------------------------


@pytest.mark.parametrize("failure", [TimeoutError(), ConnectionResetError(), OSError()])
async def test_a_change_is_never_tried_again_blindly(failure):
    bank = Bank(failure)
    runtime = runtime_for(charging(bank, max_retries=5))
    seen = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert len(bank.asked) == 1
    assert (seen.response.retryable, seen.response.escalate) == (False, True)
    assert seen.response.next_action == "escalate"
    again = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert again.code is Code.IDEMPOTENCY_CONFLICT
    assert again.response.next_action == "escalate"
    assert len(bank.asked) == 1
    failed = (await events_of(runtime))[2]
    assert (failed.type, failed.body["unknown"]) == ("tool.failed", "escalate")


async def test_a_change_that_did_not_begin_may_be_tried_again():
    tries = itertools.count()

    async def resolve(tenant, name):
        if next(tries) < 2:
            raise ConnectionError("the vault is down")
        return "long enough"

    from counterseal import Secret

    sent = []

    @tool(**WRITES, max_retries=3)
    async def send(token: Annotated[str, Secret("token")]) -> dict[str, bool]:
        """Send something."""
        sent.append(1)
        return {"sent": True}

    runtime = runtime_for(send, secrets=resolve)
    assert (await runtime.submit(ask("send"), someone())).ok
    assert sent == [1]


# --- the destination can be asked -----------------------------------------------------------------


async def test_what_the_destination_has_done_is_read_back():
    bank = Bank(TimeoutError())
    runtime = runtime_for(charging(bank, read_back=bank.find))
    seen = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert (seen.ok, seen.data) == (True, {"charged": 7})
    assert len(bank.asked) == 1
    assert (await events_of(runtime))[-1].type == "tool.reconciled"
    again = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert again.idempotency_hit


async def test_what_is_not_there_yet_may_still_arrive():
    clock, found, charged = FakeClock(), [], []

    async def charge(amount: Amount) -> dict[str, int]:
        """Charge an amount."""
        charged.append(amount)
        if len(charged) == 1:
            raise TimeoutError
        return {"charged": amount}

    def look():
        return found[0] if found else None

    made = tool(**WRITES, read_back=look, timeout_ms=5000)(charge)
    runtime = runtime_for(made, clock=clock)
    first = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert (first.code, first.response.next_action) == (Code.TIMEOUT, "retry_later")
    soon = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert soon.code is Code.IDEMPOTENCY_CONFLICT
    assert soon.retry_after == 5
    assert charged == [7]
    found.append({"charged": 7})  # the first request arrives after all
    late = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert (late.ok, late.idempotency_hit, late.data) == (True, True, {"charged": 7})
    assert charged == [7]


async def test_what_did_not_happen_for_long_enough_is_done_anew():
    clock, bank = FakeClock(), []

    async def charge(amount: Amount) -> dict[str, int]:
        """Charge an amount."""
        bank.append(amount)
        if len(bank) == 1:
            raise TimeoutError
        return {"charged": amount}

    runtime = runtime_for(
        tool(**WRITES, read_back=lambda: None, timeout_ms=5000)(charge), clock=clock
    )
    await runtime.submit(ask("charge", {"amount": 7}), someone())
    clock.advance(5)
    assert (await runtime.submit(ask("charge", {"amount": 7}), someone())).ok
    assert bank == [7, 7]


async def test_a_destination_that_can_not_be_asked_has_not_said_no():
    clock, bank = FakeClock(), Bank(TimeoutError())

    def broken():
        raise ConnectionError

    runtime = runtime_for(charging(bank, read_back=broken), clock=clock)
    await runtime.submit(ask("charge", {"amount": 7}), someone())
    clock.advance(3600)
    seen = await runtime.submit(ask("charge", {"amount": 7}), someone())
    assert seen.code is Code.IDEMPOTENCY_CONFLICT
    assert len(bank.asked) == 1


async def test_a_preview_requests_no_approval_and_settles_nothing():
    asked, bank = [], Bank(TimeoutError())

    def look():
        asked.append(1)

    runtime = runtime_for(charging(bank, read_back=look))
    await runtime.submit(ask("charge", {"amount": 7}), someone())
    asked.clear()
    seen = await runtime.preview(ask("charge", {"amount": 7}), someone())
    assert (seen.code, asked) == ("IDEMPOTENCY_CONFLICT", [])


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["contract", "run", "budget", "caller"])
async def test_the_shortest_deadline_counts(who):
    clock = FakeClock()
    seen_by_tool = []

    @tool(**READS, timeout_ms=2000 if who == "contract" else 60_000)
    async def look(ctx: Context) -> dict[str, bool]:
        """Look."""
        seen_by_tool.append(ctx.deadline.timestamp() - clock.now)
        return {"ok": True}

    runtime = runtime_for(look, clock=clock)
    await runtime.run(
        someone(),
        "run_1",
        deadline=clock.now + (2 if who == "run" else 60),
        budgets=Budgets(seconds=2 if who == "budget" else 60),
    )
    seen = await runtime.submit(ask("look"), someone(), timeout=2 if who == "caller" else 60)
    assert seen.ok
    assert seen_by_tool == [2]


async def test_a_caller_without_time_starts_nothing():
    changes = fake_tool("change", effect="draft")
    runtime = runtime_for(changes)
    seen = await runtime.submit(ask("change"), someone(), timeout=0)
    assert (seen.code, changes.calls) == (Code.TIMEOUT, [])
    assert (await runtime.submit(ask("change"), someone())).ok, "the key is free"


async def test_a_run_that_is_over_starts_nothing():
    clock = FakeClock()
    reads = fake_tool("look")
    runtime = runtime_for(reads, clock=clock)
    await runtime.run(someone(), "run_1", deadline=clock.now + 10)
    clock.advance(10)
    seen = await runtime.submit(ask("look"), someone())
    assert (seen.code, reads.calls) == (Code.BUDGET_EXHAUSTED, [])


async def test_no_attempt_is_made_that_could_not_be_waited_for():
    clock = FakeClock()

    def failing(**_):
        clock.advance(1.0)
        raise ConnectionError

    reads = fake_tool("look", failing, max_retries=50)
    runtime = runtime_for(reads, clock=clock)
    seen = await runtime.submit(ask("look"), someone(), timeout=3)
    assert seen.code is Code.DEPENDENCY_UNAVAILABLE
    assert len(reads.calls) == 3


async def test_the_wait_that_the_other_side_asks_for_is_kept():
    waited = []

    async def pause(seconds):
        waited.append(seconds)

    class BusyError(Exception):
        def __init__(self):
            self.response = type("R", (), {"status_code": 429, "headers": {"retry-after": "7"}})()

    reads = fake_tool("look", BusyError(), {"ok": True})
    runtime = runtime_for(reads, pause=pause)
    assert (await runtime.submit(ask("look"), someone())).ok
    assert waited == [7]


async def test_attempts_are_spent_from_the_runs_budget():
    reads = fake_tool("look", ConnectionError(), max_retries=10)
    runtime = runtime_for(reads)
    await runtime.run(someone(), "run_1", budgets=Budgets(retries=3))
    await runtime.submit(ask("look"), someone())
    assert len(reads.calls) == 4
    await runtime.submit(ask("look"), someone())
    assert len(reads.calls) == 5


async def test_a_tool_that_ignores_its_cancellation_is_left_behind():
    release = asyncio.Event()
    ended = []

    @tool(**WRITES, timeout_ms=20)
    async def stubborn() -> dict[str, bool]:
        """Never stop."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.append(1)
        return {"ok": True}

    runtime = runtime_for(stubborn)
    seen = await runtime.submit(ask("stubborn"), someone())
    assert (seen.code, seen.response.next_action) == (Code.TIMEOUT, "escalate")
    assert ended == []
    release.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ended == [1]


async def test_a_thread_can_see_that_its_call_has_timed_out():
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(**READS, timeout_ms=20, max_retries=0)
    def long_loop(ctx: Context) -> dict[str, bool]:
        """Work in small steps."""
        until_now(lambda: ctx.cancelled)
        loop.call_soon_threadsafe(seen.set)
        return {"ok": False}

    runtime = runtime_for(long_loop)
    await runtime.submit(ask("long_loop"), someone())
    await asyncio.wait_for(seen.wait(), 10)


async def test_a_caller_who_goes_away_leaves_the_truth_on_record():
    began = asyncio.Event()

    @tool(**WRITES)
    async def careful(ctx: Context) -> dict[str, bool]:
        """Finish even when told to stop."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"rolled_back": True}
        return {}

    runtime = runtime_for(careful)
    call = asyncio.create_task(runtime.submit(ask("careful"), someone()))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    seen = await runtime.submit(ask("careful"), someone())
    assert (seen.idempotency_hit, seen.data) == (True, {"rolled_back": True})


# --- progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_progress_reaches_the_caller(kind):
    async def later(ctx: Context) -> dict[str, bool]:
        """Report."""
        ctx.progress(1, 2, "halfway")
        ctx.progress(2, 2)
        return {"ok": True}

    def now(ctx: Context) -> dict[str, bool]:
        """Report."""
        ctx.progress(1, 2, "halfway")
        ctx.progress(2, 2)
        return {"ok": True}

    made = tool(**READS)(later if kind == "async" else now)
    runtime = runtime_for(made)
    reports = []
    seen = await runtime.submit(
        ask(made.contract.name, call_id="call_7"), someone(), progress=reports.append
    )
    assert seen.ok
    assert [tuple(one) for one in reports] == [
        (seen.call_id, 1, 2, "halfway"),
        (seen.call_id, 2, 2, ""),
    ]


async def test_a_caller_who_breaks_on_progress_harms_only_the_report():
    @tool(**READS)
    async def look(ctx: Context) -> dict[str, bool]:
        """Report."""
        ctx.progress(1)
        return {"ok": True}

    def broken(_):
        raise ValueError

    assert (await runtime_for(look).submit(ask("look"), someone(), progress=broken)).ok


# --- traces ---------------------------------------------------------------------------------------


async def test_the_whole_trace_goes_to_the_vault_and_no_word_of_it_to_the_model():
    def deep():
        raise KeyError("internal table users_v2")

    @tool(**READS)
    async def look() -> dict[str, bool]:
        """Look."""
        try:
            deep()
        except KeyError as error:
            raise ValueError("a bug") from error
        return {}

    runtime = runtime_for(look)
    seen = await runtime.submit(ask("look"), someone())
    assert "users_v2" not in str(seen.envelope()) + seen.for_model()
    assert "a bug" not in str(seen.envelope()) + seen.for_model()
    (failed,) = [event for event in await events_of(runtime) if event.type == "tool.failed"]
    assert failed.body["error"] == "builtins.ValueError"
    kept = (await runtime.store.fetch("acme", failed.body["trace"])).decode()
    assert "users_v2" in kept
    assert "a bug" in kept
    assert "in deep" in kept


async def test_a_runtime_can_be_closed_while_a_tool_hangs():
    hangs = fake_tool("hang", HANG)
    async with Runtime.open("memory:") as runtime:
        runtime.register(hangs.tool, grants=[Grant(agent="agent", tool="hang")])
        seen = await runtime.submit(ask("hang"), someone(), timeout=0.01)
    assert seen.code is Code.TIMEOUT
