"""Nothing of another tenant can be reached from a view: it is not there, in the very same words."""

import inspect

import pytest

from counterseal.ledger.entry import Phase
from counterseal.registry import Grant
from counterseal.testing import fake_tool
from counterseal.views.base import NotFoundError, TenantSection
from counterseal.views.calls import CallSearch
from counterseal.views.tools import QuarantineRow, grant_row

OPERATOR = ("operator", "approver")


class Kept:
    """A quarantine that holds one name, for one tenant."""

    held = QuarantineRow(
        name="zeta_tool", server="s", tool="t", why="new", definition="h", pinned=""
    )

    def __init__(self):
        self.decided = []

    def list(self, tenant=None):
        return [self.held] if tenant == "zeta" else []

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
        "grant": grant_row(grant).id,
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
    "grant": "grant_0",
    "quarantined": "no_such",
}
WHY = {"reason": "A test."}
WAYS = {
    "approvals.packet": lambda view, ids: view.approvals.packet(ids["approval_id"]),
    "approvals.page": lambda view, ids: view.approvals.page(ids["approval_id"]),
    "approvals.row": lambda view, ids: view.approvals.row(ids["approval_id"]),
    "approvals.decide": lambda view, ids: view.approvals.decide(ids["approval_id"], "approve"),
    "approvals.decide reject": lambda view, ids: view.approvals.decide(
        ids["approval_id"], "reject"
    ),
    "approvals.wait": lambda view, ids: view.approvals.wait(ids["approval_id"], 0),
    "calls.page": lambda view, ids: view.calls.page(ids["call_id"]),
    "calls.events": lambda view, ids: view.calls.events(ids["call_id"]),
    "calls.arguments": lambda view, ids: view.calls.arguments(ids["call_id"]),
    "calls.erase_arguments": lambda view, ids: view.calls.erase_arguments(ids["call_id"], "gone"),
    "calls.observation": lambda view, ids: view.calls.observation(call_id=ids["call_id"]),
    "calls.observation by key": lambda view, ids: view.calls.observation(key=ids["ledger_key"]),
    "runs.page": lambda view, ids: view.runs.page(ids["run_id"]),
    "runs.budgets": lambda view, ids: view.runs.budgets(ids["run_id"]),
    "tools.page": lambda view, ids: view.tools.page(ids["tool"]),
    "tools.versions": lambda view, ids: view.tools.versions(ids["tool"]),
    "tools.use": lambda view, ids: view.tools.use(ids["tool"]),
    "tools.preview_kill": lambda view, ids: view.tools.preview_kill(tool=ids["tool"]),
    "tools.kill": lambda view, ids: view.tools.kill(tool=ids["tool"], **WHY),
    "tools.restore": lambda view, ids: view.tools.restore(ids["kill"], **WHY),
    "tools.enable": lambda view, ids: view.tools.enable(ids["tool"], **WHY),
    "tools.disable": lambda view, ids: view.tools.disable(ids["tool"], **WHY),
    "tools.accept_version": lambda view, ids: view.tools.accept_version(
        ids["tool"], "1.0.0", **WHY
    ),
    "tools.preview_rollout": lambda view, ids: view.tools.preview_rollout(ids["tool"], "1.0.0", 50),
    "tools.set_rollout": lambda view, ids: view.tools.set_rollout(ids["tool"], "1.0.0", 50, **WHY),
    "tools.grant": lambda view, ids: view.tools.grant(
        Grant(agent="agent", tool=ids["tool"], tenant="acme"), **WHY
    ),
    "tools.revoke": lambda view, ids: view.tools.revoke(ids["grant"], **WHY),
    "tools.definition_changes": lambda view, ids: view.tools.definition_changes(ids["quarantined"]),
    "tools.accept": lambda view, ids: view.tools.accept(ids["quarantined"], "h"),
    "tools.refuse": lambda view, ids: view.tools.refuse(ids["quarantined"], **WHY),
    "attention.act did_not_happen": lambda view, ids: view.attention.act(
        "unknown", ids["unknown_key"], "did_not_happen", **WHY
    ),
    "attention.act compensate": lambda view, ids: view.attention.act(
        "verify", ids["ledger_key"], "compensate", **WHY
    ),
    "attention.act again": lambda view, ids: view.attention.act(
        "verify", ids["ledger_key"], "again", **WHY
    ),
    "attention.act dismiss": lambda view, ids: view.attention.act(
        "verify", ids["ledger_key"], "dismiss", **WHY
    ),
    "attention.act": lambda view, ids: view.attention.act(
        "unknown", ids["unknown_key"], "happened", **WHY
    ),
}
NO_ID = {
    "approvals.search",
    "approvals.count",
    "approvals.failure",
    "approvals.stop_reason",
    "approvals.page_of",
    "attention.count",
    "calls.with_approval",
    "calls.search",
    "tools.rows",
    "tools.grants",
    "tools.kills",
    "tools.may_restore",
    "tools.quarantined",
    "attention.rows",
    "record.search",
    "record.chain",
    "record.verify",
    "record.verification",
    "record.export",
    "metrics.rows",
    "metrics.series",
    "approvals.objection",
    "runs.search",
}


