"""What people do through the API, subject by subject; roles and rules are the desk's."""

import asyncio
import re

import pytest

from counterseal.errors import CountersealError
from counterseal.testing import fake_tool
from counterseal.views.tools import QuarantineRow

from .served import PATIENCE, open_api


async def code_of(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["code"]


# --- approvals ------------------------------------------------------------------------------------


async def test_two_people_decide_on_something_critical_and_each_types_what_it_is(api):
    answer = await api.agent().post(
        "/v1/calls", json={"tool": "drop", "arguments": {"case": "c_7"}}
    )
    approval_id = answer.json()["approval_id"]
    path = f"/v1/approvals/{approval_id}"
    packet = (await api.by_key("ada").get(path)).json()
    assert (packet["consequence"], packet["confirmation"]) == (
        "Case c_7 is gone for good.",
        "case:c_7",
    )
    untyped = await api.by_key("ada").post(f"{path}/decision", json={"decision": "approve"})
    assert await code_of(untyped, 422) == "confirmation-required"
    assert (untyped.json()["param"], untyped.json()["why"]) == ("/typed", "typed")
    vote = {"decision": "approve", "typed": "case:c_7"}
    first = await api.by_key("ada").post(f"{path}/decision", json=vote)
    assert (first.json()["status"], first.json()["votes"]["so_far"]) == ("waiting", "1 of 2")
    assert first.json()["needed"] == "An approver with the role compliance is still needed."
    assert first.json()["approval"]["including"] == [["compliance"]]
    twice = await api.by_key("ada").post(f"{path}/decision", json=vote)
    assert await code_of(twice, 409) == "already-decided"
    without = await api.by_key("root").post(f"{path}/decision", json=vote)
    assert "An approver with the role compliance is still needed." in without.text
    second = await api.by_key("bob").post(f"{path}/decision", json=vote)
    assert (second.json()["status"], second.json()["needed"]) == ("approved", "")
    late = await api.by_key("root").post(f"{path}/decision", json={"decision": "reject"})
    assert await code_of(late, 409) == "already-decided"


async def test_who_waits_for_a_decision_is_told_when_it_is_there(api):
    approval_id = (await api.held())["approval_id"]
    path = f"/v1/approvals/{approval_id}"
    waiting = [
        asyncio.ensure_future(client.get(f"{path}/wait", params={"seconds": 30}))
        for client in (api.agent(), api.by_key("vera"))
    ]
    await asyncio.sleep(0)
    await api.by_key("ada").post(f"{path}/decision", json={"decision": "approve"})
    async with asyncio.timeout(PATIENCE):
        short, full = [(await one).json() for one in waiting]
    assert short["status"] in ("approved", "spent")
    assert full["votes"]["cast"][0]["approver"] == "ada"
    assert "votes" not in short


@pytest.mark.parametrize("seconds", ["-1", "31", "nan", "inf", "soon"])
async def test_no_request_waits_longer_than_half_a_minute(api, seconds):
    path = f"/v1/approvals/{(await api.held())['approval_id']}/wait"
    answer = await api.agent().get(path, params={"seconds": seconds})
    assert await code_of(answer, 400) == "invalid-request"


async def test_what_waits_is_narrowed_by_what_is_known_of_it(api):
    await api.held(to="Ann")
    await api.held(to="Bob")

    async def found(**query):
        answer = await api.by_key("vera").get("/v1/approvals", params=query)
        return [one["consequence"] for one in answer.json()["items"]]

    assert (
        await found() == ["A letter goes to “Ann”.", "A letter goes to “Bob”."]
        or len(await found()) == 2
    )
    assert len(await found(text="Bob")) == 1
    assert len(await found(tool="send", agent="bot", risk="HIGH_RISK_EXTERNAL")) == 2
    assert await found(tool="drop") == []


async def test_what_was_decided_is_narrowed_alike(api):
    for to in ("Ann", "Bob", "Bobby"):
        held = await api.held(to=to)
        path = f"/v1/approvals/{held['approval_id']}/decision"
        choice = "reject" if to == "Ann" else "approve"
        assert (await api.by_key("ada").post(path, json={"decision": choice})).status_code == 200
    await api.held(to="Bob, who waits")

    async def found(**query):
        rows, cursor = [], None
        while cursor is not None or not rows:
            given = {"limit": 1, **query, **({"cursor": cursor} if cursor else {})}
            page = (await api.by_key("vera").get("/v1/approvals", params=given)).json()
            rows += [re.search(r"to \W?(\w+)", one["consequence"])[1] for one in page["items"]]
            cursor = page["next"]
            if cursor is None:
                return sorted(rows)
        return None

    assert await found(status="decided") == ["Ann", "Bob", "Bobby"]
    assert await found(status="decided", text="bob") == ["Bob", "Bobby"]
    assert await found(status="rejected", text="bob") == []
    assert await found(status="decided", tool="send", agent="bot", risk="HIGH_RISK_EXTERNAL") == [
        "Ann",
        "Bob",
        "Bobby",
    ]
    assert await found(status="decided", agent="other") == []


# --- tools, kills, grants -------------------------------------------------------------------------


async def test_a_kill_is_previewed_made_seen_and_undone(api):
    root = api.by_key(("root", "acme"))
    preview = (await root.post("/v1/kills/preview", json={"tool": "add"})).json()["items"]
    assert [one["tool"] for one in preview] == ["add"]
    made = await root.post("/v1/kills", json={"tool": "add", "reason": "it adds wrong"})
    assert made.status_code == 201
    kill_id = made.json()["id"]
    refused = await api.agent().post(
        "/v1/calls", json={"tool": "add", "arguments": {"a": 1, "b": 2}}
    )
    assert await code_of(refused, 403) == "PERMISSION_DENIED"
    (listed,) = (await api.by_key("vera").get("/v1/kills")).json()["items"]
    assert (listed["id"], listed["reason"], listed["by"]) == (kill_id, "it adds wrong", "root")
    assert (await root.get("/v1/tools/add")).json()["status"] == "killed"
    assert (await root.delete(f"/v1/kills/{kill_id}")).status_code == 400
    undone = await root.delete(f"/v1/kills/{kill_id}", params={"reason": "mended"})
    assert (undone.status_code, undone.json()["op"]) == (200, "restore")
    gone = await root.delete(f"/v1/kills/{kill_id}", params={"reason": "again"})
    assert await code_of(gone, 404) == "not-found"


async def test_a_kill_stops_one_thing(api):
    body = {"tool": "add", "effect": "draft", "reason": "x"}
    answer = await api.by_key("root").post("/v1/kills", json=body)
    assert await code_of(answer, 422) == "refused-change"


async def test_what_all_tenants_share_takes_a_role_for_all_of_them(api):
    body = {"tool": "add", "everywhere": True, "reason": "x"}
    answer = await api.by_key("olga").post("/v1/kills", json=body)
    assert await code_of(answer, 403) == "role-required"
    assert "all tenants" in answer.json()["detail"]


async def test_a_tool_is_disabled_rolled_out_and_enabled(api):
    root = api.by_key(("root", "acme"))
    for verb, body, status in (
        ("disable", {"reason": "x"}, "disabled"),
        ("enable", {"reason": "x", "version": "1.0.0"}, "active"),
        ("rollout", {"reason": "x", "version": "1.0.0", "percentage": 50}, "active"),
    ):
        answer = await root.post(f"/v1/tools/add/{verb}", json=body)
        assert (answer.status_code, answer.json()["reason"]) == (200, "x"), answer.text
        assert (await root.get("/v1/tools/add")).json()["status"] == status
    (version,) = (await root.get("/v1/tools/add/versions")).json()["items"]
    assert version["rollout_percentage"] == 50
    (step,) = (await root.get("/v1/tools/add")).json()["steps_back"]
    assert (step["version"], step["now"], step["before"], step["by"]) == ("1.0.0", 50, 100, "root")
    asked = {"version": "1.0.0", "percentage": 10}
    shares = (await root.get("/v1/tools/add/rollout", params=asked)).json()["items"]
    assert shares == [
        {"version": "1.0.0", "now": 50, "then": 10},
        {"version": "", "now": 50, "then": 90},
    ]
    assert (await root.get("/v1/tools/none")).status_code == 404


async def test_a_grant_is_given_used_listed_and_taken_back(api):
    olga = api.by_key(("olga", "acme"))
    body = {"agent": "new", "tool": "add", "max_calls_per_run": 3, "reason": "a trial"}
    made = await olga.post("/v1/grants", json=body)
    assert (made.status_code, made.json()["tenant"]) == (201, "acme")
    listed = (await olga.get("/v1/grants", params={"agent": "new"})).json()["items"]
    assert listed == [made.json()]
    path = f"/v1/grants/{made.json()['id']}"
    taken = await olga.delete(path, params={"reason": "over"})
    assert (taken.status_code, taken.json()["op"]) == (200, "revoke")
    assert await code_of(await olga.delete(path, params={"reason": "over"}), 404) == "not-found"
    strange = await olga.post("/v1/grants", json={**body, "version": "newest"})
    assert await code_of(strange, 422) == "refused-change"
    everywhere = await olga.post("/v1/grants", json={**body, "everywhere": True})
    assert await code_of(everywhere, 403) == "role-required"


async def test_a_version_that_is_held_is_shown_with_its_reasons_and_accepted(api):
    root = api.by_key(("root", "acme"))
    assert (await root.get("/v1/tools/add")).json()["status"] == "active"
    writes = fake_tool("add", effect="internal_mutation", version="2.0.0")
    api.runtime.register(writes.tool)
    await api.runtime.catch_up()
    newest, oldest = (await root.get("/v1/tools/add/versions")).json()["items"]
    assert (newest["status"], oldest["status"]) == ("held_for_review", "active")
    assert any(text.startswith("effect-raised: ") for text in newest["held"])
    body = {"version": "2.0.0", "reason": "agreed"}
    viewer = await api.by_key("vera").post("/v1/tools/add/accept", json=body)
    assert await code_of(viewer, 403) == "role-required"
    made = await root.post("/v1/tools/add/accept", json=body)
    assert (made.status_code, made.json()["op"]) == (200, "accept_version")
    newest, _ = (await root.get("/v1/tools/add/versions")).json()["items"]
    assert (newest["status"], newest["held"]) == ("active", [])
    again = await root.post("/v1/tools/add/accept", json=body)
    assert await code_of(again, 422) == "refused-change"


# --- quarantine -----------------------------------------------------------------------------------


KEPT = QuarantineRow(
    name="files.read",
    server="files",
    tool="read",
    why="changed",
    definition="sha256:new",
    pinned="sha256:old",
)
"""One tool that is kept out."""


class Quarantines:
    def __init__(self):
        self.did = []

    def list(self, tenant=None):
        return [KEPT]

    def changes(self, name, tenant=None):
        return []

    def accept(self, name, definition, *, by, tenant=None):
        if definition != KEPT.definition:
            raise CountersealError("it is another one by now")
        self.did.append((name, by))

    def refuse(self, name, *, by, reason, tenant=None):
        self.did.append((name, by, reason))


async def test_what_is_kept_out_is_shown_and_let_in_as_it_was_shown():
    quarantines = Quarantines()
    async with open_api(quarantines=quarantines) as api:
        root = api.by_key("root")
        (held,) = (await root.get("/v1/quarantine")).json()["items"]
        path = f"/v1/quarantine/{held['name']}"
        assert (await root.get(f"{path}/changes")).json() == {"items": []}
        wrong = await root.post(f"{path}/accept", json={"definition": "sha256:other"})
        assert await code_of(wrong, 409) == "conflict"
        right = await root.post(f"{path}/accept", json={"definition": held["definition"]})
        assert (right.status_code, right.content) == (204, b"")
        assert (await root.post(f"{path}/refuse", json={"reason": "no"})).status_code == 204
        assert quarantines.did == [("files.read", "root"), ("files.read", "root", "no")]
        none = await root.post("/v1/quarantine/other/refuse", json={"reason": "no"})
        assert none.status_code == 404
