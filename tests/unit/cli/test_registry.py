"""`counterseal registry`: stop tools on every worker, undo it, and see what was changed."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

import counterseal
from counterseal.cli.app import app

DRAFT = """\
identity: {name: draft_reply, version: 1.0.0, owner: shop}
effect: draft
usage: Call it to answer a customer.
affordance:
  model_description: Draft a reply.
  input_schema: {type: object, additionalProperties: false}
  output_schema: {type: object, additionalProperties: false}
"""
SETTINGS = """\
[tools]
paths = ["tools"]

[store]
url = "sqlite:///calls.db"

[[grants]]
agent = "shop-agent"
tool = "find_order"
"""


@pytest.fixture
def registry(run, write, good):
    write("counterseal.toml", SETTINGS)
    write("tools/find_order.yaml", good)
    write("tools/find_order_2.yaml", good.replace("1.0.0", "2.0.0"))
    write("tools/draft_reply.yaml", DRAFT)

    def registry(*arguments):
        return run("registry", *arguments)

    return registry


@pytest.fixture
def kill(registry):
    def kill(*arguments):
        return registry("kill", *arguments, "--reason", "leak", "--by", "u_1", "--yes")

    return kill


def statuses(registry):
    rows = json.loads(registry("list", "--json").stdout)["records"]
    return {(row["tool"], row["version"]): row["status"] for row in rows}


def changes(registry):
    return json.loads(registry("log", "--json").stdout)["changes"]


# Stopping ----------------------------------------------------------------------------------------


def test_kill_shows_what_it_stops_and_how_to_undo_it(registry, kill):
    result = kill("find_order")
    assert result.exit_code == 0
    assert result.stdout == "kill_1 stops find_order.\n"
    assert "It stops:\n  find_order 2.0.0\n  find_order 1.0.0\n" in result.stderr
    assert "`counterseal registry restore kill_1`" in result.stderr
    assert statuses(registry) == {
        ("draft_reply", "1.0.0"): "active",
        ("find_order", "2.0.0"): "killed",
        ("find_order", "1.0.0"): "killed",
    }


@pytest.mark.parametrize(
    ("aim", "told", "stopped"),
    [
        (["--effect", "draft"], "every draft tool", {"draft_reply"}),
        (["--all"], "everything", {"draft_reply", "find_order"}),
    ],
)
def test_kill_of_many_tools(registry, kill, aim, told, stopped):
    assert kill(*aim).stdout == f"kill_1 stops {told}.\n"
    assert {tool for (tool, _), status in statuses(registry).items() if status == "killed"} == (
        stopped
    )


@pytest.mark.parametrize(("said", "code", "made"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 1, 0)])
def test_kill_asks_first(registry, said, code, made):
    arguments = ["registry", "kill", "find_order", "--reason", "leak"]
    result = CliRunner().invoke(app, arguments, input=said)
    assert result.exit_code == code
    assert "Stop it? [y/N]" in result.stderr
    assert len(changes(registry)) == made


def test_kill_asks_for_a_missing_reason(registry):
    arguments = ["registry", "kill", "--all", "--yes"]
    assert CliRunner().invoke(app, arguments, input="leak\n").exit_code == 0
    (change,) = changes(registry)
    assert change["reason"] == "leak"
    assert change["by"], "somebody ran this test"


def test_second_kill_says_that_everything_is_stopped_already(kill):
    kill("--all")
    result = kill("find_order")
    assert result.exit_code == 0
    assert "Everything it covers is stopped already." in result.stderr


def test_kill_as_json_names_the_kill_and_what_it_stops(kill):
    data = json.loads(kill("find_order", "--json").stdout)
    assert (data["kill"]["id"], data["kill"]["tool"]) == ("kill_1", "find_order")
    assert (data["kill"]["reason"], data["kill"]["by"]) == ("leak", "u_1")
    assert data["stops"] == [
        {"tool": "find_order", "version": "2.0.0"},
        {"tool": "find_order", "version": "1.0.0"},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one thing to stop"),
        (["find_order", "--all"], "exactly one thing to stop"),
        (["find_ordre"], "did you mean find_order?"),
        (["--effect", "drafts"], "effect: 'drafts' is not one of"),
        (["--all", "--tenant", "acme corp"], "tenant must not contain a space"),
        (["--all", "--store", "memory:"], "The project has no store that workers share."),
        (["--all", "--store", "nothing:x"], "unknown store 'nothing'"),
    ],
)
def test_kill_that_makes_no_sense_exits_2_and_stops_nothing(registry, kill, arguments, message):
    result = kill(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert changes(registry) == []


def test_project_with_a_broken_tool_can_still_be_stopped(registry, kill, write):
    write("tools/broken.yaml", DRAFT.replace("draft_reply", "bad name"))
    result = kill("find_order")
    assert (result.exit_code, result.stdout) == (0, "kill_1 stops find_order.\n")
    assert "Run `counterseal lint`" in result.stderr


def test_kill_of_one_tenant_says_so_and_asks_about_a_name_that_is_not_on_record(registry, kill):
    result = kill("find_order", "--tenant", "acme")
    told = "kill_1 stops find_order in the tenant acme.\n"
    assert (result.exit_code, result.stdout) == (0, told)
    assert "No call of the tenant 'acme' is on record. Is the name right?" in result.stderr
    assert statuses(registry)["find_order", "1.0.0"] == "active", "in other tenants"
    assert "kill_1 stops find_order in the tenant acme" in registry("list").stdout
    assert changes(registry)[0]["tenant"] == "acme"
    assert registry("restore", "--reason", "mended").exit_code == 0


# Undoing -----------------------------------------------------------------------------------------


def test_the_only_kill_is_undone_without_its_id(registry, kill):
    kill("find_order")
    result = registry("restore", "--reason", "mended")
    assert (result.exit_code, result.stdout) == (0, "kill_1 is undone.\n")
    assert set(statuses(registry).values()) == {"active"}


def test_one_of_several_kills_is_undone_by_its_id(registry, kill):
    kill("find_order")
    kill("--all")
    result = registry("restore", "--reason", "mended")
    assert result.exit_code == 2
    assert "kill_1 stops find_order (u_1: leak)\nkill_2 stops everything" in result.stderr
    result = registry("restore", "kill_2", "--reason", "mended")
    assert result.exit_code == 0
    assert "kill_1 stops find_order" in result.stderr, "what is still in force is said"
    assert statuses(registry)["draft_reply", "1.0.0"] == "active"
    assert statuses(registry)["find_order", "1.0.0"] == "killed"


def test_kill_that_is_not_in_force_can_not_be_undone(registry, kill):
    assert registry("restore", "--reason", "mended").exit_code == 1
    kill("--all")
    result = registry("restore", "kill_9", "--reason", "mended")
    assert result.exit_code == 2
    assert "kill_9 is not in force; in force: kill_1" in result.stderr


# Disabling ---------------------------------------------------------------------------------------


def test_one_version_is_disabled_and_enabled_again(registry):
    result = registry("disable", "find_order", "--version", "2.0.0", "--reason", "wrong totals")
    assert (result.exit_code, result.stdout) == (0, "find_order 2.0.0 is disabled.\n")
    assert statuses(registry)["find_order", "2.0.0"] == "disabled"
    assert statuses(registry)["find_order", "1.0.0"] == "active"
    result = registry("enable", "find_order", "--reason", "mended", "--json")
    assert json.loads(result.stdout)["op"] == "enable"
    assert statuses(registry)["find_order", "2.0.0"] == "active"


def test_tool_or_version_that_is_not_there_can_not_be_disabled(registry):
    assert registry("disable", "find_ordre", "--reason", "x").exit_code == 2
    result = registry("disable", "find_order", "--version", "3", "--reason", "x")
    assert result.exit_code == 2
    assert "find_order has no version '3'; registered: 2.0.0, 1.0.0" in result.stderr


# Looking -----------------------------------------------------------------------------------------


def test_list_shows_where_operators_have_left_what_code_declares(registry, kill):
    registry("disable", "draft_reply", "--reason", "wrong totals", "--by", "u_2")
    kill("find_order")
    result = registry("list")
    assert result.exit_code == 0
    (line,) = (line for line in result.stdout.splitlines() if "draft_reply" in line)
    assert "disabled" in line
    shown = " ".join(result.stdout.split())
    assert "enabled: false, not true (u_2: wrong totals)" in shown
    assert result.stdout.endswith("\nkill_2 stops find_order (u_1: leak)\n")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_log_lists_who_changed_what_and_why(registry, kill):
    assert "No changes yet." in registry("log").stderr
    kill("--effect", "draft")
    registry("restore", "--reason", "mended", "--by", "u_2")
    result = registry("log")
    first, second = result.stdout.splitlines()[1:]
    assert first.split()[0] == "1"
    assert "u_1  kill every draft tool (kill_1)  leak" in first
    assert "u_2  restore kill_1" in second
    assert [(one["number"], one["op"]) for one in changes(registry)] == [
        (1, "kill"),
        (2, "restore"),
    ]


def test_without_a_store_in_the_settings_the_command_says_where_to_write_it(registry, write):
    write("counterseal.toml", "")
    result = registry("log")
    assert result.exit_code == 2
    assert "[store] url" in result.stderr


def test_help_fits_into_80_columns(registry):
    for command in (
        (),
        ("list",),
        ("kill",),
        ("restore",),
        ("enable",),
        ("disable",),
        ("accept-risk",),
        ("log",),
    ):
        assert max(map(len, registry(*command, "--help").stdout.splitlines())) <= 80


# Tools of upstreams -------------------------------------------------------------------------------


@pytest.fixture
def behind(registry, run, write, server):
    """An upstream with an accepted tool, and a grant for one that nobody has accepted."""
    command = json.dumps(server(server.tool("read_file")))
    upstream = f'[upstreams.files]\ncommand = {command}\nunlisted = "gated"\nprefix = "f_"\n'
    grants = "".join(
        f'[[grants]]\nagent = "shop-agent"\ntool = "f_{name}"\n' for name in ("read_file", "other")
    )
    write("counterseal.toml", SETTINGS + grants + upstream)
    assert run("diff", "--accept", "--yes").exit_code == 0
    (write("tools.json", "[]")).unlink()  # nobody asks the upstream again


def test_accepted_tool_of_an_upstream_is_listed_and_stopped_like_any_other(behind, registry, kill):
    before = registry("list", "--json")
    assert (before.exit_code, before.stderr) == (0, "")
    assert statuses(registry)["f_read_file", "1.0.0"] == "active"
    assert kill("f_read_file").stdout == "kill_1 stops f_read_file.\n"
    assert statuses(registry)["f_read_file", "1.0.0"] == "killed"
    assert statuses(registry)["find_order", "1.0.0"] == "active"


def test_upstream_whose_files_are_broken_does_not_keep_others_from_being_stopped(
    behind, registry, kill, write
):
    write("counterseal.lock", "<<<<<<< mine\n")
    result = kill("find_order")
    assert (result.exit_code, result.stdout) == (0, "kill_1 stops find_order.\n")
    assert "counterseal.lock: not valid JSON" in result.stderr


# Accepting a lower risk class --------------------------------------------------------------------

LOWERED = """\
identity: {name: wipe_sandbox, version: 1.0.0, owner: shop}
effect: irreversible
transactional: {side_effect_class: LOW_RISK_INTERNAL}
risk_justification: The sandbox is filled again every night.
usage: Call it to empty the sandbox.
consequence: The sandbox is emptied.
affordance:
  model_description: Empty the sandbox.
  input_schema: {type: object, additionalProperties: false}
  output_schema: {type: object, additionalProperties: false}
