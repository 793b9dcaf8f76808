"""A project opened from Python, and checked without a call."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

import counterseal
from counterseal import ContractError, CountersealError, Principal, Proposal
from counterseal.config.project import check_project
from counterseal.contract.declare import tool
from counterseal.registry import Registry
from counterseal.runtime import Runtime
from counterseal.testing import check_project as check

TOOLS = """\
from typing import Annotated
from pydantic import Field
from counterseal import Secret, tool

@tool(effect="compute", version="1.0.0", owner="shop")
def double(
    number: Annotated[int, Field(description="What to double.")],
    key: Annotated[str, Secret("api-key")],
) -> int:
    \"\"\"Double a number.\"\"\"
    return 2 * number
"""
BARE = TOOLS.replace(', Field(description="What to double.")', ", Field()")
AGENT = '[agents.support]\ntenant = "acme"\nuser = "u_1"\nscopes = ["a"]\nroles = ["clerk"]\n'
GRANT = '[[grants]]\nagent = "support"\ntool = "double"\n'
SERVER = """\
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")

@server.tool()
def find(name: str) -> str:
    raise AssertionError("a check calls no tool")
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("COUNTERSEAL_STORE", raising=False)
    monkeypatch.setenv("COUNTERSEAL_SECRET_API_KEY", "k" * 12)

    def project(toml="", tools=TOOLS, **files):
        for name, content in {"tools__py": tools, **files}.items():
            (tmp_path / name.replace("__", ".")).write_text(content)
        head = "" if "[tools]" in toml else '[tools]\npaths = ["tools.py"]\n'
        (tmp_path / "counterseal.toml").write_text(head + AGENT + GRANT + toml)
        return tmp_path

    return project


# Opening -----------------------------------------------------------------------------------------


async def submitted(runtime):
    proposal = Proposal(tool="double", arguments={"number": 4}, run_id="run_1")
    return await runtime.submit(proposal, runtime.principal("support"))


@pytest.mark.parametrize("given", ["file", "folder", "nothing"])
async def test_project_is_a_runtime_with_its_tools_grants_secrets_and_store(
    project, monkeypatch, given
):
    folder = project('[store]\nurl = "sqlite:///calls.db"\n')
    if given == "nothing":
        (folder / "deep").mkdir()
        monkeypatch.chdir(folder / "deep")
    path = {"file": folder / "counterseal.toml", "folder": str(folder), "nothing": None}[given]
    async with counterseal.open_project(path) as runtime:
        assert (await submitted(runtime)).data == {"result": 8}
    assert (folder / "calls.db").is_file()


async def test_store_and_secrets_can_be_given_instead(project, monkeypatch):
    monkeypatch.delenv("COUNTERSEAL_SECRET_API_KEY")
    folder = project('[store]\nurl = "sqlite:///calls.db"\n')
    secrets = {"api-key": "another key"}
    async with counterseal.open_project(folder, store="memory:", secrets=secrets) as runtime:
        assert (await submitted(runtime)).ok
    assert not (folder / "calls.db").exists()


def test_principal_is_the_declared_agent(project):
    runtime = counterseal.open_project(project())
    principal = Principal(tenant="acme", agent="support", user="u_1", scopes=["a"], roles=["clerk"])
    assert runtime.principal("support") == principal
    assert runtime.principal("support", user="u_2").user == "u_2"


@pytest.mark.parametrize(
    ("agent", "fields", "parts"),
    [
        ("suport", {}, ["counterseal.toml: agents.suport.tenant: ", "Did you mean support?"]),
        ("x", {}, ["Agents in it: support.", '[agents.x] tenant = "T"']),
        ("support", {"user": ""}, ["counterseal.toml: agents.support: user must not be empty"]),
    ],
)
def test_unusable_agent_is_an_error_with_file_field_and_fix(project, agent, fields, parts):
    runtime = counterseal.open_project(project())
    with pytest.raises(CountersealError) as raised:
        runtime.principal(agent, **fields)
    for part in parts:
        assert part in str(raised.value)


def test_missing_project_is_an_error_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CountersealError, match="counterseal init"):
        counterseal.open_project()
    with pytest.raises(CountersealError, match=r"other\.toml: does not exist; give the path"):
        counterseal.open_project("other.toml")


# Strict ------------------------------------------------------------------------------------------


@tool(effect="compute", version="1.0.0", owner="shop")
def add(number: int) -> int:
    """Add one."""
    return number + 1


