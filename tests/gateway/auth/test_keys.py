"""API keys at the endpoint: issued elsewhere, revoked, expired; and who comes without any."""

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest
from mcp.server.auth.provider import AccessToken, principal_components

from counterseal.config.tables import OAuthTable
from counterseal.errors import StoreError
from counterseal.operations.operator import ALL_TENANTS
from counterseal.proposal import Principal
from counterseal.runtime import Runtime
from counterseal.web.identity import principal_of

BOT = Principal(
    tenant="acme", agent="notice-agent", user="u_7", roles=["support"], scopes=["notice:send"]
)


@pytest.fixture
async def desk(tmp_path, clock):
    """Where operators are: another worker on the same file."""
    async with Runtime.open(f"sqlite:///{tmp_path}/calls.db", clock=clock) as made:
        yield made


@pytest.fixture
def operator(desk):
    return desk.operator("u_1")


@pytest.fixture
async def worker(tmp_path, clock, desk):
    async with Runtime.open(f"sqlite:///{tmp_path}/calls.db", clock=clock) as made:
        yield made


@pytest.fixture
async def caller(door, worker):
    return await door(on=worker)


async def test_key_lets_its_holder_in_wherever_it_was_issued(caller, operator):
    text, made = await operator.issue_key(BOT, reason="the desk needs it")
    answer = await caller.get(text)
    assert answer.status_code == 200
    assert answer.json() == {
        "tenant": "acme",
        "agent": "notice-agent",
        "user": "u_7",
        "roles": ["support"],
        "scopes": ["notice:send"],
    }
    assert made.principal == BOT


async def test_key_that_was_issued_a_moment_ago_is_known_though_the_store_was_just_asked(
    caller, operator
):
    first, _ = await operator.issue_key(BOT, reason="one")
    assert await caller.status(first) == 200
    second, _ = await operator.issue_key(BOT, reason="another")
    assert await caller.status(second) == 200


async def test_strangers_do_not_keep_the_store_busy(caller, operator, worker, monkeypatch):
    text, _ = await operator.issue_key(BOT, reason="one")
    assert await caller.status(text) == 200
    reads = []
    whole = worker.catch_up

    async def counted():
        reads.append(1)
        return await whole()

    monkeypatch.setattr(worker, "catch_up", counted)
    for n in range(10):
        assert await caller.status(f"cs_key_{n:016x}_{'x' * 43}") == 401
    assert len(reads) <= 1
    assert await caller.status(text) == 200
    assert len(reads) <= 1, "nor do those who are known"


async def test_revoked_key_ends_at_every_worker_within_a_second(caller, operator, steady, desk):
    text, made = await operator.issue_key(BOT, reason="the desk needs it")
    assert await caller.status(text) == 200
    verifier = caller.door.verifier
    identity = await verifier.verify_token(text)
    assert await verifier.still_valid(identity)
    await operator.revoke_key(made.key_id, reason="it leaked")
    steady.now += 1
    assert not await verifier.still_valid(identity), "so that a stream of it can end"
    assert await caller.status(text) == 401
    assert desk.registry.credential(made.key_id) is None


async def test_expired_key_is_refused_from_its_end_on(caller, operator, clock):
    end = datetime.fromtimestamp(clock(), UTC) + timedelta(hours=1)
    text, _ = await operator.issue_key(BOT, expires_at=end, reason="for an hour")
    verifier = caller.door.verifier
    identity = await verifier.verify_token(text)
    assert identity.expires_at == int(end.timestamp())
    clock.by = 3599.0
    assert await caller.status(text) == 200
    clock.by = 3600.0
    assert await verifier.verify_token(text) is None
    assert await caller.status(text) == 401
    assert not await verifier.still_valid(identity)


async def test_secret_of_a_key_is_compared_to_its_last_character(caller, operator):
    text, made = await operator.issue_key(BOT, reason="one")
    other, _ = await operator.issue_key(BOT, reason="another")
    wrong = [
        text[:-1],
        f"{text}x",
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        f"cs_key_{made.key_id}_{other[-43:]}",
        f"cs_key_{made.key_id}_{made.hash.removeprefix('sha256:')[:43]}",
        f"cs_key_{made.key_id}",
        text.upper(),
        f" {text}",
    ]
    assert [await caller.status(one) for one in wrong] == [401] * len(wrong)
    assert await caller.status(text) == 200


