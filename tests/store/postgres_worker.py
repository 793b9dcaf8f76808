"""A process of its own on one Postgres database, for the tests that need real ones.

python postgres_worker.py URL WHAT ARGUMENTS…; tells what came of it as lines of JSON.
"""

import asyncio
import json
import os
import sys

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
from counterseal.storage import open_store

NOW = 1_767_225_600.0


def entry(key):
    return Entry(
        tenant="acme",
        key=key,
        request_hash=b"r",
        status=EntryStatus.PENDING,
        phase=Phase.RESERVED,
        call_id=f"call_{os.getpid()}",
        tool="save",
        version="1.0.0",
        run_id="run_1",
        worker=f"w_{os.getpid()}",
    )


def request(key=None, *, approval_id=None, rates=(), charges=()):
    caller = CallFields("acme", "run_1", "call_1", "save", "1.0.0", "agent", "u_1", "0" * 32)
    return AdmissionRequest(
        tenant="acme",
        run_id="run_1",
        tool="save",
        version="1.0.0",
        now=NOW,
        charges=charges,
        rates=rates,
        entry=None if key is None else entry(key),
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


async def start(store):
    """Open the store, and one run in it."""
    run = RunRecord(tenant="acme", run_id="run_1", started_at=NOW, objective=str(os.getpid()))
    tell((await store.open_run(run)).objective)


async def one_key(store, many):
    """Want one key so many times at once. How many were let in."""
    wanted = [store.admit(request("the one")) for _ in range(int(many))]
    tell(sum(one.refused is None for one in await asyncio.gather(*wanted)))


async def hammer(store, many):
    """Want every key, every approval and every unit of a budget that others want as well."""
    count = int(many)
    unit = Charge("tenant.units", "units", 1, count, of_run=False)
    won = {"keys": [], "approvals": [], "units": 0, "calls": 0}

    async def want(number):
        admitted = await store.admit(request(f"key_{number}"))
        if admitted.refused is None:
            won["keys"].append(f"key_{number}")
            assert await store.settle(outcome(admitted.entry))
        if (await store.admit(request(approval_id=f"appr_{number}"))).refused is None:
            won["approvals"].append(f"appr_{number}")
        limited = await store.admit(request(charges=[unit]))
        won["units"] += limited.refused is None
        rated = await store.admit(request(rates=[RateLimit("tool/save", 1e6, 7)]))
        won["calls"] += rated.refused is None

    await asyncio.gather(*map(want, range(count)))
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


async def claim(store):
    """Claim orphans and due work until none is left."""
    won = {"orphans": [], "due": []}
    while True:
        mine = Claim(f"w_{os.getpid()}", 3600, limit=3)
        orphans, due = await asyncio.gather(store.claim_orphans(mine), store.claim_due(mine))
        won["orphans"] += [one.entry.key for one in orphans]
        won["due"] += [one.key for one in due]
        if not (orphans or due):
            break
    tell(won)


def two_loops(url):
    """Use one store in two event loops, one after the other, and close it in a third."""
    store = open_store(url)

    async def use(name):
        store.note(request().events[0])
        wanted = [request(f"{name}{number}") for number in range(3)]
        return [one.refused for one in await asyncio.gather(*map(store.admit, wanted))]

    first = asyncio.run(use("a"))
    store.note(request().events[0])
    tell(first, asyncio.run(use("b")))
    store.note(request().events[0])
    asyncio.run(store.close())


async def main(url, what, *arguments):
    doing = {
        "start": start,
        "one_key": one_key,
        "hammer": hammer,
        "approve": approve,
        "claim": claim,
    }[what]
    store = open_store(url)
    if what != "start":
        await store.ready()
    tell("ready")
    sys.stdin.readline()  # so that all begin at once
    await doing(store, *arguments)
    await store.close()


if __name__ == "__main__":
    if sys.argv[2] == "two_loops":
        two_loops(sys.argv[1])
    else:
        asyncio.run(main(*sys.argv[1:]))
