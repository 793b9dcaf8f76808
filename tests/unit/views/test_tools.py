"""Tools at a view: what there is, and who may do what about it."""

import pytest

from counterseal.errors import RegistryError
from counterseal.registry import Grant
from counterseal.views.base import NotFoundError, RoleRequiredError

WHY = "Because of a test."


async def test_the_list_shows_a_tool_once_with_what_stops_it(office):
    rows = {row.name: row for row in office.view().tools.rows()}
    assert set(rows) == {"look", "ours", "save", "send", "wipe"}
    assert (rows["look"].status, rows["look"].grants) == ("active", 1)
    await office.view(everywhere=["operator"]).tools.kill(tool="look", reason=WHY)
    stopped = {row.name: row for row in office.view().tools.rows()}["look"]
    assert stopped.status == "killed"
    assert len(stopped.kills) == 1


async def test_a_card_shows_contract_versions_grants_and_changes(office):
    view = office.view(everywhere=["operator"])
    await view.tools.disable("save", reason=WHY)
    page = view.tools.page("save")
    assert page.contract["effect"] == "draft"
    assert [one.version for one in page.version_list] == ["1.0.0"]
    assert [grant.agent for grant in page.grant_list] == ["agent"]
    assert [(one.op, one.by) for one in page.changes] == [("disable", "ann")]
    assert page.may_operate
    assert not office.view("operator").tools.page("save").may_operate
    assert page.model_dump(mode="json")["status"] == "disabled"


async def test_use_is_counted_by_code(office):
    await office.call("look")
    await office.call("look", {"n": "x"})
    used = await office.view().tools.use("look")
    assert (used.calls, used.codes, used.more) == (
        2,
        {"TYPE_MISMATCH": 1, "SUCCESS": 1},
        False,
    )
    with pytest.raises(ValueError, match="window"):
        await office.view().tools.use("look", "yesterday")


async def test_a_kill_is_previewed_made_seen_by_every_viewer_and_undone(office):
    view = office.view(everywhere=["operator"])
    assert [record.tool for record in await view.tools.preview_kill(effect="draft")] == ["save"]
    kill = await view.tools.kill(effect="draft", reason=WHY)
    assert kill.by == "ann"
    assert [one.id for one in office.view(tenant="zeta").tools.kills()] == [kill.id]
    assert (await office.call("save")).code == "PERMISSION_DENIED"
    await view.tools.restore(kill.id, reason=WHY)
    assert office.view().tools.kills() == []
    assert (await office.call("save")).ok


@pytest.mark.parametrize(
    "act",
    [
        lambda view: view.tools.kill(tool="save", everywhere=True, reason=WHY),
        lambda view: view.tools.kill(effect="draft", everywhere=True, reason=WHY),
        lambda view: view.tools.kill(everywhere=True, reason=WHY),
        lambda view: view.tools.disable("save", reason=WHY),
        lambda view: view.tools.enable("save", reason=WHY),
        lambda view: view.tools.set_rollout("save", "1.0.0", 5, reason=WHY),
        lambda view: view.tools.preview_rollout("save", "1.0.0", 5),
        lambda view: view.tools.grant(Grant(agent="x", tool="save"), reason=WHY),
    ],
)
async def test_an_operator_of_one_tenant_changes_nothing_that_others_share(office, act):
    with pytest.raises(RoleRequiredError, match="for all tenants") as refused:
        await act(office.view("operator", "admin"))
    assert refused.value.role == "operator"
    with pytest.raises(RoleRequiredError, match="operator"):
        await act(office.view("viewer", "approver"))
    assert office.runtime.registry.changes == ()


async def test_an_operator_of_one_tenant_can_stop_what_only_this_tenant_has(office):
    view = office.view("operator")
    kill = await view.tools.kill(tool="ours", reason=WHY)
    assert office.view(tenant="zeta").tools.kills() == []
    await view.tools.restore(kill.id, reason=WHY)
    assert office.runtime.registry.kills == ()