async def test_keys_are_refused_while_the_store_can_not_be_read(
    caller, operator, worker, steady, monkeypatch
):
    text, _ = await operator.issue_key(BOT, reason="one")
    identity = await caller.door.verifier.verify_token(text)

    async def fails():
        raise StoreError("the disk is gone")

    monkeypatch.setattr(worker, "catch_up", fails)
    assert await caller.status(text) == 200, "known a moment ago"
    steady.now += 1
    answer = await caller.get(text)
    assert answer.status_code == 503
    assert "disk" not in answer.text
    assert not await caller.door.verifier.still_valid(identity)
    monkeypatch.undo()
    assert await caller.status(text) == 200


async def test_scopes_that_tokens_need_are_not_asked_of_keys(door, worker, operator):
    oauth = OAuthTable(issuer="http://127.0.0.1:9", required_scopes=("mcp:use",))
    caller = await door(oauth, on=worker)
    text, _ = await operator.issue_key(BOT, reason="one")
    answer = await caller.get(text)
    assert answer.status_code == 200
    assert answer.json()["scopes"] == ["notice:send"], "nor are they given"


async def test_two_keys_are_never_taken_for_one_another(caller, operator):
    verifier = caller.door.verifier
    keys = [(await operator.issue_key(BOT, reason="one"))[0] for _ in range(2)]
    first, second = [principal_components(await verifier.verify_token(text)) for text in keys]
    assert first != second
    assert first == principal_components(await verifier.verify_token(keys[0]))


async def test_secret_of_a_key_is_nowhere_but_in_its_text(
    caller, operator, desk, tmp_path, caplog, steady
):
    caplog.set_level(logging.DEBUG)
    text, made = await operator.issue_key(BOT, reason="one")
    secret = text[-43:]
    identity = await caller.door.verifier.verify_token(text)
    answer = await caller.get(text)
    await operator.revoke_key(made.key_id, reason="over")
    steady.now += 1
    refused = await caller.get(text)
    assert (answer.status_code, refused.status_code) == (200, 401)
    events = [event for _, event in await desk.store.events(ALL_TENANTS)]
    assert [event.decision for event in events] == ["key", "unkey"]
    shown = [
        caplog.text,
        repr(identity),
        str(identity),
        identity.model_dump_json(),
        repr(made),
        json.dumps(made.export()),
        repr(events),
        repr(desk.registry.changes),
        json.dumps([change.export() for change in desk.registry.changes]),
        str(answer.headers) + answer.text + str(refused.headers) + refused.text,
    ]
    assert made.key_id in caplog.text, "which key it was, is logged"
    assert not [text for text in shown if secret in text]
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert files
    assert not [file for file in files if secret.encode() in file]


# --- nobody ---------------------------------------------------------------------------------------


async def test_request_without_a_credential_is_refused_unless_anonymous_callers_are_configured(
    door, operator, worker
):
    assert await (await door(on=worker)).status() == 401
    open_door = await door(on=worker, anonymous=Principal(tenant="local", agent="me"))
    answer = await open_door.get()
    assert (answer.status_code, answer.json()["agent"]) == (200, "me")


async def test_bad_credential_is_not_taken_for_none(door, worker, operator):
    caller = await door(on=worker, anonymous=Principal(tenant="local", agent="me"))
    text, _ = await operator.issue_key(BOT, reason="one")
    assert (await caller.get(text)).json()["agent"] == "notice-agent"
    assert await caller.status(text[:-1]) == 401
    for header in ("", "Bearer", "Bearer ", "Basic eDp5"):
        answer = await caller.http.get("/mcp", headers={"Authorization": header})
        assert answer.status_code == 401, header


async def test_scopes_that_tokens_need_are_not_required_of_anonymous_callers(door, worker):
    oauth = OAuthTable(issuer="http://127.0.0.1:9", required_scopes=("mcp:use",))
    caller = await door(oauth, on=worker, anonymous=Principal(tenant="local", agent="me"))
    answer = await caller.get()
    assert (answer.status_code, answer.json()["scopes"]) == (200, [])


async def test_token_of_another_issuer_is_not_valid(caller):
    stranger = AccessToken(token="x", client_id="x", scopes=[])
    assert not await caller.door.verifier.still_valid(stranger)


def test_principal_is_asked_for_behind_the_door_only():
    with pytest.raises(RuntimeError, match="not behind"):
        principal_of()
