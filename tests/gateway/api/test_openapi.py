"""The API's document: true, whole, and of no other server's making."""

import json
import re

import jsonschema_rs
import pytest

from counterseal.web.problems import PROBLEMS

from .served import open_api


@pytest.fixture
async def document(api):
    return (await api.client().get("/v1/openapi.json")).json()


def operations(document):
    return [
        (method, path, operation)
        for path, found in document["paths"].items()
        for method, operation in found.items()
    ]


async def test_every_operation_says_who_may_and_how_it_can_end(document):
    assert len(operations(document)) > 35
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["security"], where
        assert operation["tags"], where
        assert operation.get("description"), where
        ends = operation["responses"]
        assert {"400", "401", "403", "429", "500", "503"} <= ends.keys(), where
        for status, told in ends.items():
            if int(status) >= 400:
                assert told == {"$ref": f"#/components/responses/Problem{status}"}, where


async def test_operations_have_names_of_their_own(document):
    names = [operation["operationId"] for *_, operation in operations(document)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


async def test_every_problem_has_a_response_in_the_document(document):
    told = {int(name.removeprefix("Problem")) for name in document["components"]["responses"]}
    assert {known.status for known in PROBLEMS.values()} - {405} <= told


async def test_a_parameter_that_the_document_does_not_list_is_refused(api, document):
    """And those that it lists are all that are known."""
    root, asked = api.by_key(("root", "acme")), 0
    for method, path, operation in operations(document):
        url = re.sub(r"\{(\w+)\}", "x", path)
        body = {"json": {"reason": "x"}} if method == "post" else {}
        answer = await root.request(method, url, params={"lmit": "1"}, **body)
        told = answer.json()
        where = (answer.status_code, told["code"], told["param"], told["where"])
        assert where == (400, "invalid-request", "/lmit", "query"), url
        listed = operation.get("parameters", ())
        assert told["known"] == [one["name"] for one in listed if one["in"] == "query"], url
        assert all(name in told["detail"] for name in told["known"])
        asked += 1
    assert asked > 35
    agent = await api.agent().get("/v1/calls", params={"tol": "add"})
    assert (agent.status_code, agent.json()["param"]) == (400, "/tol")


async def test_references_lead_somewhere(document):
    text = json.dumps(document)
    for found in set(re.findall(r'"#/([^"]+)"', text)):
        place = document
        for step in found.split("/"):
            place = place[step]
        assert place


async def test_shapes_are_exact(document):
    schemas = document["components"]["schemas"]
    loose = {
        name
        for name, one in schemas.items()
        if one.get("type") == "object" and one.get("additionalProperties") is not False
    }
    assert loose == {"CatalogueEntry", "ChangeRow", "StoredObservation"}


async def test_no_page_of_ours_loads_scripts_from_elsewhere(api):
    for path in ("/docs", "/redoc", "/v1/docs", "/openapi.json"):
        assert (await api.by_key("vera").get(path)).status_code == 404


async def test_what_is_answered_is_what_the_document_says(document):
    """Every GET that has something to show, checked against its own schema."""
    async with open_api() as api:
        held = await api.held()
        noted = await api.agent().post(
            "/v1/calls", json={"tool": "note", "arguments": {"text": "x"}, "run_id": "run_1"}
        )
        await api.by_key("root").post("/v1/kills", json={"tool": "tick", "reason": "x"})
        values = {
            "call_id": noted.json()["tool_identity"]["call_id"],
            "approval_id": held["approval_id"],
            "run_id": "run_1",
            "name": "add",
            "metric": "first_pass_schema_valid_rate",
        }
        checked = set()
        for method, path, operation in operations(document):
            name = operation["operationId"]
            if method != "get" or name in ("export", "quarantine_changes"):
                continue
            query = {"call_id": values["call_id"]} if name == "find_observation" else {}
            query |= {"seconds": 0} if name == "wait_for_approval" else {}
            if name == "preview_rollout":
                query = {"version": "1.0.0", "percentage": 5}
            url = re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            validator = jsonschema_rs.validator_for(
                {**schema, "components": document["components"]}
            )
            who = [api.by_key(("root", "acme"))]
            if any("agent" in one for one in operation["security"]):
                who.append(api.agent())
            for client in who:
                answer = await client.get(url, params=query)
                assert answer.status_code == 200, (url, answer.text)
                validator.validate(answer.json())
            checked.add(name)
        assert len(checked) > 20
