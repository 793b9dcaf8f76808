"""`counterseal call`: what the gates say, what the agent reads, and how the command ends."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

CASE = '{"case_id": "case_1001"}'
NOTICE = '{"draft_id": "drf_0001", "recipient": "Bob@example.org"}'
GATES = ["parse", "schema", "scope", "semantics", "policy", "state", "approval", "budget"]


@pytest.fixture
def call(run):
    run("init")

    def call(*arguments):
        return run("call", *arguments)

    return call


def marks(result):
    found = re.findall(r"^  ([✓✗?·]) (\w+)", result.stdout, re.MULTILINE)
    return {gate: mark for mark, gate in found}


def test_read_shows_every_gate_and_what_the_agent_reads(call):
    result = call("get_case_summary", CASE, "--as", "intake-agent")
    assert result.exit_code == 0
    assert marks(result) == dict.fromkeys([*GATES, "execution"], "✓")
    assert "get_case_summary 1.0.0  as intake-agent (tenant acme, user u_1)" in result.stdout
    assert "  get_case_summary: SUCCESS. The call succeeded.\n" in result.stdout
    assert '"title":"Burst pipe in flat 4"' in result.stdout
    assert result.stdout.endswith("\nSUCCESS  next action: continue\n")
    assert result.stderr == ""


def test_call_that_needs_approval_is_held_and_exits_3(call):
    result = call("send_approved_notice", NOTICE, "--as", "notice-agent")
    assert result.exit_code == 3
    assert marks(result) | {"policy": "?", "approval": "?", "execution": "·"} == marks(result)
    assert "Corrected: The recipient" in result.stdout, "the column is narrow when gates are slow"
    assert "approval: appr_" in result.stdout
    assert result.stdout.endswith("CONFIRMATION_MISSING  next action: await_approval\n")


def test_refused_call_shows_where_it_stopped_and_exits_1(call):
    result = call("get_case_summary", '{"case_id": 7}', "--as", "intake-agent")
    assert result.exit_code == 1
    assert list(marks(result).values()) == ["✓", "✗", *"·······"]
    assert "/case_id" in result.stdout
    assert result.stdout.endswith("TYPE_MISMATCH  next action: repair_arguments\n")


@pytest.mark.parametrize(
    ("arguments", "code", "outlook"),
    [
        (["get_case_summary", CASE, "--as", "intake-agent"], 0, "would execute"),
        (
            ["send_approved_notice", NOTICE, "--as", "notice-agent"],
            3,
            "would be held for approval by 1 person",
        ),
        (["get_case_summary", CASE, "--as", "notice-agent"], 1, "would be refused by scope"),
        (["get_case_summary", "{", "--as", "intake-agent"], 1, "would be refused by parse"),
    ],
)
def test_plan_says_what_would_happen_and_executes_nothing(call, arguments, code, outlook):
    result = call(*arguments, "--plan")
    assert result.exit_code == code
    assert f"\n{outlook}" in result.stdout
    assert result.stdout.endswith("Nothing was executed.\n")
    assert "Burst pipe" not in result.stdout
    assert json.loads(call(*arguments, "--plan", "--json").stdout)["outlook"] == outlook


def test_plan_shows_the_arguments_as_corrected(call):
    result = call("send_approved_notice", NOTICE, "--as", "notice-agent", "--plan")
    assert '{"draft_id": "drf_0001", "recipient": "bob@example.org"}' in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["get_case_summary", CASE, "--as", "intake-agent"],
        ["get_case_summary", "[]", "--as", "intake-agent"],
        ["send_approved_notice", NOTICE, "--as", "notice-agent"],
        ["send_approved_notice", NOTICE, "--as", "notice-agent", "--plan"],
        ["search_policy", '{"text": "x"}', "--as", "intake-agent"],
        ["nothing_like_it", "--as", "intake-agent"],
    ],
)
def test_page_fits_into_80_columns(call, arguments):
    assert max(map(len, call(*arguments).stdout.splitlines())) <= 80


def test_json_is_the_observations_record(call):
    result = call("get_case_summary", CASE, "--as", "intake-agent", "--json")
    data = json.loads(result.stdout)
    assert data["status"]["taxonomy_class"] == "SUCCESS"
    assert data["result_payload"]["data"]["status"] == "open"
    assert [decision["gate"] for decision in data["decisions"]] == GATES


def test_json_of_a_plan_holds_every_decision(call):
    arguments = ["send_approved_notice", NOTICE, "--as", "notice-agent", "--plan", "--json"]
    result = call(*arguments)
    data = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (data["verdict"], data["approvers"]) == ("require_approval", 1)
    assert data["arguments"]["recipient"] == "bob@example.org"
    assert [decision["gate"] for decision in data["decisions"]] == GATES


# Who asks for what -------------------------------------------------------------------------------


def test_call_without_an_agent_names_those_that_have_grants(call):
    result = call("get_case_summary", CASE)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Agents with grants: intake-agent, notice-agent." in result.stderr


def test_misspelt_agent_is_unknown_and_the_nearest_is_named(call):
    result = call("get_case_summary", CASE, "--as", "intak-agent")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "There is no agent 'intak-agent' in counterseal.toml." in result.stderr
    assert "Did you mean intake-agent?" in result.stderr
    assert "Agents in it" in call("get_case_summary", CASE, "--as", "zzz").stderr


def test_agent_with_grants_only_has_no_tenant(run, write):
    write("counterseal.toml", '[[grants]]\nagent = "bot"\ntool = "x"\n')
    result = run("call", "x", "--as", "bot")
    assert result.exit_code == 2
    assert "'bot' has grants, but no [agents] table in counterseal.toml." in result.stderr
    assert '[agents.bot] tenant = "T"' in result.stderr


def test_agent_without_a_tenant_must_be_given_one(call):
    result = call("get_case_summary", CASE, "--as", "stranger")
    assert result.exit_code == 2
    assert "--tenant" in result.stderr
    denied = call("get_case_summary", CASE, "--as", "stranger", "--tenant", "acme")
    assert denied.exit_code == 1
    assert "no_grant" in denied.stdout


@pytest.mark.parametrize(
    ("flags", "code", "shown"),
    [
        (["--scope", "other"], 1, "scope_missing"),
        (["--scope", "other", "--scope", "case:read"], 0, "SUCCESS"),
        (["--tenant", "globex", "--user", "u_9"], 0, "(tenant globex, user u_9)"),
        (["--role", "clerk", "--run", "run_7", "--key", "k"], 0, "SUCCESS"),
    ],
)
def test_flags_stand_instead_of_what_the_file_says(call, flags, code, shown):
    result = call("get_case_summary", CASE, "--as", "intake-agent", *flags)
    assert result.exit_code == code
    assert shown in result.stdout


def test_empty_flag_is_wrong_use(call):
    result = call("get_case_summary", CASE, "--as", "intake-agent", "--scope", "")
    assert result.exit_code == 2
    assert "scopes must not contain an empty string" in result.stderr


def test_arguments_are_read_from_a_file(call, write):
    write("case.json", CASE)
    assert call("get_case_summary", "@case.json", "--as", "intake-agent").exit_code == 0
    gone = call("get_case_summary", "@gone.json", "--as", "intake-agent")
    assert gone.exit_code == 2
    assert "gone.json: No such file" in gone.stderr


@pytest.mark.parametrize(("sent", "code"), [(CASE.encode(), 0), (b'{"case_id": "\xff"}', 1)])
def test_arguments_are_read_from_stdin_as_they_come(call, sent, code):
    from counterseal.cli.app import app

    arguments = ["call", "get_case_summary", "-", "--as", "intake-agent"]
    result = CliRunner().invoke(app, arguments, input=sent)
    assert result.exit_code == code


# What can go wrong around it ---------------------------------------------------------------------


def test_folder_without_a_configuration_is_told_how_to_start(run):
    result = run("call", "x", "--as", "a")
    assert result.exit_code == 2
    assert "counterseal init" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("counterseal.toml", "[tool]\n", "tool: unknown setting"),
        ("counterseal.toml", '[tools]\npaths = ["gone"]\n', "tools.paths: 'gone' does not exist"),
        ("contracts/search_policy.yaml", "identity: {}\n", "search_policy.yaml:1"),
        ("counterseal.toml", '[policy]\npaths = ["tools.py"]\n', "tools.py"),
    ],
)
def test_project_that_cannot_be_opened_is_wrong_use_with_a_place(call, write, name, content, told):
    write(name, content)
    result = call("get_case_summary", CASE, "--as", "intake-agent", "--tenant", "acme")
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


TOOL = """\
from typing import Annotated
from counterseal import Secret, tool