def test_undescribed_parameter_is_a_warning_and_an_error_if_strict():
    [warning] = Registry().register(add)
    assert (warning.rule, warning.severity) == ("parameter-undescribed", "warning")
    for register in (
        lambda: Registry().register(add, strict=True),
        lambda: Runtime.open("memory:", strict=True).register(add),
        lambda: Runtime.open("memory:").register(add, strict=True),
    ):
        with pytest.raises(ContractError, match="parameter-undescribed"):
            register()
    [first, *_] = counterseal.lint(add.contract, strict=True)
    assert (first.rule, first.severity) == ("parameter-undescribed", "error")
    assert Runtime.open("memory:", strict=True).register(add, strict=False)


async def test_strict_project_refuses_an_undescribed_parameter(project):
    async with counterseal.open_project(project(tools=BARE)) as runtime:
        assert (await submitted(runtime)).ok
    folder = project('[tools]\npaths = ["tools.py"]\nstrict = true\n', tools=BARE)
    with pytest.raises(ContractError, match=r"parameter-undescribed\] number has no description"):
        counterseal.open_project(folder)


# Checking ----------------------------------------------------------------------------------------

BROKEN = """\
[policy]
paths = ["rules.yaml"]
[store]
url = "oracle://x"
[keys]
path = "nowhere"
[[grants]]
agent = "support"
tool = "tripple"
[upstreams.gone]
url = "http://127.0.0.1:9/mcp"
headers = {authorization = "Bearer {secret:token}"}
"""


async def test_check_reports_every_problem_at_once(project, monkeypatch):
    monkeypatch.delenv("COUNTERSEAL_SECRET_API_KEY")
    folder = project(BROKEN, tools=BARE, rules__yaml="rules:\n  - {id: a}\n")
    problems = await check_project(folder)
    text = "\n".join(map(str, problems))
    for part in (
        "[parameter-undescribed] number has no description",
        "rules.yaml",
        "store.url: unknown store 'oracle'",
        "keys.path",
        "grant of tripple to 'support'",
        "[secret-missing] double can't be called yet: the secret api-key",
        "[secret-missing] the upstream gone can't be called yet: the secret token",
        "[upstream-down] the upstream gone can't be used",
    ):
        assert part in text, part
    assert not (folder / "calls.db").exists()


async def test_check_reports_every_wrong_setting(project):
    folder = project('[gateway]\nport = "x"\ncolour = 1\n')
    problems = await check_project(folder)
    assert [problem.rule for problem in problems] == ["setting-invalid"] * 2
    assert "gateway.port" in problems[0].message
    assert "gateway.colour: unknown setting" in problems[1].message


async def test_check_of_a_sound_project_finds_nothing_and_opens_no_store(project):
    folder = project('[store]\nurl = "sqlite:///calls.db"\n')
    assert await check_project(folder) == ()
    assert not (folder / "calls.db").exists()


async def test_check_connects_to_upstreams_and_calls_no_tool(project, monkeypatch):
    upstream = '[upstreams.shop]\npython = "check_shop_server:server"\nunlisted = "gated"\n'
    folder = project(upstream, check_shop_server__py=SERVER)
    monkeypatch.syspath_prepend(str(folder))
    [problem] = await check_project(folder)
    assert (problem.rule, problem.severity) == ("upstream-changed", "warning")
    assert "find of the upstream shop is not accepted yet" in problem.message
    sys.modules.pop("check_shop_server")


def test_check_is_one_line_of_a_test(project, monkeypatch):
    folder = project()
    check(folder)
    monkeypatch.delenv("COUNTERSEAL_SECRET_API_KEY")
    with pytest.raises(AssertionError, match=r"1 problem\n.*secret-missing"):
        check(folder)
    check(folder, secrets={"api-key": "k" * 12})


async def test_check_works_in_a_test_with_a_running_loop(project):
    check(project())
    assert asyncio.get_running_loop().is_running()


def test_command_prints_all_problems_and_exits_with_1(project, monkeypatch, capsys):
    from typer.testing import CliRunner

    from counterseal.cli.app import app

    folder = project(tools=BARE)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COUNTERSEAL_SECRET_API_KEY")
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 1
    assert "parameter-undescribed" in result.stdout
    assert "secret-missing" in result.stdout
    assert result.stdout.endswith("2 errors\n")
    printed = json.loads(CliRunner().invoke(app, ["check", str(folder), "--json"]).stdout)
    assert printed["summary"] == {"errors": 2, "warnings": 0}
    monkeypatch.setenv("COUNTERSEAL_SECRET_API_KEY", "k" * 12)
    Path("tools.py").write_text(TOOLS)
    result = CliRunner().invoke(app, ["check"])
    assert (result.exit_code, result.stdout) == (0, "no problems\n")
