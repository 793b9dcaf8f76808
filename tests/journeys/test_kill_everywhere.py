"""Two workers on one store: what an operator changes at one of them holds at both, for good."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from counterseal import Grant, Proposal, Runtime
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.operations.operator import ALL_TENANTS
from counterseal.registry import Deprecation
from counterseal.testing import FakeClock, fake_tool, someone

WHO = someone()
GRANT = Grant(agent="agent", tool="save")
CASE = {
    "type": "object",
    "properties": {"case_id": {"type": "string", "maxLength": 20, "description": "Which."}},
    "required": ["case_id"],
    "additionalProperties": False,
}


class Worker:
    """A runtime as a process has it: its own registry, its own tools, and the shared store."""

    def __init__(self, runtime, grants, *versions, **settings):
        self.runtime = runtime
        self.tools = {
            version: fake_tool("save", effect="draft", version=version, input_schema=CASE)
            for version in versions
        }
        runtime.register(*(one.tool for one in self.tools.values()), grants=grants, **settings)
        self.operator = runtime.operator("u_7")
        self._cases = 0

    async def submit(self, run_id="run_1", principal=WHO):
        self._cases += 1
        case = f"{id(self)}-{self._cases}"[-20:]
        proposal = Proposal(tool="save", arguments={"case_id": case}, run_id=run_id)
        return await self.runtime.submit(proposal, principal)

    @property
    def calls(self):
        return {version: len(tool.calls) for version, tool in self.tools.items()}


@pytest.fixture
async def start(tmp_path):
    """Starts a worker, as often as one likes; all end with the test."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:

        async def start(*versions, grants=(GRANT,), **settings):
            runtime = Runtime.open(f"sqlite:///{tmp_path}/store.db", clock=clock)
            await stack.enter_async_context(runtime)
            return Worker(runtime, grants, *(versions or ("1.0.0",)), **settings)

        yield start


def refusal(seen):
    assert not seen.ok
    return seen.code, seen.decisions[-1].decision.rule


KILLED = (Code.PERMISSION_DENIED, "killed")


async def test_kill_stops_the_next_call_of_every_worker_and_a_restart_does_not_undo_it(start):
    here, there = await start(), await start()
    assert (await there.submit()).ok
    await here.operator.kill(tool="save", reason="leak")
    assert refusal(await here.submit()) == KILLED
    assert refusal(await there.submit()) == KILLED
    assert (here.calls, there.calls) == ({"1.0.0": 0}, {"1.0.0": 1})
    later = await start()
    assert refusal(await later.submit()) == KILLED
    assert later.calls == {"1.0.0": 0}


async def test_kill_of_one_tenant_stops_it_at_every_worker_and_other_tenants_nowhere(start):
    here, there = await start(), await start()
    other = someone(tenant="globex")
    kill = await here.operator.kill(tenant="acme", reason="leak")
    for worker in (here, there, await start()):
        assert refusal(await worker.submit()) == KILLED
        assert (await worker.submit("run_2", other)).ok
    all_of_them = await there.operator.kill(reason="worse")
    assert refusal(await here.submit("run_2", other)) == KILLED
    await there.operator.restore(kill, reason="mended")
    assert refusal(await here.submit()) == KILLED, "the kill for every tenant is still in force"
    await there.operator.restore(all_of_them, reason="mended")
    assert (await here.submit()).ok


async def test_approval_is_refused_in_the_tenant_that_was_stopped_and_in_no_other(start):
    worker = await start()
    await worker.operator.kill(tenant="acme", tool="save", reason="leak")
    assert worker.runtime.approvals.stop_reason("acme", "save", "1.0.0") is not None
    assert worker.runtime.approvals.stop_reason("globex", "save", "1.0.0") is None


async def test_kill_is_undone_at_another_worker_and_the_next_call_of_each_goes_through(start):
    here, there = await start(), await start()
    kill = await here.operator.kill(effect="draft", reason="leak")
    assert refusal(await there.submit()) == KILLED
    assert [one.id for one in there.runtime.registry.kills] == [kill.id]
    await there.operator.restore(kill.id, reason="mended")
    assert (await here.submit()).ok, "it had the kill, and hears that it is over"
    assert (await there.submit()).ok
    assert (await (await start()).submit()).ok


