"""A worker: a real process with a runtime of its own, told over a socket what to do.

python -m tests.chaos.worker SOCKET is the nursery: it loads everything once, and starts a worker
for every line that it reads, ready within milliseconds. A worker connects to the socket, and takes
and gives lines of JSON. It ends with the nursery, the nursery with the harness, and either at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import socket
import sqlite3
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import httpx  # noqa: F401 - loaded beforehand

from counterseal import Principal, Proposal, Runtime
from counterseal.errors import CountersealError, StoreError
from counterseal.ledger.records import Budgets, DueKind, HeldStatus
from counterseal.operations.attention import NeedsAttention
from counterseal.reconcile import Reconciler
from counterseal.storage import open_store
from counterseal.storage.sqlite import SqliteStore, path_of

from .failpoints import Clocks, Failing, Failpoints
from .inspecting import inspect
from .tools import AGENT, all_tools, grants_for, worker_name

PR_SET_PDEATHSIG = 1
LEASE = 0.4
"""Seconds until somebody else may take over."""
_OUTAGES = (asyncpg.PostgresError, asyncpg.InterfaceError, sqlite3.OperationalError)
"""What drivers say of a database that is down or busy; only who looks on asks them directly."""


class Worker:
    """One process. Every command is a task of its own, so many go on at once."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.points = Failpoints(self.tell)
        self.runtime: Runtime | None = None
        self.tally: Counter[str] = Counter()
        self._reconciling: asyncio.Task[None] | None = None

    def tell(self, **what: Any) -> None:
        """Written before this returns: the next thing may be the end."""
        line = json.dumps(what).encode() + b"\n"
        while line:
            try:
                line = line[self._link.send(line) :]
            except BlockingIOError:
                select.select([], [self._link], [])

    async def serve(self) -> None:
        reader, _ = await asyncio.open_unix_connection(sock=self._link, limit=1 << 22)
        self.tell(pid=os.getpid())
        tasks = set()
        while line := await reader.readline():
            asked = json.loads(line)
            task = asyncio.create_task(self._answer(asked.pop("id"), asked.pop("do"), asked))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        os._exit(0)

    async def _answer(self, number: int, do: str, given: dict[str, Any]) -> None:
        try:
            answer = await getattr(self, f"do_{do}")(**given)
        except (CountersealError, OSError, *_OUTAGES) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        except Exception:  # noqa: BLE001 - told to the harness, which fails
            answer = {"bug": traceback.format_exc()}
        self.tell(id=number, **(answer or {}))

    # --- commands ---------------------------------------------------------------------------------

    async def do_open(self, url: str, port: int, clocks: str) -> None:
        """Open the store and take in the tools; from here on it is a worker like any other."""
        clock = Clocks(clocks)
        if not url.startswith("sqlite"):
            store = open_store(url)
        else:
            store = SqliteStore(path_of(url), clock=clock.database)
            self.points.watch_commits(store._backend.database.connection)
        self.runtime = Runtime(
            Failing(store, self.points),
            lease=LEASE,
            secrets={"worker": worker_name()},
            clock=clock.machine,
        )
        await self.runtime.__aenter__()
        tools = all_tools(port, self.points.hit, clock.ahead)
        self.runtime.register(*tools, grants=grants_for(tools))

    async def do_arm(self, **how: Any) -> None:
        self.points.arm(**how)

    async def do_begin(self, tenant: str, run_id: str, external: int) -> None:
        """Open the run of a round; what nobody may be refused for is given freely."""
        budgets = Budgets(repairs=10_000, external=external)
        await self._runtime.run(_principal(tenant), run_id, budgets=budgets)

    async def do_submit(
        self, tenant: str, run_id: str, tool: str, op: str, wait: float
    ) -> dict[str, Any]:
        proposal = Proposal(tool=tool, arguments={"op": op}, key=op, run_id=run_id)
        seen = await self._runtime.submit(proposal, _principal(tenant), wait=wait)
        return {
            "ok": seen.ok,
            "code": seen.code.value,
            "hit": seen.idempotency_hit,
            "then": seen.next_action,
            "retry_after": seen.retry_after,
            "approval": seen.approval_id,
            "said": [one.message for one in seen.errors],
            "data": None if seen.data is None else dict(seen.data),
        }

    async def do_approve(self, tenant: str, approval: str) -> None:
        await self._runtime.store.decide(tenant, approval, HeldStatus.APPROVED, [])

    async def do_compensate(self, tenant: str, key: str) -> None:
        await NeedsAttention(self._runtime, by="u_9").compensate(tenant, key, reason="a test")

    async def do_resolve(self, tenant: str, key: str, happened: bool) -> None:
        """What a person does who has looked at the destination."""
        people = NeedsAttention(self._runtime, by="u_9")
        act = people.happened if happened else people.did_not_happen
        await act(tenant, key, reason="looked it up")

    async def do_again(self, tenant: str, kind: str, key: str) -> None:
        people = NeedsAttention(self._runtime, by="u_9")
        await people.again(tenant, DueKind(kind), key, reason="looked into it")

    async def do_reconcile(self, every: float) -> None:
        """Look after what is due from now on, again and again."""
        if self._reconciling is None:
            self._reconciling = asyncio.create_task(self._reconcile(every))

    async def do_rest(self) -> dict[str, Any]:
        """Stop that, and say what was done."""
        if self._reconciling is not None:
            self._reconciling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reconciling
            self._reconciling = None
        tally, self.tally = dict(self.tally), Counter()
        return {"tally": tally}

    async def _reconcile(self, every: float) -> None:
        reconciler = Reconciler(self._runtime)
        while True:
            with contextlib.suppress(StoreError):  # the database may be down; the next look counts
                self.tally.update(await reconciler.once())
            await asyncio.sleep(every)

    async def do_inspect(self, url: str, tenant: str) -> dict[str, Any]:
        return await inspect(url, tenant)

    async def do_lock(self, path: str) -> None:
        """Begin to write to an SQLite file, as somebody who will be killed in the middle of it."""
        other = sqlite3.connect(path, isolation_level=None, timeout=30)
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE unfinished (n)")
        other.executemany(
            "INSERT INTO unfinished VALUES (?)", [(str(n) * 50,) for n in range(2000)]
        )
        self._locked = other

    @property
    def _runtime(self) -> Runtime:
        if self.runtime is None:
            raise RuntimeError("open comes first")
        return self.runtime


def _principal(tenant: str) -> Principal:
    return Principal(tenant=tenant, agent=AGENT, user="u_1")


def _begin(path: str) -> None:
    """What a worker does, from its start to its end."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    link.setblocking(False)
    asyncio.run(Worker(link).serve())


def _end_with_parent(parent: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def nursery(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with contextlib.suppress(PermissionError):  # it leads its group already
        os.setpgid(0, 0)
    parent = os.getpid()
    while sys.stdin.readline():
        if os.fork() == 0:
            _end_with_parent(parent)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            _begin(path)
            os._exit(0)
    os.killpg(0, signal.SIGKILL)  # a group of its own: this process and all workers


if __name__ == "__main__":
    # What workers complain of is part of the evidence, not of the screen.
    log = Path(sys.argv[1]).with_name("workers.log")
    logging.basicConfig(
        filename=log, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s"
    )
    nursery(sys.argv[1])
