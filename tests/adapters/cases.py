"""The cases that every adapter has to pass. A case gets a `World` and returns nothing, or raises.

Sessions differ by framework, cases do not. What an agent did is asked of the counter outside.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import world as w
from world import EFFECTS, World, approve, effects

from counterseal import Grant, Principal, Voter
from counterseal.adapters.host import NotRecordedError
from counterseal.config import load_settings
from counterseal.errors import ContractError, StoreError
from counterseal.evaluation.scenarios import CallPattern, Scenario
from counterseal.evaluation.trials import TrialProject, run_trial
from counterseal.testing import FakeClock

CASES: dict[str, Any] = {}

PAY = ("pay", {"to": "acct_1", "amount": 5}, "c_pay")
MAIL = ("send_mail", {"to": "a@example.org", "body": "hi"}, "c_mail")
NOTE = ("note", {"text": "x"}, "c_note")
LOOK = ("look_up", {"topic": "y"}, "c_look")


def case(function: Any) -> Any:
    CASES[function.__name__] = function
    return function


def same(actual: Any, expected: Any, *more: Any) -> None:
    if actual != expected:
        raise AssertionError(f"expected {expected!r}, got {actual!r} {more or ''}")


def has(text: str | None, *parts: str) -> None:
    for part in parts:
        if part not in (text or ""):
            raise AssertionError(f"expected {part!r} in {text!r}")


def count(**expected: int) -> None:
    """Check how often each tool has acted; those that are not named, never."""
    found = {name: len(effects(name)) for name in EFFECTS}
    same(found, {name: expected.get(name, 0) for name in EFFECTS})


@case
async def refused_text_reaches_the_model(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, LOOK], "done"], grants=w.grants(tools=["look_up"]))
        turn = await session.start()
        has(turn.results["c_note"], "PERMISSION_DENIED", "next action")
        same(turn.errors, {"c_note"})
        same(turn.final, "done")
        count(look_up=1)


@case
async def parallel_gated_and_ungated_calls(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, PAY, MAIL], "done"])
        turn = await session.start()
        same(len(turn.pending), 2)
        count(note=1)
        await approve(runtime, turn)
        turn = await session.resume()
        has(turn.results["c_pay"], "paid 5 to acct_1")
        has(turn.results["c_note"], "noted x")
        count(note=1, pay=1, send_mail=1)


@case
async def the_pause_shows_what_a_person_decides_on(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"], console="https://desk.example")
        (pending,) = (await session.start()).pending
        has(pending["link"], f"https://desk.example/approvals/{pending['approval_id']}")
        has(pending["consequence"], "a@example.org")
        same(pending["packet"]["arguments"], MAIL[1])


@case
async def the_hosts_answer_alone_decides_nothing(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"])
        await session.start()
        await session.resume(True)
        count()


@case
async def resumed_twice(world: World) -> None:
    """The host crashes after the resume and before it has saved anything, and resumes again."""
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, MAIL], "done"])
        turn = await session.start()
        await approve(runtime, turn)
        shutil.copytree(world.place / "state", world.place / "before")
        first = await session.resume()
        shutil.rmtree(world.place / "state")
        shutil.copytree(world.place / "before", world.place / "state")
        again = await world.session(runtime, [[NOTE, MAIL], "done"]).resume()
        same(again.results["c_mail"], first.results["c_mail"])
        same(again.final, "done")
        count(note=1, send_mail=1)


@case
async def resumed_twice_at_the_same_time(world: World) -> None:
    """Two hosts take up the same conversation: one call is made, and both get its result."""
    script = [[MAIL], "done"]
    async with world.runtime() as runtime:
        session = world.session(runtime, script)
        await approve(runtime, await session.start())
        shutil.copytree(world.place / "state", world.place / "other" / "state")
        other = World(world.framework, world.place / "other").session(runtime, script)
        for turn in await asyncio.gather(session.resume(), other.resume()):
            has(turn.results["c_mail"], "sent to a@example.org")
            same((turn.errors, turn.final), (set(), "done"))
        count(send_mail=1)


def in_child(world: World, what: str) -> int:
    """Run a part of a case in a process of its own; returns its exit code."""
    w.CHILDREN.write(json.dumps([what, str(world.place), w.URL]) + "\n")
    w.CHILDREN.flush()
    return int(w.CHILDREN.readline())


async def until_paused_then_killed(world: World) -> None:
    async with world.runtime() as runtime:
        await world.session(runtime, [[NOTE, PAY], "done"]).start()
        w.FAULTS["look_up"] = "kill"
        await w.act("look_up", "the end")


async def killed_after_the_effect(world: World) -> None:
    w.FAULTS["note"] = "kill"
    async with world.runtime() as runtime:
        await world.session(runtime, [[NOTE], "done"]).start()


async def killed_after_the_effect_alone(world: World) -> None:
    w.FAULTS["note"] = "kill"
    await world.session(None, [[NOTE], "done"]).start()


PARTS = {
    function.__name__: function
    for function in (
        until_paused_then_killed,
        killed_after_the_effect,
        killed_after_the_effect_alone,
    )
}


@case
async def resumed_in_a_new_process_after_kill_9(world: World) -> None:
    same(await asyncio.to_thread(in_child, world, "until_paused_then_killed"), -9)
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, PAY], "done"])
        (held,) = await runtime.approvals.list("acme")
        await approve(runtime, w.Turn([{"approval_id": held.approval_id}], {}, set(), None))
        turn = await session.resume()
        has(turn.results["c_pay"], "paid 5 to acct_1")
        same(turn.final, "done")
        count(note=1, pay=1, look_up=1)


@case
async def killed_between_the_effect_and_its_record(world: World) -> None:
    """Nobody knows whether the call took effect, so it is not made again."""
    same(await asyncio.to_thread(in_child, world, "killed_after_the_effect"), -9)
    shutil.rmtree(world.place / "state")
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], "done"]).start()
        same(turn.errors, {"c_note"})
        count(note=1)


@case
async def approved_with_other_arguments(world: World) -> None:
    """Other arguments are another proposal: the first approval does not cover them."""
    other = {"to": "acct_2", "amount": 7}
    async with world.runtime() as runtime:
        session = world.session(runtime, [[PAY], "done"])
        before = await session.start()
        if not getattr(world.framework, "EDITS", True):
            await approve(runtime, before)
            await session.resume_with(other)  # the framework itself refuses the edited run
            count()
            return
        turn = await session.resume_with(other)
        count()
        same([one["packet"]["arguments"] for one in turn.pending], [other])
        same(turn.pending[0]["approval_id"] == before.pending[0]["approval_id"], False)
        await approve(runtime, turn)
        turn = await session.resume_with(other)
        has(turn.results["c_pay"], "paid 7 to acct_2")
        same(effects("pay"), [["pay", "acct_2"]])


@case
async def rejected_with_a_comment(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"])
        turn = await session.start()
        await approve(runtime, turn, "reject", comment="not on Sunday")
        turn = await session.resume()
        has(turn.results["c_mail"], "not on Sunday", "rejected")
        same(turn.final, "done")
        count()


@case
async def a_gate_that_raises(world: World) -> None:
    def broken(*_: Any) -> bool:
        raise RuntimeError("no answer from the rule, and a secret: hunter2")

    rule = {"id": "broken", "rule": "The rule breaks.", "check": broken}
    tool = world.framework.own_tool(w.note)
    contract = world.framework.contract_for(tool, effect="draft", invariants=[rule])
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], "done"], contracts=[contract]).start()
        same(turn.errors, {"c_note"})
        if "hunter2" in turn.results["c_note"]:
            raise AssertionError(turn.results)
        count()


@case
async def the_store_is_down(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])

        async def down(*_: Any, **__: Any) -> None:
            raise StoreError("disk gone")

        runtime.store.admit = down
        try:
            turn = await session.start()
        except BaseException as error:  # noqa: BLE001 - each framework wraps it in its own
            causes = [error]
            while causes[-1].__cause__ or causes[-1].__context__:
                causes.append(causes[-1].__cause__ or causes[-1].__context__)
            same(any(isinstance(one, NotRecordedError) for one in causes), True, causes)
        else:
            raise AssertionError(f"the run went on: {turn}")
        count()


@case
async def an_approval_that_expired(world: World) -> None:
    world.clock, world.store = FakeClock(), "memory:"
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"])
        turn = await session.start()
        await approve(runtime, turn)
        world.clock.advance(700)
        turn = await session.resume()
        has(turn.results["c_mail"], "expired")
        count()


@case
async def cancelled_while_the_tool_runs(world: World) -> None:
    w.FAULTS["note"] = "hang"
    w.ACTED.clear()
    async with world.runtime() as runtime:
        running = asyncio.ensure_future(world.session(runtime, [[NOTE], "done"]).start())
        await w.ACTED.wait()
        running.cancel()
        await asyncio.wait([running])
        del w.FAULTS["note"]
        shutil.rmtree(world.place / "state")
        turn = await world.session(runtime, [[NOTE], "done"]).start()
        same(turn.errors, {"c_note"})
        has(turn.results["c_note"], "not known")
        count(note=1)


@case
async def the_frameworks_own_retry_around_us(world: World) -> None:
    """The tool acts and its answer is lost: a retry must not act again."""
    w.FAULTS["note"] = "raise"
    async with world.runtime() as runtime:
        again = ("note", {"text": "x"}, "c_note")
        session = world.session(runtime, [[NOTE], [again], "done"], retry=True, same="intent")
        turn = await session.start()
        same(turn.errors, {"c_note"})
        count(note=1)


@case
async def the_same_intent_planned_again(world: World) -> None:
    async with world.runtime() as runtime:
        again = ("pay", PAY[1], "c_again")
        session = world.session(runtime, [[PAY], [again], "done"])
        await approve(runtime, await session.start())
        turn = await session.resume()
        same(turn.pending, [])
        has(turn.results["c_again"], "paid 5 to acct_1")
        count(pay=1)


@case
async def a_second_call_that_is_meant(world: World) -> None:
    """Tools that are not irreversible may be called twice: the call's id makes the difference."""
    async with world.runtime() as runtime:
        again = ("note", NOTE[1], "c_again")
        turn = await world.session(runtime, [[NOTE], [again], "done"]).start()
        has(turn.results["c_again"], "noted x")
        count(note=2)


