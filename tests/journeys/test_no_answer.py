"""What an audit found about lost answers: each of these once lost one, or did something twice."""

import asyncio
import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from counterseal import Context, Invariant, Proposal, Secret, StateEffect, tool
from counterseal.codes import Code
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.storage.memory import MemoryStore
from counterseal.testing import FakeClock, fake_tool, runtime_for, someone

WRITES = {"effect": "draft", "version": "1.0.0", "owner": "tests"}
Text = Annotated[str, Field(max_length=20, description="A text.")]


def ask(name, arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=name, arguments=arguments or {}, **more)


def entry_of(runtime):
    ((entry, *_),) = runtime.store._backend.entries.values()
    return entry.status, entry.phase


# --- doubt stays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("then", [PermissionError(), ValueError()])
async def test_a_later_attempt_does_not_erase_the_doubt_about_an_earlier_one(then):
    answers = iter([TimeoutError(), then])

    @tool(**WRITES, on_unknown="retry_same_key", max_retries=1)
    async def charge(ctx: Context) -> dict[str, int]:
        """Charge."""
        raise next(answers)

    runtime = runtime_for(charge)
    await runtime.submit(ask("charge"), someone())
    assert entry_of(runtime) == (EntryStatus.PENDING, Phase.UNKNOWN)


async def test_an_attempt_that_never_began_does_not_erase_it_either():
    values = iter(["long enough"])

    def resolve(tenant, name):
        return next(values)

    @tool(**WRITES, on_unknown="retry_same_key", max_retries=1)
    async def charge(ctx: Context, token: Annotated[str, Secret("token")]) -> dict[str, int]:
        """Charge."""
        runtime.executor.credentials.forget()
        raise TimeoutError

    runtime = runtime_for(charge, secrets=resolve)
    await runtime.submit(ask("charge"), someone())
    assert entry_of(runtime) == (EntryStatus.PENDING, Phase.UNKNOWN)


async def test_a_bug_in_a_tool_that_changes_something_is_asked_about():
    done = []

    @tool(**WRITES, read_back=lambda: {"charged": 1} if done else None)
    async def charge() -> dict[str, int]:
        """Charge, and then stumble."""
        done.append(1)
        return {}["id"]

    runtime = runtime_for(charge)
    assert (await runtime.submit(ask("charge"), someone())).data == {"charged": 1}


async def test_a_newer_version_does_not_decide_about_an_older_ones_outcome():
    ran = []

    def made(version, **more):
        async def charge(ctx: Context) -> dict[str, int]:
            """Charge."""
            ran.append(version)
            raise TimeoutError

        return tool(**{**WRITES, "version": version}, **more)(charge)

    runtime = runtime_for(made("1.0.0"))
    await runtime.submit(ask("charge", key="k"), someone())
    runtime.register(made("1.1.0", on_unknown="retry_same_key"))
    again = await runtime.submit(ask("charge", key="k", run_id="run_2"), someone())
    assert (again.code, ran) == (Code.IDEMPOTENCY_CONFLICT, ["1.0.0"])


# --- reading back ---------------------------------------------------------------------------------


async def test_the_destination_is_asked_about_what_was_sent():
    clock, sent, asked = FakeClock(), [], []
    small = Invariant(
        id="SMALL",
        rule="Small letters.",
        check=lambda call, s, c: call["to"] == call["to"].lower(),
        correct=lambda call, s, c: call.replace(to=call["to"].lower()),
    )

    def find(to):
        asked.append(to)
        return {"to": to} if len(asked) > 1 and to in sent else None

    @tool(**WRITES, read_back=find, invariants=[small], timeout_ms=1000)
    async def send(to: Text) -> dict[str, str]:
        """Send."""
        sent.append(to)
        raise TimeoutError

    runtime = runtime_for(send, clock=clock)
    await runtime.submit(ask("send", {"to": "A@X"}), someone())
    clock.advance(5)
    seen = await runtime.submit(ask("send", {"to": "A@X"}), someone())
    assert (seen.ok, sent, asked) == (True, ["a@x"], ["a@x", "a@x"])


async def test_nothing_is_done_anew_beside_a_thread_that_still_runs():
    clock, release, commits = FakeClock(), threading.Event(), []

    @tool(**WRITES, read_back=lambda: None, timeout_ms=50)
    def slow() -> dict[str, int]:
        """Take long."""
        release.wait(10)
        commits.append(1)
        return {"a": 1}

    runtime = runtime_for(slow, clock=clock)
    await runtime.submit(ask("slow"), someone())
    clock.advance(60)
    again = await runtime.submit(ask("slow"), someone())
    assert (again.code, again.retry) == (Code.IDEMPOTENCY_CONFLICT, True)
    release.set()
    (late,) = runtime.executor._abandoned.values()
    await late
    assert commits == [1]


