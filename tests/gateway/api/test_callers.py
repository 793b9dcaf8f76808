"""Who may do what: agents and people, sessions and keys, roles and tenants. For every route.

Routes are taken from the API's own document, so that a new one is covered from its first day.
"""

import re

import pytest

from counterseal import Principal
from counterseal.web.identity import Access

from .served import BOT, OTHER, PUBLIC, STRANGER, open_api

ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
BODIES = {
    "submit_call": ADD,
    "decide": {"decision": "approve"},
    "enable_tool": {"reason": "x"},
    "disable_tool": {"reason": "x"},
    "accept_version": {"reason": "x", "version": "1.0.0"},
    "roll_out_tool": {"reason": "x", "version": "1.0.0", "percentage": 50},
    "accept_definition": {"definition": "sha256:0"},
    "refuse_definition": {"reason": "x"},
    "give_grant": {"agent": "bot", "tool": "add", "reason": "x"},
    "kill": {"tool": "add", "reason": "x"},
    "preview_kill": {"tool": "add"},
    "act_on_concern": {"reason": "x"},
    "report_outcome": {"fence": 1},
    "verify": {},
}
_OTHERS = {"submit_call", "report_outcome", "decide", "verify"}
ROLES = {
    "approver": {"decide"},
    "operator": BODIES.keys() - _OTHERS,
}


@pytest.fixture
async def document(api):
    return (await api.client().get("/v1/openapi.json")).json()


def operations(document):
    """(method, path, operation) of all."""
    return [
        (method.upper(), path, operation)
        for path, found in document["paths"].items()
        for method, operation in found.items()
    ]


def filled(path, **values):
    """A path with something in the place of each parameter."""
    values = {"kind": "verify", "action": "dismiss", "metric": "no_such", **values}
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "nothing"), path)


async def ask(client, method, path, operation, **headers):
    params = {"reason": "x"} if method == "DELETE" else {}
    if operation["operationId"] == "find_observation":
        params["call_id"] = "nothing"
    body = BODIES[operation["operationId"]] if method == "POST" else None
    return await client.request(method, path, params=params, json=body, headers=headers)


def takes(operation, scheme):
    return any(scheme in one for one in operation["security"])


# --- for every route ------------------------------------------------------------------------------


async def test_every_operation_refuses_a_request_without_a_credential(api, document):
    for method, path, operation in operations(document):
        answer = await ask(api.client(), method, filled(path), operation)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_an_agents_credential_opens_no_door_of_peoples(api, document):
    for method, path, operation in operations(document):
        if not takes(operation, "agent"):
            answer = await ask(api.agent(), method, filled(path), operation)
            found = (answer.status_code, answer.json()["code"])
            assert found == (403, "people-only"), path
    assert api.runtime.registry.kills == ()


async def test_no_persons_credential_makes_a_call(api, document):
    people_may = {op["operationId"] for *_, op in operations(document) if takes(op, "person")}
    all_of_them = {op["operationId"] for *_, op in operations(document)}
    assert all_of_them - people_may == {"submit_call", "report_outcome"}


async def test_operation_that_needs_a_role_names_it_to_a_viewer(api, document):
    vera = api.by_key("vera")
    for method, path, operation in operations(document):
        for role, names in ROLES.items():
            if operation["operationId"] in names:
                answer = await ask(vera, method, filled(path), operation)
                told = answer.json()
                assert (answer.status_code, told.get("role")) == (403, role), path


async def test_a_session_changes_nothing_without_the_word_of_its_pages(api, document):
    browser, csrf = await api.signed_in("root")
    for method, path, operation in operations(document):
        if method == "GET" or not takes(operation, "session"):
            continue
        for headers in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": ""}):
            answer = await ask(browser, method, filled(path), operation, **headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), path
        answer = await ask(
            browser,
            method,
            filled(path),
            operation,
            **{"X-CSRF-Token": csrf, "Origin": "https://evil.example"},
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), path
    assert api.runtime.registry.kills == ()


async def test_what_is_another_tenants_is_not_there_in_the_same_words(api, document):
    """Ids of everything that acme has, asked for by globex's admin and agent, in every route."""
    held = await api.held()
    agent, olga = api.agent(), api.by_key(("root", "acme"))
    made = (await agent.post("/v1/calls", json={**ADD, "run_id": "run_of_acme"})).json()
    given = {"agent": "bot", "tool": "add", "reason": "x"}
    grant = (await olga.post("/v1/grants", json=given)).json()["id"]
    ids = {
        "call_id": made["tool_identity"]["call_id"],
        "run_id": "run_of_acme",
        "approval_id": held["approval_id"],
        "grant_id": grant,
        "key": held["tool_identity"]["call_id"],
    }
    asked = 0
    for method, path, operation in operations(document):
        names = set(re.findall(r"\{(\w+)\}", path)) & ids.keys()
        if not names:
            continue
        for client in (api.by_key("eve"), api.agent(STRANGER)):
            theirs = await ask(client, method, filled(path, **ids), operation)
            nobodys = await ask(client, method, filled(path), operation)
            assert theirs.status_code in (403, 404), (path, theirs.text)
            assert _bare(theirs) == _bare(nobodys), path
            asked += 1
    assert asked > 12
    everything = await api.by_key(("root", "acme")).get("/v1/approvals")
    assert [one["status"] for one in everything.json()["items"]] == ["waiting"]


def _bare(answer):
    return {**answer.json(), "request_id": ""}


async def test_lists_of_one_tenant_hold_nothing_of_another(api, document):
    await api.held()
    await api.agent().post("/v1/calls", json=ADD)
    for method, path, operation in operations(document):
        if method == "GET" and "{" not in path and operation["operationId"] != "find_observation":
            answer = await api.by_key("eve").get(path)
            assert answer.status_code == 200, path
            assert "acme" not in answer.text, path


