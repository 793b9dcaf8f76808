"""`counterseal serve` and `counterseal mcp` as people start them, with the SDK's clients."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import anyio
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.waiting import until
from tests.warm import warm

pytestmark = pytest.mark.slow

PATIENCE = 60

TOOLS = '''\
import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from counterseal import tool

print("printed at import")
DESCRIPTOR = 2 if "serve" in sys.argv else 1
os.write(DESCRIPTOR, b"written past Python at import\\n")


@tool(effect="read_only", version="1.0.0", owner="shop")
def find_order(
    order_id: Annotated[str, Field(max_length=20, description="The order.")],
) -> dict[str, str]:
    """Find one order."""
    print("printed in a call")
    os.write(DESCRIPTOR, b"written past Python\\n")
    return {"order": order_id}


@tool(effect="read_only", version="1.0.0", owner="shop")
async def wait_for_file(
    name: Annotated[str, Field(max_length=20, description="A file beside this one.")],
) -> dict[str, str]:
    """Wait until a file is there."""
    Path("began").touch()
    while not Path(name).exists():
        await asyncio.sleep(0.02)
    return {"found": name}
'''
SETTINGS = """\
[tools]
paths = ["tools.py"]

[store]
url = "sqlite:///calls.db"

[[grants]]
agent = "shop-agent"
tool = "find_order"

[[grants]]
agent = "shop-agent"
tool = "wait_for_file"

[agents.shop-agent]
tenant = "acme"
user = "u_1"
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "counterseal.toml").write_text(SETTINGS)
    return tmp_path


class Serving:
    """A gateway that runs, and what it has said."""

    def __init__(self, process, told):
        self.process = process
        self.told = told
        self.mcp_url = told["mcp_url"]

    def stop(self, number=signal.SIGTERM):
        """Send a signal and wait for the end. The exit code, and what was said on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


@pytest.fixture
def serve(project):
    processes = []

    @contextmanager
    def serve(*options):
        command = warm("-m", "counterseal", "serve", "--port", "0", "--json", *options)
        process = subprocess.Popen(
            command,
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
        processes.append(process)
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        assert text, process.communicate()[1]
        yield Serving(process, json.loads(text))

    yield serve
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@asynccontextmanager
async def connected(url, key=None, mode="auto"):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(headers=headers, timeout=PATIENCE, verify=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def command(project, *arguments):
    done = await anyio.run_process(warm("-m", "counterseal", *arguments), cwd=project, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def stopping(serving):
    """Wait until the gateway takes no more requests; `/health` still answers."""

    async def refused():
        async with httpx.AsyncClient(verify=False) as http:
            try:
                return (await http.get(f"{serving.told['url']}/ready")).status_code == 503
            except httpx.TransportError:
                return True

    await until(refused)


def in_time():
    return anyio.fail_after(PATIENCE)


# What an operator is told at the start ------------------------------------------------------------

NEEDY = '''

from counterseal import Secret


@tool(effect="read_only", version="1.0.0", owner="shop", scopes=["order:read"])
def find_total(key: Annotated[str, Secret("api_key")]) -> dict[str, str]:
    """Find the total."""
    return {}
'''


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["mcp"]])
def test_missing_secrets_and_scopes_are_named_at_the_start(project, command, monkeypatch):
    (project / "tools.py").write_text(TOOLS + NEEDY)
    more = '[[grants]]\nagent = "shop-agent"\ntool = "find_total"\n'
    (project / "counterseal.toml").write_text(more + SETTINGS)

    def told():
        option = "--as" if command == ["mcp"] else "--anonymous-as"
        process = subprocess.Popen(
            warm("-m", "counterseal", *command, option, "shop-agent"),
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if command != ["mcp"]:
            process.stdout.readline()
            process.terminate()
        errors = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0
        return errors

    errors = told()
    needed = "find_total can't be called yet: the secret api_key is not configured; set COUNTERSEAL"
    assert needed in errors
    assert "shop-agent can't use find_total: find_total needs the scopes order:read." in errors
    assert "has no tools" not in errors
    monkeypatch.setenv("COUNTERSEAL_SECRET_ACME__API_KEY", "one tenant has it")
    assert "api_key" not in told()


# https --------------------------------------------------------------------------------------------


def certificate(folder, password=None):
    """A certificate for 127.0.0.1, and its key: two files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now, address = datetime.now(UTC), x509.IPAddress(ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, SHA256())
    )
    locked = BestAvailableEncryption(password) if password else NoEncryption()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(pem)
    return cert_file, key_file


