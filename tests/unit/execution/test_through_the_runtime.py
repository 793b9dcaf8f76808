"""Isolation, egress and HTTP tools as a caller meets them: through every gate, with real parts."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from counterseal import Context, Contract, Grant, Proposal, Runtime, tool
from counterseal.codes import Code
from counterseal.config.discovery import import_files
from counterseal.execution import attempt
from counterseal.testing import runtime_for, someone
from tests.waiting import until

DESK = Path(__file__).parent / "isolation" / "tools" / "desk_tools.py"
TOKEN = "tok_5f2c9e7a11aa"


def desk():
    found = import_files([DESK], lambda _: None)[DESK]
    assert not found.problems
    return [one.value for one in found.declarations]


def granted(tools):
    return [Grant(agent="agent", tool=one.contract.name) for one in tools]


def ask(name, arguments=None, **more):
    return Proposal(tool=name, arguments=arguments or {}, run_id="run_1", **more)


# --- isolation ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_tool_in_a_process_has_what_every_tool_has(caplog, tmp_path):
    caplog.set_level(logging.INFO)
    reports, tools = [], desk()
    async with Runtime.open("memory:", secrets={"token": TOKEN}, files=tmp_path) as runtime:
        runtime.register(*tools, grants=granted(tools))
        seen = await runtime.submit(ask("stamp", {"text": "x"}), someone(), progress=reports.append)
        again = await runtime.submit(ask("stamp", {"text": "y"}), someone())
    assert seen.data == {
        "text": "x",
        "tenant": "acme",
        "debug": "[secret.token]",
        "kept": ["stamp.txt"],
    }
    assert again.ok
    assert [(one.done, one.total, one.message) for one in reports] == [
        (1, 2, "using [secret.token]")
    ]
    assert "the token is [secret.token]" in caplog.text
    assert "printed [secret.token]" in caplog.text
    assert TOKEN not in caplog.text
    assert [path.read_text() for path in tmp_path.rglob("stamp.txt")] == ["y"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crash", "spin"])
async def test_a_change_whose_process_died_is_unknown(name):
    tools = desk()
    async with Runtime.open("memory:", secrets={"token": TOKEN}) as runtime:
        runtime.register(*tools, grants=granted(tools))
        assert (await runtime.submit(ask("stamp", {"text": "x"}), someone())).ok
        seen = await runtime.submit(ask(name), someone())
        again = await runtime.submit(ask(name), someone())
        other = await runtime.submit(ask("stamp", {"text": "y"}), someone())
    assert seen.code is (Code.TIMEOUT if name == "spin" else Code.UNKNOWN_ERROR)
    assert seen.escalate
    assert (again.code, again.next_action) == (Code.IDEMPOTENCY_CONFLICT, "escalate")
    assert other.ok, "the runtime goes on, with another process"
    if name == "crash":
        trace = " ".join(raw.decode() for _, raw, _ in runtime.store._backend.vault.values())
        assert "SIGSEGV" in trace


@pytest.mark.slow
async def test_code_runs_in_a_sandbox_and_nowhere_else(tmp_path):
    (tmp_path / "secret.txt").write_text("the operator's own")
    tools = desk()
    async with Runtime.open("memory:", files=tmp_path / "files") as runtime:
        runtime.register(*tools, grants=granted(tools))

        async def run(code):
            return await runtime.submit(ask("calculate", {"code": code}), someone())

        assert (await run("result = 6 * 7")).data["result"] == 42
        kept = await run("open('note.txt', 'w').write('mine'); result = 1")
        assert kept.data["files"] == ["note.txt"]
        stolen = await run(f"result = open({str(tmp_path / 'secret.txt')!r}).read()")
        assert stolen.code is Code.PERMISSION_DENIED
        sent = await run("import socket; socket.create_connection(('127.0.0.1', 9), 1)")
        assert not sent.ok
        assert "operator" not in json.dumps([stolen.envelope(), sent.envelope()])


TWICE = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import desk_tools
from counterseal import Grant, Proposal
from counterseal.testing import runtime_for, someone
from tests.waiting import until

runtime = runtime_for(secrets={"token": "tok_5f2c9e7a11aa"})
runtime.register(desk_tools.stamp, grants=[Grant(agent="agent", tool="stamp")])

async def stamp(text):
    proposal = Proposal(tool="stamp", arguments={"text": text}, run_id="run_1")
    return (await runtime.submit(proposal, someone(), timeout=25)).code.value

print(asyncio.run(stamp("x")), asyncio.run(stamp("y")))
"""


