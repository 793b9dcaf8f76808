"""Faults for the fail matrix: the same trouble with an adapter and without one, in effects counted.

Without a runtime a session has the framework's own approval for `pay` and `send_mail`, and every
question is answered with yes.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import Any

import world as w
from cases import MAIL, NOTE, PAY, in_child
from world import World, approve, effects

from counterseal.errors import StoreError

NONE = "-"
"""Where the fault can't happen to a framework alone."""
FAULTS: dict[str, tuple[str, Any]] = {}


def fault(sentence: str) -> Any:
    def add(function: Any) -> Any:
        FAULTS[function.__name__] = (sentence, function)
        return function

    return add


@asynccontextmanager
async def runtime_or_none(world: World, governed: bool) -> Any:
    if governed:
        async with world.runtime() as runtime:
            yield runtime
    else:
        yield None


async def decided(runtime: Any, turn: Any) -> None:
    if runtime is not None:
        await approve(runtime, turn)


def times(name: str) -> str:
    return f"{len(effects(name))}x"


@fault("The host crashes after a resume, and resumes again")
async def resumed_again(world: World, governed: bool) -> str:
    script = [[MAIL], "done"]
    async with runtime_or_none(world, governed) as runtime:
        session = world.session(runtime, script)
        await decided(runtime, await session.start())
        shutil.copytree(world.place / "state", world.place / "before")
        await session.resume()
        shutil.rmtree(world.place / "state")
        shutil.copytree(world.place / "before", world.place / "state")
        await world.session(runtime, script).resume()
    return times("send_mail")


@fault("The model plans the same payment again")
async def planned_again(world: World, governed: bool) -> str:
    script = [[PAY], [("pay", PAY[1], "c_again")], "done"]
    async with runtime_or_none(world, governed) as runtime:
        session = world.session(runtime, script)
        turn = await session.start()
        while turn.pending:
            await decided(runtime, turn)
            turn = await session.resume()
    return times("pay")


@fault("A tool acts, its answer is lost, and the framework's retry or the model tries again")
async def answer_lost(world: World, governed: bool) -> str:
    w.FAULTS["note"] = "raise"
    options = {"same": "intent"} if governed else {}
    script = [[NOTE], [("note", NOTE[1], "c_again")], "done"]
    async with runtime_or_none(world, governed) as runtime:
        try:
            await world.session(runtime, script, retry=True, **options).start()
        except ConnectionError:
            pass  # the run has ended
        except Exception as error:
            if "the line broke" not in f"{error} {error.__cause__}":
                raise
    return times("note")


@fault("The process is killed after the effect, and started again")
async def killed(world: World, governed: bool) -> str:
    part = "killed_after_the_effect" if governed else "killed_after_the_effect_alone"
    await asyncio.to_thread(in_child, world, part)
    shutil.rmtree(world.place / "state")
    async with runtime_or_none(world, governed) as runtime:
        await world.session(runtime, [[NOTE], "done"]).start()
    return times("note")


@fault("The run is cancelled while a tool acts, and started again")
async def cancelled(world: World, governed: bool) -> str:
    w.FAULTS["note"] = "hang"
    async with runtime_or_none(world, governed) as runtime:
        running = asyncio.ensure_future(world.session(runtime, [[NOTE], "done"]).start())
        await w.ACTED.wait()
        running.cancel()
        await asyncio.wait([running])
        w.FAULTS.clear()
        shutil.rmtree(world.place / "state")
        await world.session(runtime, [[NOTE], "done"]).start()
    return times("note")


@fault("The host says yes, and no person has approved")
async def nobody_approved(world: World, governed: bool) -> str:
    async with runtime_or_none(world, governed) as runtime:
        session = world.session(runtime, [[MAIL], "done"])
        await session.start()
        await session.resume(True)
    return times("send_mail")


@fault("A payment is approved, and then its arguments are changed")
async def changed_after_approval(world: World, governed: bool) -> str:
    async with runtime_or_none(world, governed) as runtime:
        session = world.session(runtime, [[PAY], "done"])
        await session.start()  # somebody approves something else than what is executed
        await session.resume_with({"to": "acct_other", "amount": 900})
    paid = [what for _, what in effects("pay")]
    return "paid to the other account" if "acct_other" in paid else "not paid"


@fault("Three calls in one turn, two of them approved one after the other: note, payment, payment")
async def three_in_one_turn(world: World, governed: bool) -> str:
    second = ("pay", {"to": "acct_2", "amount": 5}, "c_second")
    options = getattr(world.framework, "ONE_NODE", {})
    async with runtime_or_none(world, governed) as runtime:
        session = world.session(runtime, [[NOTE, PAY, second], "done"], **options)
        turn = await session.start()
        while turn.pending:
            await decided(runtime, turn)
            turn = await session.resume()
    paid = [what for _, what in effects("pay")]
    return f"{times('note')}, {paid.count('acct_1')}x, {paid.count('acct_2')}x"


@fault("The store of the record is down")
async def store_down(world: World, governed: bool) -> str:
    async with runtime_or_none(world, governed) as runtime:
        if runtime is None:
            return NONE

        async def down(*_: Any, **__: Any) -> None:
            raise StoreError("disk gone")

        session = world.session(runtime, [[NOTE], "done"])
        runtime.store.admit = down
        try:
            await session.start()
        except Exception:  # noqa: BLE001 - each framework wraps it in its own
            return f"{times('note')}, the run ends"
    return f"{times('note')}, the run goes on"


@fault("A rule about the call breaks")
async def rule_broken(world: World, governed: bool) -> str:
    def broken(*_: Any) -> bool:
        raise RuntimeError("no answer from the rule")

    async with runtime_or_none(world, governed) as runtime:
        if runtime is None:
            return NONE
        rule = {"id": "broken", "rule": "The rule breaks.", "check": broken}
        tool = world.framework.own_tool(w.note)
        contract = world.framework.contract_for(tool, effect="draft", invariants=[rule])
        turn = await world.session(runtime, [[NOTE], "done"], contracts=[contract]).start()
    return f"{times('note')}, the model is told" if turn.errors else times("note")
