"""Calls that the client carries out, over HTTP: handed over with 202, reported once."""

import asyncio
from typing import Annotated

import httpx
import pytest
from pydantic import Field

from counterseal import Context, Grant, Proposal, tool
from counterseal.client import Client, ProblemError

from .served import ANN, BOT, OTHER, PUBLIC, STRANGER

Text = Annotated[str, Field(max_length=200, description="A text.")]
ASKED = {"tool": "open_window", "arguments": {"title": "Hello"}, "run_id": "run_1"}
OPENED = {"window_id": "w_1"}


def nowhere(ctx: Context):
    """Nothing can be read back."""


@pytest.fixture
async def handed(api):
    @tool(effect="draft", version="1.0.0", owner="desk", executed_by="client", read_back=nowhere)
    def open_window(title: Text) -> dict[str, str]:
        """Open a window on the user's screen."""

    grants = [Grant(agent=agent, tool="open_window") for agent in ("bot", "other")]
    api.runtime.register(open_window, grants=grants)
    answer = await api.agent().post("/v1/calls", json=ASKED)
    assert answer.status_code == 202
    data = answer.json()["result_payload"]["data"]
    assert answer.headers["location"] == f"/v1/calls/{data['call_id']}/outcome"
    return data


async def reported(api, handed, who=BOT, **body):
    path = f"/v1/calls/{handed['call_id']}/outcome"
    return await api.agent(who).post(path, json={"fence": handed["fence"], **body})


async def test_the_outcome_is_reported_where_the_answer_says(api, handed):
    answer = await reported(api, handed, output=OPENED)
    assert (answer.status_code, answer.json()["result_payload"]["data"]) == (200, OPENED)
    assert (answer.json()["trust"], answer.json()["tool_identity"]["call_id"]) == (
        "untrusted",
        handed["call_id"],
    )
    again = await api.agent().post("/v1/calls", json=ASKED)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    page = (await api.by_key("vera").get(f"/v1/calls/{handed['call_id']}")).json()
    (attempt,) = page["attempts"]
    assert (attempt["executed_by"], attempt["reported_by"]) == ("client", "client")


async def test_the_list_of_tools_says_which_the_client_carries_out(api, handed):
    listed = (await api.agent().get("/v1/tools")).json()["items"]
    by_client = [one["name"] for one in listed if one["executed_by"] == "client"]
    assert by_client == ["open_window"]


async def test_until_then_the_same_call_is_in_progress(api, handed):
    answer = await api.agent().post("/v1/calls", json=ASKED)
    told = answer.json()
    assert (answer.status_code, told["next_action"]) == (409, "report_outcome")
    assert told["observation"]["result_payload"]["data"]["call_id"] == handed["call_id"]
    page = (await api.by_key("vera").get(f"/v1/calls/{handed['call_id']}")).json()
    assert [one["reported_by"] for one in page["attempts"]] == [None]


async def test_the_same_report_is_answered_the_same_and_another_is_refused(api, handed):
    first = await reported(api, handed, output=OPENED)
    again = await reported(api, handed, output=OPENED)
    assert again.json()["result_payload"] == first.json()["result_payload"]
    other = await reported(api, handed, output={"window_id": "w_2"})
    assert (other.status_code, other.json()["code"]) == (409, "already-settled")


async def test_two_reports_at_once_are_one(api, handed):
    bodies = [{"output": OPENED}, {"output": {"window_id": "w_2"}}]
    answers = await asyncio.gather(*(reported(api, handed, **body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 409]


async def test_for_all_others_there_is_no_such_call(api, handed):
    missing = await reported(api, {"call_id": "call_0", "fence": 1}, output=OPENED)
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    for who in (ANN, OTHER, STRANGER):
        answer = await reported(api, handed, who, output=OPENED)
        assert (answer.status_code, answer.json()["detail"]) == (404, missing.json()["detail"])
    path = f"/v1/calls/{handed['call_id']}/outcome"
    person = await api.by_key("root").post(path, json={"fence": 1, "output": OPENED})
    assert (person.status_code, person.json()["code"]) == (403, "agents-only")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"fence": 0}, "/fence"),
        ({"fence": "1"}, "/fence"),
        ({"error": 7}, "/error"),
        ({"not_done": "yes"}, "/not_done"),
        ({"tenant": "globex"}, "/tenant"),
        ({"output": OPENED, "not_done": True}, ""),
    ],
)
async def test_a_report_that_is_none_is_named(api, handed, body, param):
    answer = await reported(api, handed, **body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-request")
    assert (answer.json()["param"] or "").startswith(param)


async def test_the_client_hands_over_and_reports(api, handed):
    transport = httpx.ASGITransport(api.api, client=("192.0.2.1", 40_000))
    async with Client(PUBLIC, key=api.keys[BOT], transport=transport) as client:
        asked = Proposal(tool="open_window", arguments={"title": "Two"}, run_id="run_1")
        seen = await client.submit(asked)
        assert seen.next_action == "carry_out_and_report"
        place = {"call_id": seen.data["call_id"], "fence": seen.data["fence"]}
        failed = await client.report_outcome(**place, error={"message": "No.", "code": "DARK"})
        assert (failed.data["said"], failed.data["details"]) == ("No.", {"code": "DARK"})
        with pytest.raises(ProblemError, match="already-settled"):
            await client.report_outcome(**place, output=OPENED)