async def test_tls_files_make_it_https_and_plain_http_gets_no_answer(serve, project):
    cert, key = certificate(project)
    with serve("--tls-cert", str(cert), "--tls-key", str(key)) as serving, in_time():
        health = serving.told["health_url"]
        assert health.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=cert)) as http:
            answer = await http.get(health)
            assert answer.status_code == 200
            assert "max-age" in answer.headers["strict-transport-security"]
            page = await http.get(f"{serving.told['url']}/sign-in")
            assert page.status_code == 200
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.TransportError):
                await http.get(health.replace("https", "http"))
        code, errors = serving.stop()
    assert (code, "WARNING" in errors) == (0, False)


async def test_files_that_make_no_https_are_refused_without_a_question(project, tmp_path):
    cert, _ = certificate(project)
    for name in ("other", "locked"):
        (tmp_path / name).mkdir()
    _, other = certificate(tmp_path / "other")
    _, locked = certificate(tmp_path / "locked", b"secret words")
    for wrong, words in (
        (locked, "the key has a password; store it without one"),
        (other, "can't be used for https: KEY_VALUES_MISMATCH"),
        (cert, "can't be used for https"),
        (project / "gone.pem", "can't be used for https: No such file or directory"),
    ):
        options = ["--port", "0", "--tls-cert", str(cert), "--tls-key", str(wrong)]
        code, out, errors = await command(project, "serve", *options)
        assert (code, out) == (2, "")
        assert words in errors
        assert "Traceback" not in errors


# Over standard input and output -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_stdio_client_lists_and_calls_tools_that_print(project, mode):
    program, *words = warm("-m", "counterseal", "mcp", "--as", "shop-agent")
    parameters = StdioServerParameters(command=program, args=words, cwd=project)
    with in_time(), (project / "errors").open("w") as errors:
        async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["find_order", "wait_for_file"]
            result = await client.call_tool("find_order", {"order_id": "o_1"})
            assert result.structured_content == {"order": "o_1"}
    said = (project / "errors").read_text()
    for text in (
        "printed at import",
        "past Python at import",
        "printed in a call",
        "past Python\n",
    ):
        assert text in said


def test_standard_output_holds_nothing_but_the_protocol(project):
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    call = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "find_order", "arguments": {"order_id": "o_1"}},
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "counterseal", "mcp", "--as", "shop-agent"],
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    for message in (hello, done, call):
        process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    rest, errors = process.communicate(timeout=PATIENCE)
    assert [answer["id"] for answer in answers] == [1, 2]
    assert rest == ""
    assert process.returncode == 0
    assert "printed in a call" in errors


# Over HTTP ----------------------------------------------------------------------------------------


async def test_anonymous_client_on_this_machine_is_the_declared_agent(serve):
    with serve("--anonymous-as", "shop-agent") as serving, in_time():
        async with connected(serving.mcp_url) as client:
            result = await client.call_tool("find_order", {"order_id": "o_1"})
            assert result.structured_content == {"order": "o_1"}
            async with httpx.AsyncClient(verify=False) as http:
                health = await http.get(serving.told["health_url"])
            assert health.json() == {"status": "ok"}
        assert not serving.mcp_url.endswith(":0/mcp"), "the real port is told"
        code, errors = serving.stop(signal.SIGINT)
    assert code == 0
    assert "store: " in errors
    assert "stopp" in errors
    assert "Traceback" not in errors


