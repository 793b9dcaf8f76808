"""The official conformance suite against the gateway, with the suite's own tools behind it."""

import json

import anyio
import pytest
from mcp import Client, StdioServerParameters

from counterseal import Principal
from counterseal.config import load_settings
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock
from counterseal.gateway.running import gateway
from tests.gateway.conformance import (
    AGENT,
    REVISIONS,
    failed,
    fixture_command,
    fixture_server,
    passed,
    required,
    run_suite,
    served,
    unmet,
    warned,
)
from tests.gateway.exceptions import FAILED, NOT_DONE

SERVER = "fixture"
EVERYTHING = ["elicitation", "sampling", "roots"]


async def definitions():
    """Every tool of the fixture, also the one that comes and goes."""
    command, *words = fixture_command("--stdio")
    async with Client(StdioServerParameters(command=command, args=words)) as client:
        await client.call_tool("test_trigger_tool_change", {})
        listed = (await client.list_tools()).tools
    return [
        Definition.of(one.model_dump(by_alias=True, mode="json", exclude_none=True))
        for one in listed
    ]


@pytest.fixture(scope="module")
def accepted():
    return anyio.run(definitions)


def project(folder, accepted, **upstream):
    """A project whose one upstream is the fixture: all of it accepted, and granted."""
    lock = Lock()
    for one in accepted:
        lock = lock.accept(SERVER, one, by="tests", at="2026-11-16T10:00:00Z")
    Lock.update(folder / "counterseal.lock", lambda _: lock)
    overlay = {"server": SERVER, "tools": {one.name: {"effect": "retrieve"} for one in accepted}}
    (folder / "overlays").mkdir()
    (folder / "overlays" / f"{SERVER}.yaml").write_text(json.dumps(overlay))
    names = [*(one.name for one in accepted), f"{SERVER}.resources", f"{SERVER}.prompts"]
    lines = [
        *(f'[[grants]]\nagent = "{AGENT}"\ntool = "{name}"' for name in names),
        f'[agents.{AGENT}]\ntenant = "acme"',
        f"[upstreams.{SERVER}]\nresources = true\nprompts = true",
        *(f"{word} = {json.dumps(value)}" for word, value in upstream.items()),
    ]
    (folder / "counterseal.toml").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def over_stdio(tmp_path_factory, accepted):
    folder = tmp_path_factory.mktemp("stdio")
    command = fixture_command("--stdio")
    with served(project(folder, accepted, command=command, relay=EVERYTHING)) as url:
        yield url


@pytest.fixture(scope="module")
def over_http(tmp_path_factory, accepted):
    folder = tmp_path_factory.mktemp("http")
    with (
        fixture_server() as behind,
        served(project(folder, accepted, url=behind, relay=EVERYTHING)) as url,
    ):
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("way", ["over_stdio", "over_http"])
def test_gateway_passes_every_required_scenario_and_all_others_that_the_sdk_passes(
    way, revision, request
):
    outcomes = run_suite(request.getfixturevalue(way), revision)
    assert unmet(outcomes) == {}
    assert passed(outcomes) >= required(revision)
    assert failed(outcomes).keys() == FAILED[revision].keys(), failed(outcomes)
    assert warned(outcomes).keys() == NOT_DONE[revision].keys(), warned(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stdio", "http"])
def test_client_of_2025_keeps_questions_of_an_upstream_that_asks_only_by_requests(
    tmp_path, accepted, way
):
    with fixture_server("--by-request") as behind:
        command = fixture_command("--stdio", "--by-request")
        upstream = {"url": behind} if way == "http" else {"command": command}
        with served(project(tmp_path, accepted, **upstream, relay=EVERYTHING)) as url:
            outcomes = run_suite(url, "2025-11-25")
    assert unmet(outcomes) == {}
    assert passed(outcomes) >= required("2025-11-25")
    assert failed(outcomes) == {}


async def answer(context, params):
    raise AssertionError("nobody may ask this client")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_client_is_not_blamed_for_what_an_upstream_may_not_ask(tmp_path, accepted, mode):
    """What the client can do, and the upstream is not let, is no capability that is missing."""
    folder = project(tmp_path, accepted, command=fixture_command("--stdio"), relay=["roots"])
    settings = load_settings(folder / "counterseal.toml")
    who = Principal(tenant="acme", agent=AGENT)
    async with (
        gateway(settings, caller=lambda: who, console="https://console.test") as running,
        Client(running.server.sdk_server, mode=mode, sampling_callback=answer) as client,
    ):
        result = await client.call_tool("test_missing_capability", {})
    assert result.is_error
    assert result.structured_content["code"] == "DEPENDENCY_UNAVAILABLE"