async def test_several_who_find_out_at_once_leave_one_effect():
    clock, found = FakeClock(), []

    async def find():
        await asyncio.sleep(0)
        return found[0] if found else None

    @tool(
        **WRITES,
        read_back=find,
        timeout_ms=1000,
        state_effects=[StateEffect(key="note", merge="append")],
    )
    async def send() -> dict[str, str]:
        """Send."""
        raise TimeoutError

    runtime = runtime_for(send, clock=clock)
    await runtime.submit(ask("send"), someone())
    found.append({"note": "once"})
    seen = await asyncio.gather(*(runtime.submit(ask("send"), someone()) for _ in range(4)))
    assert all(one.ok for one in seen)
    run = await runtime.store.find_run("acme", "run_1")
    assert run.state["note"] == ["once"]


class Secretive(BaseModel):
    value: str


@pytest.mark.parametrize("form", [lambda t: [Secretive(value=t)], lambda t: {"x": (t,)}])
async def test_what_a_hook_returns_shows_no_secret(form):
    def find(token: Annotated[str, Secret("token")]) -> Any:
        return {"found": form(token)}

    @tool(**WRITES, read_back=find)
    async def send() -> dict[str, Any]:
        """Send."""
        raise TimeoutError

    runtime = runtime_for(send, secrets={"token": "correct horse"})
    seen = await runtime.submit(ask("send"), someone())
    assert seen.ok
    assert "correct horse" not in str(seen.record()) + str(runtime.store._backend.entries)


async def test_a_hook_whose_answer_can_not_be_read_has_not_answered():
    class Broken:
        pass

    @tool(**WRITES, read_back=lambda: {"found": Broken()})
    async def send() -> dict[str, Any]:
        """Send."""
        raise TimeoutError

    runtime = runtime_for(send)
    assert (await runtime.submit(ask("send"), someone())).code is Code.TIMEOUT
    assert entry_of(runtime) == (EntryStatus.PENDING, Phase.UNKNOWN)


# --- callers who go away --------------------------------------------------------------------------


def in_the_loop():
    return asyncio.sleep(0)


def in_a_thread():
    return asyncio.to_thread(lambda: None)


PAUSES = pytest.mark.parametrize("pause", [in_the_loop, in_a_thread])
"""Where a store's time goes by."""


class SlowStore(MemoryStore):
    """A store that takes its time, as one on a disk does."""

    def __init__(self, slow, pause):
        super().__init__()
        self.slow, self.pause, self.reached = slow, pause, asyncio.Event()

    async def _linger(self, what):
        if what == self.slow:
            self.reached.set()
            for _ in range(20):
                await self.pause()

    async def admit(self, request):
        await self._linger("admit")
        return await super().admit(request)

    async def settle(self, request):
        await self._linger("settle")
        return await super().settle(request)


async def cancelled_in(what, pause, times=1):
    saved = fake_tool("save", effect="draft")
    runtime = runtime_for(saved)
    runtime.store = SlowStore(what, pause)
    call = asyncio.create_task(runtime.submit(ask("save"), someone()))
    await runtime.store.reached.wait()
    for _ in range(times):
        call.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await call
    return runtime, saved


@PAUSES
async def test_a_caller_who_goes_away_while_it_is_settled_loses_nothing(pause):
    runtime, saved = await cancelled_in("settle", pause)
    assert (entry_of(runtime), len(saved.calls)) == ((EntryStatus.COMPLETED, None), 1)
    assert (await runtime.submit(ask("save"), someone())).idempotency_hit


@PAUSES
async def test_a_caller_who_goes_away_while_it_is_admitted_leaves_the_key_free(pause):
    runtime, saved = await cancelled_in("admit", pause)
    assert (entry_of(runtime), saved.calls) == ((EntryStatus.FAILED_RETRYABLE, None), [])
    assert (await runtime.submit(ask("save"), someone())).ok


@PAUSES
@pytest.mark.parametrize(
    ("what", "left"), [("admit", EntryStatus.FAILED_RETRYABLE), ("settle", EntryStatus.COMPLETED)]
)
async def test_who_insists_on_going_away_leaves_nothing_half_done_either(what, left, pause):
    runtime, _ = await cancelled_in(what, pause, times=3)
    async with runtime:
        pass  # its end waits for what goes on without the caller
    assert entry_of(runtime) == (left, None)


