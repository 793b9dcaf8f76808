"""Nothing of another tenant can be reached from a desk: it is not there, in the very same words."""

import inspect

import pytest

from counterseal.ledger.entry import Phase
from counterseal.registry import Grant
from counterseal.testing import fake_tool
from counterseal.views import CallSearch, Desk, NotThere

OPERATOR = ("operator", "approver")


class Kept:
    """A quarantine that holds one name, for one tenant."""

    class Held:
        name, server, tool, why, definition, pinned = "zeta_tool", "s", "t", "new", "h", ""

        def record(self):
            return {"name": self.name}

    def __init__(self):
        self.decided = []

    def list(self, tenant=None):
        return [self.Held()] if tenant == "zeta" else []

    def changes(self, name, tenant=None):
        return []

    def accept(self, name, definition, *, by, tenant=None):
        self.decided.append(("accept", name, by))

    def refuse(self, name, *, by, reason, tenant=None):
        self.decided.append(("refuse", name, by))


@pytest.fixture
async def zeta(office):
    """What there is of zeta's, by the names of what takes it."""
    runtime = office.runtime
    held = await office.call("send", tenant="zeta", run_id="run_zeta")
    saved = await office.call("save", tenant="zeta", run_id="run_zeta", key="k")
    grant = Grant(agent="agent", tool="theirs", tenant="zeta")
    await runtime.operator("op").grant(grant, reason="For a test.")
    kill = await runtime.operator("op").kill(tool="theirs", reason="For a test.")
    await office.fail("call:save:k", saved.call_id, "zeta")
    broken = fake_tool(
        "stuck",
        TimeoutError(),
        effect="draft",
        on_unknown="escalate",
        input_schema={
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        },
    )
    runtime.register(broken.tool, grants=[Grant(agent="agent", tool="stuck")])
    await office.call("stuck", {}, tenant="zeta", run_id="run_zeta", key="u")
    kept = await runtime.store.look_up("zeta", "call:stuck:u")
    assert kept.entry.phase is Phase.ESCALATED
    return {
        "approval_id": held.approval_id,
        "call_id": saved.call_id,
        "run_id": "run_zeta",
        "ledger_key": "call:save:k",
        "unknown_key": "call:stuck:u",
        "tool": "theirs",
        "kill": kill.id,
        "grant": grant,
        "quarantined": "zeta_tool",
    }


NOWHERE = {
    "approval_id": "appr_0",
    "call_id": "call_0",
    "run_id": "run_0",
    "ledger_key": "call:save:0",
    "unknown_key": "call:stuck:0",
    "tool": "no_such",
    "kill": "kill_0",
    "grant": Grant(agent="agent", tool="no_such", tenant="acme"),
    "quarantined": "no_such",
}
WHY = {"reason": "A test."}
WAYS = {
    "packet": lambda desk, ids: desk.packet(ids["approval_id"]),
    "request": lambda desk, ids: desk.request(ids["approval_id"]),
    "decide": lambda desk, ids: desk.decide(ids["approval_id"], "approve"),
    "reject": lambda desk, ids: desk.decide(ids["approval_id"], "reject"),
    "wait": lambda desk, ids: desk.wait(ids["approval_id"], 0),
    "call": lambda desk, ids: desk.call(ids["call_id"]),
    "events": lambda desk, ids: desk.events(ids["call_id"]),
    "observation": lambda desk, ids: desk.observation(call_id=ids["call_id"]),
    "observation by key": lambda desk, ids: desk.observation(key=ids["ledger_key"]),
    "run": lambda desk, ids: desk.run(ids["run_id"]),
    "budgets": lambda desk, ids: desk.budgets(ids["run_id"]),
    "tool": lambda desk, ids: desk.tool(ids["tool"]),
    "versions": lambda desk, ids: desk.versions(ids["tool"]),
    "use": lambda desk, ids: desk.use(ids["tool"]),
    "preview_kill": lambda desk, ids: desk.preview_kill(tool=ids["tool"]),
    "kill": lambda desk, ids: desk.kill(tool=ids["tool"], **WHY),
    "restore": lambda desk, ids: desk.restore(ids["kill"], **WHY),
    "enable": lambda desk, ids: desk.enable(ids["tool"], **WHY),
    "disable": lambda desk, ids: desk.disable(ids["tool"], **WHY),
    "preview_rollout": lambda desk, ids: desk.preview_rollout(ids["tool"], "1.0.0", 50),
    "set_rollout": lambda desk, ids: desk.set_rollout(ids["tool"], "1.0.0", 50, **WHY),
    "grant": lambda desk, ids: desk.grant(
        Grant(agent="agent", tool=ids["tool"], tenant="acme"), **WHY
    ),
    "revoke": lambda desk, ids: desk.revoke(ids["grant"], **WHY),
    "definition_changes": lambda desk, ids: desk.definition_changes(ids["quarantined"]),
    "accept": lambda desk, ids: desk.accept(ids["quarantined"], "h"),
    "refuse": lambda desk, ids: desk.refuse(ids["quarantined"], **WHY),
    "happened": lambda desk, ids: desk.happened(ids["unknown_key"], **WHY),
    "did_not_happen": lambda desk, ids: desk.did_not_happen(ids["unknown_key"], **WHY),
    "compensate": lambda desk, ids: desk.compensate(ids["ledger_key"], **WHY),
    "again": lambda desk, ids: desk.again("verify", ids["ledger_key"], **WHY),
    "dismiss": lambda desk, ids: desk.dismiss("verify", ids["ledger_key"], **WHY),
    "act": lambda desk, ids: desk.act("unknown", ids["unknown_key"], "happened", **WHY),
}
NO_ID = {
    "inbox", "decided", "calls", "tools", "grants", "kills", "quarantined", "concerns", "search",
    "chain", "verify", "export", "metrics", "series", "needs", "objection", "runs",
}  # fmt: skip