async def test_refused_call_spends_nothing_of_what_was_decided_before_the_kill(start):
    grants = [Grant(agent="agent", tool="save", max_calls_per_run=1)]
    here, there = await start(grants=grants), await start(grants=grants)
    kill = await here.operator.kill(reason="leak")
    assert refusal(await there.submit()) == KILLED
    await here.operator.restore(kill, reason="mended")
    assert (await there.submit()).ok
    assert (await there.submit()).code is Code.BUDGET_EXHAUSTED


async def test_disabled_tool_stays_so_until_it_is_enabled_whatever_code_declares(start):
    here, there = await start(), await start()
    await here.operator.disable("save", reason="wrong totals")
    assert refusal(await there.submit())[1] == "disabled"
    assert refusal(await (await start("1.0.0", "1.1.0")).submit())[1] == "disabled"
    await there.operator.enable("save", reason="mended")
    assert (await here.submit()).ok


async def test_grant_given_at_one_worker_is_good_at_all_and_one_taken_back_at_none(start):
    here, there = await start(grants=()), await start(grants=())
    assert refusal(await there.submit())[1] == "no_grant"
    await here.operator.grant(GRANT, reason="asked for")
    assert (await there.submit()).ok, "a refusal is given only by who knows the latest"
    declaring = await start(grants=[GRANT])
    await there.operator.revoke(GRANT, reason="left the team")
    for worker in (here, there, declaring, await start(grants=[GRANT])):
        assert refusal(await worker.submit())[1] == "no_grant"


async def test_rollout_moves_on_every_worker_and_runs_keep_what_they_began_with(start):
    here, there = await start("1.0.0"), await start("1.0.0")
    for worker in (here, there):
        worker.tools["2.0.0"] = fake_tool(
            "save", effect="draft", version="2.0.0", input_schema=CASE
        )
        worker.runtime.register(worker.tools["2.0.0"].tool, rollout_percentage=0)
    assert (await there.submit("run_1")).ok
    await here.operator.set_rollout("save", "2.0.0", 100, reason="it works")
    assert (await there.submit("run_1")).ok
    assert (await there.submit("run_2")).ok, "decided for the old version first, and then anew"
    assert there.calls == {"1.0.0": 2, "2.0.0": 1}
    later = await start("1.0.0", "2.0.0", rollout_percentage=0)
    assert (await later.submit("run_3")).ok
    assert later.calls == {"1.0.0": 0, "2.0.0": 1}, "what is stored wins over what is declared"


async def test_retired_version_is_retired_everywhere(start):
    here, there = await start(), await start()
    end = Deprecation(removal_at=datetime.fromtimestamp(here.runtime.clock(), UTC))
    await here.operator.deprecate("save", "1.0.0", end, reason="slow")
    assert refusal(await there.submit())[1] == "sunset"


async def test_drift_is_shown_wherever_one_looks_and_every_change_is_on_record(start):
    here, there = await start(), await start()
    await here.operator.disable("save", reason="wrong totals")
    await there.submit()
    (record,) = there.runtime.registry.export()["records"]
    assert record["drift"] == [
        {
            "field": "enabled",
            "declared": True,
            "stored": False,
            "by": "u_7",
            "reason": "wrong totals",
            "number": 1,
        }
    ]
    ((_, event),) = await there.runtime.store.events(ALL_TENANTS)
    assert (event.type, event.decision) == (EventType.REGISTRY_CHANGED, "disable")
    assert (event.caller.user, event.body["reason"]) == ("u_7", "wrong totals")


async def test_change_that_this_worker_does_not_understand_lets_nothing_through(start):
    here, there = await start(), await start()
    await here.runtime.store.change(1, {"op": "quarantine", "tool": "save"}, [])
    assert (await there.submit()).code is Code.DEPENDENCY_UNAVAILABLE
    assert there.calls == {"1.0.0": 0}