@pytest.mark.slow
def test_a_runtime_may_be_used_from_one_event_loop_after_another():
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(DESK.parent)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "SUCCESS SUCCESS\n"


# --- egress ---------------------------------------------------------------------------------------


async def test_a_tool_reaches_what_its_contract_names_and_nothing_else(server):
    targets = iter(
        [
            server.url("/ok"),
            server.url("/redirect?to=http://169.254.169.254/latest"),
            "http://169.254.169.254/latest",
            f"http://localhost:{server.port}/ok",
        ]
    )

    @tool(
        effect="retrieve",
        version="1.0.0",
        owner="tests",
        egress=[f"127.0.0.1:{server.port}"],
    )
    async def fetch(ctx: Context) -> dict[str, str]:
        """Fetch the next."""
        response = await ctx.http.get(next(targets), follow_redirects=True)
        return {"text": response.text}

    async with runtime_for(fetch) as runtime:
        assert (await runtime.submit(ask("fetch"), someone())).data == {"text": "ok"}
        for _ in range(3):
            seen = await runtime.submit(ask("fetch"), someone())
            assert seen.code is Code.POLICY_VIOLATION
            assert "169.254" not in json.dumps(seen.envelope())


async def test_a_tool_without_egress_reaches_nothing(server):
    @tool(effect="retrieve", version="1.0.0", owner="tests")
    def fetch(ctx: Context) -> dict[str, str]:
        """Fetch."""
        return {"text": ctx.sync_http.get(server.url("/ok")).text}

    async with runtime_for(fetch) as runtime:
        assert (await runtime.submit(ask("fetch"), someone())).code is Code.POLICY_VIOLATION
    assert server.connections == 0


@pytest.mark.parametrize(
    ("path", "code", "requests"),
    [
        ("/hang", Code.TIMEOUT, 2),
        ("/drop", Code.DEPENDENCY_UNAVAILABLE, 2),
        ("/reset", Code.DEPENDENCY_UNAVAILABLE, 2),
        ("/slow-body", Code.TIMEOUT, 2),
        ("/endless", Code.OBSERVATION_NORMALIZATION_FAIL, 1),
        ("/bomb", Code.OBSERVATION_NORMALIZATION_FAIL, 1),
    ],
)
async def test_a_bad_server_is_a_code_and_a_read_is_tried_again(server, path, code, requests):
    @tool(
        effect="retrieve",
        version="1.0.0",
        owner="tests",
        egress=[f"127.0.0.1:{server.port}"],
        timeout_ms=300 if code is Code.TIMEOUT else 20_000,
        max_retries=1,
    )
    async def fetch(ctx: Context) -> dict[str, str]:
        """Fetch."""
        return {"text": (await ctx.http.get(server.url(path))).text}

    async with runtime_for(fetch) as runtime:
        seen = await runtime.submit(ask("fetch"), someone())
    assert (seen.code, len(server.requests)) == (code, requests)


# --- tools without Python -------------------------------------------------------------------------


def bound(server, path, effect="retrieve", **more):
    mutates = effect not in ("retrieve", "read_only")
    return Contract.model_validate(
        {
            "effect": effect,
            "usage": "In tests.",
            "consequence": "It is charged.",
            "identity": {"name": "call_it", "version": "1.0.0", "owner": "tests"},
            "affordance": {
                "model_description": "Call it.",
                "input_schema": {
                    "type": "object",
                    "properties": {
                        "amount": {"type": "integer", "description": "How much.", "maximum": 99}
                    },
                    "additionalProperties": False,
                },
                "output_schema": {"type": "object"},
            },
            "egress": [f"127.0.0.1:{server.port}"],
            "secrets": ["token"],
            "http": {
                "method": "POST" if mutates else "GET",
                "url": server.url(path),
                "headers": {"Authorization": "Bearer {secret:token}"},
                **({"body": {"amount": "{amount}"}} if mutates else {"query": {"n": "{amount}"}}),
            },
            **more,
        }
    )


