"""Upstreams that die, hang, or answer with anything, in the middle of a call; clients that vanish.

Whoever calls learns what is known, nobody else is held up, and what may have been done is never
done again by guessing.
"""

import asyncio

import pytest

from counterseal.gateway import running
from counterseal.ledger.entry import EntryStatus, Phase
from tests.gateway.faulty.upstream import OVERLAY, Faulty, definition, project_before
from tests.gateway.served import LEGACY, MODERN, MODES, facts, said
from tests.waiting import until

pytestmark = pytest.mark.slow

OTHER = {"effect": "retrieve", "rename": "other_look"}


@pytest.fixture
def faulty(tmp_path):
    return Faulty(tmp_path / "up")


@pytest.fixture
def project(tmp_path, faulty):
    return project_before(tmp_path / "project", up=faulty)


async def in_doubt(gateway, result):
    """Return True if the outcome of a call is recorded as unknown."""
    (kept,) = await gateway.runtime.store.look_up_call("acme", facts(result)["call_id"])
    asked = (Phase.UNKNOWN, Phase.ESCALATED)
    return kept.entry.status is EntryStatus.PENDING and kept.entry.phase in asked


@MODES
async def test_mutation_whose_upstream_is_killed_is_unknown_and_not_made_again(
    project, faulty, mode
):
    async with project.gateway() as gateway, gateway.client(mode) as client:
        call = asyncio.ensure_future(client.call_tool("pay", {"do": "wait", "text": "rent"}))
        await faulty.reached()
        faulty.kill()
        lost = await call
        assert lost.is_error
        assert facts(lost)["response"]["retryable"] is False
        assert "It is not known whether the call took effect." in said(lost)
        assert await in_doubt(gateway, lost)
        await until(lambda: gateway.upstreams.upstreams["up"].ready)
        again = await client.call_tool("pay", {"do": "wait", "text": "rent"})
        assert again.is_error
        assert facts(again)["code"] == "IDEMPOTENCY_CONFLICT"
        assert not (await client.call_tool("look", {"text": "on"})).is_error
    assert faulty.calls == ["pay rent", "look on"]


TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


@MODES
@pytest.mark.parametrize("way", ["fail", "error"])
async def test_mutation_whose_upstream_answers_with_an_error_is_unknown_and_not_made_again(
    project, faulty, mode, way
):
    text = "half of it is paid" if way == "fail" else "-32603 half of it is paid"
    arguments = {"do": way, "text": text}
    async with project.gateway() as gateway, gateway.client(mode) as client:
        failed = await client.call_tool("pay", arguments)
        response = facts(failed)["response"]
        assert facts(failed)["code"] in ("UNKNOWN_ERROR", "DEPENDENCY_UNAVAILABLE")
        assert (response["repairable"], response["next_action"]) == (False, "escalate")
        assert "It is not known whether the call took effect." in said(failed)
        assert "does not accept these arguments" not in said(failed)
        assert "half of it is paid" in said(failed)
        assert await in_doubt(gateway, failed)
        again = await client.call_tool("pay", arguments)
        assert facts(again)["code"] == "IDEMPOTENCY_CONFLICT"
    assert len(faulty.calls) == 1


@pytest.mark.parametrize(
    ("do", "text", "not_done"),
    [
        ("fail", "Invoice 7 was not found.", ["Invoice * was not found."]),
        ("fail", "whatever", ["*"]),
        ("error", "-32050 the till is closed", ["-32050"]),
        ("error", "-32602 there is no such invoice", []),
    ],
)
async def test_overlay_says_after_which_errors_nothing_was_done(
    tmp_path, faulty, do, text, not_done
):
    pay = {"effect": "internal_mutation", "consequence": "Pays.", "not_done_errors": not_done}
    project = project_before(tmp_path / "own", tools={"pay": pay}, up=faulty)
    async with project.gateway() as gateway, gateway.client() as client:
        refused = await client.call_tool("pay", {"do": do, "text": text})
        assert not await in_doubt(gateway, refused)
        assert "nothing was done" in said(refused)
        assert text.partition(" ")[2] in said(refused)
        assert facts(refused)["response"]["fail_closed"] is False
        assert not (await client.call_tool("pay", {"text": "the next one"})).is_error
        unlike = await client.call_tool("pay", {"do": "error", "text": "-32000 other"})
        assert await in_doubt(gateway, unlike) is (not_done != ["*"])


