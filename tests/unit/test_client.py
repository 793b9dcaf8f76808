"""The client before the real API, in this process."""

import asyncio
import importlib.util
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from counterseal import Code, Proposal
from counterseal.client import Client, ProblemError

_FILE = Path(__file__).parents[1] / "gateway" / "api" / "served.py"
_SPEC = importlib.util.spec_from_file_location("client_served", _FILE)
served = importlib.util.module_from_spec(_SPEC)
sys.modules["client_served"] = served
_SPEC.loader.exec_module(served)

ADD = Proposal(tool="add", arguments={"a": 1, "b": 2})


class Way(httpx.AsyncBaseTransport):
    """To the API; `first` is what happens before, answer by answer: a response or an exception."""

    def __init__(self, api):
        self._inner = httpx.ASGITransport(api.api)
        self.first = []
        self.asked = []

    async def handle_async_request(self, request):
        self.asked.append(request)
        if self.first:
            happens = self.first.pop(0)
            if isinstance(happens, Exception):
                raise happens
            return happens
        return await self._inner.handle_async_request(request)


class Wired:
    def __init__(self, api):
        self.api = api
        self.way = Way(api)
        self.paused = []

    def client(self, who=served.BOT, **options):
        async def pause(seconds):
            self.paused.append(seconds)

        key = self.api.keys[who]
        return Client(served.PUBLIC, key=key, transport=self.way, pause=pause, **options)


@pytest.fixture
async def wired():
    async with served.open_api() as api:
        yield Wired(api)


def busy(status=429, **headers):
    told = {
        "type": "urn:counterseal:problem:rate-limited",
        "title": "Too many requests",
        "status": status,
        "detail": "Try again.",
        "code": "rate-limited",
        "param": None,
        "where": None,
        "repairable": False,
        "retryable": True,
        "next_action": "retry_later",
        "request_id": "req_1",
        "errors": [],
    }
    headers["Content-Type"] = "application/problem+json"
    return httpx.Response(status, json=told, headers=headers)


# --- calls ----------------------------------------------------------------------------------------


async def test_a_call_gives_the_observation_that_a_runtime_gives(wired):
    async with wired.client() as client:
        seen = await client.submit(ADD)
    direct = await wired.api.runtime.submit(ADD, served.BOT)
    assert (seen.ok, seen.data) == (True, {"total": 3})
    assert seen._replace(decisions=()) == direct._replace(
        call_id=seen.call_id,
        timestamp=seen.timestamp,
        trace_id=seen.trace_id,
        latency_ms=seen.latency_ms,
        decisions=(),
    )
    assert "<<<trusted-data" in seen.for_model()


async def test_a_refusal_is_an_answer_and_no_exception(wired):
    async with wired.client() as client:
        seen = await client.submit(Proposal(tool="add", arguments='{"a": "x", "b": 2}'))
    assert seen.code is Code.TYPE_MISMATCH
    assert seen.repair
    assert seen.errors[1].field == "/a"


async def test_what_can_not_be_sent_is_named(wired):
    async with wired.client() as client:
        with pytest.raises(ValueError, match="approval: can't be sent over HTTP"):
            await client.submit(Proposal(tool="add", arguments={}, approval="token"))


async def test_key_run_and_trace_are_sent_along(wired):
    key, trace = 'say "hi" \\', f"00-{'a' * 32}-{'b' * 16}-01"
    given = Proposal(tool="note", arguments=b'{"text": "x"}', key=key, run_id="run/7", trace=trace)
    async with wired.client() as client:
        first, again = await client.submit(given), await client.submit(given)
        assert (first.idempotency_hit, again.idempotency_hit) == (False, True)
        assert first.trace_id == "a" * 32
        assert (await client.run("run/7")).run_id == "run/7"
        seen = await client.observation(tool="note", key=key)
        assert seen.data == first.data
    assert wired.api.bench.notes == ["x"]


async def test_people_and_agents_work_on_the_same_request(wired):
    async with wired.client() as agent, wired.client("ada") as ada:
        held = await agent.submit(Proposal(tool="send", arguments={"to": "Ann"}))
        assert held.code is Code.CONFIRMATION_MISSING
        (row,) = [one async for one in ada.approvals.list()]
        packet = await ada.approvals.get(row.approval_id)
        assert packet.arguments == {"to": "Ann"}
        waiting = asyncio.ensure_future(agent.approvals.wait(row.approval_id))
        decided = await ada.approvals.decide(row.approval_id, "approve", comment="fine")
        assert decided.votes.cast[0].comment == "fine"
        assert (await waiting).status in ("approved", "spent")
        seen = await agent.submit(Proposal(tool="send", arguments={"to": "Ann"}), wait=30)
        assert seen.ok, seen.for_model()


async def test_lists_are_followed_page_by_page(wired):
    async with wired.client() as agent, wired.client("vera") as vera:
        for number in range(7):
            await agent.submit(Proposal(tool="add", arguments={"a": number, "b": 1}))
        rows = [row async for row in vera.calls.search(tool="add", limit=3)]
        assert len({row.call_id for row in rows}) == 7
        pages = [
            one for one in wired.way.asked if one.url.path == "/v1/calls" and one.method == "GET"
        ]
        assert len(pages) == 3
        later = datetime(2999, 1, 1, tzinfo=UTC)
        assert [row async for row in vera.calls.search(since=later)] == []
        story = await vera.calls.get(rows[0].call_id)
        assert story.gates
        assert await vera.calls.events(rows[0].call_id) == list(story.events)


