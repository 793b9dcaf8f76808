"""A day of the API on Postgres: submitted, held, approved, carried out, looked up, checked."""

import pytest

from tests.postgres_server import borrowed_database

from .served import open_api

pytestmark = pytest.mark.slow


@pytest.fixture
async def api():
    with borrowed_database() as url:
        async with open_api(url) as served:
            yield served


async def test_a_call_is_made_held_approved_carried_out_and_on_record(api):
    bot, ada, vera = api.agent(), api.by_key("ada"), api.by_key("vera")
    body = {"tool": "note", "arguments": {"text": "first"}, "run_id": "run_1"}
    key = {"Idempotency-Key": "k-1"}
    made = await bot.post("/v1/calls", json=body, headers=key)
    again = await bot.post("/v1/calls", json=body, headers=key)
    assert (made.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert api.bench.notes == ["first"]
    other = {**body, "arguments": {"text": "second"}}
    assert (await bot.post("/v1/calls", json=other, headers=key)).status_code == 422

    sent = {"tool": "send", "arguments": {"to": "Ann"}, "run_id": "run_1"}
    held = await bot.post("/v1/calls", json=sent)
    assert held.status_code == 202
    path = held.headers["location"]
    (waiting,) = (await vera.get("/v1/approvals")).json()["items"]
    assert path.endswith(waiting["approval_id"])
    decided = await ada.post(f"{path}/decision", json={"decision": "approve", "comment": "Yes."})
    assert decided.json()["status"] in ("approved", "spent")
    done = await bot.post("/v1/calls", json=sent)
    assert (done.status_code, api.bench.sent) == (200, ["Ann"])
    (closed,) = (await vera.get("/v1/approvals", params={"status": "decided"})).json()["items"]
    assert (closed["status"], closed["approved"]) == ("spent", 1)

    rows = (await vera.get("/v1/calls", params={"tool": "send"})).json()["items"]
    assert {row["code"] for row in rows} <= {"SUCCESS", "CONFIRMATION_MISSING"}
    story = (await vera.get(f"/v1/calls/{rows[0]['call_id']}")).json()
    assert story["ledger"]["status"] == "COMPLETED"
    assert [vote["approver"] for vote in story["votes"]] == ["ada"]
    (run,) = (await bot.get("/v1/runs")).json()["items"]
    assert run["run_id"] == "run_1"


async def test_numbers_lists_and_the_check_are_the_same_there(api):
    bot, vera = api.agent(), api.by_key("vera")
    for number in range(7):
        given = {"text": f"note {number}" if number else 7}
        await bot.post("/v1/calls", json={"tool": "note", "arguments": given, "run_id": "run_1"})
    found = (await vera.get("/v1/metrics", params={"window": "1h"})).json()["items"]
    told = {one["name"]: one for one in found}["schema_valid_call_rate"]
    assert (told["numerator"], told["denominator"]) == (6, 7)
    for part, count in (("numerator", 6), ("denominator", 7), ("rest", 1)):
        page = await vera.get("/v1/calls", params=told["link"][part])
        assert len(page.json()["items"]) == count, part
    first = (await vera.get("/v1/events", params={"limit": 5})).json()
    rest = (await vera.get("/v1/events", params={"cursor": first["next"]})).json()
    ids = [one["event_id"] for one in first["items"] + rest["items"]]
    assert len(ids) == len(set(ids)) >= 7
    report = (await vera.post("/v1/audit/verify")).json()
    assert (report["ok"], report["events"]) == (True, len(ids))
    lines = (await vera.get("/v1/audit/export")).text.splitlines()
    assert len(lines) == len(ids)
