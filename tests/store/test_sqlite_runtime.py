"""A runtime on an SQLite file: what one process began, the next one goes on with."""

import asyncio
import sqlite3
from collections import Counter
from contextlib import asynccontextmanager, closing
from random import Random

import pytest

from counterseal import Grant, Proposal, Runtime
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.ledger.records import HeldStatus
from counterseal.testing import FakeClock, fake_tool, someone

CASE = {
    "type": "object",
    "properties": {"case_id": {"type": "string", "maxLength": 20, "description": "Which."}},
    "required": ["case_id"],
    "additionalProperties": False,
}
ANSWER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WHO = someone()


@pytest.fixture
def opened(tmp_path):
    """Opens a runtime on the test's file, each time as a new process would."""
    clock = FakeClock()

    @asynccontextmanager
    async def opened(*tools, calls=None):
        async with Runtime.open(f"sqlite:///{tmp_path}/store.db", clock=clock) as runtime:
            grants = [
                Grant(agent="agent", tool=tool.contract.name, max_calls_per_run=calls)
                for tool in tools
            ]
            runtime.register(*(tool.tool for tool in tools), grants=grants)
            yield runtime

    return opened


def drafting(*answers, **more):
    declared = {"input_schema": CASE, "output_schema": ANSWER, "effect": "draft", **more}
    return fake_tool("draft_reply", *(answers or ({"n": 1},)), **declared)


def propose(case_id="c1", **more):
    return Proposal(tool="draft_reply", arguments={"case_id": case_id}, **more)


async def test_what_was_done_is_replayed_after_a_restart_and_not_done_again(opened):
    first, second = drafting(), drafting({"n": 2})
    async with opened(first) as runtime:
        done = await runtime.submit(propose(run_id="run_1"), WHO)
        assert (done.code, done.data) == (Code.SUCCESS, {"n": 1})
    async with opened(second) as runtime:
        again = await runtime.submit(propose(run_id="run_1"), WHO)
        assert (again.idempotency_hit, again.data) == (True, {"n": 1})
        other = await runtime.submit(propose("c2", run_id="run_1"), WHO)
        assert (other.idempotency_hit, other.data) == (False, {"n": 2})
    assert (len(first.calls), len(second.calls)) == (1, 1)


async def test_the_same_key_with_another_payload_is_refused_after_a_restart(opened):
    async with opened(drafting()) as runtime:
        assert (await runtime.submit(propose(run_id="run_1", key="a"), WHO)).ok
    async with opened(drafting()) as runtime:
        other = await runtime.submit(propose("c2", run_id="run_1", key="a"), WHO)
        assert other.code is Code.SIGNATURE_MISMATCH


async def test_who_names_no_run_is_in_the_same_one_after_a_restart_and_so_are_its_budgets(opened):
    tool = drafting()
    async with opened(tool, calls=2) as runtime:
        assert [(await runtime.submit(propose(f"c{n}"), WHO)).code for n in range(2)] == [
            Code.SUCCESS,
            Code.SUCCESS,
        ]
    async with opened(tool, calls=2) as runtime:
        spent = await runtime.submit(propose("c9"), WHO)
        assert spent.code is Code.BUDGET_EXHAUSTED
        assert (await runtime.submit(propose("c0"), WHO)).idempotency_hit, "a replay costs nothing"
        events = await runtime.store.events("acme")
        assert len({event.caller.run_id for _, event in events}) == 1


async def test_what_tools_left_in_a_runs_state_is_there_after_a_restart(opened):
    tool = drafting({"n": 1}, {"n": 2}, state_effects=[{"key": "n", "merge": "append"}])
    async with opened(tool) as runtime:
        run = await runtime.run(WHO, "run_1", objective="answer", config={"tone": ["kind"]})
        assert (await run.submit("draft_reply", {"case_id": "c1"})).ok
    async with opened(tool) as runtime:
        run = await runtime.run(WHO, "run_1", objective="answer", config={"tone": ["kind"]})
        assert await run.state() == {"n": [1]}
        assert (await run.submit("draft_reply", {"case_id": "c2"})).ok
        assert await run.state() == {"n": [1, 2]}


async def test_mistakes_are_counted_across_a_restart(opened):
    tool, actions = drafting(), []
    for _ in range(2):
        async with opened(tool) as runtime:
            wrong = Proposal(tool="draft_reply", arguments={"case_id": 7}, run_id="run_1")
            actions.append((await runtime.submit(wrong, WHO)).next_action)
    assert actions[0] != "escalate"
    assert actions[1] == "escalate", "the same payload twice"
    async with opened(tool) as runtime:
        refused = await runtime.store.events("acme", run_id="run_1")
        assert [event.type for _, event in refused].count(EventType.SCHEMA_REFUSED) == 2


async def test_a_call_that_was_held_goes_on_after_a_restart_once_it_is_approved(opened):
    tool = drafting(effect="external_notification")
    async with opened(tool) as runtime:
        held = await runtime.submit(propose(run_id="run_1"), WHO)
        assert held.code is Code.CONFIRMATION_MISSING
    async with opened(tool) as runtime:
        again = await runtime.submit(propose(run_id="run_1"), WHO)
        assert again.approval_id == held.approval_id, "nobody is asked twice"
        await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    async with opened(tool) as runtime:
        done = await runtime.submit(propose(run_id="run_1"), WHO)
        assert (done.code, done.approval_id) == (Code.SUCCESS, held.approval_id)
    assert len(tool.calls) == 1


async def test_a_read_is_on_record_when_the_runtime_is_closed(opened):
    look = fake_tool("look_up", {"n": 1}, output_schema=ANSWER)
    async with opened(look) as runtime:
        assert (await runtime.submit(Proposal(tool="look_up", arguments={}), WHO)).ok
    async with opened(look) as runtime:
        ((_, event),) = await runtime.store.events("acme")
        assert event.type is EventType.SUCCEEDED


@pytest.mark.parametrize("seed", range(6))
async def test_a_cancelled_caller_in_a_crowd_leaves_nothing_half_done(opened, tmp_path, seed):
    random, tool = Random(seed), drafting()
    async with opened(tool, calls=100) as runtime:

        async def caller(n):
            for m in range(4):
                await runtime.submit(propose(f"c{n}-{m}", run_id=f"run_{n}"), WHO)

        callers = [asyncio.create_task(caller(n)) for n in range(48)]
        while not all(one.done() for one in callers):
            for one in random.sample(callers, 3):
                one.cancel()
            await asyncio.sleep(0)
        await asyncio.wait(callers)
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        entries = Counter(status for (status,) in db.execute("SELECT status FROM ledger"))
        ended = db.execute("SELECT count(*) FROM events WHERE type = ?", [EventType.SUCCEEDED])
        assert ended.fetchone() == (len(tool.calls),)
    assert entries.keys() <= {"COMPLETED", "FAILED_RETRYABLE"}
    assert entries["COMPLETED"] == len(tool.calls)
    assert any(one.cancelled() for one in callers)
