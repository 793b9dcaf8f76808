"""What people do through the API, subject by subject; roles and rules are the desk's."""

import asyncio
import json
import re

import pytest

from counterseal.desk import METRICS, Desk
from counterseal.errors import CountersealError

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
    twice = await api.by_key("ada").post(f"{path}/decision", json=vote)
    assert await code_of(twice, 409) == "already-decided"
    second = await api.by_key("bob").post(f"{path}/decision", json=vote)
    assert second.json()["status"] == "approved"
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
async def test_nobody_waits_longer_than_half_a_minute(api, seconds):
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
    answer = await api.by_key("olga").post("/v1/kills", json={"tool": "add", "reason": "x"})
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


# --- quarantine -----------------------------------------------------------------------------------


class Kept:
    """One tool that is kept out."""

    name, server, tool, why = "files.read", "files", "read", "changed"
    definition, pinned = "sha256:new", "sha256:old"

    def record(self):
        names = ("name", "server", "tool", "why", "definition", "pinned")
        return {name: getattr(self, name) for name in names}


class Quarantines:
    def __init__(self):
        self.did = []

    def list(self, tenant=None):
        return [Kept()]

    def changes(self, name, tenant=None):
        return []

    def accept(self, name, definition, *, by, tenant=None):
        if definition != Kept.definition:
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


# --- the record -----------------------------------------------------------------------------------


async def filled(api, calls=5):
    for number in range(calls):
        given = {"tool": "note", "arguments": {"text": f"note {number}"}, "run_id": "run/1"}
        await api.agent().post("/v1/calls", json=given, headers={"Idempotency-Key": f"k/{number}"})


async def test_one_calls_story_its_events_and_its_observation(api):
    await filled(api, 1)
    vera = api.by_key("vera")
    (row,) = (await vera.get("/v1/calls", params={"tool": "note"})).json()["items"]
    story = (await vera.get(f"/v1/calls/{row['call_id']}")).json()
    events = (await vera.get(f"/v1/calls/{row['call_id']}/events")).json()["items"]
    assert story["call"] == row
    assert story["events"] == events
    assert story["ledger"]["status"] == "COMPLETED"
    for query in (
        {"call_id": row["call_id"]},
        {"key": story["ledger"]["key"]},
        {"key": "k/0", "tool": "note"},
    ):
        for client in (vera, api.agent()):
            seen = await client.get("/v1/observations", params=query)
            assert seen.json()["result_payload"]["data"] == {"notes": 1}, query


async def test_a_run_is_found_whatever_it_is_called(api):
    await filled(api)
    for client in (api.by_key("vera"), api.agent()):
        run = (await client.get("/v1/runs/run%2F1")).json()
        assert run["run_id"] == "run/1"
        assert len(run["calls"]["items"]) == 5
    spent = (await api.by_key("vera").get("/v1/budgets", params={"run": "run/1"})).json()["items"]
    assert {row["of"] for row in spent} <= {"run", "tenant"}
    assert (await api.by_key("vera").get("/v1/budgets?run=none")).status_code == 404


@pytest.mark.parametrize(
    ("form", "media"), [("jsonl", "application/x-ndjson"), ("csv", "text/csv")]
)
async def test_the_record_is_exported_as_lines(api, form, media):
    await filled(api)
    answer = await api.by_key("vera").get("/v1/audit/export", params={"format": form})
    assert answer.headers["content-type"].startswith(media)
    assert answer.headers["content-disposition"] == f'attachment; filename="audit.{form}"'
    lines = answer.text.strip().splitlines()
    assert len(lines) >= 5
    if form == "jsonl":
        assert json.loads(lines[0])["tenant"] == "acme"
    later = {"format": form, "since": "2999-01-01T00:00:00Z"}
    rest = await api.by_key("vera").get("/v1/audit/export", params=later)
    assert len(rest.text.splitlines()) == (1 if form == "csv" else 0)


