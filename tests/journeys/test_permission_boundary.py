"""Agents, users and tenants: what each may do, and that none learns of another's existence."""

import asyncio
import json
import re

import pytest

from counterseal import Grant, Proposal
from counterseal.codes import Code
from counterseal.contract.invariants import Invariant
from counterseal.ledger.records import Budgets, HeldStatus
from counterseal.runtime import Runtime
from counterseal.testing import FakeClock, MemoryStore, fake_tool, someone

SCHEMA = {
    "type": "object",
    "properties": {"note": {"type": "string", "maxLength": 30, "description": "A note."}},
    "additionalProperties": False,
}


def ask(tool, arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=tool, arguments={} if arguments is None else arguments, **more)


# --- agents and users -----------------------------------------------------------------------------


def office():
    """Two agents: a reader, and a clerk who may write; a role and a scope in between."""
    read, write = fake_tool("read_case"), fake_tool("write_case", effect="draft")
    audit = fake_tool("audit_case", scopes=["case:audit"])
    runtime = Runtime(MemoryStore(), clock=FakeClock())
    grants = [Grant(agent=agent, tool="read_case") for agent in ("reader", "clerk")]
    runtime.register(read.tool, grants=grants)
    runtime.register(
        write.tool,
        grants=[Grant(agent="clerk", tool="write_case")],
        allowed_agent_roles=["clerk"],
    )
    runtime.register(audit.tool, grants=[Grant(agent="clerk", tool="audit_case")])
    return runtime, {"read_case": read, "write_case": write, "audit_case": audit}


WHO = {
    "reader": ({"agent": "reader"}, {"read_case"}),
    "clerk without the role": ({"agent": "clerk"}, {"read_case"}),
    "clerk": ({"agent": "clerk", "roles": ["clerk"]}, {"read_case", "write_case"}),
    "clerk with the scope": (
        {"agent": "clerk", "roles": ["clerk"], "scopes": ["case:audit"]},
        {"read_case", "write_case", "audit_case"},
    ),
    "reader with all roles and scopes": (
        {"agent": "reader", "roles": ["clerk"], "scopes": ["case:audit"]},
        {"read_case"},
    ),
    "nobody": ({"agent": "nobody", "roles": ["clerk"], "scopes": ["case:audit"]}, set()),
    "an agent by another spelling": ({"agent": "Clerk", "roles": ["clerk"]}, set()),
}


@pytest.mark.parametrize("name", WHO)
async def test_an_agent_may_do_what_was_granted_and_nothing_else(name):
    who, may = WHO[name]
    runtime, tools = office()
    for tool, made in tools.items():
        seen = await runtime.submit(ask(tool), someone(**who))
        expected = Code.SUCCESS if tool in may else Code.PERMISSION_DENIED
        assert seen.code is expected
        assert len(made.calls) == (tool in may)
        assert seen.data is not None or tool not in may


@pytest.mark.parametrize("name", WHO)
async def test_an_unknown_tool_names_only_what_the_agent_may_use(name):
    who, may = WHO[name]
    runtime, tools = office()
    told = (await runtime.submit(ask("nothing"), someone(**who))).for_model()
    assert {tool for tool in tools if tool in told} == may


async def test_a_caller_without_authority_learns_nothing_of_the_rules():
    secret = Invariant(id="SECRET_RULE", rule="Only below 4711 euros.", check="false")
    probed = []
    tool = fake_tool("pay", invariants=[secret], probe=lambda: probed.append(1))
    runtime = Runtime(MemoryStore())
    runtime.register(tool.tool)
    seen = await runtime.submit(ask("pay"), someone())
    assert seen.code is Code.PERMISSION_DENIED
    assert not re.search("SECRET_RULE|4711", seen.for_model() + json.dumps(seen.record()))
    assert probed == []


