"""A process of its own on one SQLite file, for the tests that need real ones.

python sqlite_worker.py FILE WHAT ARGUMENTS…; tells what came of it as lines of JSON.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from counterseal.audit import CallFields, Event, EventType
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Due, DueKind, HeldStatus, RunRecord
from counterseal.ledger.requests import (
    AdmissionRequest,
    Ballot,
    Charge,
    Claim,
    RateLimit,
    SettlementRequest,
)
from counterseal.storage.sqlite import SqliteStore

NOW = 1_767_225_600.0


def entry(key, call_id="call_1"):
    return Entry(
        tenant="acme",
        key=key,
        request_hash=b"r",
        status=EntryStatus.PENDING,
        phase=Phase.RESERVED,
        call_id=call_id,
        tool="save",
        version="1.0.0",
        run_id="run_1",
        worker=str(os.getpid()),
    )


def request(key=None, *, limit=1e9, approval_id=None, rates=()):
    caller = CallFields("acme", "run_1", "call_1", "save", "1.0.0", "agent", "u_1", "0" * 32)
    return AdmissionRequest(
        tenant="acme",
        run_id="run_1",
        tool="save",
        version="1.0.0",
        now=NOW,
        charges=[Charge("tenant.writes", "writes", 1, limit, of_run=False)],
        rates=rates,
        entry=None if key is None else entry(key, f"call_{os.getpid()}"),
        approval_id=approval_id,
        epoch=0,
        events=[Event(EventType.STARTED, caller, NOW, "allow")],
    )


def outcome(reserved):
    done = reserved._replace(status=EntryStatus.COMPLETED, phase=None, observation={"n": 1})
    return SettlementRequest("acme", "run_1", NOW, done, {}, (), ())


def tell(*what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def hammer(store, many):
    """Want every key, every approval and every unit of a budget that others want as well."""
    count = int(many)
    won = {"keys": [], "approvals": [], "units": 0, "calls": 0}

    async def want(number):
        key = f"key_{number}"
        admitted = await store.admit(request(key))
        if admitted.refused is None:
            won["keys"].append(key)
            assert await store.settle(outcome(admitted.entry))
        if (await store.admit(request(approval_id=f"appr_{number}"))).refused is None:
            won["approvals"].append(f"appr_{number}")
        limited = await store.admit(request(limit=0)._replace(charges=[unit(count)]))
        won["units"] += limited.refused is None
        rated = await store.admit(request(rates=[RateLimit("tool/save", 1e6, 7)]))
        won["calls"] += rated.refused is None

    for first in range(0, count, 8):
        await asyncio.gather(*(want(n) for n in range(first, min(first + 8, count))))
    tell(won)


async def approve(store, voter, many):
    """Say yes to every request that takes two, as the first; as the second where another was."""
    won = []
    for number in range(int(many)):
        name = f"appr_{number}"
        first = await store.vote(ballot(name, voter, ()))
        if first is None:
            before = (await store.find_held("acme", name)).votes
            assert await store.vote(ballot(name, voter, before)) is not None
        won.append(first is not None)
        await store.wait_held("acme", name, 60)  # so that they come to the next one together
    tell(won)


def ballot(name, voter, before):
    status = HeldStatus.APPROVED if before else HeldStatus.WAITING
    due = Due("acme", DueKind.EXECUTE, name, "call_1", "run_1", "save", "1.0.0", {"by": voter})
    votes = [*before, {"voter": voter}]
    return Ballot(
        "acme", name, len(before), votes, status, voter, [(0, due)], [request().events[0]]
    )


def unit(limit):
    return Charge("tenant.units", "units", 1, limit, of_run=False)


async def admit(store, key):
    return await store.admit(request(key))


async def endless(store, name):
    """Admit and settle until killed, and tell of each commit when it is done."""
    number = 0
    while True:
        keys = [f"{name}_{number + n}" for n in range(3)]
        admitted = await asyncio.gather(*(admit(store, key) for key in keys))
        tell("admitted", keys)
        store.note(request().events[0])
        for one in admitted:
            await store.settle(outcome(one.entry))
        tell("settled", keys)
        number += 3


async def die(store):
    """Be killed between the statements of an admission and their commit."""
    await store.admit(request("before"))
    tell("admitted", ["before"])

    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    store._backend.database.commit = killed
    await store.admit(request("during"))


async def orphans(store, many):
    """Claim what others have left, a few at a time, until there is nothing more."""
    claimed = []
    while some := await store.claim_orphans(Claim(str(os.getpid()), 3600, int(many))):
        claimed += [(one.entry.key, one.entry.fence) for one in some]
    tell(claimed)


async def work(store, key):
    """Hold an entry until told to settle it."""
    admitted = await store.admit(request(key)._replace(lease=3600))
    tell("holds", key)
    await asyncio.to_thread(sys.stdin.readline)
    tell(await store.settle(outcome(admitted.entry)))


async def start(store):
    """Open the store, and one run in it."""
    run = RunRecord(tenant="acme", run_id="run_1", started_at=NOW, objective=str(os.getpid()))
    tell((await store.open_run(run)).objective)


async def main(path, what, *arguments):
    doing = {
        "hammer": hammer,
        "approve": approve,
        "orphans": orphans,
        "work": work,
        "endless": endless,
        "die": die,
        "start": start,
    }[what]
    if what in ("approve", "hammer", "orphans", "start"):
        tell("ready")
        sys.stdin.readline()  # so that all begin at once
    store = SqliteStore(Path(path), patience=60)
    await doing(store, *arguments)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
