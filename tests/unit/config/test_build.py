"""From `counterseal.toml` to a runtime: what it names is there, and what is wrong has a place."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from counterseal import ContractError, Grant, Proposal
from counterseal.codes import Code
from counterseal.config import ConfigError, load_settings, open_runtime
from counterseal.config.build import grants_for_upstream_tools
from counterseal.contract.model import Contract
from counterseal.ledger.records import Budgets
from counterseal.policy import Policy, PolicyError, contract_facts
from counterseal.runtime import Tenant
from counterseal.testing import someone

TOOLS = """\
from typing import Annotated
from counterseal import Secret, tool

@tool(effect="compute", version="1.0.0", owner="shop")
def count(key: Annotated[str, Secret("api-key")]) -> dict[str, str]:
    \"\"\"Count.\"\"\"
    return {"key": key[::-1]}
"""
CONTRACT = """\
identity: {name: find_order, version: 1.0.0, owner: shop}
effect: read_only
usage: Call it to look at an order.
affordance:
  model_description: Find one order.
  input_schema: {type: object, additionalProperties: false}
  output_schema: {type: object, additionalProperties: false}
"""
POLICY = "rules:\n  - {id: closed, tools: [find_order], then: deny, reason: Closed.}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(toml="", **files):
        for name, content in files.items():
            Path(name.replace("__", ".")).write_text(content)
        named = "" if "[tools]" in toml else '[tools]\npaths = ["."]\n'
        Path("counterseal.toml").write_text(named + toml)
        return load_settings(tmp_path / "counterseal.toml")

    return write


GRANTED = "".join(
    f'[[grants]]\nagent = "agent"\ntool = "{tool}"\n' for tool in ("count", "find_order")
)


def ask(tool):
    return Proposal(tool=tool, arguments={}, run_id="run_1")


async def test_everything_that_the_file_names_is_in_the_runtime(write):
    settings = write(
        '[policy]\npaths = ["rules.yaml"]\n'
        '[[grants]]\nagent = "bot"\ntool = "count"\nversion = "1.*"\nmode = "read"\n'
        'max_calls_per_run = 2\nscopes = ["s"]\nrisk_limit = "READ_ONLY"\n'
        'expires_at = 2030-01-01T00:00:00Z\ntenant = "acme"\nmax_effect = "compute"\n'
        "[tenants.acme]\nbudgets = {reads = 5, money = {day = {EUR = 1.5}}}\n"
        'facts = {residency = "eu"}\n',
        tools__py=TOOLS,
        order__yaml=CONTRACT,
        rules__yaml=POLICY,
    )
    async with open_runtime(settings) as runtime:
        assert [record.name for record in runtime.registry.records] == ["count", "find_order"]
        assert runtime.registry.grants == (
            Grant(
                agent="bot",
                tool="count",
                version="1.*",
                mode="read",
                max_calls_per_run=2,
                scopes=["s"],
                risk_limit="READ_ONLY",
                expires_at=datetime(2030, 1, 1, tzinfo=UTC),
                tenant="acme",
            ),
        )
        assert runtime.registry.grants[0].max_effect == "compute"
        assert runtime.policy.rules[-1].id == "closed"
        assert len(runtime.policy.rules) == len(Policy.default().rules) + 1
        assert runtime.tenants == {
            "acme": Tenant(
                budgets=Budgets(reads=5, money={"day": {"EUR": "1.5"}}), facts={"residency": "eu"}
            )
        }


async def test_contract_without_code_answers_that_it_is_not_available(write):
    settings = write(GRANTED, tools__py=TOOLS, order__yaml=CONTRACT)
    async with open_runtime(settings) as runtime:
        seen = await runtime.submit(ask("find_order"), someone())
    assert seen.code is Code.DEPENDENCY_UNAVAILABLE


async def test_policy_of_the_file_is_in_force(write):
    settings = write(
        '[policy]\npaths = ["rules.yaml"]\n' + GRANTED,
        tools__py=TOOLS,
        order__yaml=CONTRACT,
        rules__yaml=POLICY,
    )
    async with open_runtime(settings) as runtime:
        seen = await runtime.submit(ask("find_order"), someone())
    assert seen.code is Code.POLICY_VIOLATION
    assert seen.decisions[-1].decision.rule == "closed"


async def test_secrets_come_from_the_environment_unless_given(write, monkeypatch):
    settings = write(GRANTED, tools__py=TOOLS, order__yaml=CONTRACT)
    async with open_runtime(settings) as runtime:
        assert (await runtime.submit(ask("count"), someone())).code is Code.DEPENDENCY_UNAVAILABLE
    monkeypatch.setenv("COUNTERSEAL_SECRET_API_KEY", "a good key")
    async with open_runtime(settings) as runtime:
        assert (await runtime.submit(ask("count"), someone())).data == {"key": "yek doog a"}
    async with open_runtime(settings, secrets={"api-key": "b good key"}) as runtime:
        assert (await runtime.submit(ask("count"), someone())).data == {"key": "yek doog b"}


def test_grant_that_cannot_be_given_is_named_with_file_and_key(write):
    settings = write(GRANTED, tools__py=TOOLS)
    with pytest.raises(ConfigError, match=r"counterseal\.toml: grants: grant of find_order"):
        open_runtime(settings)


def test_contract_that_cannot_be_used_is_refused_with_its_place(write):
    settings = write("", broken__yaml=CONTRACT.replace("read_only", "reads"))
    with pytest.raises(ContractError, match=r"broken\.yaml:2"):
        open_runtime(settings)


def test_policy_that_cannot_be_used_is_refused_with_its_place(write):
    settings = write('[policy]\npaths = ["rules.yaml"]\n', rules__yaml="rules:\n  - {id: a}\n")
    with pytest.raises(PolicyError, match=r"rules\.yaml:2"):
        open_runtime(settings)


@pytest.mark.slow
def test_looking_at_contracts_does_not_load_the_runtime():
    code = "import counterseal.config, sys; print('counterseal.runtime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_personal_data_that_policy_names_is_taken_out(write):
    tools = (
        "from counterseal import tool\n\n"
        '@tool(effect="read_only", version="1.0.0", owner="shop")\n'
        "def who() -> dict[str, str]:\n"
        '    """Say who."""\n'
        '    return {"mail": "jo@example.org"}\n'
    )
    toml = (
        '[tools]\npaths = ["who.py"]\n[policy]\npii = ["email"]\n'
        '[[grants]]\nagent = "agent"\ntool = "who"\n'
        "[tenants.acme.budgets.by_effect]\nread_only = 1\n"
    )
    runtime = open_runtime(write(toml, who__py=tools))
    seen = await runtime.submit(Proposal(tool="who", arguments={}), someone())
    assert seen.ok
    assert "example.org" not in seen.for_model()
    spent = await runtime.submit(Proposal(tool="who", arguments={}), someone())
    assert spent.code is Code.BUDGET_EXHAUSTED


def test_a_kind_of_personal_data_that_does_not_exist_is_named(write):
    Path("counterseal.toml").write_text('[policy]\npii = ["shoe_size"]\n')
    with pytest.raises(ConfigError, match="pii"):
        load_settings(Path("counterseal.toml"))


# Upstreams ----------------------------------------------------------------------------------------

UPSTREAM = '[upstreams.git]\ncommand = ["mcp-server-git"]\n'
OVERLAY = """\
server: git
rules:
  - {id: git-closed, then: deny, reason: Closed.}
  - {id: git-log-asks, tools: ["git_l*"], then: require_approval, reason: Ask.}
