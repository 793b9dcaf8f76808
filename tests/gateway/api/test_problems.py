"""Every way in which a request can go wrong has one form, and tells nothing of the inside."""

import json
import logging

import pytest

from counterseal.errors import StoreError
from counterseal.web.middleware import Rate, RequestLimits
from counterseal.web.problems import PROBLEMS

from .served import open_api

MEMBERS = {
    "type",
    "title",
    "status",
    "detail",
    "code",
    "param",
    "where",
    "repairable",
    "retryable",
    "next_action",
    "request_id",
    "errors",
}


def check(answer, status, code):
    told = answer.json()
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert told.keys() >= MEMBERS
    assert (told["status"], told["code"]) == (status, code)
    assert told["type"] == f"urn:counterseal:problem:{code}"
    assert told["request_id"] == answer.headers["x-request-id"]
    return told


async def test_no_credential_is_told_what_to_send(api):
    answer = await api.client().get("/v1/calls")
    check(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer realm="counterseal"'


async def test_a_bad_credential_is_called_one(api):
    bad = {"Authorization": "Bearer cs_key_0000000000000000_" + "x" * 43}
    answer = await api.client().get("/v1/calls", headers=bad)
    check(answer, 401, "unauthenticated")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nothing", "/v1/calls/", "/v1/../etc"])
async def test_what_is_not_there_is_a_problem(api, path):
    check(await api.by_key("vera").get(path), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/calls", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/v1/me", "GET, HEAD, OPTIONS"),
        ("TRACE", "/v1/kills", "GET, HEAD, OPTIONS, POST"),
        ("BREW", "/v1/kills/kill_1", "DELETE, OPTIONS"),
        ("DELETE", "/v1/openapi.json", "GET, HEAD, OPTIONS"),
    ],
)
async def test_another_method_is_told_which_there_are(api, method, path, allowed):
    answer = await api.by_key("vera").request(method, path)
    check(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/calls?limit=0", "/limit"),
        ("/v1/calls?limit=many", "/limit"),
        ("/v1/calls?since=yesterday", "/since"),
        ("/v1/calls?since=2026-01-01T00:00:00", "/since"),
        ("/v1/calls?code=GOOD", "/code"),
        ("/v1/events?type=nothing", "/type"),
        ("/v1/metrics?window=1y", "/window"),
        ("/v1/approvals?status=open", "/status"),
        ("/v1/approvals?status=decided&tools=send", "/tools"),
        ("/v1/runs/run_1?limit=5", "/limit"),
        ("/v1/observations", "/call_id"),
        ("/v1/observations?call_id=a&key=b", "/call_id"),
        ("/v1/audit/export?format=xml", "/format"),
    ],
)
async def test_a_parameter_that_makes_no_sense_is_named(api, path, param):
    told = check(await api.by_key("vera").get(path), 400, "invalid-request")
    assert told["param"].startswith(param)
    assert told["where"] == "query"
    assert told["repairable"] is True


async def test_a_body_that_makes_no_sense_is_named(api):
    olga = api.by_key("olga")
    told = check(await olga.post("/v1/kills", json={"tool": "add"}), 400, "invalid-request")
    assert (told["param"], told["where"]) == ("/reason", "body")
    told = check(
        await olga.post("/v1/kills", json={"reason": "x", "evil": 1}), 400, "invalid-request"
    )
    assert told["param"] == "/evil"
    told = check(await olga.post("/v1/kills", json={"reason": "  "}), 400, "invalid-request")
    assert told["param"] == "/reason"


@pytest.mark.parametrize("raw", [b"{", b'{"reason":"a","reason":"b"}', b'{"reason":NaN}', b"\xff"])
async def test_json_that_readers_read_differently_is_refused_everywhere(api, raw):
    headers = {"Content-Type": "application/json"}
    answer = await api.by_key("olga").post("/v1/kills", content=raw, headers=headers)
    check(answer, 400, "malformed-json")


@pytest.mark.parametrize(
    "media",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16", ""],
)
async def test_a_body_that_is_not_said_to_be_json_is_not_read(api, media):
    raw, headers = b'{"reason": "x"}', {"Content-Type": media}
    answer = await api.by_key("olga").post("/v1/kills", content=raw, headers=headers)
    check(answer, 415, "unsupported-media-type")
    assert api.runtime.registry.kills == ()


