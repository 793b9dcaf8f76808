"""An office that sends notices, and people who are asked: what the tests of approvals share.

python -m tests.journeys.approvals_worker URL KEYS FILE: the same as a process of its own. It does
what it is told by lines of JSON, and answers each with one. Every notice that is sent is a line in
FILE.
"""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from counterseal import Context, Grant, Principal, Proposal, Runtime, tool
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.ledger.entry import destination_key
from counterseal.operations.approver import ApprovalError, Voter
from counterseal.reconcile import Reconciler
from counterseal.testing import FakeClock

Draft = Annotated[str, Field(max_length=40, description="Draft to send.")]
Address = Annotated[str, Field(max_length=254, description="Address on the case file.")]
DECLARED = {
    "effect": "external_notification",
    "version": "1.0.0",
    "owner": "case-office",
    "scopes": ["notice:send"],
    "consequence": "Notice {draft_id} is e-mailed to {recipient}; it is {state.status} now.",
    "resource": "draft:{draft_id}",
    "budget": 1000,
    "runtime": {"rate_limits": {"max_requests": 10_000, "window_sec": 1}},
}
LETTER = {"draft_id": "drf_1", "recipient": "ann@example.org"}


def sent_as(key):
    """A caller's key as the mail server gets it."""
    return destination_key("acme", f"call:send_notice:{key}")


class BusyError(Exception):
    """The mail server takes nothing right now, and has done nothing."""

    status_code = 429


class Office:
    """The world: what became of a draft, and what was sent."""

    def __init__(self, file=None):
        self.version, self.status = 1, "draft"
        self.sent = []
        self.down = self.busy = False
        self.door = None
        """An event that whoever sends waits for."""
        self.begun = asyncio.Event()
        self._file = file

    def look(self, draft_id: str):
        if self.down:
            raise ConnectionError
        return {"version": self.version, "status": self.status}

    def foresee(self, draft_id: str):
        return {"version": self.version + 1, "status": "sent"}

    def send(self, key):
        self.sent.append(key)
        if self._file is not None:
            handle = os.open(self._file, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
            os.write(handle, f"{key}\n".encode())
            os.close(handle)


def notices(office, **declared):
    """The tool that sends one."""

    async def send_notice(draft_id: Draft, recipient: Address, ctx: Context) -> dict[str, str]:
        """Send a notice."""
        office.begun.set()
        if office.door is not None:
            await office.door.wait()
        if office.busy:
            raise BusyError
        office.send(ctx.key)
        return {"sent_to": recipient}

    hooks = {"probe": office.look, "preview": office.foresee}
    return tool(**{**DECLARED, **hooks, **declared})(send_notice)


def opened(url, office, *, declared=None, store=None, grants=None, **options):
    """A runtime as a process of its own would open it."""
    runtime = Runtime.open(url, **options) if store is None else Runtime(store, **options)
    made = notices(office, **(declared or {}))
    granted = [Grant(agent="agent", tool="send_notice")] if grants is None else grants
    runtime.register(made, grants=granted)
    return runtime


def agent(user="u_1", **more):
    return Principal(**{"tenant": "acme", "agent": "agent", "user": user, **SCOPES, **more})


SCOPES = {"scopes": ["notice:send"]}


def letter(key=None, **more):
    arguments = {**LETTER, **more.pop("arguments", {})}
    return Proposal(
        **{"tool": "send_notice", "run_id": "run_1", "key": key, **more}, arguments=arguments
    )


def person(name, *roles, tenant="acme"):
    return Voter(user=name, tenant=tenant, roles=frozenset(roles))


def key_ring(folder):
    """Keys for approvals and for the vault, in a folder; made where there are none."""
    if not folder.exists():
        for purpose in (Purpose.APPROVAL, Purpose.VAULT, Purpose.AUDIT):
            new_key(folder, purpose, datetime(2026, 1, 1, tzinfo=UTC))
    return KeyRing.load(folder)


# --- a process of its own -------------------------------------------------------------------------


async def obey(runtime, reconciler, asked):
    """Do what a line asks for, and say what came of it."""
    match asked:
        case {"vote": approval_id, "by": name, "choice": choice}:
            try:
                return (await runtime.approvals.decide(approval_id, person(name), choice)).status
            except ApprovalError as error:
                return f"no: {error.why}"
        case {"submit": key}:
            return (await runtime.submit(letter(key), agent())).code.value
        case {"reconcile": _}:
            return dict(await reconciler.once())
        case {"expire": _}:
            return await runtime.approvals.expire()
        case {"wait": approval_id}:
            tell("waits")
            return (await runtime.approvals.wait("acme", approval_id, 60)).status


def tell(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(url, keys, file, declared="{}"):
    clock = FakeClock()
    ring, office = key_ring(Path(keys)), Office(Path(file))
    runtime = opened(url, office, declared=json.loads(declared), keys=ring, clock=clock)
    async with runtime:
        reconciler = Reconciler(runtime)
        tell("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            clock.now = asked.pop("now", clock.now)
            tell(await obey(runtime, reconciler, asked))


if __name__ == "__main__":
    # By its name: contracts are the same only where their hooks are called the same.
    from tests.journeys import approvals_worker

    asyncio.run(approvals_worker.main(*sys.argv[1:]))
