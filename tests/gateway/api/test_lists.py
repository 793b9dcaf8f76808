"""Pages and their cursors, ETags, and the methods that nobody thinks of."""

import pytest

from .served import BOT, OTHER, open_api


@pytest.fixture
async def api():
    async with open_api() as served:
        for number in range(5):
            for who in (BOT, OTHER):
                given = {"tool": "add", "arguments": {"a": number, "b": 1}, "run_id": "run_1"}
                await served.agent(who).post("/v1/calls", json=given)
        yield served


async def walked(client, path, **params):
    """All rows, a few at a time."""
    rows, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        query = {**params, "limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await client.get(path, params=query)).json()
        rows += page["items"]
        cursor, pages = page["next"], pages + 1
    return rows, pages


@pytest.mark.parametrize(("path", "name"), [("/v1/calls", "call_id"), ("/v1/events", "event_id")])
async def test_pages_hold_every_row_once(api, path, name):
    rows, pages = await walked(api.by_key("vera"), path)
    whole = (await api.by_key("vera").get(path, params={"limit": 200})).json()["items"]
    assert rows == whole
    assert len({row[name] for row in rows}) == len(rows) >= 10
    assert pages > 3


async def test_an_agents_pages_hold_its_own(api):
    rows, _ = await walked(api.agent(), "/v1/calls")
    assert [row["agent"] for row in rows] == ["bot"] * 5


async def test_approvals_go_on_page_by_page(api):
    made = [(await api.held(to=f"person {number}"))["approval_id"] for number in range(7)]
    rows, _ = await walked(api.by_key("vera"), "/v1/approvals", status="waiting")
    assert [row["approval_id"] for row in rows] == made
    decided = {"decision": "reject"}
    for one in made:
        await api.by_key("ada").post(f"/v1/approvals/{one}/decision", json=decided)
    rows, _ = await walked(api.by_key("vera"), "/v1/approvals", status="rejected")
    assert {row["approval_id"] for row in rows} == set(made)
    assert (await walked(api.by_key("vera"), "/v1/approvals"))[0] == []


async def test_a_runs_cursor_leads_on_in_the_calls_of_the_run(api):
    for number in range(60):
        given = {"tool": "add", "arguments": {"a": number, "b": 2}, "run_id": "run_2"}
        await api.agent().post("/v1/calls", json=given)
    run = (await api.by_key("vera").get("/v1/runs/run_2")).json()
    params = {"run": "run_2", "cursor": run["calls"]["next"]}
    rest = (await api.by_key("vera").get("/v1/calls", params=params)).json()
    assert len(run["calls"]["items"]) + len(rest["items"]) == 60
    assert rest["next"] is None


async def test_runs_go_on_page_by_page_and_an_agent_finds_its_own(api):
    for number in range(5):
        given = {"tool": "add", "arguments": {"a": number, "b": 3}, "run_id": f"r/{number}"}
        await api.agent(OTHER if number == 2 else BOT).post("/v1/calls", json=given)
    rows, pages = await walked(api.by_key("vera"), "/v1/runs")
    assert [row["run_id"] for row in rows] == ["r/4", "r/3", "r/2", "r/1", "r/0", "run_1"]
    assert pages == 2
    assert rows[0]["latest"]["tool"] == "add"
    mine, _ = await walked(api.agent(), "/v1/runs")
    assert [row["run_id"] for row in mine] == ["r/4", "r/3", "r/1", "r/0", "run_1"]
    assert (await api.agent().get("/v1/runs", params={"agent": "other"})).json()["items"] == []
    assert (await api.by_key("eve").get("/v1/runs")).json()["items"] == []


async def test_a_cursor_is_good_for_one_tenant_and_one_list_only(api):
    vera = api.by_key("vera")
    cursor = (await vera.get("/v1/calls", params={"limit": 1})).json()["next"]
    assert (await vera.get("/v1/calls", params={"cursor": cursor})).status_code == 200
    for client, path in (
        (api.by_key("eve"), "/v1/calls"),
        (vera, "/v1/events"),
        (vera, "/v1/approvals"),
        (vera, "/v1/concerns"),
    ):
        answer = await client.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-cursor"), path
        assert (answer.json()["param"], answer.json()["next_action"]) == ("/cursor", "start_over")


@pytest.mark.parametrize("cursor", ["", "x", "====", "é", "a" * 1999, "AAAA" * 20])
async def test_a_made_up_cursor_is_refused(api, cursor):
    answer = await api.by_key("vera").get("/v1/calls", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-cursor")


async def test_every_character_of_a_cursor_counts(api):
    cursor = (await api.by_key("vera").get("/v1/calls", params={"limit": 1})).json()["next"]
    for place in range(len(cursor) - 1):
        other = "A" if cursor[place] != "A" else "B"
        altered = f"{cursor[:place]}{other}{cursor[place + 1 :]}"
        answer = await api.by_key("vera").get("/v1/calls", params={"cursor": altered})
        assert answer.status_code == 400, place


# --- what was read before -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/calls", "/v1/tools", "/v1/tools/add", "/v1/openapi.json"])
async def test_what_has_not_changed_is_not_sent_again(api, path):
    vera = api.by_key("vera")
    first = await vera.get(path)
    mark = first.headers["etag"]
    for given in (mark, f"W/{mark}", f'"other", {mark}', "*"):
        again = await vera.get(path, headers={"If-None-Match": given})
        assert (again.status_code, again.content) == (304, b""), given
        assert again.headers["etag"] == mark
    assert (await vera.get(path, headers={"If-None-Match": '"other"'})).content == first.content


async def test_what_has_changed_is_sent(api):
    vera = api.by_key("vera")
    mark = (await vera.get("/v1/calls")).headers["etag"]
    await api.agent().post("/v1/calls", json={"tool": "add", "arguments": {"a": 9, "b": 9}})
    assert (await vera.get("/v1/calls", headers={"If-None-Match": mark})).status_code == 200


async def test_nothing_that_is_read_is_kept_for_others(api):
    answer = await api.by_key("vera").get("/v1/calls")
    assert answer.headers["cache-control"] == "private, no-cache"
    assert answer.headers["vary"] == "Authorization, Cookie"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_head_is_get_without_the_body(api):
    vera = api.by_key("vera")
    whole, head = await vera.get("/v1/calls"), await vera.head("/v1/calls")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-length", "content-type"):
        assert head.headers[name] == whole.headers[name]
    assert (await vera.head("/v1/nothing")).status_code == 404


async def test_options_names_the_methods_and_lets_no_other_origin_in(api):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await api.by_key("vera").options("/v1/kills", headers=headers)
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    for found in (answer, await api.by_key("vera").get("/v1/kills", headers=headers)):
        assert not [name for name in found.headers if name.startswith("access-control")]
    assert (await api.by_key("vera").options("/v1/nothing")).status_code == 404