def runtime_with(contract, **more):
    runtime = runtime_for(secrets={"token": TOKEN}, **more)
    runtime.register(contract, grants=[Grant(agent="agent", tool="call_it")])
    return runtime


async def test_a_request_carries_key_and_credential_and_shows_neither(server):
    async with runtime_with(bound(server, "/echo", effect="draft")) as runtime:
        seen = await runtime.submit(ask("call_it", {"amount": 7}, key="order-1"), someone())
    (sent,) = server.requests
    assert sent["headers"]["authorization"] == f"Bearer {TOKEN}"
    assert sent["headers"]["idempotency-key"]
    assert json.loads(seen.data["body"]) == {"amount": 7}
    assert TOKEN not in json.dumps(seen.record())


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/drop", "/reset", "/hang"])
async def test_a_request_whose_answer_is_lost_is_unknown_and_not_sent_again(server, path):
    contract = bound(server, path, effect="draft", runtime={"timeout_ms": 1000, "max_retries": 3})
    async with runtime_with(contract) as runtime:
        seen = await runtime.submit(ask("call_it", {"amount": 7}), someone())
        again = await runtime.submit(ask("call_it", {"amount": 7}), someone())
    assert seen.escalate
    assert again.code is Code.IDEMPOTENCY_CONFLICT
    assert len(server.requests) == 1


async def test_a_request_whose_destination_honours_keys_is_sent_again_with_the_same(server):
    contract = bound(server, "/drop", effect="draft", on_unknown="retry_same_key")
    async with runtime_with(contract) as runtime:
        seen = await runtime.submit(ask("call_it", {"amount": 7}), someone())
    assert (seen.code, seen.retry) == (Code.DEPENDENCY_UNAVAILABLE, True)
    assert len(server.requests) == 3
    assert len({one["headers"]["idempotency-key"] for one in server.requests}) == 1


async def test_a_request_that_never_left_may_be_made_again(server):

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        contract = bound(
            server,
            "/ok",
            effect="draft",
            egress=[f"127.0.0.1:{port}"],
            http={
                "method": "POST",
                "url": f"http://127.0.0.1:{port}/x",
                "headers": {"Authorization": "Bearer {secret:token}"},
                "body": {"amount": "{amount}"},
            },
        )
        async with runtime_with(contract) as runtime:
            first = await runtime.submit(ask("call_it", {"amount": 7}), someone())
            again = await runtime.submit(ask("call_it", {"amount": 7}), someone())
    assert first.code is Code.DEPENDENCY_UNAVAILABLE
    assert again.code is Code.DEPENDENCY_UNAVAILABLE, "nothing was sent, so the key is free"


async def test_an_argument_that_can_not_be_sent_is_named(server):
    contract = bound(
        server,
        "/echo",
        affordance={
            "model_description": "Call it.",
            "input_schema": {
                "type": "object",
                "properties": {
                    "case_id": {"type": "string", "description": "The case.", "maxLength": 20}
                },
                "required": ["case_id"],
                "additionalProperties": False,
            },
            "output_schema": {"type": "object"},
        },
        http={
            "url": server.url("/cases/{case_id}"),
            "headers": {"Authorization": "Bearer {secret:token}"},
        },
    )
    async with runtime_with(contract) as runtime:
        seen = await runtime.submit(ask("call_it", {"case_id": "../admin"}), someone())
    assert (seen.code, seen.repair, server.requests) == (Code.SEMANTIC_INVALIDITY, True, [])
    assert "/case_id" in [error.field for error in seen.errors]
    assert "slash" in seen.for_model()


async def test_an_http_tool_can_say_by_key_that_nothing_is_there(server):
    reader = bound(
        server,
        "/echo",
        identity={"name": "find_charge", "version": "1.0.0", "owner": "tests"},
        http={
            "url": server.url("/redirect"),
            "query": {"to": "/x", "key": "{call:key}"},
            "headers": {"Authorization": "Bearer {secret:token}"},
            "absent": [302],
        },
    )
    charge = bound(
        server,
        "/drop",
        effect="draft",
        read_back="find_charge",
        runtime={"timeout_ms": 2000},
    )
    async with runtime_for(secrets={"token": TOKEN}) as runtime:
        runtime.register(charge, reader, grants=[Grant(agent="agent", tool="call_it")])
        seen = await runtime.submit(ask("call_it", {"amount": 7}, key="order-1"), someone())
    assert (seen.code, seen.next_action) == (Code.DEPENDENCY_UNAVAILABLE, "retry_later")
    sent, asked = server.requests
    assert sent["headers"]["idempotency-key"] in asked["target"].replace("%3A", ":")