@tool(effect="compute", version="1.0.0", owner="shop")
def fetch(token: Annotated[str, Secret("api_token")]) -> dict[str, str]:
    \"\"\"Fetch it.\"\"\"
    raise RuntimeError(f"no such thing: {len(token)}\\x1b[31m")
"""
CONFIG = """\
[tools]
paths = ["tools.py"]
[[grants]]
agent = "bot"
tool = "fetch"
[agents.bot]
tenant = "acme"
"""


def test_what_a_tool_raises_is_told_to_the_person_and_not_to_the_agent(run, write, monkeypatch):
    write("tools.py", TOOL)
    write("counterseal.toml", CONFIG)
    monkeypatch.setenv("COUNTERSEAL_SECRET_API_TOKEN", "long enough")
    result = run("call", "fetch", "--as", "bot")
    assert result.exit_code == 1
    assert "Not shown to the agent: RuntimeError: no such thing: 11\\x1b[31m" in result.stderr
    assert "(tools.py:7)" in result.stderr
    assert "no such thing" not in result.stdout
    assert result.stdout.endswith("UNKNOWN_ERROR  next action: escalate\n")


def test_secret_that_is_missing_is_named_with_its_variable(run, write):
    write("tools.py", TOOL)
    write("counterseal.toml", CONFIG)
    result = run("call", "fetch", "--as", "bot")
    assert result.exit_code == 1
    assert "set COUNTERSEAL_SECRET_API_TOKEN" in result.stderr


PROBED = """\
@tool(
    effect="internal_mutation", version="1.0.0", owner="shop", probe="fetch", resource="shop",
    read_back="fetch",
)
def alter() -> dict[str, str]:
    \"\"\"Alter it.\"\"\"
    return {}
