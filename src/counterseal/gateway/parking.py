"""Calls that stand still while their clients are away to find answers, as 2026-07-28 wants it.

The client is told what is asked, and calls again; then the call goes on where it stood. It is held
by this process, for the principal that made it, and no longer than its own deadline.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from counterseal.gateway.asking import Fronted
from counterseal.observation import Observation
from counterseal.proposal import Principal

__all__ = ["Park", "Parked"]


class Parked:
    """A call that goes on while its client is away to find answers."""

    def __init__(
        self, client: Fronted, principal: Principal, task: asyncio.Future[Observation]
    ) -> None:
        self.client = client
        self.principal = principal
        self.task = task

    async def next(self) -> Observation | dict[str, Any]:
        """What became of the call, or what its client is asked. Leaves with the caller."""
        stirred = self.client.stirred
        while not self.task.done():
            questions = self.client.questions()
            if questions:
                return questions
            stirred.clear()
            waking = asyncio.ensure_future(stirred.wait())
            both: set[asyncio.Future[Any]] = {self.task, waking}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.task.cancel()
                raise
            finally:
                waking.cancel()
        return self.task.result()


class Park:
    """The parked calls of this process. What is not fetched ends by its own deadline."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self._calls: dict[str, Parked] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def full(self) -> bool:
        return len(self._calls) >= self.most

    def leave(self, call: Parked) -> str:
        """Keep a call until its client is back; under which name."""
        name = secrets.token_urlsafe(18)
        self._calls[name] = call
        call.task.add_done_callback(lambda _: self._calls.pop(name, None))
        return name

    def fetch(self, name: str, principal: Principal) -> Parked | None:
        """A call of this principal's, if it is here."""
        call = self._calls.get(name)
        if call is None or call.principal != principal:
            return None
        return self._calls.pop(name)

    async def close(self) -> None:
        """Stop them all. What they may have done is settled."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