async def asked(way, view, ids):
    """What comes of it, as (kind, words)."""
    try:
        answer = WAYS[way](view, ids)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:  # noqa: BLE001 - that is what is compared
        return type(error), str(error)
    return "answer", answer


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_anothers_is_not_there_as_if_it_never_was(office, zeta, way):
    view = office.view(*OPERATOR, everywhere=["operator", "admin"], quarantine=Kept())
    kind, words = await asked(way, view, zeta)
    assert kind is NotFoundError
    assert (kind, words) == await asked(way, view, NOWHERE)


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"tools.grant"}))
async def test_whose_it_is_finds_it(office, zeta, way):
    people = {"name": "bea", "tenant": "zeta", "quarantine": Kept()}
    view = office.view(*OPERATOR, everywhere=["operator", "admin"], **people)
    kind, _ = await asked(way, view, zeta)
    assert kind is not NotFoundError


async def test_every_method_of_a_view_is_asked_here(office):
    sections = {
        name: section
        for name, section in vars(office.view()).items()
        if isinstance(section, TenantSection)
    }
    methods = {
        f"{section}.{name}"
        for section, views in sections.items()
        for name, _ in inspect.getmembers(views, inspect.ismethod)
        if not name.startswith("_") and name != "require"
    }
    assert methods == {way.split()[0] for way in WAYS} | NO_ID


async def test_no_list_tells_of_another_tenant(office, zeta):
    view = office.view("viewer", everywhere=["operator"], quarantine=Kept())
    assert (await view.approvals.search()).items == []
    assert (await view.approvals.search("decided")).items == []
    assert (await view.calls.search()).items == []
    assert (await view.calls.search(CallSearch(run="run_zeta"))).items == []
    assert (await view.calls.search(CallSearch(metric="schema_valid_call_rate"))).items == []
    assert (await view.runs.search()).items == []
    assert (await view.attention.rows()).items == []
    assert (await view.record.search()).items == []
    assert (await view.record.search(call_id=zeta["call_id"])).items == []
    assert view.tools.quarantined() == view.tools.kills() == []
    assert "theirs" not in {row.name for row in view.tools.rows()}
    assert all(grant.tool != "theirs" for grant in view.tools.grants())
    assert [line async for line in view.record.export()] == []
    assert all(metric.numerator == 0 for metric in await view.metrics.rows())
    assert set((await view.metrics.series("validation_failure_rate")).values) == {None}
    assert (await view.record.verify()).events == 0


async def test_a_tool_page_says_nothing_of_who_else_has_it(office):
    page = office.view().tools.page("ours").model_dump(mode="json")
    assert "zeta" not in str(page)