# --- a worker that was paused ---------------------------------------------------------------------

PAUSED = """
import asyncio, os, signal, sys
from counterseal import Context, Grant, Proposal, Runtime, tool
from counterseal.testing import someone

url, port, pauses = sys.argv[1], sys.argv[2], len(sys.argv) > 3

@tool(effect="draft", version="1.0.0", owner="tests", on_unknown="retry_same_key",
      egress=["127.0.0.1:" + port], timeout_ms=60_000)
async def charge(ctx: Context) -> dict[str, str]:
    \"\"\"Charge a card.\"\"\"
    if pauses:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"text": (await ctx.http.post(f"http://127.0.0.1:{port}/ok")).text}

async def main():
    async with Runtime.open(url, lease=0.3) as runtime:
        runtime.register(charge, grants=[Grant(agent="agent", tool="charge")])
        proposal = Proposal(tool="charge", arguments={}, run_id="run_1", key="order-1")
        seen = await runtime.submit(proposal, someone(), wait=60)
    print(seen.code.value, flush=True)

asyncio.run(main())
"""


def worker(*arguments):
    command = [sys.executable, "-c", PAUSED, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
async def test_a_worker_that_was_paused_beyond_its_lease_sends_nothing(server, tmp_path):
    """The tool is stopped right before it sends; another worker takes over; then it goes on."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    paused = worker(url, server.port, "pauses")
    stat = Path(f"/proc/{paused.pid}/stat")
    try:
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        other = worker(url, server.port)
        assert (await asyncio.to_thread(other.communicate))[0].strip() == "SUCCESS"
        paused.send_signal(signal.SIGCONT)
        printed, reported = await asyncio.to_thread(paused.communicate)
    finally:
        paused.kill()
    assert len(server.requests) == 1
    assert "outlived its lease" in reported
    assert printed.strip() == "TIMEOUT"


async def test_a_request_tool_whose_deadline_passed_is_certainly_not_sent(server, monkeypatch):
    """Connecting takes until after the deadline, as it does when the machine is suspended."""
    contract = bound(server, "/echo", effect="draft", runtime={"timeout_ms": 60_000})
    moments = iter([0.0, 100.0])
    monkeypatch.setattr(attempt, "boottime", lambda: next(moments))
    async with runtime_with(contract) as runtime:
        seen = await runtime.submit(ask("call_it", {"amount": 7}), someone())
    assert (seen.code, server.requests) == (Code.TIMEOUT, [])
    assert "not known" not in seen.errors[0].message


async def test_a_tool_that_may_have_done_more_before_its_deadline_passed_is_in_doubt(
    server, monkeypatch
):
    @tool(effect="draft", version="1.0.0", owner="tests", egress=[f"127.0.0.1:{server.port}"])
    async def charge(ctx: Context) -> dict[str, str]:
        """Charge a card."""
        return {"text": (await ctx.http.post(server.url("/ok"))).text}

    moments = iter([0.0, 100.0])
    monkeypatch.setattr(attempt, "boottime", lambda: next(moments))
    async with runtime_for(charge) as runtime:
        seen = await runtime.submit(ask("charge"), someone())
    assert (seen.code, server.requests) == (Code.TIMEOUT, [])
    assert "not known whether the call took effect" in seen.errors[0].message


async def test_tls_is_prepared_at_registration_for_tools_that_connect(server):
    @tool(effect="retrieve", version="1.0.0", owner="tests")
    def alone() -> dict[str, str]:
        """Connect to nothing."""

    async with runtime_for(alone) as runtime:
        assert not prepared(runtime)
        runtime.register(bound(server, "/ok"))
        assert prepared(runtime)


def prepared(runtime):
    return vars(runtime.executor)["_clients"] is not None
