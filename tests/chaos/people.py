"""Those outside: clients, who ask again under the same key, and a person for what nobody knows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from .checking import Told, performed, undo_key
from .harness import Gone, Worker
from .lanes import Lane
from .planning import Plan
from .tools import UNDO

__all__ = ["People"]

_WAIT: Final = 2.0
"""How long a client waits for another one under the same key."""


class People:
    """Of one round. None of them knows who was killed, or why there is no answer."""

    def __init__(self, lane: Lane, plan: Plan, told: Sequence[Told]) -> None:
        self._lane = lane
        self._plan = plan
        self._told = told
        self._chance = random.Random(f"people {plan.seed}")

    def clients(self, victim: Worker) -> list[Awaitable[None]]:
        """The first client of every operation goes to the one that will be struck down."""
        clients: list[Awaitable[None]] = []
        for one in self._told:
            clients.append(self._client(one, victim, 0.0))
            for number in range(1, one.operation.clients):
                later = self._chance.choice((0.0, self._chance.uniform(0, 0.03)))
                clients.append(self._client(one, self._lane.workers[number], later))
        return clients

    def again(self, worker: Worker) -> list[Awaitable[None]]:
        """Everybody asks once more."""
        return [self._client(one, worker, 0.0) for one in self._told]

    async def _client(self, one: Told, worker: Worker, later: float) -> None:
        """Ask until there is an answer, or until it is a person's turn."""
        if later:
            await asyncio.sleep(later)
        while True:
            try:
                seen = await self.submit(worker, one)
                if seen["ok"] or (seen["data"] or {}).get("compensated"):
                    one.ok += 1
                    return
                one.ended.append(f"{seen['code']} {seen['then']} {' '.join(seen['said'])}")
                if seen["code"] == "CONFIRMATION_MISSING" and seen["approval"]:
                    await self.approve(worker, one, seen)
                    continue
                if seen["then"] == "escalate" and await self._is_listed(one):
                    return
                await asyncio.sleep(min(seen["retry_after"] or 0.1, 0.3))
            except Gone:
                one.ended.append("killed")
                worker = await self._lane.pick(self._chance.randrange(3))

    async def submit(self, worker: Worker, one: Told) -> dict[str, Any]:
        plan = self._plan
        call = {"tool": one.operation.tool, "op": one.op, "wait": _WAIT}
        return await worker.ask("submit", tenant=plan.tenant, run_id=plan.run_id, **call)

    async def approve(self, worker: Worker, one: Told, seen: dict[str, Any]) -> None:
        one.asked += 1
        await worker.ask("approve", tenant=self._plan.tenant, approval=seen["approval"])

    async def _is_listed(self, one: Told) -> bool:
        record = await self._lane.observe(self._plan.tenant)  # it may be out of reach for a moment
        return ["unknown", one.key] in record.get("concerns", ())

    async def resolve(self, concerns: Sequence[Sequence[str]]) -> None:
        """Look at the destination, and say what was found there."""
        lines = self._lane.effects.lines(self._plan.tenant)
        whose = {one.key: (one.operation.tool, one.op) for one in self._told}
        for tool, op in tuple(whose.values()):
            if tool in UNDO:
                whose[undo_key(tool, op)] = (UNDO[tool], op)
        for kind, key in concerns:
            if kind == "unknown":
                happened = performed(lines, *whose[key]) > 0
                await self._surely("resolve", key=key, happened=happened)
            else:
                await self._surely("again", kind=kind, key=key)

    async def _surely(self, do: str, **given: Any) -> None:
        """Ask again where there is no answer: it may be on record all the same."""
        killed = False
        while True:
            worker = await self._lane.pick(self._chance.randrange(3))
            try:
                said = await worker.ask(do, tenant=self._plan.tenant, **given)
            except Gone:
                killed = True
                continue
            if "error" in said and not killed:
                raise RuntimeError(f"{do} {given} failed: {said['error']}")
            return