async def test_an_export_is_sent_as_it_is_read_and_ends_when_nobody_listens(api, monkeypatch):
    read = []

    async def pages(self, form, *, since=None, until=None):
        for number in range(1000):
            read.append(number)
            yield b"x" * 1000 + b"\n"

    monkeypatch.setattr(Desk, "export", pages)
    sent, gone = [], asyncio.Event()

    async def send(message):
        sent.append(len(read))
        if len(sent) == 4:
            gone.set()
        await asyncio.sleep(0)

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/audit/export",
        "raw_path": b"/v1/audit/export",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 2),
        "http_version": "1.1",
        "headers": [(b"authorization", f"Bearer {api.keys['vera']}".encode())],
    }
    async with asyncio.timeout(PATIENCE):
        await api.api(scope, receive, send)
    assert sent[:4] == [1, 1, 2, 3]
    assert len(read) < 100


async def test_a_check_says_how_far_it_is_and_runs_once_at_a_time(api, monkeypatch):
    await filled(api)
    vera = api.by_key("vera")
    report = (await vera.post("/v1/audit/verify")).json()
    assert (report["ok"], report["tenant"]) == (True, "acme")
    begun, door, verify = asyncio.Event(), asyncio.Event(), Desk.verify

    async def slow(self, progress=None):
        begun.set()
        await door.wait()
        return await verify(self, progress)

    monkeypatch.setattr(Desk, "verify", slow)
    lines = {"Accept": "application/x-ndjson"}
    checking = asyncio.ensure_future(vera.post("/v1/audit/verify", headers=lines))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    for headers in (lines, {}):
        second = await vera.post("/v1/audit/verify", headers=headers)
        assert await code_of(second, 409) == "conflict"
    door.set()
    async with asyncio.timeout(PATIENCE):
        told = [json.loads(line) for line in (await checking).text.splitlines()]
    assert told[0] == {"checked": 0}
    assert told[-1]["report"]["ok"] is True


async def test_numbers_and_their_course(api):
    await filled(api)
    found = (await api.by_key("vera").get("/v1/metrics", params={"window": "1h"})).json()["items"]
    assert [one["name"] for one in found] == list(METRICS)
    name = found[0]["name"]
    series = await api.by_key("vera").get(f"/v1/metrics/{name}/series", params={"buckets": 4})
    assert len(series.json()["values"]) == 4
    assert (await api.by_key("vera").get("/v1/metrics/none/series")).status_code == 404


async def test_a_number_leads_to_as_many_calls_as_it_says(api):
    await filled(api, 3)
    await api.agent().post("/v1/calls", json={"tool": "note", "arguments": {"text": 7}})
    vera = api.by_key("vera")
    found = (await vera.get("/v1/metrics", params={"window": "1h"})).json()["items"]
    followed, wanted = 0, found[0]["link"]["numerator"]
    for one in found:
        numbers = {
            "numerator": one["numerator"],
            "denominator": one["denominator"],
            "rest": one["denominator"] - one["numerator"],
        }
        for part, link in one["link"].items():
            if link is not None and one["unit"] == "ratio":
                page = await vera.get("/v1/calls", params={**link, "limit": 200})
                assert len(page.json()["items"]) == numbers[part], (one["name"], part)
                followed += 1
    assert followed > 40
    assert await code_of(await api.agent().get("/v1/calls", params=wanted), 403) == "people-only"
    for wrong in (
        {"metric": "none"},
        {"part": "rest"},
        {"metric": "retry_success_rate", "part": "rest"},
    ):
        assert await code_of(await vera.get("/v1/calls", params=wrong), 400) == "invalid-request"


async def test_what_no_concern_is_about_is_not_there(api):
    path = "/v1/concerns/verify/call:note:k%2F0/dismiss"
    answer = await api.by_key("olga").post(path, json={"reason": "x"})
    assert await code_of(answer, 404) == "not-found"
    strange = await api.by_key("olga").post("/v1/concerns/odd/k/dismiss", json={"reason": "x"})
    assert await code_of(strange, 400) == "invalid-request"