async def test_users_of_one_agent_do_not_share_what_they_did():
    tool = fake_tool("save", {"n": 1}, {"n": 2}, effect="draft")
    runtime = Runtime(MemoryStore())
    runtime.register(tool.tool, grants=[Grant(agent="agent", tool="save")])
    for run_id in ("run_1", None):
        seen = [
            await runtime.submit(ask("save", run_id=run_id), someone(user=user))
            for user in ("u_1", "u_2", None)
        ]
        assert [one.idempotency_hit for one in seen] == [False] * 3
    assert len(tool.calls) == 6


async def test_an_approval_for_one_user_is_not_anothers():
    tool = fake_tool("send", effect="external_notification")
    runtime = Runtime(MemoryStore())
    runtime.register(tool.tool, grants=[Grant(agent="agent", tool="send")])
    held = await runtime.submit(ask("send"), someone(user="u_1"))
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    other = await runtime.submit(ask("send"), someone(user="u_2"))
    assert other.code is Code.CONFIRMATION_MISSING
    assert other.approval_id != held.approval_id
    assert tool.calls == []


# --- tenants --------------------------------------------------------------------------------------


def world(*, neighbour):
    """The house of tenant acme, with or without all that its neighbour has in it."""
    runtime = Runtime(MemoryStore(), clock=FakeClock())
    rate = {"rate_limits": {"window_sec": 3600, "max_requests": 2}}
    mine = [
        fake_tool("read", input_schema=SCHEMA),
        fake_tool("save", effect="draft", input_schema=SCHEMA),
        fake_tool("send", effect="external_notification", input_schema=SCHEMA),
        fake_tool("rare", runtime=rate, input_schema=SCHEMA),
        fake_tool("few", budget=1, input_schema=SCHEMA),
    ]
    grants = [Grant(agent="agent", tool=tool.contract.name) for tool in mine]
    runtime.register(*(tool.tool for tool in mine), grants=grants)
    if neighbour:
        theirs = [
            fake_tool("theirs", input_schema=SCHEMA),
            fake_tool("read", version="2.0.0", input_schema=SCHEMA),
            fake_tool("stopped"),
        ]
        runtime.register(
            *(tool.tool for tool in theirs),
            grants=[Grant(agent="agent", tool=name) for name in ("theirs", "stopped")],
            allowed_tenants=["globex"],
        )
        runtime.registry.kill(tool="stopped", reason="theirs alone")
    return runtime


async def live(runtime):
    """A day of the neighbour's: every name, run, key and counter that acme will use."""
    them = someone(tenant="globex")
    await runtime.run(them, "run_1", allowed_tools=["read"], budgets=Budgets(reads=0))
    for tool in ("read", "save", "send", "rare", "rare", "few", "theirs"):
        for run_id in ("run_1", "run_2", None):
            await runtime.submit(ask(tool, {"note": "theirs"}, run_id=run_id, key="k"), them)
    for tool in ("save", "send", "few"):
        held = await runtime.submit(ask(tool, run_id="run_2", key="k2"), them)
        if held.approval_id:
            await runtime.store.decide("globex", held.approval_id, HeldStatus.APPROVED, [])
            await runtime.submit(ask(tool, run_id="run_2", key="k2"), them)
    for _ in range(6):
        await runtime.submit(ask("nothing", call_id="call_x"), them)