"""


def test_missing_secret_of_a_probe_is_one_line_and_no_traceback(run, write):
    write("tools.py", TOOL + PROBED)
    write("counterseal.toml", CONFIG + '[[grants]]\nagent = "bot"\ntool = "alter"\n')
    result = run("call", "alter", "--as", "bot")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    (line,) = [one for one in result.stderr.splitlines() if "COUNTERSEAL_SECRET_API_TOKEN" in one]
    assert line.startswith("Not shown to the agent: SecretUnavailableError: the secret api_token")


SLOW = """\
import time
from counterseal import Context, tool

@tool(effect="compute", version="1.0.0", owner="shop")
def fetch(ctx: Context) -> dict[str, bool]:
    \"\"\"Fetch it.\"\"\"
    ctx.progress(1, 4, "page \\x1b[31mone")
    while not ctx.cancelled:
        time.sleep(0.01)
    return {"ok": False}
"""


def test_progress_is_told_and_a_timeout_is_kept(run, write):
    write("tools.py", SLOW)
    write("counterseal.toml", CONFIG)
    result = run("call", "fetch", "--as", "bot", "--timeout", "0.1", "--json")
    assert "1 of 4 page \\x1b[31mone" in result.stderr
    assert json.loads(result.stdout)["result_payload"]["data"] == {"ok": False}


@pytest.mark.slow
def test_terminal_without_the_marks_gets_plain_ones(call):
    command = [sys.executable, "-m", "counterseal", "call", "get_case_summary", CASE]
    done = subprocess.run(
        [*command, "--as", "intake-agent"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
    )
    assert "  + parse " in done.stdout
    assert "\\u" not in done.stdout


def test_call_for_the_client_is_handed_over_and_exits_3(run, write):
    write(
        "counterseal.toml",
        '[tools]\npaths = ["peek.yaml"]\n[agents.clerk]\ntenant = "acme"\n'
        '[[grants]]\nagent = "clerk"\ntool = "peek"\n',
    )
    write(
        "peek.yaml",
        "identity: {name: peek, version: 1.0.0, owner: desk}\n"
        "effect: read_only\nexecuted_by: client\nusage: Call it to see the screen.\n"
        "affordance:\n  model_description: Look at the screen.\n"
        "  input_schema: {type: object, properties: {}, additionalProperties: false}\n",
    )
    result = run("call", "peek", "--as", "clerk")
    assert result.exit_code == 3, result.output
    assert marks(result)["execution"] == "?"
    assert "next action: carry_out_and_report" in result.stdout
    assert "by the client, which reports the outcome" in run("show", "peek").stdout
