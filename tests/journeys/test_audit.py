"""An attacker with the database, and without the key, tries to change what is on record."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

TOOLS = '''
from typing import Annotated

from pydantic import Field

from counterseal import tool


@tool(effect="draft", version="1.0.0", owner="cases")
async def save_note(text: Annotated[str, Field(max_length=200, description="The note.")]) -> int:
    """Save a note."""
    return len(text)
'''
CONFIG = """
[store]
url = "sqlite:///counterseal.db"

[keys]
path = "keys"

[tools]
paths = ["tools.py"]

[[grants]]
agent = "clerk"
tool = "save_note"
"""
CALLS = 4


def counterseal(folder, *arguments, code=0):
    from counterseal.cli.app import app

    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, arguments, prog_name="counterseal")
    assert done.exit_code == code, done.output
    return done.stdout


async def work(folder, tenants):
    """Another process's worth of calls, in a segment of its own for every tenant."""
    from counterseal import Principal
    from counterseal.config import load_settings, open_runtime

    async with open_runtime(load_settings(folder / "counterseal.toml")) as runtime:
        for tenant in tenants:
            run = await runtime.run(Principal(tenant=tenant, user="u_1", agent="clerk"))
            for number in range(CALLS):
                seen = await run.submit("save_note", {"text": f"note {number}"})
                assert seen.ok
            await run.submit("save_note", {"text": 7})


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """Two tenants, two segments each, two checkpoints each, and an unsealed tail."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "tools.py").write_text(TOOLS)
    (folder / "counterseal.toml").write_text(CONFIG)
    counterseal(folder, "keys", "new", "audit")
    for _ in range(2):
        asyncio.run(work(folder, ["acme", "zeta"]))
        counterseal(folder, "audit", "seal")
    asyncio.run(work(folder, ["acme"]))
    return folder


@pytest.fixture
def folder(sealed, tmp_path):
    shutil.copytree(sealed, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(folder, *statements):
    """Straight in the file, past every rule."""
    with closing(sqlite3.connect(folder / "counterseal.db")) as db, db:
        for statement in statements:
            assert db.execute(statement).rowcount >= 1, statement
    db.close()


def verified(folder, *, code=1):
    told = json.loads(counterseal(folder, "audit", "verify", "--json", code=code))
    assert told["ok"] is (code == 0)
    return {report["tenant"]: report for report in told["tenants"]}


def links(folder, tenant="acme"):
    """Events of a tenant in their order: number, segment, place."""
    with closing(sqlite3.connect(folder / "counterseal.db")) as db, db:
        found = db.execute(
            "SELECT number, segment, seq FROM events WHERE tenant = ? ORDER BY number, segment",
            (tenant,),
        ).fetchall()
    db.close()
    return found


@pytest.mark.slow
def test_an_untouched_log_is_intact_and_its_tail_is_unsealed(folder):
    events = len(links(folder))
    text = counterseal(folder, "audit", "verify")
    acme, zeta = text.splitlines()
    sealed = events * 2 // 3
    told = f"intact; {sealed} sealed by 2 checkpoints, {events - sealed} unsealed"
    assert acme == f"acme: {events} events in 3 segments: {told}"
    assert zeta.endswith(f"in 2 segments: intact; {sealed} sealed by 2 checkpoints, 0 unsealed")


WHERE = "WHERE tenant = 'acme' AND number = {number} AND segment = '{segment}'"
KINDS = {
    "a text": (['UPDATE events SET body = \'{{"code":"SUCCESS"}}\' ' + WHERE], {"changed"}),
    "a decision": (["UPDATE events SET decision = 'allow' " + WHERE], {"changed"}),
    "what it counts as": (
        ["UPDATE events SET tally = 'tool.failed TIMEOUT 0' " + WHERE],
        {"changed"},
    ),
    "who it was": (["UPDATE events SET agent = 'somebody-else' " + WHERE], {"changed"}),
    "the caller's id": (["UPDATE events SET caller_call_id = 'call_0' " + WHERE], {"changed"}),
    "the session": (["UPDATE events SET session_id = 'session_7' " + WHERE], {"changed"}),
    "a hash": (["UPDATE events SET hash = zeroblob(32) " + WHERE], {"changed", "rewritten"}),
    "a place": (["UPDATE events SET seq = seq + 1 " + WHERE], {"changed"}),
    "a time": (["UPDATE events SET number = number - 1 " + WHERE], {"changed"}),
    "a deletion": (["DELETE FROM events " + WHERE], {"missing"}),
    "another segment": (["UPDATE events SET segment = 'zzzzzz' " + WHERE], {"missing"}),
    "another tenant": (["UPDATE events SET tenant = 'zeta' " + WHERE], {"missing"}),
    "an erasure": (
        [
            "UPDATE events SET salt = NULL, type = NULL, run_id = NULL, call_id = NULL,"
            " tool = NULL, version = NULL, agent = NULL, user = NULL, trace_id = NULL,"
            " occurred_at = NULL, decision = NULL, policy_version = NULL, external_ref = NULL,"
            " body = NULL, code = NULL, tally = NULL, cost = NULL " + WHERE
        ],
        {"erased"},
    ),
    "a row that is no row": (["UPDATE events SET digest = 'x' " + WHERE], {"changed"}),
    "an insertion": (
        [
            "INSERT INTO events SELECT tenant, number + 1, segment, seq + 1, salt, digest, hash,"
            " type, run_id, call_id, tool, version, agent, user, trace_id, occurred_at, decision,"
            " policy_version, external_ref, body, code, tally, cost, caller_call_id, workflow_id,"
            " conversation_id, session_id FROM events " + WHERE
        ],
        {"inserted"},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_done_to_a_sealed_event_is_found_and_named(folder, kind):
    # One in the middle of the first segment, with room for another number on both sides.
    there = links(folder)
    first = [link for link in there if link[1] == there[0][1]]
    numbers = {number for number, _, _ in first}
    number, segment, place = next(
        link for link in first[2:-2] if not numbers & {link[0] - 1, link[0] + 1}
    )
    statements, kinds = KINDS[kind]
    change(folder, *(one.format(number=number, segment=segment) for one in statements))
    report = verified(folder)["acme"]
    assert kinds & {finding["kind"] for finding in report["findings"]}
    assert any(
        segment == finding["segment"] and finding["place"] in (None, place, place + 1)
        for finding in report["findings"]
    )
    assert report["found"] <= 3


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE checkpoints SET sealed_at = 1 WHERE number = 1", "checkpoint 1 was changed"),
        ("UPDATE checkpoints SET heads = '{}' WHERE number = 2", "checkpoint 2 was changed"),
        ("DELETE FROM checkpoints WHERE number = 1", "checkpoint 1 is missing"),
        ("UPDATE checkpoints SET key_id = 'a' WHERE number = 2", "signed with the key a, which"),
        (
            "UPDATE checkpoints SET signature = zeroblob(64) WHERE number = 2",
            "checkpoint 2 has a signature that the key",
        ),
    ],
)
def test_whatever_is_done_to_a_checkpoint_is_found_and_named(folder, statement, message):
    change(folder, f"{statement} AND tenant = 'zeta'")
    reports = verified(folder)
    assert reports["acme"]["ok"]
    assert any(message in finding["message"] for finding in reports["zeta"]["findings"])


def test_a_cut_tail_and_a_dropped_segment_are_found(folder):
    there = links(folder)
    first, second = dict.fromkeys(segment for _, segment, _ in there[: len(there) * 2 // 3])
    last = max(place for _, segment, place in there if segment == second)
    change(
        folder,
        f"DELETE FROM events WHERE segment = '{first}'",
        f"DELETE FROM events WHERE segment = '{second}' AND seq > {last - 2}",
    )
    found = {one["segment"]: one for one in verified(folder)["acme"]["findings"]}
    assert found[first]["message"].startswith("all of it is missing; checkpoint 1 sealed it")
    assert found[second]["message"].startswith(f"places {last - 1} to {last} are missing at the")


def test_export_is_what_was_recorded(folder):
    lines = counterseal(folder, "audit", "export").splitlines()
    exported = [json.loads(line) for line in lines]
    assert len(exported) == len(links(folder)) + len(links(folder, "zeta"))
    assert "note 1" not in "".join(lines)
    kinds = {record["type"] for record in exported}
    assert {"tool.requested", "tool.started", "tool.succeeded", "tool.denied"} <= kinds
    one = next(record for record in exported if record["type"] == "tool.succeeded")
    told = counterseal(folder, "audit", "show", one["call_id"], "--tenant", one["tenant"], "--json")
    assert one in json.loads(told)["events"]