async def test_a_body_of_more_than_a_mebibyte_is_not_read(api):
    raw = json.dumps({"tool": "add", "arguments": "x" * 1024 * 1024})
    headers = {"Content-Type": "application/json"}
    answer = await api.agent().post("/v1/calls", content=raw, headers=headers)
    check(answer, 413, "too-large")

    async def chunks():
        for _ in range(40):
            yield b" " * 32 * 1024

    answer = await api.agent().post("/v1/calls", content=chunks(), headers=headers)
    check(answer, 413, "too-large")


async def test_a_missing_role_is_named(api):
    answer = await api.by_key("vera").post("/v1/kills", json={"tool": "add", "reason": "x"})
    assert check(answer, 403, "role-required")["role"] == "operator"


async def test_user_without_a_known_role_may_not_even_look(api):
    answer = await api.by_key("carl").get("/v1/calls")
    assert check(answer, 403, "role-required")["role"] == "viewer"


async def test_who_asks_too_often_is_told_when_to_come_back():
    now = [0.0]
    limits = RequestLimits(credential=Rate(0.5, 2), address=Rate(1.0, 1), steady=lambda: now[0])
    async with open_api(limits=limits) as api:
        vera, ada = api.by_key("vera"), api.by_key("ada")
        assert (await vera.get("/v1/me")).status_code == 200
        second = await vera.get("/v1/me")
        assert second.headers["ratelimit"] == '"credential";r=0;t=2'
        third = await vera.get("/v1/me")
        told = check(third, 429, "rate-limited")
        assert told["retryable"] is True
        assert third.headers["retry-after"] == "2"
        assert third.headers["ratelimit-policy"] == '"credential";q=2;w=4'
        assert (await ada.get("/v1/me")).status_code == 200
        now[0] += 2.0
        assert (await vera.get("/v1/me")).status_code == 200


async def test_guessing_from_one_address_ends_without_shutting_out_who_has_a_key():
    limits = RequestLimits(credential=Rate(100.0, 100), address=Rate(1e-6, 3))
    async with open_api(limits=limits) as api:
        bad = {"Authorization": "Bearer cs_person_0000000000000000_" + "x" * 43}
        found = [(await api.client(headers=bad).get("/v1/me")).status_code for _ in range(5)]
        assert found == [401, 401, 401, 429, 429]
        assert (await api.by_key("vera").get("/v1/me")).status_code == 200


async def test_a_fault_of_ours_tells_nothing_and_is_logged_under_the_requests_id(
    api, monkeypatch, caplog
):
    def broken(*_, **__):
        raise RuntimeError("secret of the house")

    monkeypatch.setattr("counterseal.views.tools.ToolViews.preview_kill", broken)
    with caplog.at_level(logging.ERROR, logger="counterseal.gateway"):
        answer = await api.by_key("root").post("/v1/kills/preview", json={})
    told = check(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "Error" not in answer.text
    (line,) = [one for one in caplog.records if one.name == "counterseal.gateway"]
    assert told["request_id"] in line.getMessage()


async def test_a_store_that_is_gone_can_be_asked_again_later(api, monkeypatch):
    async def gone(*_, **__):
        raise StoreError("sqlite:///secret.db is gone")

    monkeypatch.setattr(api.runtime.store, "calls", gone)
    answer = await api.by_key("vera").get("/v1/calls")
    told = check(answer, 503, "unavailable")
    assert told["retryable"] is True
    assert int(answer.headers["retry-after"]) > 0
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("req-1.2_3", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("a\tb", False),
        ("<script>", False),
        ("\xe4", False),
        ("a, b", False),
    ],
)
async def test_a_sane_request_id_is_kept_and_any_other_replaced(api, given, kept):
    headers = [(b"x-request-id", given.encode("latin-1"))]
    for client in (api.by_key("vera"), api.client()):
        answer = await client.get("/v1/me", headers=headers)
        assert (answer.headers["x-request-id"] == given) is kept


def test_codes_are_told_with_statuses_of_errors():
    assert all(400 <= known.status < 600 for known in PROBLEMS.values())
    assert all(not (known.repairable and known.retryable) for known in PROBLEMS.values())