async def asked(way, desk, ids):
    """What comes of it, as (kind, words)."""
    try:
        answer = WAYS[way](desk, ids)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:  # noqa: BLE001 - that is what is compared
        return type(error), str(error)
    return "answer", answer


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_anothers_is_not_there_as_if_it_never_was(office, zeta, way):
    desk = office.desk(*OPERATOR, everywhere=["operator", "admin"], upstreams=Kept())
    kind, words = await asked(way, desk, zeta)
    assert kind is NotThere
    assert (kind, words) == await asked(way, desk, NOWHERE)


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"grant"}))
async def test_whose_it_is_finds_it(office, zeta, way):
    upstreams = Kept()
    people = {"name": "bea", "tenant": "zeta", "upstreams": upstreams}
    desk = office.desk(*OPERATOR, everywhere=["operator", "admin"], **people)
    kind, _ = await asked(way, desk, zeta)
    assert kind is not NotThere


def test_every_method_of_a_desk_is_asked_here():
    methods = {
        name for name, _ in inspect.getmembers(Desk, inspect.isfunction) if not name.startswith("_")
    }
    ways = {way.split()[0] for way in WAYS} - {"reject"}
    assert methods == ways | NO_ID


async def test_no_list_tells_of_another_tenant(office, zeta):
    desk = office.desk("viewer", everywhere=["operator"], upstreams=Kept())
    assert (await desk.inbox()).items == []
    assert (await desk.decided()).items == []
    assert (await desk.calls()).items == []
    assert (await desk.calls(CallSearch(run="run_zeta"))).items == []
    assert (await desk.calls(CallSearch(metric="schema_valid_call_rate"))).items == []
    assert (await desk.runs()).items == []
    assert (await desk.concerns()).items == []
    assert (await desk.search()).items == []
    assert (await desk.search(call_id=zeta["call_id"])).items == []
    assert desk.quarantined() == desk.kills() == []
    assert "theirs" not in {row.name for row in desk.tools()}
    assert all(grant.tool != "theirs" for grant in desk.grants())
    assert [line async for line in desk.export()] == []
    assert all(metric.numerator == 0 for metric in await desk.metrics())
    assert set(await desk.series("validation_failure_rate")) == {None}
    assert (await desk.verify()).events == 0


async def test_a_tool_page_says_nothing_of_who_else_has_it(office):
    page = office.desk().tool("ours").record()
    assert "zeta" not in str(page)