# What acme asks, one after another in one house.
QUESTIONS = {
    "a tool of its own": [ask("read")],
    "a tool that is the neighbour's": [ask("theirs")],
    "a tool that is nobody's": [ask("nothing")],
    "a stopped tool of the neighbour's": [ask("stopped")],
    "broken arguments for the neighbour's tool": [ask("theirs", "{"), ask("theirs", {"x": 1})],
    "a version that only the neighbour has": [ask("read", version="2.0.0")],
    "the neighbour's tool by version": [ask("theirs", version="1.0.0")],
    "a key that the neighbour used": [ask("save", {"note": "mine"}, key="k")],
    "the same key twice": [ask("save", key="k2"), ask("save", key="k2")],
    "a key for something else": [ask("save", key="k"), ask("save", {"note": "x"}, key="k")],
    "a call that waits": [ask("send", key="k"), ask("send", key="k2")],
    "a call id that the neighbour used": [ask("read", call_id="call_x")],
    "a rate": [ask("rare"), ask("rare"), ask("rare")],
    "a budget": [ask("few"), ask("few")],
    "an implicit run": [ask("read", run_id=None), ask("few", run_id=None)],
    "refusal after refusal": [ask("theirs")] * 6,
}
IDS = re.compile(
    r"(call|appr)_[0-9a-f]{20,}|[0-9a-f]{32}|(?<=-data )[0-9a-f]{16}|(?<=<<<end )[0-9a-f]{16}"
)


def told(seen, *names):
    """Everything that an observation says, without what differs from call to call anyway."""
    record = seen.record()
    record["execution_metadata"]["latency_ms"] = 0
    for decision in record["decisions"]:
        decision["microseconds"] = 0
    text = json.dumps([record, seen.envelope()["status"], seen.feedback(), seen.for_model()])
    text = re.sub(r'"latency_ms": \d+', '"latency_ms": 0', text)
    for name in names:
        text = text.replace(name, "NAME")
    return IDS.sub("ID", text)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_no_answer_depends_on_what_a_neighbour_has_or_did(question):
    alone, beside = world(neighbour=False), world(neighbour=True)
    await live(beside)
    for proposal in QUESTIONS[question]:
        quiet = told(await alone.submit(proposal, someone()))
        loud = told(await beside.submit(proposal, someone()))
        assert loud == quiet
        assert "globex" not in loud


async def test_previews_do_not_depend_on_a_neighbour_either():
    alone, beside = world(neighbour=False), world(neighbour=True)
    await live(beside)
    for proposals in QUESTIONS.values():
        for proposal in proposals:
            shown = []
            for runtime in (alone, beside):
                preview = await runtime.preview(proposal, someone())
                decisions = [timed.decision.record() for timed in preview.decisions]
                shown.append((preview.verdict, preview.code, preview.reason, decisions))
            assert shown[0] == shown[1]


@pytest.mark.parametrize("more", [{}, {"version": "1.0.0"}, {"arguments": "{"}, {"key": "k"}])
async def test_anothers_tool_and_no_tool_at_all_are_told_in_the_same_words(more):
    runtime = world(neighbour=True)
    hidden, absent = [], []
    for _ in range(6):
        hidden.append(told(await runtime.submit(ask("theirs", **more), someone()), "theirs"))
        absent.append(told(await runtime.submit(ask("nothing", **more), someone()), "nothing"))
    assert hidden == absent


async def test_what_acme_did_is_not_among_the_neighbours_records():
    runtime = world(neighbour=True)
    await live(runtime)
    before = await runtime.store.events("globex")
    for proposals in QUESTIONS.values():
        for proposal in proposals:
            await runtime.submit(proposal, someone())
    assert await runtime.store.events("globex") == before
    assert {event.caller.tenant for _, event in await runtime.store.events("acme")} == {"acme"}


async def test_tenants_that_call_at_once_do_not_get_one_anothers_data():
    tool = fake_tool("save", lambda note: {"note": note}, effect="draft", input_schema=SCHEMA)
    runtime = Runtime(MemoryStore())
    runtime.register(tool.tool, grants=[Grant(agent="agent", tool="save")])
    tenants = [f"t{number}" for number in range(12)]
    for again in (False, True):
        seen = await asyncio.gather(
            *(
                runtime.submit(ask("save", {"note": tenant}, key="same"), someone(tenant=tenant))
                for tenant in tenants
            )
        )
        assert [one.data["note"] for one in seen] == tenants
        assert {one.idempotency_hit for one in seen} == {again}
    assert len(tool.calls) == len(tenants)
