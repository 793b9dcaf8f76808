"""What people look up through the API: the record, its numbers, and what no machine settles."""

import asyncio
import json
from urllib.parse import quote

import pytest

from counterseal import Grant
from counterseal.ledger.records import Due, DueKind
from counterseal.ledger.requests import Claim, FinishRequest
from counterseal.testing import fake_tool
from counterseal.views.audit_log import RecordViews
from counterseal.views.metrics import METRICS

from .served import OTHER, PATIENCE, STRANGER
from .test_subjects import code_of


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


async def test_an_operator_sees_what_was_proposed_and_that_is_on_record(api):
    given = {"tool": "note", "arguments": {"text": 7}, "run_id": "run_1"}
    assert (await api.agent().post("/v1/calls", json=given)).status_code == 400
    vera, olga = api.by_key("vera"), api.by_key(("olga", "acme"))
    (row,) = (await vera.get("/v1/calls", params={"tool": "note"})).json()["items"]
    path = f"/v1/calls/{row['call_id']}"
    assert await code_of(await vera.get(f"{path}/arguments"), 403) == "role-required"
    assert await code_of(await api.agent().get(f"{path}/arguments"), 403) == "people-only"
    assert (await api.by_key("eve").get(f"{path}/arguments")).status_code == 404
    before = (await vera.get(f"{path}/events")).json()["items"]
    assert "arguments.read" not in {one["type"] for one in before}
    seen = await olga.get(f"{path}/arguments")
    assert (seen.status_code, seen.json()["arguments"]) == (200, {"text": 7})
    *events, read = (await vera.get(f"{path}/events")).json()["items"]
    assert events == before
    assert (read["type"], read["user"]) == ("arguments.read", "olga")


async def test_what_a_read_was_answered_is_found_where_something_was_taken_out_of_it(api):
    made = fake_tool("peek", {"password": "hunter2-and-more", "n": 1})
    api.runtime.register(made.tool, grants=[Grant(agent="bot", tool="peek")])
    given = {"tool": "peek", "arguments": {}, "run_id": "run_1"}
    told = (await api.agent().post("/v1/calls", json=given)).json()
    call_id = told["tool_identity"]["call_id"]
    for client in (api.by_key("vera"), api.agent()):
        seen = (await client.get("/v1/observations", params={"call_id": call_id})).json()
        assert (seen["text"], seen["cut"]) == (told["text"], "")
        assert seen["result_payload"]["data"] == {"password": "[redacted:password]", "n": 1}
        story = (await client.get(f"/v1/calls/{call_id}")).json()
        assert (story["text"], story["not_kept"]) == (told["text"], "")
        assert [one["rule"] for one in story["redactions"]] == ["password"]
    for stranger in (api.agent(OTHER), api.agent(STRANGER), api.by_key("eve")):
        assert (await stranger.get(f"/v1/observations?call_id={call_id}")).status_code == 404


async def test_a_callers_own_id_finds_its_call_and_an_ambiguous_one_is_refused(api):
    def given(run, **more):
        ids = {"call_id": "call_0", "run_id": run, "workflow_id": f"of_{run}", **more}
        return {"tool": "note", "arguments": {"text": run}, **ids}

    bot, vera = api.agent(), api.by_key("vera")
    key = {"Idempotency-Key": "k1"}
    made = (await bot.post("/v1/calls", json=given("run_1"), headers=key)).json()
    own = made["tool_identity"]["call_id"]
    assert (made["caller_call_id"], own) != ("call_0", "call_0")
    for client in (bot, vera):
        story = (await client.get("/v1/calls/call_0")).json()
        assert (story["call"]["call_id"], story["call"]["workflow_id"]) == (own, "of_run_1")
        seen = (await client.get("/v1/observations", params={"call_id": "call_0"})).json()
        assert seen["tool_identity"]["call_id"] == own
    key = {"Idempotency-Key": "k2"}
    again = (await bot.post("/v1/calls", json=given("run_2"), headers=key)).json()
    for client, path in (
        (bot, "/v1/calls/call_0"),
        (vera, "/v1/calls/call_0"),
        (vera, "/v1/calls/call_0/events"),
        (vera, "/v1/events?call=call_0"),
        (vera, "/v1/observations?call_id=call_0"),
    ):
        refused = await client.get(path)
        assert refused.status_code == 409, path
        problem = refused.json()
        assert problem["code"] == "ambiguous-id"
        ids = {choice["call_id"] for choice in problem["choices"]}
        assert ids == {own, again["tool_identity"]["call_id"]}
        runs = {(choice["tool"], choice["run_id"]) for choice in problem["choices"]}
        assert runs == {("note", "run_1"), ("note", "run_2")}
    for stranger in (api.agent(OTHER), api.agent(STRANGER), api.by_key("eve")):
        assert (await stranger.get("/v1/calls/call_0")).status_code == 404
    for query, count in (({"workflow": "of_run_1"}, 1), ({"caller_call_id": "call_0"}, 2)):
        rows = (await vera.get("/v1/calls", params=query)).json()["items"]
        assert len(rows) == count
        assert rows[-1]["call_id"] == own


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