async def test_key_that_was_issued_admits_only_its_agent(serve, project):
    with serve() as serving, in_time():
        async with httpx.AsyncClient(verify=False) as http:
            assert (await http.post(serving.mcp_url, json={})).status_code == 401
        issue = ["keys", "issue", "--tenant", "acme", "--agent", "shop-agent", "--reason", "t"]
        code, issued, _ = await command(project, *issue, "--json")
        assert code == 0
        async with connected(serving.mcp_url, json.loads(issued)["key"]) as client:
            assert (await client.list_tools()).tools[0].name == "find_order"
        code, errors = serving.stop()
    assert code == 0
    assert "No client can sign in yet" in errors


async def test_call_under_way_is_waited_for_and_answered(serve, project):
    with serve("--anonymous-as", "shop-agent") as serving, in_time():
        async with connected(serving.mcp_url) as client:
            await client.list_tools()  # else the client asks for it after the call
            async with anyio.create_task_group() as group:

                async def stop_meanwhile():
                    await until((project / "began").exists)
                    serving.process.send_signal(signal.SIGTERM)
                    await stopping(serving)
                    (project / "now").touch()

                group.start_soon(stop_meanwhile)
                result = await client.call_tool("wait_for_file", {"name": "now"})
        assert result.structured_content == {"found": "now"}
        _, errors = await anyio.to_thread.run_sync(serving.process.communicate)
    assert serving.process.returncode == 0
    assert "waiting for 1 call" in errors


async def test_second_signal_does_not_wait(serve, project):
    with serve("--anonymous-as", "shop-agent") as serving, in_time():
        async with anyio.create_task_group() as group:

            async def call():
                async with connected(serving.mcp_url) as client:
                    await client.list_tools()
                    with suppress(MCPError):  # the answer never comes
                        await client.call_tool("wait_for_file", {"name": "never"})

            group.start_soon(call)
            await until((project / "began").exists)
            serving.process.send_signal(signal.SIGINT)
            await stopping(serving)
            serving.process.send_signal(signal.SIGINT)
            await anyio.to_thread.run_sync(serving.process.communicate)
            group.cancel_scope.cancel()
        assert serving.process.returncode is not None


def test_port_that_is_taken_is_wrong_use(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            warm("-m", "counterseal", "serve", "--port", port),
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"127.0.0.1:{port}" in done.stderr
    assert "choose another port" in done.stderr


# With servers behind it ---------------------------------------------------------------------------


async def test_imported_server_is_served_as_far_as_it_was_accepted(serve, project):
    program = str(Path(sys.executable).with_name("mcp-server-time"))
    with in_time():
        code, told, errors = await command(
            project, "import", "--json", program, "--local-timezone", "UTC"
        )
        assert code == 0, errors
        grant = '[[grants]]\nagent = "shop-agent"\ntool = "{}"\n'
        config = json.loads(told)["config"] + "\n" + grant.format("get_current_time")
        with (project / "counterseal.toml").open("a") as settings:
            settings.write(config + grant.format("convert_time"))
        accept = ("diff", "time", "get_current_time", "--accept", "--yes")
        assert (await command(project, *accept))[0] == 0
        assert (await command(project, "diff"))[0] == 1, "the other one is not accepted"
        with serve("--anonymous-as", "shop-agent") as serving:
            (upstream,) = serving.told["upstreams"]
            assert upstream["name"] == "time"
            assert upstream["accepted"] == ["get_current_time"]
            assert set(upstream["quarantined"]) == {"convert_time"}
            async with connected(serving.mcp_url) as client:
                listed = {tool.name for tool in (await client.list_tools()).tools}
                assert listed == {"find_order", "get_current_time", "wait_for_file"}
                now = await client.call_tool("get_current_time", {"timezone": "UTC"})
                assert not now.is_error
                zones = {"source_timezone": "UTC", "time": "10:00", "target_timezone": "UTC"}
                refused = await client.call_tool("convert_time", zones)
                assert refused.is_error
                assert "quarantined" in refused.content[0].text
            code, errors = serving.stop()
    assert code == 0
    assert "upstream time: ready; 1 tool" in errors
    assert "1 quarantined" in errors