@case
async def streaming(world: World) -> None:
    async with world.runtime() as runtime:
        turn, chunks = await world.session(runtime, [[NOTE, LOOK], "done"]).stream()
        same(turn.final, "done")
        has(turn.results["c_look"], "about y")
        world.framework.check_stream(chunks)
        count(note=1, look_up=1)


@case
async def waiting_instead_of_a_pause(world: World) -> None:
    async with world.runtime() as runtime:
        options = {"pause": "wait", "console": "https://desk.example"}
        session = world.session(runtime, [[MAIL], "done"], wait=0.0, **options)
        turn = await session.start()
        has(turn.results["c_mail"], "Held: a person decides at https://desk.example/approvals/")
        same(turn.final, "done")
        count()
        shutil.rmtree(world.place / "state")
        session = world.session(runtime, [[MAIL], "done"], wait=60.0, **options)
        running = asyncio.ensure_future(session.start())
        (held,) = await runtime.approvals.list("acme")
        await runtime.approvals.decide(held.approval_id, w.ANN, "approve")
        has((await running).results["c_mail"], "sent to")
        count(send_mail=1)


@case
async def a_vote_in_the_hosts_own_page(world: World) -> None:
    """With `voter` a person of the host decides; the requester still can't approve their own."""

    def voter(_context: Any, answer: Any) -> Voter | None:
        return Voter(user=answer["by"], tenant="acme") if "by" in answer else None

    def said(by: str, kind: str = "approve") -> Any:
        def reply(shown: Any) -> dict[str, Any]:
            return {"type": kind, "approval_id": shown["approval_id"], "by": by}

        return reply

    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"], voter=voter)
        turn = await session.start()
        same(len(turn.pending), 1)
        await session.resume(said("u_1"))
        count()
        turn = await session.resume(said("ann"))
        has(turn.results["c_mail"], "sent to")
        count(send_mail=1)