async def test_an_export_is_sent_as_it_is_read_and_ends_when_the_client_is_gone(api, monkeypatch):
    read = []

    async def pages(self, form, *, since=None, until=None):
        for number in range(1000):
            read.append(number)
            yield b"x" * 1000 + b"\n"

    monkeypatch.setattr(RecordViews, "export", pages)
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
    begun, door, recorded = asyncio.Event(), asyncio.Event(), api.runtime.store.recorded

    async def slow(*asked):
        begun.set()
        await door.wait()
        return await recorded(*asked)

    monkeypatch.setattr(api.runtime.store, "recorded", slow, raising=False)
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


async def test_an_operator_settles_what_no_machine_will(api):
    """An unknown outcome said to have happened, a failed verification dismissed."""
    stuck = fake_tool("stuck", TimeoutError(), effect="draft", on_unknown="escalate")
    api.runtime.register(stuck.tool, grants=[Grant(agent="bot", tool="stuck")])
    given = {"tool": "stuck", "arguments": {}, "run_id": "run_1"}
    key = {"Idempotency-Key": "s/1"}
    unknown = await api.agent().post("/v1/calls", json=given, headers=key)
    assert unknown.status_code == 504
    await filled(api, 1)
    call = (await api.by_key("vera").get("/v1/calls", params={"tool": "note"})).json()["items"][0]
    due = Due("acme", DueKind.VERIFY, "call:note:k/0", call["call_id"], "run/1", "note", "1.0.0")
    store = api.runtime.store
    await store.schedule(0.0, due, [])
    (work,) = [one for one in await store.claim_due(Claim("w", 9.0)) if one.key == due.key]
    await store.finish(FinishRequest(work, failed="It is not there."))

    concerns = (await api.by_key("vera").get("/v1/concerns")).json()["items"]
    assert {one["kind"]: one["actions"][0] for one in concerns} == {
        "unknown": "happened",
        "verify": "again",
    }
    olga = api.by_key(("olga", "acme"))
    for one, action, said in (
        ("unknown", "happened", {"reason": "The bank says so.", "data": {"paid": 7}}),
        ("verify", "dismiss", {"reason": "Seen with my own eyes."}),
    ):
        (concern,) = [row for row in concerns if row["kind"] == one]
        path = f"/v1/concerns/{one}/{quote(concern['key'], safe='')}/{action}"
        refused = await api.by_key("vera").post(path, json=said)
        assert await code_of(refused, 403) == "role-required"
        done = await olga.post(path, json=said)
        assert (done.status_code, done.content) == (204, b"")
        assert await code_of(await olga.post(path, json=said), 404) == "not-found"
    assert (await olga.get("/v1/concerns")).json()["items"] == []
    again = await api.agent().post("/v1/calls", json=given, headers=key)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["result_payload"]["data"] == {"paid": 7}
    events = (await olga.get("/v1/events", params={"type": "tool.reconciled"})).json()["items"]
    assert [one["decision"] for one in events] == ["dismissed", "happened"]


async def test_what_no_concern_is_about_is_not_there(api):
    path = "/v1/concerns/verify/call:note:k%2F0/dismiss"
    answer = await api.by_key("olga").post(path, json={"reason": "x"})
    assert await code_of(answer, 404) == "not-found"
    strange = await api.by_key("olga").post("/v1/concerns/odd/k/dismiss", json={"reason": "x"})
    assert await code_of(strange, 400) == "invalid-request"
