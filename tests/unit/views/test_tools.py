"""Tools at a desk: what there is, and who may do what about it."""

import pytest

from counterseal.errors import RegistryError
from counterseal.registry import Grant
from counterseal.views import NotAllowed, NotThere

WHY = "Because of a test."


async def test_the_list_shows_a_tool_once_with_what_stops_it(office):
    rows = {row.name: row for row in office.desk().tools()}
    assert set(rows) == {"look", "ours", "save", "send", "wipe"}
    assert (rows["look"].status, rows["look"].grants) == ("active", 1)
    await office.desk(everywhere=["operator"]).kill(tool="look", reason=WHY)
    stopped = {row.name: row for row in office.desk().tools()}["look"]
    assert stopped.status == "killed"
    assert len(stopped.kills) == 1


async def test_a_card_shows_contract_versions_grants_and_changes(office):
    desk = office.desk(everywhere=["operator"])
    await desk.disable("save", reason=WHY)
    page = desk.tool("save")
    assert page.contract["effect"] == "draft"
    assert [one["version"] for one in page.versions] == ["1.0.0"]
    assert [grant.agent for grant in page.grants] == ["agent"]
    assert [(one["op"], one["by"]) for one in page.changes] == [("disable", "ann")]
    assert page.may_operate
    assert not office.desk("operator").tool("save").may_operate
    assert page.record()["status"] == "disabled"


async def test_use_is_counted_by_code(office):
    await office.call("look")
    await office.call("look", {"n": "x"})
    used = await office.desk().use("look")
    assert (used.calls, used.codes, used.more) == (
        2,
        {"TYPE_MISMATCH": 1, "SUCCESS": 1},
        False,
    )
    with pytest.raises(ValueError, match="window"):
        await office.desk().use("look", "yesterday")


async def test_a_kill_is_previewed_made_seen_by_everybody_and_undone(office):
    desk = office.desk(everywhere=["operator"])
    assert [record.name for record in await desk.preview_kill(effect="draft")] == ["save"]
    kill = await desk.kill(effect="draft", reason=WHY)
    assert kill.by == "ann"
    assert [one.id for one in office.desk(tenant="zeta").kills()] == [kill.id]
    assert (await office.call("save")).code == "PERMISSION_DENIED"
    await desk.restore(kill.id, reason=WHY)
    assert office.desk().kills() == []
    assert (await office.call("save")).ok


@pytest.mark.parametrize(
    "act",
    [
        lambda desk: desk.kill(tool="save", reason=WHY),
        lambda desk: desk.kill(effect="draft", reason=WHY),
        lambda desk: desk.kill(reason=WHY),
        lambda desk: desk.disable("save", reason=WHY),
        lambda desk: desk.enable("save", reason=WHY),
        lambda desk: desk.set_rollout("save", "1.0.0", 5, reason=WHY),
        lambda desk: desk.preview_rollout("save", "1.0.0", 5),
        lambda desk: desk.grant(Grant(agent="x", tool="save"), reason=WHY),
    ],
)
async def test_an_operator_of_one_tenant_changes_nothing_that_others_share(office, act):
    with pytest.raises(NotAllowed, match="for all tenants") as refused:
        await act(office.desk("operator", "admin"))
    assert refused.value.role == "operator"
    with pytest.raises(NotAllowed, match="operator"):
        await act(office.desk("viewer", "approver"))
    assert office.runtime.registry.changes == ()


async def test_an_operator_of_one_tenant_can_stop_what_only_this_tenant_has(office):
    desk = office.desk("operator")
    kill = await desk.kill(tool="ours", reason=WHY)
    assert office.desk(tenant="zeta").kills() == []
    await desk.restore(kill.id, reason=WHY)
    assert office.runtime.registry.kills == ()


async def test_an_operator_of_one_tenant_can_not_undo_a_kill_for_all(office):
    kill = await office.desk(everywhere=["operator"]).kill(tool="save", reason=WHY)
    with pytest.raises(NotAllowed, match="for all tenants"):
        await office.desk("operator").restore(kill.id, reason=WHY)
    assert office.desk("operator").kills() == [kill]


async def test_grants_are_a_tenants_own(office):
    desk = office.desk("operator")
    grant = Grant(agent="new", tool="look", tenant="acme")
    await desk.grant(grant, reason=WHY)
    assert grant in desk.grants(agent="new")
    assert grant not in office.desk(tenant="zeta").grants()
    assert (await office.call("look", agent="new")).ok
    assert (await office.call("look", agent="new", tenant="zeta")).code == "PERMISSION_DENIED"
    await desk.revoke(grant, reason=WHY)
    assert grant not in desk.grants()
    with pytest.raises(NotThere):
        await desk.grant(Grant(agent="new", tool="look", tenant="zeta"), reason=WHY)


async def test_who_has_a_role_everywhere_may_grant_for_all(office):
    desk = office.desk(everywhere=["operator"])
    await desk.grant(Grant(agent="new", tool="look"), reason=WHY)
    assert office.desk(tenant="zeta").grants(agent="new")


async def test_nothing_is_changed_without_a_reason(office):
    with pytest.raises(RegistryError, match="reason"):
        await office.desk(everywhere=["operator"]).kill(tool="save", reason=" ")


async def test_a_card_tells_nothing_of_what_operators_gave_another_tenant(office):
    theirs = Grant(agent="agent", tool="look", tenant="zeta")
    ours = Grant(agent="other", tool="look", tenant="acme")
    operator = office.runtime.operator("ops")
    await operator.grant(theirs, reason="between zeta and us")
    await operator.grant(ours, reason="for acme")
    told = str(office.desk().tool("look").record())
    assert "for acme" in told
    assert "zeta" not in told
