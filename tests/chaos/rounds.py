"""One round: operations under way, somebody struck down, others who clean up; then the checks."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from .checking import Told, settled, violations
from .harness import Gone, Worker
from .lanes import Lane
from .people import People
from .planning import Plan, Strike
from .tools import UNDO

__all__ = ["Outcome", "play"]

PATIENCE: Final = 120.0
"""How many seconds a round may take to come to rest."""


@dataclass(slots=True)
class Outcome:
    """What came of a round."""

    plan: Plan
    seconds: float = 0.0
    struck: list[str] = field(default_factory=list)
    """Where somebody was struck down; empty when nobody came by."""
    tally: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)


async def play(lane: Lane, plan: Plan) -> Outcome:
    """A round in a lane. What goes wrong in the harness itself is raised."""
    began = time.monotonic()
    outcome = Outcome(plan)
    game = _Round(lane, plan, outcome)
    try:
        async with asyncio.timeout(PATIENCE):
            await game.play()
    except TimeoutError:
        outcome.violations.append(f"it did not come to rest in {PATIENCE:g} seconds")
        await game.keep_evidence()
        lane.abandon()
    finally:
        await game.end()
    outcome.seconds = time.monotonic() - began
    return outcome


class _Round:
    def __init__(self, lane: Lane, plan: Plan, outcome: Outcome) -> None:
        self.lane = lane
        self.plan = plan
        self.outcome = outcome
        self.told = [
            Told(operation, f"{plan.tenant}.{number}")
            for number, operation in enumerate(plan.operations)
        ]
        self.people = People(lane, plan, self.told)
        self._tasks: list[asyncio.Future[Any]] = []

    async def play(self) -> None:
        lane, plan = self.lane, self.plan
        await lane.ready()
        victim, *helpers = lane.workers
        await self._prepare(victim)
        self._tasks += [asyncio.create_task(self._watch(one)) for one in (victim, *helpers)]
        if not plan.compensates:
            await self._arm(victim, plan.strike, self.told[0].operation.tool)
        done = asyncio.gather(*self.people.clients(victim))
        self._tasks.append(done)
        await self._disturb(victim)
        if plan.late:
            await asyncio.wait({done}, timeout=plan.late)
        for helper, strike in zip(helpers, plan.helpers, strict=True):
            with suppress(Gone):
                await self._arm(helper, strike)
                await helper.ask("reconcile", every=plan.every)
        await done
        if plan.compensates:
            await self._reverse(victim)
        record = await self._come_to_rest()
        await self._check(record, final=False)
        while record["concerns"]:
            await self.people.resolve(record["concerns"])
            await asyncio.gather(*self.people.again(await lane.pick(0)))
            record = await self._come_to_rest()
        await self._check(record, final=True)
        await self._stand_down()

    async def end(self) -> None:
        """Nothing of this round goes on in the next one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- before -----------------------------------------------------------------------------------

    async def _prepare(self, worker: Worker) -> None:
        tenant = self.plan.tenant
        await worker.ask("begin", tenant=tenant, run_id=self.plan.run_id, external=100)
        for one in self.told:
            if one.operation.approved:
                seen = await self.people.submit(worker, one)
                await self.people.approve(worker, one, seen)

    async def _arm(self, worker: Worker, strike: Strike | None, tool: str = "") -> None:
        if strike is None:
            return
        if strike.by == "site":
            await worker.ask("arm", **strike.arms)
        if strike.plan:
            await self.lane.effects.plan(tool, self.told[0].op, **dict(strike.plan))

    # --- what happens to them ---------------------------------------------------------------------

    async def _watch(self, worker: Worker) -> None:
        """Note where a worker is struck down, and bring up another that helps from then on."""
        await asyncio.wait({worker.struck})
        by_itself = not worker.struck.cancelled()
        self.outcome.struck.append(worker.struck.result() if by_itself else self._from_outside())
        await worker.died.wait()
        another = await self.lane.replace()
        if not self.plan.compensates:
            await asyncio.sleep(self.plan.late)
        with suppress(Gone):
            await another.ask("reconcile", every=self.plan.every)

    def _from_outside(self) -> str:
        """How a worker was killed that did not do it itself."""
        strike = self.plan.strike
        if strike is None or strike.by != "server":
            return "clock" if strike else self.plan.outage
        return f"server.{dict(strike.plan)['kill']}"

    async def _disturb(self, victim: Worker) -> None:
        plan = self.plan
        if plan.strike is not None and plan.strike.by == "clock":
            await asyncio.sleep(plan.strike.after)
            if plan.strike.step:
                self.outcome.struck.append("clock_set")
                await self.lane.set_clock(plan.strike.step, plan.strike.site)
            else:
                await victim.kill()
        elif plan.outage == "locked":
            await self._hold_the_file(plan.outage_for)
        elif plan.outage == "restart":
            await asyncio.sleep(plan.outage_for / 10)
            self.outcome.struck.append("database")
            await self._restart(plan.outage_for)

    async def _hold_the_file(self, seconds: float) -> None:
        """Somebody writes, and is killed before they commit."""
        locker = await self.lane.pick(2)
        await locker.ask("lock", path=str(self.lane.path))
        await asyncio.sleep(seconds)
        await locker.kill()

    async def _restart(self, seconds: float) -> None:
        if self.lane.kill_database is None or self.lane.start_database is None:
            raise RuntimeError("this lane's database can't be killed")
        await asyncio.to_thread(self.lane.kill_database)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.lane.start_database)

    async def _reverse(self, victim: Worker) -> None:
        """Have the first operation reversed, and strike down whoever begins with it."""
        first, plan = self.told[0], self.plan
        await self._come_to_rest()  # what is due after the call itself is not what is aimed at
        for worker in self.lane.workers:
            await worker.ask("rest")
        await self._arm(victim, plan.strike, UNDO[first.operation.tool])
        said = await victim.ask("compensate", tenant=plan.tenant, key=first.key)
        if "error" in said:
            raise RuntimeError(f"{first.key} can't be reversed: {said['error']}")
        for worker in (victim, *self.lane.workers):
            with suppress(Gone):
                await worker.ask("reconcile", every=plan.every)
            await asyncio.wait({victim.struck}, timeout=0.2)  # it shall be the first

    # --- after ------------------------------------------------------------------------------------

    async def _come_to_rest(self) -> dict[str, Any]:
        """Wait until there is nothing left that a worker could do."""
        await self.lane.effects.drained()
        while True:
            record = await self.lane.observe(self.plan.tenant)
            if "error" not in record and settled(record):
                return record
            await asyncio.sleep(0.03)

    async def _check(self, record: dict[str, Any], *, final: bool) -> None:
        await self.lane.effects.drained()
        lines = self.lane.effects.lines(self.plan.tenant)
        found = violations(self.plan, self.told, record, lines, final=final)
        self.outcome.violations += [one for one in found if one not in self.outcome.violations]
        if found:
            await self.keep_evidence(record)

    async def keep_evidence(self, record: dict[str, Any] | None = None) -> None:
        """Everything that somebody needs who looks into a violation."""
        if record is None:
            with suppress(Gone, TimeoutError):
                async with asyncio.timeout(10):
                    record = await self.lane.observe(self.plan.tenant)
        self.outcome.evidence = {
            "plan": self.plan.record(),
            "struck": self.outcome.struck,
            "violations": self.outcome.violations,
            "effects": self.lane.effects.lines(self.plan.tenant),
            "clients": [[one.key, one.ok, one.asked, one.ended] for one in self.told],
            "record": record,
            "log": self.lane.effects.log(),
        }

    async def _stand_down(self) -> None:
        """Nobody is armed or at work any more when the next round begins."""
        await self.end()
        for worker in tuple(self.lane.workers):
            with suppress(Gone):
                worker.signal(signal.SIGCONT)
                await worker.ask("arm", site="")
                self.outcome.tally.update((await worker.ask("rest"))["tally"])
        lines = self.lane.effects.lines(self.plan.tenant)
        if dict(self.plan.strike.plan if self.plan.strike else ()).get("stop"):
            self.outcome.struck.append("server.stop")  # the first request met with it, for certain
        self.outcome.tally["performed"] = sum("what" in line for line in lines)
        self.outcome.tally["asked again"] = sum("again" in line for line in lines)
