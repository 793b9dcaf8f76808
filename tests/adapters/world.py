"""What every case has: tools that act outside of the process, people, and a framework's session.

The tools are plain functions; each framework makes its own tools from them. A session is a
framework's agent with a scripted model. It keeps its state in a folder after every turn and
reads it from there, so that a second session in another process goes on where the first one ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from counterseal import Grant, Principal, Runtime, Voter
from counterseal.proposal import Principal as _Principal
from counterseal.testing import FakeClock

EFFECTS = {
    "pay": "irreversible",
    "send_mail": "external_notification",
    "note": "draft",
    "look_up": "read_only",
}
AGENT = "support"
RUN = "conversation-1"
URL = ""
FAULTS: dict[str, str] = {}
"""By tool: what happens right after its effect: `hang`, `kill`, `raise`."""
ACTED = asyncio.Event()
CHILDREN: Any = None
"""Takes parts of cases, runs each in a process to be killed, and returns the exit code."""


def post(effect: list[str]) -> None:
    data = json.dumps(effect).encode()
    with urllib.request.urlopen(urllib.request.Request(URL, data=data)) as answer:
        answer.read()


async def act(name: str, what: str) -> None:
    """Have an effect, and then the fault that the case wants."""
    await asyncio.to_thread(post, [name, what])
    ACTED.set()
    fault = FAULTS.get(name)
    if fault == "hang":
        await asyncio.Event().wait()
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raise":
        raise ConnectionError("the line broke")


async def pay(to: str, amount: int) -> str:
    """Pay an amount to an account."""
    await act("pay", to)
    return f"paid {amount} to {to}"


async def send_mail(to: str, body: str) -> str:
    """Send a mail."""
    await act("send_mail", to)
    return f"sent to {to}"


async def note(text: str) -> str:
    """Write a note."""
    await act("note", text)
    return f"noted {text}"


async def look_up(topic: str) -> str:
    """Look something up."""
    await act("look_up", topic)
    return f"about {topic}"


TOOLS = (pay, send_mail, note, look_up)


class Turn(NamedTuple):
    """What a host has after a run: either it is paused, or the model has ended it."""

    pending: list[dict[str, Any]]
    """What waits for a person: with us `approval_id`, `consequence`, `packet`, `link`."""
    results: dict[str, str]
    """By call id: what the model was shown in its last turn."""
    errors: set[str]
    """The ids of calls that the framework marked as failed."""
    final: str | None


Step = str | list[tuple[str, dict[str, Any], str]]
"""A model's turn: its last words, or calls as (tool, arguments, call id)."""


def someone(_context: Any, **more: Any) -> _Principal:
    return Principal(tenant="acme", agent=AGENT, user="u_1", **more)


def grants(agent: str = AGENT, tools: Any = EFFECTS) -> list[Grant]:
    return [Grant(agent=agent, tool=name, max_calls_per_run=9) for name in tools]


@dataclass
class World:
    """One case's place, and its framework."""

    framework: ModuleType
    place: Path
    clock: FakeClock | None = None
    store: str = ""
    sessions: list[Any] = field(default_factory=list)

    @asynccontextmanager
    async def runtime(self, **options: Any):
        url = self.store or f"sqlite:///{self.place / 'counterseal.db'}"
        if self.clock is not None:
            options |= {"clock": self.clock, "steady": self.clock.steady}
        async with Runtime.open(url, **options) as runtime:
            yield runtime

    def session(self, runtime: Runtime | None, script: list[Step], **options: Any) -> Any:
        """An agent; without a runtime, as the framework runs it alone."""
        tools = options.pop("tools", TOOLS)
        if runtime is not None:
            names = {function.__name__ for function in tools}
            effects = {name: effect for name, effect in EFFECTS.items() if name in names}
            known = {contract.name for contract in options.get("contracts", ())}
            effects = {name: effect for name, effect in effects.items() if name not in known}
            defaults = {"principal": someone, "effects": effects, "grants": grants(tools=names)}
            options = {**defaults, **options}
        return self.framework.Session(runtime, self.place / "state", script, tools, **options)


def effects(name: str | None = None) -> list[list[str]]:
    with urllib.request.urlopen(URL) as answer:
        every = json.loads(answer.read())
    return [effect for effect in every if name in (None, effect[0])]


ANN = Voter(user="ann", tenant="acme", roles=frozenset({"compliance"}))
BEN = Voter(user="ben", tenant="acme")


async def approve(runtime: Runtime, turn: Turn, decision: str = "approve", **more: Any) -> None:
    """Decide at the desk on everything that a turn waits for; two people where two are needed."""
    for pending in turn.pending:
        for voter in (ANN, BEN):
            packet = await runtime.approvals.decide(pending["approval_id"], voter, decision, **more)
            if packet is None or packet.status != "waiting":
                break
