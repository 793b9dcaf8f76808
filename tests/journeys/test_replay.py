"""`counterseal replay` on a project with a SQLite file: the same, what if, cases, a live agent."""

import json
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest

from counterseal import Proposal, open_project
from counterseal.ledger.requests import EventFilter

TOOLS = '''
from typing import Annotated
from pydantic import Field
from counterseal import tool

Account = Annotated[str, Field(pattern="^acc_[0-9]{4}$", description="The account.")]
Cents = Annotated[int, Field(ge=1, le=100_000, description="The amount.")]


@tool(effect="internal_mutation", version="1.0.0", owner="payments", usage="To refund.", budget=2)
async def refund(account: Account, cents: Cents) -> dict[str, str]:
    """Refund an amount."""
    return {"status": "done"}
'''
CONFIG = """
[store]
url = "sqlite:///counterseal.db"
[tools]
paths = ["tools.py"]
[agents.clerk]
tenant = "acme"
user = "u_7"
[[grants]]
agent = "clerk"
tool = "refund"
"""
NARROW = """
identity: {name: refund, version: 2.0.0, owner: payments}
effect: internal_mutation
usage: To refund.
affordance:
  model_description: Refunds an amount.
  input_schema:
    type: object
    properties:
      account: {type: string, pattern: "^acc_[0-9]{4}$", maxLength: 8, description: The account.}
      cents: {type: integer, minimum: 1, maximum: 1000, description: The amount.}
    required: [account, cents]
    additionalProperties: false
  output_schema: {type: object}
"""


@pytest.fixture
async def project(tmp_path, monkeypatch):
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "counterseal.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    async with open_project() as runtime:
        clerk = runtime.principal("clerk")
        for account, cents, run in [
            ("acc_0001", 250, "run_1"),
            ("acc_0002", 9000, "run_1"),
            ("acc_0003", 20, "run_1"),
            ("acc_3", 20, "run_2"),
        ]:
            arguments = {"account": account, "cents": cents}
            await runtime.submit(Proposal(tool="refund", arguments=arguments, run_id=run), clerk)
    return tmp_path


def counterseal(*words, **more):
    command = [sys.executable, "-m", "counterseal", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **more)


@pytest.mark.slow
async def test_same_decisions_what_other_contracts_decide_and_who_looked(project):
    done = counterseal("replay", "--since", "30d", "--json", "--by", "vic")
    assert (done.returncode, json.loads(done.stdout)["same"]) == (0, 4), done.stderr
    (project / "new").mkdir()
    (project / "new" / "refund.yaml").write_text(NARROW)
    done = counterseal("replay", "run_1", "--contracts", "new", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["calls"], told["refused"]) == (0, 3, 1), done.stderr
    change = next(one for one in told["changes"] if one["kind"] == "refused")
    assert (change["tool"], change["rule"], change["now"]) == ("refund", "schema", "deny")
    async with open_project() as runtime:
        events = await runtime.store.search("acme", EventFilter(types=["arguments.read"]))
        assert len(await runtime.store.search("acme", EventFilter(types=["tool.started"]))) == 2
    read = events[0][1].body
    assert (read["by"], read["exported"]) == ("vic", "replay of calls since 30d")


@pytest.mark.slow
async def test_an_incident_becomes_a_test_that_fails_until_the_rules_are_right(project):
    assert counterseal("replay", "run_2", "--as-case", "case.yaml").returncode == 0
    done = counterseal("replay", "--case", "case.yaml")
    assert (done.returncode, done.stdout) == (0, "ok  case.yaml: refused by schema\n")
    file = project / "case.yaml"
    file.write_text(file.read_text().replace("acc_3", "acc_0003"))
    done = counterseal("replay", "--case", "case.yaml")
    assert done.returncode == 1
    assert done.stdout == "FAILED  case.yaml: allowed, expected refused by schema\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["replay"], "Name a call or a run, or give --since TIME."),
        (["replay", "run_9"], "No call and no run is recorded under the id 'run_9'."),
        (["replay", "run_1", "--as-case", "x.yaml"], "run_1 has 3 decisions."),
        (["replay", "--since", "7d", "--policy", "none.yaml"], "none.yaml"),
    ],
)
async def test_what_can_not_be_done_is_said(project, words, says):
    done = counterseal(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
async def test_a_live_agent_is_answered_from_the_recording_over_mcp(project):
    from mcp import StdioServerParameters
    from mcp.client import Client
    from mcp.client.stdio import stdio_client

    command = ["-m", "counterseal", "replay", "run_1", "--serve"]
    errors = (project / "errors.txt").open("w")
    async with AsyncExitStack() as stack:
        stack.callback(errors.close)
        server = StdioServerParameters(command=sys.executable, args=command, cwd=str(project))
        client = await stack.enter_async_context(Client(stdio_client(server, errlog=errors)))
        assert [tool.name for tool in (await client.list_tools()).tools] == ["refund"]
        same = await client.call_tool("refund", {"account": "acc_0001", "cents": 250})
        assert not same.is_error
        assert "done" in same.content[0].text
        other = await client.call_tool("refund", {"account": "acc_0009", "cents": 1})
        assert other.is_error
    said = (project / "errors.txt").read_text()
    assert "First divergence: call 2: the recording has refund" in said