"""


@pytest.fixture
def accept(registry, write):
    write("tools/wipe_sandbox.yaml", LOWERED)

    def accept(*arguments):
        return registry(
            "accept-risk", "wipe_sandbox", "--version", "1.0.0", "--by", "u_1", *arguments
        )

    return accept


def judged(registry):
    rows = json.loads(registry("list", "--json").stdout)["records"]
    return next(
        (row["judged_as"], row["risk_accepted"]) for row in rows if row["tool"] == "wipe_sandbox"
    )


def test_lower_risk_class_is_accepted_and_taken_back_on_record(registry, accept):
    assert judged(registry) == ("CRITICAL_MUTATION", False)
    result = accept("--reason", "looked at it", "--yes")
    assert result.exit_code == 0
    assert result.stdout == "Calls of wipe_sandbox 1.0.0 are judged as LOW_RISK_INTERNAL.\n"
    assert "declares   LOW_RISK_INTERNAL: The sandbox is filled again every night." in result.stderr
    assert judged(registry) == ("LOW_RISK_INTERNAL", True)
    listed = " ".join(registry("list").stdout.split())
    assert "lower risk class accepted (u_1: looked at it)" in listed
    assert accept("--withdraw", "--reason", "it moved").exit_code == 0
    assert judged(registry) == ("CRITICAL_MUTATION", False)
    log = registry("log").stdout
    assert "u_1  accept LOW_RISK_INTERNAL for" in log
    assert "u_1  judge wipe_sandbox 1.0.0 by its" in log
    assert [one["op"] for one in changes(registry)] == ["accept_risk", "accept_risk"]


def test_acceptance_asks_first(registry, accept):
    result = accept("--reason", "looked at it")
    assert result.exit_code == 1
    assert changes(registry) == []


def test_acceptance_ends_when_the_contract_changes(registry, accept, write):
    accept("--reason", "looked at it", "--yes")
    write("tools/wipe_sandbox.yaml", LOWERED.replace("every night", "now and then"))
    assert judged(registry) == ("CRITICAL_MUTATION", False)


def test_contract_that_lowers_nothing_has_nothing_to_accept(registry, accept):
    result = registry(
        *("accept-risk", "draft_reply", "--version", "1.0.0"),
        *("--reason", "x", "--by", "u_1", "--yes"),
    )
    assert result.exit_code == 2
    assert "does not lower the risk class of its effect" in result.stderr
    assert changes(registry) == []


# Versions that are held for review ---------------------------------------------------------------


async def work_once():
    async with counterseal.open_project():
        pass


def test_held_version_is_listed_accepted_and_logged(registry, write, good):
    asyncio.run(work_once())
    writes = good.replace("read_only", "internal_mutation")
    write("tools/find_order_3.yaml", writes.replace("1.0.0", "3.0.0"))
    asyncio.run(work_once())
    assert statuses(registry)["find_order", "3.0.0"] == "held_for_review"
    assert "held for review: " in registry("list").stdout

    options = ("--version", "3.0.0", "--reason", "agreed", "--by", "ana")
    result = registry("accept", "find_order", *options, "--yes")
    assert (result.exit_code, result.stdout) == (
        0,
        "find_order 3.0.0 is accepted; new runs can get it.\n",
    )
    assert 'effect-raised: effect changed from "read_only" to' in result.stderr
    assert statuses(registry)["find_order", "3.0.0"] == "active"
    (change,) = changes(registry)
    assert (change["op"], change["by"], change["reason"]) == ("accept_version", "ana", "agreed")
    assert "accept_version find_order 3.0.0" in registry("log").stdout

    again = registry("accept", "find_order", *options, "--yes")
    assert (again.exit_code, "is not held for review" in again.stderr) == (2, True)
