"""Every back-end under one suite: a new one is one more line in `BACK_ENDS`."""

import sqlite3
import tempfile
from contextlib import asynccontextmanager, contextmanager

import pytest

from counterseal.audit import CallFields, Event, EventType
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Due, DueKind, Held, HeldStatus, RunRecord
from counterseal.ledger.requests import (
    AdmissionRequest,
    Ballot,
    Charge,
    Claim,
    RateLimit,
    SettlementRequest,
)
from counterseal.storage import open_store
from tests.postgres_server import borrowed_database

NOW = 1_767_225_600.0
FOREVER = 3600.0
"""Seconds that no test lasts. What takes none is over at once."""


@asynccontextmanager
async def memory():
    store = open_store("memory:")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def sqlite():
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/store.db")
        try:
            yield store
        finally:
            await store.close()


@asynccontextmanager
async def postgres():
    with borrowed_database() as url:
        store = open_store(url)
        try:
            yield store
        finally:
            await store.close()


BACK_ENDS = {"memory": memory, "sqlite": sqlite, "postgres": postgres}
"""Name to a function that opens a fresh, empty store and gives it back at the end."""


def _marked(name):
    """Postgres is a server that has to start, so it is left out by `--quick`."""
    return pytest.param(name, marks=[pytest.mark.slow] if name == "postgres" else [])


@pytest.fixture(scope="session", params=[_marked(name) for name in BACK_ENDS])
def new_store(request):
    """Opens a store of this back-end; for tests that need many of them."""
    return BACK_ENDS[request.param]


@pytest.fixture(scope="session")
def somebody_else():
    """Opens another connection to an SQLite file, as another process has one."""

    @contextmanager
    def somebody_else(path, lock=None):
        connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        try:
            if lock:
                connection.execute(lock)
            yield connection
        finally:
            connection.close()

    return somebody_else


@pytest.fixture
async def store(new_store):
    async with new_store() as store:
        yield store


class Make:
    """Requests to a store, with everything filled in that a test does not care about."""

    now = NOW

    def run(self, run_id="run_1", tenant="acme", **more):
        return RunRecord(**{"tenant": tenant, "run_id": run_id, "started_at": NOW, **more})

    def event(self, kind=EventType.STARTED, tenant="acme", run_id="run_1", call_id="call_1"):
        caller = CallFields(tenant, run_id, call_id, "save", "1.0.0", "agent", "u_1", "0" * 32)
        return Event(kind, caller, NOW, "allow")

    def entry(self, key="k", tenant="acme", **more):
        values = {
            "tenant": tenant,
            "key": key,
            "request_hash": b"r",
            "status": EntryStatus.PENDING,
            "phase": Phase.RESERVED,
            "call_id": "call_1",
            "tool": "save",
            "version": "1.0.0",
            "run_id": "run_1",
            "worker": "w_1",
        }
        return Entry(**{**values, **more})

    def charge(self, limit=10, counter="writes", amount=1, *, of_run=True):
        return Charge(f"{'run' if of_run else 'tenant'}.{counter}", counter, amount, limit, of_run)

    def rate(self, counter="tool/save", interval=1.0, burst=1):
        return RateLimit(counter, interval, burst)

    def admit(self, tenant="acme", run_id="run_1", **more):
        values = {
            "tenant": tenant,
            "run_id": run_id,
            "tool": "save",
            "version": "1.0.0",
            "now": NOW,
            "charges": (),
            "rates": (),
            "entry": None,
            "approval_id": None,
            "epoch": 0,
            "events": (self.event(tenant=tenant, run_id=run_id),),
        }
        return AdmissionRequest(**{**values, **more})

    def settle(self, tenant="acme", run_id="run_1", **more):
        values = {
            "tenant": tenant,
            "run_id": run_id,
            "now": NOW,
            "entry": None,
            "seen": {},
            "state": (),
            "events": (self.event(EventType.SUCCEEDED, tenant=tenant, run_id=run_id),),
        }
        return SettlementRequest(**{**values, **more})

    def done(self, entry, **more):
        """An entry as it is settled, and found afterwards."""
        values = {"status": EntryStatus.COMPLETED, "phase": None, "observation": {"n": 1}}
        values["worker"] = None
        return entry._replace(**{**values, **more})

    def unknown(self, entry, **more):
        """An entry with an unknown outcome."""
        values = {"status": EntryStatus.PENDING, "observation": None, "unknown_since": NOW}
        return self.done(entry, **{**values, "phase": Phase.UNKNOWN, **more})

    def claim(self, worker="w_2", lease=FOREVER, **more):
        return Claim(worker, lease, **more)

    def due(self, key="k", kind=DueKind.VERIFY, tenant="acme", **more):
        values = {"call_id": "call_1", "run_id": "run_1", "tool": "save", "version": "1.0.0"}
        return Due(tenant, kind, key, **{**values, **more})

    def held(self, approval_id="appr_1", tenant="acme", key="k", **more):
        values = {
            "approval_id": approval_id,
            "tenant": tenant,
            "key": key,
            "approval_hash": "sha256:a",
            "call_id": "call_1",
            "run_id": "run_1",
            "tool": "save",
            "version": "1.0.0",
            "contract_hash": "sha256:c",
            "agent": "agent",
            "user": "u_1",
            "reason": "A person must say yes.",
            "rule": "default.external",
            "approvers": 1,
            "risk": "external_side_effect",
            "demand": {"pattern": "operator_review", "roles": [["ops"]], "reason": "So."},
            "version_seen": 3,
            "created_at": NOW,
            "expires_at": NOW + 600,
            "trace_id": "0" * 32,
            "sealed": b"\0call",
        }
        return Held(**{**values, **more})

    def ballot(self, *voters, approval_id="appr_1", tenant="acme", **more):
        """The last of these has voted after the others."""
        votes = [{"voter": voter, "yes": True, "roles": ["ops"]} for voter in voters]
        values = {"seen": len(votes) - 1, "votes": votes, "status": HeldStatus.WAITING}
        return Ballot(tenant, approval_id, **{**values, **more})


@pytest.fixture(scope="session")
def make():
    return Make()


@pytest.fixture
def reserve(store, make):
    """Reserves a key; with a lease of no seconds its worker is gone at once."""

    async def reserve(key="k", lease=FOREVER, resume=None, **more):
        request = make.admit(entry=make.entry(key, **more), lease=lease, resume=resume)
        admission = await store.admit(request)
        assert admission.refused is None
        return admission.entry

    return reserve


@pytest.fixture(scope="session")
def snapshot():
    """Everything that a store shows of a tenant and its runs; a counter at zero is none."""

    async def snapshot(store, tenant="acme", runs=("run_1",), keys=("k",)):
        seen = [await store.events(tenant)]
        for run_id in runs:
            seen.append(await store.find_run(tenant, run_id))
            for key in (None, *keys):
                memory = await store.recall(tenant, run_id, key)
                counters = [{k: v for k, v in one.items() if v} for one in memory[2:]]
                seen.append((memory.entry, memory.held, *counters))
        return seen

    return snapshot
