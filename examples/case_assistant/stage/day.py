"""A day at the offices: tasks in order, with approvals in between.

While a task waits for an approval, the next one runs. Progress is kept in the journal, so that an
interrupted day continues with the tasks that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from crew.agent import Agent
from crew.journal import Journal
from crew.model import Model, Task
from office import mail

from stage.story import Story
from stage.world import World

__all__ = ["Day"]

NEWEST: Final = "2026-07-28"
MODES: Final[Mapping[str, str]] = {"intake-agent": "legacy"}
"""Agents whose clients use MCP 2025-11-25."""
PAUSE: Final = 0.5
"""Seconds between two looks at the approvals."""


class Day:
    def __init__(self, world: World, story: Story, model: Model, tasks: Sequence[Task]) -> None:
        self.journal = Journal(world.home / "journal")
        self._world = world
        self._story = story
        self._model = model
        self._tasks = tasks
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._aside: dict[str, asyncio.Event] = {}
        story.aside = lambda task: self._aside[task.name].set()

    @property
    def done(self) -> bool:
        return all(self.journal.done(task.name) for task in self._tasks)

    async def begin(self) -> None:
        """Run until every task is done or waits for an approval."""
        for task in self._tasks:
            if self.journal.done(task.name) is None:
                self._aside[task.name] = asyncio.Event()
                self._jobs[task.name] = asyncio.create_task(self._work(task))
                await self._gone_on(task)

    async def finish(self, people: Callable[[], Awaitable[object]]) -> None:
        """Run until every task is done; call `people` for waiting requests."""
        while pending := [job for job in self._jobs.values() if not job.done()]:
            await people()
            await asyncio.wait(pending, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)
            self._raise_faults()

    async def settle(
        self, decide: Callable[[str, str], Awaitable[object]], tenants: Collection[str]
    ) -> bool:
        """Have the oldest request of these tenants decided, and wait until its task continues.

        Return whether there was one.
        """
        waiting = [one for one in self._story.requests if one[0].tenant in tenants]
        for task, approval_id in waiting[:1]:
            self._aside[task.name].clear()
            await decide(task.tenant, approval_id)
            await self._gone_on(task)
        return bool(waiting)

    async def _gone_on(self, task: Task) -> None:
        """Run until a task is done or waits for an approval."""
        waiting = asyncio.create_task(self._aside[task.name].wait())
        job = self._jobs[task.name]
        await asyncio.wait({job, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._raise_faults()

    async def close(self) -> None:
        """Stop all tasks where they are."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    # --- inside -----------------------------------------------------------------------------------

    async def _work(self, task: Task) -> None:
        if task.after in self._jobs and not self._jobs[task.after].done():
            self._aside[task.name].set()
            await self._jobs[task.after]
        before = self.journal.done(task.after) if task.after else None
        if task.mail_fault and not self.journal.seen(task.name):
            mail.MailBooks(self._world.home / mail.FILE).misbehave("lose_answer")
        agent = Agent(
            urls=self._urls(task),
            key=self._world.sign_ins.agents[f"{task.tenant}/{task.agent}"],
            journal=self.journal,
            listener=self._story,
            mode=MODES.get(task.agent, NEWEST),
        )
        given = {**task.given, **(before.hands_on if before else {})}
        await agent.work(replace(task, given=given), self._model)

    def _urls(self, task: Task) -> Sequence[str]:
        """Return all workers, rotated, so that tasks start with different ones."""
        first = [one.name for one in self._tasks].index(task.name) % len(self._world.urls)
        return self._world.urls[first:] + self._world.urls[:first]

    def _raise_faults(self) -> None:
        for job in self._jobs.values():
            if job.done() and not job.cancelled() and job.exception() is not None:
                job.result()