async def test_closing_waits_for_outcomes_that_are_being_written():
    runtime = runtime_for(fake_tool("save", effect="draft"))
    runtime.store = SlowStore("settle", in_a_thread)
    async with runtime:
        call = asyncio.create_task(runtime.submit(ask("save"), someone()))
        await runtime.store.reached.wait()
    assert entry_of(runtime) == (EntryStatus.COMPLETED, None)
    assert (await call).ok


async def test_a_caller_who_goes_away_before_anything_began_leaves_the_key_free():
    asked = asyncio.Event()

    async def resolve(tenant, name):
        asked.set()
        await asyncio.Event().wait()

    @tool(**WRITES)
    async def send(token: Annotated[str, Secret("token")]) -> dict[str, bool]:
        """Send."""
        return {"ok": True}

    runtime = runtime_for(send, secrets=resolve)
    call = asyncio.create_task(runtime.submit(ask("send"), someone()))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert entry_of(runtime) == (EntryStatus.FAILED_RETRYABLE, None)


@pytest.mark.parametrize("broken", ["keep", "admit"])
async def test_a_store_that_stumbles_does_not_keep_a_call_from_its_end(broken, monkeypatch):
    answers = iter([TimeoutError()])

    @tool(**WRITES, on_unknown="retry_same_key", max_retries=3)
    async def charge(ctx: Context) -> dict[str, int]:
        """Charge."""
        raise next(answers)

    runtime = runtime_for(charge)
    real, times = runtime.store.admit, iter([True])

    async def admit(request):
        if next(times, None):
            return await real(request)
        raise OSError("the disk is full")

    def keep(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(runtime.store, broken, keep if broken == "keep" else admit)
    if broken == "keep":
        answers = iter([TimeoutError()] * 4)
    seen = await runtime.submit(ask("charge"), someone())
    assert seen.code is Code.TIMEOUT
    assert entry_of(runtime) == (EntryStatus.PENDING, Phase.UNKNOWN)


# --- what the destination refused -----------------------------------------------------------------


async def test_a_mended_payload_may_be_tried_under_the_same_key():
    mapping = {"error_taxonomy_mapping": {"ValueError": "SEMANTIC_INVALIDITY"}}
    made = fake_tool(
        "pay",
        lambda amount: {"paid": amount} if amount < 600 else int("too much"),
        effect="draft",
        input_schema={
            "type": "object",
            "properties": {"amount": {"type": "integer", "description": "How much."}},
            "additionalProperties": False,
        },
        observability=mapping,
    )
    runtime = runtime_for(made)
    first = await runtime.submit(ask("pay", {"amount": 900}, key="k"), someone())
    assert first.repair
    same = await runtime.submit(ask("pay", {"amount": 900}, key="k"), someone())
    assert len(made.calls) == 1, "the same answer, without asking again"
    assert not same.ok
    mended = await runtime.submit(ask("pay", {"amount": 500}, key="k"), someone())
    assert (mended.ok, mended.data) == (True, {"paid": 500})
    other = await runtime.submit(ask("pay", {"amount": 400}, key="k"), someone())
    assert other.code is Code.SIGNATURE_MISMATCH


async def test_a_rate_limit_of_the_destination_can_be_waited_out():
    class BusyError(Exception):
        def __init__(self):
            self.response = type("R", (), {"status_code": 429, "headers": {}})()

    made = fake_tool("pay", BusyError(), {"ok": True}, effect="draft")
    runtime = runtime_for(made)
    assert (await runtime.submit(ask("pay"), someone())).retry
    assert (await runtime.submit(ask("pay"), someone())).ok


# --- deadlines ------------------------------------------------------------------------------------


async def test_a_probe_keeps_to_the_callers_deadline():
    async def hang():
        await asyncio.Event().wait()

    made = fake_tool("save", effect="draft", probe=hang)
    seen = await runtime_for(made).submit(ask("save"), someone(), timeout=0.05)
    assert (seen.code, made.calls) == (Code.DEPENDENCY_UNAVAILABLE, [])


@pytest.mark.parametrize("seconds", [-1, float("nan")])
async def test_a_deadline_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="timeout"):
        await runtime_for(fake_tool()).submit(ask("look_up"), someone(), timeout=seconds)


async def test_a_later_call_that_ignores_its_cancellation_is_left_behind_too():
    waits = iter([False, True])
    release = asyncio.Event()

    @tool(effect="read_only", version="1.0.0", owner="tests", timeout_ms=30, max_retries=0)
    async def moody() -> dict[str, bool]:
        """Sometimes wait, and never give in."""
        if next(waits):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
        return {"ok": True}

    runtime = runtime_for(moody)
    assert (await runtime.submit(ask("moody"), someone())).ok
    assert (await runtime.submit(ask("moody"), someone())).code is Code.TIMEOUT
    release.set()
    await asyncio.sleep(0)