"""


def facts(name, server="", own=None):
    data = {
        "identity": {"name": name, "version": "1.0.0", "owner": "shop"},
        "effect": "read_only",
        "affordance": {"model_description": "Look.", "input_schema": {}, "output_schema": {}},
        "mcp": {"server": server, "tool": own or name} if server else None,
    }
    return contract_facts(Contract.model_validate(data))


def matched(policy, contract):
    return policy.compile_for(contract).decide({}).matched


async def test_rules_of_an_overlay_are_about_the_tools_of_its_upstream_alone(write, tmp_path):
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays/git.yaml").write_text(OVERLAY)
    settings = write(UPSTREAM)
    async with open_runtime(settings) as runtime:
        assert not runtime.registry.records, "an overlay is no contract"
        policy = runtime.policy
        assert {"git-closed", "git-log-asks"} <= set(matched(policy, facts("git_log", "git")))
        assert "git-log-asks" in matched(policy, facts("vcs.history", "git", own="git_log"))
        assert "git-log-asks" not in matched(policy, facts("git_add", "git"))
        assert "git-closed" in matched(policy, facts("git_add", "git"))
        for elsewhere in (facts("git_log"), facts("git_log", "other")):
            assert matched(policy, elsewhere) == matched(Policy.default(), elsewhere)
    assert policy.version != Policy.default().version


def test_rule_of_an_overlay_that_makes_no_sense_is_refused_with_its_place(write, tmp_path):
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays/git.yaml").write_text("rules:\n  - {id: a}\n")
    with pytest.raises(PolicyError, match=r"overlays/git\.yaml:2"):
        open_runtime(write(UPSTREAM))


async def test_grants_for_tools_of_upstreams_are_kept_aside(write):
    settings = write(UPSTREAM + GRANTED, order__yaml=CONTRACT)
    async with open_runtime(settings) as runtime:
        assert [grant.tool for grant in runtime.registry.grants] == ["find_order"]
        names = {record.name for record in runtime.registry.records}
        assert grants_for_upstream_tools(settings, names) == [Grant(agent="agent", tool="count")]


def test_without_upstreams_no_grant_is_kept_aside(write):
    assert grants_for_upstream_tools(write(GRANTED), ()) == []


def test_grant_of_an_own_tool_is_still_looked_at_where_there_are_upstreams(write):
    toml = '[[grants]]\nagent = "a"\ntool = "find_order"\nversion = ">=9"\n'
    with pytest.raises(ConfigError, match="no version matches '>=9'"):
        open_runtime(write(UPSTREAM + toml, order__yaml=CONTRACT))