async def test_operators_kill_restore_grant_and_revoke(wired):
    async with wired.client("root") as root, wired.client() as agent:
        assert [one.tool for one in await root.kills.preview(tool="add")] == ["add"]
        kill = await root.kills.kill(tool="add", reason="wrong sums")
        assert (await agent.submit(ADD)).code is Code.PERMISSION_DENIED
        assert await root.kills.list() == [kill]
        await root.kills.restore(kill.id, reason="mended")
        assert (await agent.submit(ADD)).ok
        grant = await root.grants.give("new", "add", reason="a trial", max_calls_per_run=2)
        assert grant in await root.grants.list(agent="new")
        await root.grants.revoke(grant.id, reason="over")
        assert await root.grants.list(agent="new") == []
        await root.tools.disable("add", reason="x")
        assert (await root.tools.get("add")).status == "disabled"
        await root.tools.enable("add", reason="x", version="1.0.0")


async def test_the_record_is_looked_at_checked_and_fetched(wired):
    async with wired.client() as agent, wired.client("vera") as vera:
        await agent.submit(ADD)
        assert (await vera.audit.verify()).ok
        assert (await vera.audit.chain()).checkpoints == 0
        lines = b"".join([chunk async for chunk in vera.audit.export("jsonl")])
        assert b'"tool.succeeded"' in lines
        assert [one.type async for one in vera.events(tool="add")]
        assert [one async for one in vera.concerns.list()] == []
        assert len(await vera.metrics()) == 20
        assert (await vera.me()).user == "vera"
        assert (await agent.me()).agent == "bot"
        assert {one.name for one in await vera.tools.list()} >= {"add"}
        assert (await agent.tools.catalogue())[0].inputSchema["type"] == "object"


# --- problems and retries -------------------------------------------------------------------------


async def test_a_problem_says_what_the_server_says(wired):
    async with wired.client("vera") as vera:
        with pytest.raises(ProblemError) as found:
            await vera.kills.kill(tool="add", reason="x")
        assert (found.value.status, found.value.code) == (403, "role-required")
        assert found.value.problem.role == "operator"
        assert found.value.request_id in str(found.value)
        with pytest.raises(ProblemError) as found:
            await vera.calls.get("nothing")
        assert found.value.code == "not-found"
        with pytest.raises(ProblemError) as found:
            [chunk async for chunk in vera.audit.export("xml")]
        assert found.value.param == "/format"


async def test_who_is_busy_is_asked_again_when_it_says(wired):
    wired.way.first = [busy(**{"Retry-After": "7"}), busy(503)]
    async with wired.client("vera") as vera:
        assert (await vera.me()).user == "vera"
    assert wired.paused == [7.0, 0.2]


async def test_a_call_is_made_again_under_the_same_key(wired):
    given = Proposal(tool="note", arguments={"text": "x"}, key="k-1")
    wired.way.first = [busy(), httpx.ReadError("lost"), busy(503)]
    async with wired.client() as client:
        assert (await client.submit(given)).ok
    assert {one.headers["idempotency-key"] for one in wired.way.asked} == {'"k-1"'}
    assert wired.api.bench.notes == ["x"]


async def test_what_may_have_been_done_is_not_done_again(wired):
    async with wired.client() as client, wired.client("root") as root:
        for work in (lambda: client.submit(ADD), lambda: root.kills.kill(reason="x", tool="add")):
            wired.way.first = [httpx.ReadError("lost")]
            with pytest.raises(ProblemError) as found:
                await work()
            assert (found.value.status, found.value.code) == (0, "unreachable")
        wired.way.first = [httpx.ConnectError("refused")]
        assert (await client.submit(ADD)).ok
    assert len(wired.paused) == 1


async def test_a_change_is_not_sent_again_after_a_503_because_the_store_may_hold_it(wired):
    async with wired.client("root") as root:
        kill = await root.kills.kill(reason="x", tool="add")
        for work in (
            lambda: root.kills.kill(reason="y", tool="note"),
            lambda: root.kills.restore(kill.id, reason="y"),
        ):
            wired.way.first, wired.way.asked = [busy(503)], []
            with pytest.raises(ProblemError) as found:
                await work()
            assert (found.value.status, len(wired.way.asked)) == (503, 1)
        wired.way.first = [busy(429)]
        await root.kills.restore(kill.id, reason="a 429 was refused before anything was done")


async def test_patience_ends(wired):
    wired.way.first = [busy() for _ in range(9)]
    async with wired.client("vera", retries=2) as vera:
        with pytest.raises(ProblemError) as found:
            await vera.me()
    assert found.value.retryable
    assert len(wired.way.asked) == 3


@pytest.mark.parametrize(("status", "retryable"), [(502, True), (404, False), (307, False)])
async def test_an_answer_that_is_not_of_this_api_is_called_one(wired, status, retryable):
    wired.way.first = [httpx.Response(status, text="<html>a proxy's</html>")]
    async with wired.client("vera") as vera:
        with pytest.raises(ProblemError, match="check that the URL is that of a") as found:
            await vera.me()
    assert (found.value.status, found.value.code) == (status, "unknown-answer")
    assert found.value.retryable is retryable


async def test_a_credential_follows_no_redirect(wired):
    elsewhere = {"Location": "http://elsewhere.example/"}
    wired.way.first = [httpx.Response(307, headers=elsewhere)]
    async with wired.client("vera") as vera:
        with pytest.raises(ProblemError):
            await vera.me()
    assert [one.url.host for one in wired.way.asked] == ["127.0.0.1"]


@pytest.mark.slow
def test_the_client_needs_nothing_of_the_servers():
    code = (
        "import sys, counterseal.client; "
        "print([m for m in ('fastapi', 'starlette', 'mcp', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
