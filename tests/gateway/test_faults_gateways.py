"""More than one gateway, gateways that end in the middle of a call, and whose credentials go where.

What one gateway has begun no other one begins again, also when the first was killed.
"""

import asyncio
import json
import signal

import pytest

from counterseal import Principal
from counterseal.ledger.entry import EntryStatus, Phase
from tests.gateway.faulty.upstream import OVERLAY, Faulty, project_before
from tests.gateway.projects import connected
from tests.gateway.served import BOT, MODERN, MODES, facts, said
from tests.postgres_server import borrowed_database
from tests.waiting import until

pytestmark = pytest.mark.slow

RENT = {"do": "wait", "text": "rent"}
RUN = {"counterseal/run_id": "run_1"}
GLOBEX = Principal(tenant="globex", agent="bot", user="u_2")


@pytest.fixture
def faulty(tmp_path):
    return Faulty(tmp_path / "up")


@pytest.fixture
def project(tmp_path, faulty):
    with borrowed_database() as store:
        yield project_before(tmp_path / "project", store=store, up=faulty)


async def entry_of(gateway, tool="pay"):
    """The ledger's one entry."""
    found = await gateway.runtime.store.events("acme")
    calls = [event.caller.call_id for _, event in found if event.caller.tool == tool]
    (kept,) = await gateway.runtime.store.look_up_call("acme", calls[0])
    return kept.entry


async def escalated(gateway):
    return (await entry_of(gateway)).phase is Phase.ESCALATED


async def test_one_call_at_two_gateways_at_once_reaches_the_upstream_once(project, faulty):
    async with (
        project.gateway() as one,
        project.gateway() as two,
        one.client() as first,
        two.client() as second,
    ):
        calls = [
            asyncio.ensure_future(client.call_tool("pay", RENT, meta=RUN))
            for client in (first, second)
        ]
        await faulty.reached()
        faulty.go()
        results = await asyncio.gather(*calls)
        later = await second.call_tool("pay", RENT, meta=RUN)
    assert not later.is_error
    assert facts(later)["replayed"] is True
    done = [result for result in results if not result.is_error]
    assert done, "one of them has carried it out"
    assert all(
        result in done or facts(result)["code"] == "IDEMPOTENCY_CONFLICT" for result in results
    )
    assert faulty.calls == ["pay rent"]


async def test_what_a_killed_gateway_had_begun_is_reconciled_by_another(project, faulty):
    with project.serving("--anonymous-as", "bot") as serving:

        async def call():
            async with connected(serving.url) as client:
                await client.call_tool("pay", RENT, meta=RUN)

        calling = asyncio.ensure_future(call())
        await faulty.reached()
        serving.process.kill()
        await asyncio.wait({calling})
        assert calling.exception() is not None, "no answer ever came"
    async with project.gateway() as gateway, gateway.client() as client:
        early = await client.call_tool("pay", RENT, meta=RUN)
        assert early.is_error
        assert facts(early)["code"] == "IDEMPOTENCY_CONFLICT"

        await until(lambda: escalated(gateway))
        assert (await entry_of(gateway)).status is EntryStatus.PENDING
        assert (await client.call_tool("pay", RENT, meta=RUN)).is_error
        assert not (await client.call_tool("look", {"text": "on"})).is_error
    assert faulty.calls == ["pay rent", "look on"]


@MODES
async def test_gateway_that_is_told_to_stop_lets_its_calls_end(project, faulty, mode):
    with project.serving("--anonymous-as", "bot") as serving:
        async with connected(serving.url, mode=mode) as client:
            await client.list_tools()
            call = asyncio.ensure_future(client.call_tool("pay", RENT, meta=RUN))
            await faulty.reached()
            serving.process.send_signal(signal.SIGTERM)
            await until(lambda: "waiting for 1 call" in serving.errors)
            faulty.go()
            done = await call
            assert "did rent" in said(done)
        assert await asyncio.to_thread(serving.process.wait, 60) == 0
        assert "Traceback" not in serving.errors
    assert faulty.calls == ["pay rent"]


async def test_call_that_does_not_end_is_left_in_doubt_and_the_gateway_stops(project, faulty):
    pay = {**OVERLAY["pay"], "timeout_ms": 1500}
    project.upstream("up", faulty.command, tools={**OVERLAY, "pay": pay})
    with project.serving("--anonymous-as", "bot") as serving:
        async with connected(serving.url) as client:
            await client.list_tools()
            call = asyncio.ensure_future(
                client.call_tool("pay", {"do": "hang", "text": "rent"}, meta=RUN)
            )
            await faulty.reached()
            assert await serving.stop() == 0
            lost = await call
            assert facts(lost)["code"] == "TIMEOUT"
    async with project.gateway() as gateway:
        entry = await entry_of(gateway)
        assert (entry.status, entry.phase) == (EntryStatus.PENDING, Phase.ESCALATED)


async def test_callers_and_upstreams_credentials_never_meet(tmp_path, faulty):
    secrets = tmp_path / "project" / "secrets"
    project = project_before(tmp_path / "project", up=faulty)
    for tenant in ("acme", "globex"):
        (secrets / tenant).mkdir(parents=True)
        (secrets / tenant / "crm").write_text(f"token-of-{tenant}-0123456789")
    project.more.append('[secrets]\npath = "secrets"')
    with faulty.web() as url:
        headers = {"X-Crm-Token": "{secret:crm}"}
        project.upstream("up", url, headers=headers, tenants=["acme", "globex"])
        async with project.listening() as served:
            for who in (BOT, GLOBEX):
                async with served.client(MODERN, who) as client:
                    done = await client.call_tool("look", {"text": f"as {who.tenant}"})
                    assert not done.is_error, said(done)
            keys = [await served.key(who) for who in (BOT, GLOBEX)]
            events = [
                event
                for tenant in ("acme", "globex")
                for _, event in await served.runtime.store.events(tenant)
            ]
    sent = faulty.headers
    assert not any(key in json.dumps(sent) for key in keys), "no caller's key goes any further"
    assert not any("authorization" in one for one in sent)
    calls = [one for one in sent if one.get("mcp-method") == "tools/call"]
    assert [one["x-crm-token"] for one in calls] == [
        "token-of-acme-0123456789",
        "token-of-globex-0123456789",
    ]
    assert "token-of-" not in str(events)
    assert "token-of-" not in str(done)