# --- agents among themselves ----------------------------------------------------------------------


async def test_an_agent_sees_its_own_and_nothing_of_others(api):
    held = await api.held()
    call_id, approval_id = held["tool_identity"]["call_id"], held["approval_id"]
    given = {"tool": "note", "arguments": {"text": "x"}, "run_id": "run_1"}
    noted = (await api.agent().post("/v1/calls", json=given)).json()["tool_identity"]["call_id"]
    paths = [
        f"/v1/calls/{call_id}",
        f"/v1/calls/{noted}",
        f"/v1/approvals/{approval_id}",
        f"/v1/approvals/{approval_id}/wait?seconds=0",
        f"/v1/observations?call_id={noted}",
        "/v1/runs/run_1",
    ]
    for path in paths:
        assert (await api.agent(BOT).get(path)).status_code == 200, path
        for who in (OTHER, STRANGER):
            assert (await api.agent(who).get(path)).status_code == 404, path
    assert (await api.agent(OTHER).get("/v1/calls?agent=bot")).json()["items"] == []
    assert len((await api.agent(BOT).get("/v1/calls?agent=bot")).json()["items"]) == 2


async def test_of_its_own_call_an_agent_is_not_told_what_is_for_people(api):
    held = await api.held()
    path = f"/v1/calls/{held['tool_identity']['call_id']}"
    mine, theirs = await api.agent().get(path), await api.by_key("vera").get(path)
    assert [mine.json()[name] for name in ("gates", "votes", "events")] == [[], [], []]
    assert theirs.json()["gates"]
    assert theirs.json()["events"]


async def test_an_agent_lists_the_tools_that_it_may_use(api):
    found = (await api.agent().get("/v1/tools")).json()["items"]
    assert [one["name"] for one in found] == ["add", "drop", "linger", "note", "send", "tick"]
    assert found[0]["inputSchema"]["required"] == ["a", "b"]
    assert (found[0]["effect"], found[0]["version"]) == ("read_only", "1.0.0")


# --- credentials ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic dTpw", "bearer x", "Bearer cs_person_x", "Bearer a b"],
)
async def test_invalid_credential_is_refused(api, header):
    answer = await api.client().get("/v1/me", headers={"Authorization": header})
    assert answer.status_code == 401


async def test_two_credentials_are_none(api):
    headers = [("Authorization", f"Bearer {api.keys[who]}") for who in (BOT, OTHER)]
    assert (await api.client().get("/v1/me", headers=headers)).status_code == 401


async def test_a_credential_counts_alone_even_beside_a_session(api):
    browser, csrf = await api.signed_in("root")
    headers = {"Authorization": f"Bearer {api.keys['vera']}", "X-CSRF-Token": csrf}
    assert (await browser.get("/v1/me", headers=headers)).json()["user"] == "vera"
    headers["Authorization"] = "Bearer nothing"
    assert (await browser.get("/v1/me", headers=headers)).status_code == 401


async def test_a_session_looks_and_with_its_word_acts(api):
    browser, csrf = await api.signed_in("root")
    me = (await browser.get("/v1/me")).json()
    assert (me["kind"], me["user"], me["everywhere"]) == ("person", "root", ["admin"])
    headers = {"X-CSRF-Token": csrf, "Origin": PUBLIC, "Sec-Fetch-Site": "same-origin"}
    answer = await browser.post("/v1/kills", json={"tool": "add", "reason": "x"}, headers=headers)
    assert answer.status_code == 201
    assert api.runtime.registry.kills[0].by == "root"


async def test_a_cookie_that_was_altered_or_comes_twice_is_refused(api):
    browser, _ = await api.signed_in("vera")
    text = browser.cookies["counterseal"]
    for cookie in (f"counterseal={text[:-2]}AA", f"counterseal={text}; counterseal={text}"):
        answer = await api.client().get("/v1/me", headers={"Cookie": cookie})
        assert answer.status_code == 401


async def test_a_key_that_is_revoked_ends_with_the_next_request(api):
    agent = api.agent()
    assert (await agent.get("/v1/me")).status_code == 200
    key_id = api.keys[BOT].split("_")[2]
    await api.runtime.operator("tests").revoke_key(key_id, reason="lost")
    assert (await agent.get("/v1/me")).status_code == 401


async def test_a_person_who_is_disabled_is_out_at_once(api):
    vera, (browser, _) = api.by_key("vera"), await api.signed_in("vera")
    accounts = api.people.accounts("tests")
    await accounts.set_active("vera", active=False, reason="left")
    assert (await vera.get("/v1/me")).status_code == 401
    assert (await browser.get("/v1/me")).status_code == 401


async def test_who_may_come_without_a_credential_may_not_come_from_a_strange_page():
    who = Principal(tenant="acme", agent="bot")
    access = Access(resource=f"{PUBLIC}/mcp", anonymous=who)
    async with open_api(access=access) as api:
        assert (await api.client().get("/v1/me")).json()["agent"] == "bot"
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await api.client().get("/v1/me", headers=headers)).status_code == 401
        bad = {"Authorization": "Bearer nothing"}
        assert (await api.client().get("/v1/me", headers=bad)).status_code == 401


async def test_a_person_of_two_tenants_is_in_the_one_that_the_key_is_for(api):
    for tenant, roles in (("acme", ["operator"]), ("globex", ["viewer"])):
        me = (await api.by_key(("olga", tenant)).get("/v1/me")).json()
        assert (me["tenant"], me["roles"]) == (tenant, roles)