@case
async def no_principal_no_call(world: World) -> None:
    def broken(_context: Any) -> Any:
        raise KeyError("user")

    async with world.runtime() as runtime:
        for principal in (broken, lambda _: None):
            session = world.session(runtime, [[LOOK], "done"], principal=principal)
            turn = await session.start()
            has(turn.results["c_look"], "PERMISSION_DENIED")
            shutil.rmtree(world.place / "state")
        count()


@case
async def tools_without_a_declared_effect_are_refused_at_start_up(world: World) -> None:
    async with world.runtime() as runtime:
        try:
            world.session(runtime, ["done"], effects={"look_up": "read_only"}, grants=())
        except ContractError as error:
            same({problem.tool for problem in error.problems}, {"pay", "send_mail", "note"})
        else:
            raise AssertionError("no error")


@case
async def a_sub_agent_has_no_more_than_its_parent(world: World) -> None:
    def parent(_context: Any) -> Principal:
        return w.someone(None, scopes={"notes"})

    def child(_context: Any) -> Principal:
        return Principal(tenant="acme", agent="helper", user="u_1", scopes={"notes", "money"})

    helpers = [*w.grants("helper"), *w.grants(tools=["note", "delegate"])]
    scoped = world.framework.contract_for(
        world.framework.own_tool(w.look_up), effect="read_only", scopes=["money"]
    )
    async with world.runtime() as runtime:
        runtime_options = {"grants": (), "principal": child, "contracts": [scoped]}
        inner = world.session(runtime, [[NOTE, LOOK, MAIL], "inner done"], **runtime_options)

        async def delegate(task: str) -> str:
            """Have a task done by a helper."""
            turn = await inner.nested()
            return "\n".join(turn.results.values())

        outer = world.session(
            runtime,
            [[("delegate", {"task": "t"}, "c_delegate")], "done"],
            tools=[delegate],
            effects={"delegate": "compute"},
            grants=helpers,
            principal=parent,
        )
        turn = await outer.start()
        text = turn.results["c_delegate"]
        has(text, "noted x", "PERMISSION_DENIED")
        count(note=1)
        events = [event for _, event in await runtime.store.events("acme")]
        same({event.caller.run_id for event in events}, {w.RUN})
        denied = {event.caller.tool for event in events if event.type.value == "tool.denied"}
        same(denied, {"look_up", "send_mail"})
        (done,) = [e for e in events if (e.type.value, e.caller.tool) == ("tool.succeeded", "note")]
        same((done.caller.agent, done.body["parents"]), ("helper", ["support"]))