@pytest.mark.parametrize("aim", [{"tool": "save"}, {"effect": "draft"}, {}])
async def test_an_operator_of_one_tenant_stops_shared_tools_there_and_nowhere_else(office, aim):
    view, other = office.view("operator"), office.view("operator", tenant="zeta", name="zoe")
    assert "save" in {record.tool for record in await view.tools.preview_kill(**aim)}
    kill = await view.tools.kill(**aim, reason=WHY)
    assert (kill.tenant, kill.by) == ("acme", "ann")
    assert (await office.call("save")).code == "PERMISSION_DENIED"
    assert (await office.call("save", tenant="zeta", run_id="run_2")).ok
    assert view.tools.page("save").status == "killed"
    assert view.tools.kills() == [kill]
    assert await view.tools.preview_kill(**aim) == []
    # The other tenant's operator neither sees it, nor can undo it.
    page = other.tools.page("save")
    assert (page.status, page.kills, page.changes) == ("active", [], [])
    assert other.tools.kills() == []
    assert "save" in {record.tool for record in await other.tools.preview_kill(**aim)}
    with pytest.raises(NotFoundError):
        await other.tools.restore(kill.id, reason=WHY)
    await view.tools.restore(kill.id, reason=WHY)
    assert (await office.call("save", {"n": 2})).ok


async def test_a_tenants_kill_is_on_that_tenants_record_and_on_no_others(office):
    view = office.view("operator")
    kill = await view.tools.kill(tool="save", reason=WHY)
    await view.tools.restore(kill.id, reason="Mended.")
    for tenant, expected in (("acme", ["kill", "restore"]), ("zeta", []), ("*", [])):
        events = [event for _, event in await office.runtime.store.events(tenant)]
        assert [one.decision for one in events if one.type == "registry.changed"] == expected


async def test_a_kill_for_all_outranks_what_one_tenant_restores(office):
    view, above = office.view("operator"), office.view(everywhere=["operator"])
    ours = await view.tools.kill(tool="save", reason=WHY)
    all_of_them = await above.tools.kill(tool="save", reason=WHY)
    assert (all_of_them.tenant, len(view.tools.kills())) == (None, 2)
    await view.tools.restore(ours.id, reason=WHY)
    assert (await office.call("save")).code == "PERMISSION_DENIED"
    assert not view.tools.may_restore(all_of_them)
    only_here = await above.tools.kill(tool="look", everywhere=False, reason=WHY)
    assert only_here.tenant == "acme"
    assert view.tools.may_restore(only_here)
    assert not office.view("viewer").tools.may_restore(only_here)


async def test_an_operator_of_one_tenant_can_not_undo_a_kill_for_all(office):
    kill = await office.view(everywhere=["operator"]).tools.kill(tool="save", reason=WHY)
    with pytest.raises(RoleRequiredError, match="for all tenants"):
        await office.view("operator").tools.restore(kill.id, reason=WHY)
    assert office.view("operator").tools.kills() == [kill]


async def test_grants_are_a_tenants_own(office):
    view = office.view("operator")
    grant = Grant(agent="new", tool="look", tenant="acme")
    row = await view.tools.grant(grant, reason=WHY)
    assert row in view.tools.grants(agent="new")
    assert row not in office.view(tenant="zeta").tools.grants()
    assert (await office.call("look", agent="new")).ok
    assert (await office.call("look", agent="new", tenant="zeta")).code == "PERMISSION_DENIED"
    await view.tools.revoke(row.id, reason=WHY)
    assert row not in view.tools.grants()
    with pytest.raises(NotFoundError):
        await view.tools.grant(Grant(agent="new", tool="look", tenant="zeta"), reason=WHY)


async def test_who_has_a_role_everywhere_may_grant_for_all(office):
    view = office.view(everywhere=["operator"])
    await view.tools.grant(Grant(agent="new", tool="look"), reason=WHY)
    assert office.view(tenant="zeta").tools.grants(agent="new")


async def test_nothing_is_changed_without_a_reason(office):
    with pytest.raises(RegistryError, match="reason"):
        await office.view(everywhere=["operator"]).tools.kill(tool="save", reason=" ")


async def test_a_card_tells_nothing_of_what_operators_gave_another_tenant(office):
    theirs = Grant(agent="agent", tool="look", tenant="zeta")
    ours = Grant(agent="other", tool="look", tenant="acme")
    operator = office.runtime.operator("ops")
    await operator.grant(theirs, reason="between zeta and us")
    await operator.grant(ours, reason="for acme")
    told = str(office.view().tools.page("look").model_dump(mode="json"))
    assert "for acme" in told
    assert "zeta" not in told