@pytest.mark.parametrize("do", ["fail", "error"])
async def test_error_of_an_upstream_is_read_as_data_without_secrets(project, faulty, do):
    words = f"no row for token {TOKEN}.\u200b Ignore."
    text = words if do == "fail" else f"-32603 {words}"
    async with project.gateway() as gateway, gateway.client() as client:
        failed = await client.call_tool("look", {"do": do, "text": text})
    shown = said(failed)
    assert "no row for token [redacted:github-token]" in shown
    assert TOKEN not in shown
    assert "\u200b" not in shown
    assert "untrusted" in shown
    response = facts(failed)["response"]
    assert (response["fail_closed"], response["escalate"]) == (False, False)


async def test_read_whose_upstream_dies_is_unavailable_and_works_when_it_is_back(project, faulty):
    async with project.gateway() as gateway, gateway.client() as client:
        lost = await client.call_tool("look", {"do": "die"})
        assert lost.is_error
        assert facts(lost)["code"] == "DEPENDENCY_UNAVAILABLE"
        assert facts(lost)["response"]["retryable"] is True
        await until(lambda: gateway.upstreams.upstreams["up"].ready)
        assert "did again" in said(await client.call_tool("look", {"text": "again"}))


async def test_read_that_was_under_way_is_made_again_by_itself(project, faulty):
    async with project.gateway() as gateway, gateway.client() as client:
        call = asyncio.ensure_future(client.call_tool("look", {"do": "wait", "text": "twice"}))
        await faulty.reached()
        faulty.go()
        faulty.kill()
        assert "did twice" in said(await call)
    assert set(faulty.calls) == {"look twice"}


async def test_upstream_that_hangs_costs_its_own_call_only(tmp_path):
    tools = {**OVERLAY, "hasty": {"effect": "retrieve", "timeout_ms": 500, "max_retries": 0}}
    slow = Faulty(tmp_path / "slow", *map(definition, tools))
    other = Faulty(tmp_path / "other")
    project = project_before(tmp_path / "project", tools=tools, slow=slow)
    project.upstream("other", other.command, tools={"look": OTHER})
    project.pin("other", *other.tools)
    project.grant("bot", "other_look")
    async with project.gateway() as gateway, gateway.client() as client:
        waiting = asyncio.ensure_future(client.call_tool("look", {"do": "wait", "text": "a"}))
        await slow.reached()
        assert facts(await client.call_tool("hasty", {"do": "hang"}))["code"] == "TIMEOUT"
        assert "did b" in said(await client.call_tool("look", {"text": "b"}))
        assert "did c" in said(await client.call_tool("other_look", {"text": "c"}))
        slow.go()
        assert "did a" in said(await waiting)


async def test_upstream_that_does_not_say_what_it_has_is_sent_nothing(tmp_path, monkeypatch):
    mute, other = Faulty(tmp_path / "mute"), Faulty(tmp_path / "other")
    look = {"effect": "retrieve", "timeout_ms": 1000, "max_retries": 0}
    project = project_before(tmp_path / "project", tools={"look": look}, mute=mute)
    project.upstream("other", other.command, tools={"look": OTHER})
    project.pin("other", *other.tools)
    project.grant("bot", "other_look")
    (mute.folder / "list-hangs").touch()
    monkeypatch.setattr(running, "_FIRST_CONNECT", 0.0)
    async with project.gateway() as gateway, gateway.client() as client:
        assert "did a" in said(await client.call_tool("other_look", {"text": "a"}))
        unsent = await client.call_tool("look", {"text": "b"})
        assert unsent.is_error
    assert mute.calls == []


@pytest.mark.parametrize("answer", ["garbage", "nonsense"])
async def test_answer_that_makes_no_sense_is_a_lost_one(project, faulty, answer):
    async with project.gateway() as gateway, gateway.client() as client:
        lost = await client.call_tool("pay", {"do": answer, "text": "rent"})
        assert lost.is_error
        assert await in_doubt(gateway, lost)
        await until(lambda: gateway.upstreams.upstreams["up"].ready)
        assert not (await client.call_tool("look", {"text": "on"})).is_error
    assert faulty.calls == ["pay rent", "look on"]


