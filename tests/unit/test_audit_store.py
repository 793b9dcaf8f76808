"""Sealing and checking a store: page by page, by several at once, and while others write."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Proposal
from counterseal.audit import CallFields, Event, EventType
from counterseal.audit.chain import hash_of, make_checkpoint, receipt, sealed_heads
from counterseal.audit.events import COLUMNS, csv_head, csv_line, json_line
from counterseal.audit.verify import FindingKind
from counterseal.errors import StoreError
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.ledger.requests import ExpiryRequest
from counterseal.operations.auditor import seal_store, verify_store
from counterseal.storage import open_store
from counterseal.testing import FakeClock, fake_tool, runtime_for, someone

NOW = 1_767_225_600.0


@pytest.fixture
def ring(tmp_path):
    from datetime import UTC, datetime

    new_key(tmp_path / "keys", Purpose.AUDIT, datetime(2026, 7, 31, tzinfo=UTC))
    return KeyRing.load(tmp_path / "keys")


@pytest.fixture
async def store(tmp_path):
    there = open_store(f"sqlite:///{tmp_path}/record.db")
    await there.ready()
    yield there
    await there.close()


def event(number=0, tenant="acme", **changes):
    caller = CallFields(tenant, "run_1", f"call_{number}", "save", "1.0.0", "agent", None, "t")
    return Event(EventType.SUCCEEDED, caller, NOW, "SUCCESS", body={"number": number})._replace(
        **changes
    )


async def tell(store, count=1, tenant="acme"):
    await store.record_and_count(
        tenant, "run_1", "save", [], [event(n, tenant) for n in range(count)]
    )


# --- sealing --------------------------------------------------------------------------------------


async def test_every_seal_takes_on_from_the_last_and_nothing_new_is_no_seal(store, ring):
    signer = ring.signer("audit")
    await tell(store, 3)
    first = await seal_store(store, "acme", signer, NOW)
    assert await seal_store(store, "acme", signer, NOW) is None
    await tell(store, 2)
    second = await seal_store(store, "acme", signer, NOW + 1)
    assert (first.number, second.number, second.previous) == (1, 2, first.hash)
    assert await store.checkpoints("acme") == [first, second]
    (head,) = sealed_heads([first, second]).values()
    assert head.seq == 5
    report = await verify_store(store, "acme", ring)
    assert (report.ok, report.sealed, report.unsealed, report.checkpoints) == (True, 5, 0, 2)


async def test_a_tenant_without_events_is_not_sealed(store, ring):
    assert await seal_store(store, "nobody", ring.signer("audit"), NOW) is None


async def test_tenants_are_sealed_apart(store, ring):
    await tell(store, 2, "acme")
    await tell(store, 3, "zeta")
    await seal_store(store, "acme", ring.signer("audit"), NOW)
    assert (await verify_store(store, "acme", ring)).sealed == 2
    assert (await verify_store(store, "zeta", ring)).unsealed == 3


async def test_several_that_seal_at_once_make_one_chain(store, ring):
    async def work():
        await tell(store)
        return await seal_store(store, "acme", ring.signer("audit"), NOW)

    await asyncio.gather(*(work() for _ in range(8)))
    report = await verify_store(store, "acme", ring)
    assert (report.ok, report.sealed) == (True, 8)


async def test_who_is_always_too_late_gives_up(store, ring):
    class Busy:
        checkpoints, heads = store.checkpoints, store.heads

        async def seal(self, checkpoint):
            return False

    await tell(store)
    with pytest.raises(StoreError, match="another process sealed first"):
        await seal_store(Busy(), "acme", ring.signer("audit"), NOW)


def test_a_checkpoints_hash_covers_all_that_it_says(ring):
    from counterseal.audit import Head

    signer = ring.signer("audit")
    heads = {"aa": Head(1, 2, bytes(32))}
    first = make_checkpoint("acme", heads, None, NOW, signer)
    made = make_checkpoint("acme", heads, first, NOW, signer)
    others = [
        replace(made, tenant="zeta"),
        replace(made, number=3),
        replace(made, sealed_at=NOW + 1),
        replace(made, heads={"ab": Head(1, 2, bytes(32))}),
        replace(made, heads={"aa": Head(1, 3, bytes(32))}),
        replace(made, previous=bytes(32)),
    ]
    assert hash_of(made) == made.hash
    assert len({made.hash, *map(hash_of, others)}) == 7
    assert receipt(made) == {
        "tenant": "acme",
        "number": 2,
        "hash": made.hash.hex(),
        "sealed_at": NOW,
        "key_id": signer.key_id,
    }


# --- checking -------------------------------------------------------------------------------------


async def test_a_record_of_several_pages_is_checked_whole(store, ring, monkeypatch):
    monkeypatch.setattr("counterseal.operations.auditor._PAGE", 3)
    await tell(store, 10)
    await seal_store(store, "acme", ring.signer("audit"), NOW)
    seen = []
    report = await verify_store(store, "acme", ring, progress=seen.append)
    assert (report.ok, report.events, seen) == (True, 10, [3, 6, 9, 10])


async def test_a_record_is_checked_while_others_write(store, ring, monkeypatch):
    monkeypatch.setattr("counterseal.operations.auditor._PAGE", 2)
    await tell(store, 9)

    def more(count):
        store.note(event(count))

    report = await verify_store(store, "acme", ring, progress=more)
    assert (report.ok, report.events) == (True, 9)


async def test_what_a_runtime_records_is_in_order(store, ring):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    await runtime.submit(Proposal(tool="save", arguments={}, run_id="run_1"), someone())
    await runtime.submit(Proposal(tool="nothing", arguments={}, run_id="run_1"), someone())
    await seal_store(runtime.store, "acme", ring.signer("audit"), NOW)
    report = await verify_store(runtime.store, "acme", ring)
    assert (report.ok, report.unsealed) == (True, 0)
    assert report.sealed == len(await runtime.store.events("acme")) > 3


@pytest.mark.parametrize("sealed", [True, False])
async def test_what_was_erased_in_due_time_is_in_order(tmp_path, ring, sealed):
    from counterseal.storage.memory import MemoryStore

    clock = FakeClock()
    there = MemoryStore(clock=clock)
    await tell(there, 5)
    await seal_store(there, "acme", ring.signer("audit"), NOW)
    clock.advance(1000)
    await tell(there, 2)
    while (await there.expire(ExpiryRequest(limit=2, events_after=500)))["events"]:
        pass
    if sealed:
        await seal_store(there, "acme", ring.signer("audit"), NOW)
    report = await verify_store(there, "acme", ring)
    assert report.ok, report.findings
    assert (report.erased, report.erased_unsealed) == (5, 0 if sealed else 5)
    assert report.events == 5 + 2 + 3


async def test_unreadable_checkpoints_are_a_finding(store, ring):
    class Garbled:
        search, heads, recorded = store.search, store.heads, store.recorded

        async def checkpoints(self, tenant):
            raise ValueError("not JSON")

    await tell(store, 2)
    report = await verify_store(Garbled(), "acme", ring)
    assert [finding.kind for finding in report.findings] == [FindingKind.CHECKPOINT]


# --- taking it elsewhere --------------------------------------------------------------------------


def cells(text):
    import csv
    import io

    (row,) = csv.reader(io.StringIO(text))
    return row


@given(st.text(), st.text())
def test_an_event_is_one_line_of_json_whatever_it_says(tool, note):
    import json

    told = event(caller=event().caller._replace(tool=tool), body={"note": note})
    line = json_line("evt_1", told)
    assert line.count("\n") == 1
    assert line.isascii()
    assert json.loads(line) == told.record("evt_1")


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_no_cell_of_a_table_is_calculated(text):
    told = event(
        caller=event().caller._replace(tool=text, run_id="=1+1", user="@x"), external_ref="-1"
    )
    row = dict(zip(COLUMNS, cells(csv_line("evt_1", told)), strict=True))
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row.values())
    assert (row["run_id"], row["user"], row["external_ref"]) == ("'=1+1", "'@x", "'-1")
    assert row["tool"].removeprefix("'") == text.removeprefix("'")


def test_a_table_begins_with_the_names_of_its_cells():
    assert cells(csv_head()) == list(COLUMNS) == list(event().record("evt_1"))