@case
async def a_tool_of_an_mcp_server(world: World) -> None:
    server = [sys.executable, str(Path(__file__).with_name("mcp_server.py")), w.URL]
    post = ("post", {"text": "hello"}, "c_post")
    async with world.runtime() as runtime, world.framework.mcp_tools(server) as tools:
        options = {
            "effects": {"post": "external_notification"},
            "grants": [Grant(agent=w.AGENT, tool="post")],
            "mcp": tools,
        }
        session = world.session(runtime, [[post], "done"], tools=(), **options)
        turn = await session.start()
        same(len(turn.pending), 1)
        same(effects("post"), [])
        await approve(runtime, turn)
        turn = await session.resume()
        has(turn.results["c_post"], "posted hello")
        same(effects("post"), [["post", "hello"]])


@case
async def a_scenario_is_judged_by_what_the_adapter_recorded(world: World) -> None:
    (world.place / "counterseal.toml").write_text(
        f'[agents.{w.AGENT}]\ntenant = "acme"\nuser = "u_1"\n'
    )
    settings = load_settings(world.place / "counterseal.toml")
    scenario = Scenario(
        name="note it",
        objective="Note x.",
        agent=w.AGENT,
        calls=(CallPattern(tool="note", arguments={"text": "x"}),),
        forbid=(CallPattern(tool="pay"),),
    )

    async def agent(task: Any) -> str | None:
        session = world.session(
            task.runtime,
            [[NOTE, LOOK, PAY], "done"],
            principal=lambda _: task.principal,
            run_id=lambda _: task.run_id,
            pause="wait",
            wait=0.0,
        )
        return (await session.start()).final

    trial = await run_trial(TrialProject(settings=settings, contracts=()), scenario, agent)
    same(trial.score.wrong, ())
    uses = {use.tool: use for use in trial.trajectory.uses}
    same(set(uses), {"note", "look_up", "pay"})
    same((uses["pay"].approval, uses["pay"].executed), ("asked", False))
    same(trial.score.shares["security"], (1, 1))
    same(trial.score.shares["overuse"], (2, 3))
    count(note=1, look_up=1)