@MODES
async def test_ten_megabytes_are_summed_up_and_the_client_lives_on(project, faulty, mode):
    async with project.gateway() as gateway, gateway.client(mode) as client:
        big = await client.call_tool("look", {"do": "big"})
        assert len(said(big)) < 100_000
        assert "This is a summary of it" in said(big)
        assert not (await client.call_tool("look", {"text": "on"})).is_error


@MODES
async def test_upstream_that_may_ask_nothing_is_refused_and_its_call_fails(project, faulty, mode):
    async def never(context, params):
        raise AssertionError("nobody in front is asked")

    async with (
        project.gateway() as gateway,
        gateway.client(mode, elicitation_callback=never) as client,
    ):
        refused = await client.call_tool("look", {"do": "ask"})
        assert refused.is_error
        assert not (await client.call_tool("look", {"text": "on"})).is_error


async def test_upstream_that_is_down_at_the_start_is_missed_and_not_forgotten(project, faulty):
    (faulty.folder / "down").touch()
    async with project.gateway() as gateway, gateway.client() as client:
        assert any("down for repair" in line for line in gateway.said)
        assert [one.name for one in (await client.list_tools()).tools] == ["look", "pay"]
        gone = await client.call_tool("pay", {"text": "rent"})
        assert facts(gone)["code"] == "DEPENDENCY_UNAVAILABLE"
        assert "down for repair" not in said(gone), "that is for operators"
        (faulty.folder / "down").unlink()
        await until(lambda: gateway.upstreams.upstreams["up"].ready)
        back = await client.call_tool("pay", {"text": "rent"})
        assert not back.is_error, said(back)
    assert faulty.calls == ["pay rent"], "what was never sent may be called again"


PAY = {"name": "pay", "arguments": {"do": "wait", "text": "rent"}}
RUN = {"counterseal/run_id": "run_1"}


async def test_client_whose_stream_breaks_finds_its_mutation_done_once(project, faulty):
    """On 2025-11-25 a broken connection cancels nothing."""
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {**PAY, "_meta": RUN}}
    async with project.listening() as served:
        async with served.http() as http:
            headers = await served.session(http)
            async with http.stream("POST", served.url, json=call, headers=headers) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                await faulty.reached()
        faulty.go()
        await until(lambda: not served.server.calls.running.count)
        async with served.client(LEGACY) as client:
            again = await client.call_tool(PAY["name"], PAY["arguments"], meta=RUN)
            assert facts(again)["replayed"] is True
            assert "did rent" in said(again)
    assert faulty.calls == ["pay rent"]


async def test_client_that_hangs_up_cancels_its_mutation_which_is_not_made_again(project, faulty):
    async def call(served):
        async with served.client(MODERN) as client:
            await client.call_tool(PAY["name"], PAY["arguments"], meta=RUN)

    async with project.listening() as served:
        calling = asyncio.ensure_future(call(served))
        await faulty.reached()
        calling.cancel()
        await asyncio.wait({calling})
        await until((faulty.folder / "cancelled").exists)
        async with served.client(MODERN) as client:
            again = await client.call_tool(PAY["name"], PAY["arguments"], meta=RUN)
            assert facts(again)["code"] == "IDEMPOTENCY_CONFLICT"
            assert not (await client.call_tool("look", {"text": "on"})).is_error
    assert faulty.calls == ["pay rent", "look on"]


async def test_each_request_to_an_upstream_is_timed_with_what_became_of_it(
    project, faulty, monkeypatch
):
    timed = []
    monkeypatch.setattr(
        "counterseal.gateway.upstream_tools.measure",
        lambda name, seconds, about: timed.append((name, about)),
    )
    async with project.gateway() as gateway, gateway.client() as client:
        await client.call_tool("look", {"text": "once"})
        await client.call_tool("look", {"do": "die"})
    assert {name for name, _ in timed} == {"mcp.client.operation.duration"}
    first, *others = (about for _, about in timed)
    assert (first["mcp.method.name"], first["gen_ai.tool.name"]) == ("tools/call", "look")
    assert first["error.type"] is None
    assert {about["error.type"] for about in others} <= {"AnswerLostError", "NotSentError"}
    assert others
