"""`counterseal diff OLD NEW`: changes with ids, for CI, and exceptions to them."""

import asyncio
import json
import subprocess

import pytest

import counterseal
from counterseal.contract.sources.mcp.lock import Lock

from .conftest import GOOD

WRITES = GOOD.replace("effect: read_only", "effect: internal_mutation").replace("1.0.0", "2.0.0")
REWORDED = GOOD.replace("Find one order.", "Find an order.")


def edited(version, *replacements):
    text = GOOD.replace("1.0.0", version)
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def compared(run, write):
    """Compares two texts of a contract."""

    def compared(old, new, *options):
        write("old/orders.yaml", old)
        write("new/orders.yaml", new)
        return run("diff", "old", "new", *options)

    return compared


@pytest.fixture
def git(folder):
    def git(*arguments):
        who = ["-c", "user.name=jo", "-c", "user.email=jo@example.org"]
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    return git


# Reading ------------------------------------------------------------------------------------------


def test_contracts_without_a_change_are_said_to_be_so(compared):
    result = compared(GOOD, GOOD)
    assert (result.exit_code, result.stdout) == (0, "No changes.\n")


def test_tool_that_begins_to_write_needs_a_decision(compared):
    result = compared(GOOD, WRITES)
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())
    assert "find_order 1.0.0 to 2.0.0" in shown
    assert 'effect-raised effect changed from "read_only" to "internal_mutation"' in shown
    assert "callers: breaking, models: behaviour may move, guardians: governance review" in shown
    assert "needs a new major version; the major version rose" in shown
    assert "for governance review" in shown


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [
        ("1.0.0", 1, "needs a new patch version; the version did not rise"),
        ("1.0.1", 0, "needs a new patch version; the patch version rose"),
    ],
)
def test_version_has_to_rise_with_every_change(compared, version, code, said):
    result = compared(GOOD, edited(version, ("Find one order.", "Find an order.")))
    assert (result.exit_code, said in result.stdout) == (code, True)
    assert ("version-bump-missing" in result.stdout) is bool(code)


def test_break_that_its_version_announces_passes(compared):
    narrow = ("maxLength: 20", "maxLength: 10")
    assert compared(GOOD, edited("2.0.0", narrow)).exit_code == 0
    result = compared(GOOD, edited("1.1.0", narrow))
    assert result.exit_code == 1
    assert "needs a new major version, 2.0.0" in result.stdout


def test_new_tool_passes_and_a_removed_one_needs_a_decision(run, write):
    write("one.yaml", GOOD)
    write("two.yaml", GOOD.replace("find_order", "list_orders"))
    result = run("diff", "one.yaml", "two.yaml")
    assert result.exit_code == 1
    assert "list_orders 1.0.0 added" in result.stdout
    assert "find_order 1.0.0 removed" in result.stdout
    assert "2 changes in 2 tools, 1 breaking; 1 needs a decision." in result.stdout


def test_unreadable_side_is_wrong_use(run, write):
    write("good.yaml", GOOD)
    write("bad.yaml", "identity: {name: find_order}\neffect: nonsense\naffordance: {}\n")
    result = run("diff", "good.yaml", "bad.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing was compared" in result.stderr
    missing = run("diff", "good.yaml", "nowhere")
    assert missing.exit_code == 2
    assert "'nowhere' was not found. Expected: a file or folder" in missing.stderr


def test_python_files_of_both_folders_are_imported(run, write):
    code = """
from counterseal import tool

@tool(effect="{effect}", version="{version}", owner="shop")
def count_orders() -> int:
    \"\"\"Count the orders.\"\"\"
    return 1
"""
    write("old/tools.py", code.format(effect="read_only", version="1.0.0"))
    write("new/tools.py", code.format(effect="draft", version="2.0.0"))
    result = run("diff", "old", "new", "--json")
    assert result.exit_code == 1
    (tool,) = json.loads(result.stdout)["tools"]
    assert "effect-raised" in [change["id"] for change in tool["changes"]]


def test_versions_of_the_project_are_compared_by_name(run, write):
    write("counterseal.toml", '[tools]\npaths = ["contracts"]\n')
    write("contracts/one.yaml", GOOD)
    write("contracts/two.yaml", WRITES)
    result = run("diff", "find_order@1.0.0", "find_order@2.0.0", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert (record["old"], record["new"]) == ("find_order@1.0.0", "find_order@2.0.0")
    assert record["summary"]["undecided"] > 0
    unknown = run("diff", "find_order@1.0.0", "find_order@3.0.0")
    assert unknown.exit_code == 2
    assert "find_order@3.0.0: neither the project nor its store has this" in unknown.stderr


def test_version_that_only_the_store_knows_is_compared(run, write):
    store = '[store]\nurl = "sqlite:///calls.db"\n'
    write("counterseal.toml", f'[tools]\npaths = ["contracts"]\n{store}')
    write("contracts/orders.yaml", GOOD)

    async def work_once():
        async with counterseal.open_project():
            pass

    asyncio.run(work_once())
    write("contracts/orders.yaml", WRITES)
    result = run("diff", "find_order@1.0.0", "find_order@2.0.0")
    assert result.exit_code == 1
    assert "effect-raised" in result.stdout


def test_installed_package_is_a_side(run, write, monkeypatch, folder):
    write("site/order_tools/__init__.py", "")
    write("site/order_tools/orders.yaml", GOOD)
    monkeypatch.syspath_prepend(str(folder / "site"))
    write("orders.yaml", WRITES)
    result = run("diff", "package:order_tools", "orders.yaml", "--json")
    assert json.loads(result.stdout)["old"] == "package:order_tools"
    assert result.exit_code == 1
    missing = run("diff", "package:nowhere_at_all", "orders.yaml")
    assert "The package 'nowhere_at_all' is not installed" in missing.stderr


# Git ----------------------------------------------------------------------------------------------


def test_revisions_are_compared_with_each_other_and_with_files(run, write, git):
    write("contracts/orders.yaml", GOOD)
    git("add", "."), git("commit", "-qm", "one")
    git("checkout", "-qb", "change")
    write("contracts/orders.yaml", WRITES)
    for options in (("main", "contracts"), ("main:contracts", "contracts/orders.yaml")):
        assert "effect-raised" in run("diff", *options).stdout, "not committed yet"
    git("commit", "-qam", "two")
    result = run("diff", "main..change", "--format", "github")
    assert result.exit_code == 1
    raised = [line for line in result.stdout.splitlines() if "title=effect-raised" in line]
    (line,) = raised
    assert line.startswith("::error file=contracts/orders.yaml,line=2,")
    assert run("diff", "main..HEAD").stdout == run("diff", "main", "change").stdout
    assert run("diff", "change..change").stdout == "No changes.\n"


def test_python_files_of_a_revision_are_not_run(run, write, git, folder):
    bomb = "from pathlib import Path\nfrom counterseal import tool\nPath('ran').touch()\n"
    write("tools.py", bomb)
    git("add", "."), git("commit", "-qm", "one")
    result = run("diff", "main..HEAD")
    assert result.exit_code == 2
    assert not (folder / "ran").exists()
    assert "1 Python file with tools were not read (tools.py)" in result.stderr
    assert "git worktree add ../base main" in result.stderr
    write("orders.yaml", GOOD)
    git("add", "."), git("commit", "-qm", "two")
    result = run("diff", "main..HEAD")
    assert (result.exit_code, result.stdout) == (0, "No changes.\n")
    assert "reading them would run the code of that revision" in result.stderr


def test_revision_can_not_become_an_option_of_git(run, write, git, folder):
    write("orders.yaml", GOOD)
    git("add", "."), git("commit", "-qm", "one")
    result = run("diff", "--", "--output=stolen", "orders.yaml")
    assert result.exit_code == 2
    assert "was not found. Expected" in result.stderr
    assert not (folder / "stolen").exists()


# Formats ------------------------------------------------------------------------------------------


def test_json_has_both_values_and_a_verdict_for_each_audience(compared):
    result = compared(GOOD, WRITES, "--format", "json")
    (tool,) = json.loads(result.stdout)["tools"]
    assert (tool["old_version"], tool["new_version"]) == ("1.0.0", "2.0.0")
    assert (tool["bump_needed"], tool["bump_made"]) == ("major", "major")
    change = next(one for one in tool["changes"] if one["id"] == "effect-raised")
    assert change == {
        "id": "effect-raised",
        "pointer": "/effect",
        "message": 'effect changed from "read_only" to "internal_mutation"',
        "before": "read_only",
        "after": "internal_mutation",
        "callers": "breaking",
        "models": "behaviour_may_move",
        "guardians": "governance_review",
        "undecided": True,
        "exception": None,
    }


def test_sarif_names_rule_level_and_place(compared):
    sarif = json.loads(compared(GOOD, WRITES, "--format", "sarif").stdout)
    assert sarif["version"] == "2.1.0"
    (part,) = sarif["runs"]
    rules = [rule["id"] for rule in part["tool"]["driver"]["rules"]]
    result = next(one for one in part["results"] if one["ruleId"] == "effect-raised")
    assert (result["level"], rules[result["ruleIndex"]]) == ("error", "effect-raised")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "new/orders.yaml"
    assert place["region"]["startLine"] == 2


def test_markdown_is_a_table_of_a_pull_request(compared):
    text = compared(GOOD, WRITES, "--format", "markdown").stdout
    assert "### `find_order` 1.0.0 to 2.0.0" in text
    row = "| `effect-raised` **undecided** | effect changed from"
    assert row in text
    assert "| breaking | behaviour may move | governance review |" in text


# Exceptions ---------------------------------------------------------------------------------------


def allow(compared, *ids, until="30", because="agreed with security"):
    options = [part for one in ids for part in ("--allow", one)]
    return compared(GOOD, SCOPED, *options, "--because", because, "--until", until, "--by", "jo")


SCOPED = GOOD.replace("1.0.0", "1.1.0").replace("owner: shop", "owner: sales")


def test_allowed_change_passes_and_is_on_record(compared, folder):
    assert compared(GOOD, SCOPED).exit_code == 1
    result = allow(compared, "owner-changed")
    assert result.exit_code == 0
    assert "allowed by jo until" in " ".join(result.stdout.split())
    (record,) = Lock.load(folder / "counterseal.lock").exceptions
    assert record[:5] == (
        "owner-changed",
        "find_order",
        "1.1.0",
        "jo",
        "agreed with security",
    )
    assert compared(GOOD, SCOPED).exit_code == 0, "the next comparison reads the record"
    other = SCOPED.replace("1.1.0", "1.2.0")
    assert compared(GOOD, other).exit_code == 1, "it holds for one version"


def test_expired_exception_no_longer_holds(compared, folder):
    allow(compared, "owner-changed", until="2020-01-31")
    assert Lock.load(folder / "counterseal.lock").exceptions[0].ends_on == "2020-01-31"
    assert compared(GOOD, SCOPED).exit_code == 1


@pytest.mark.parametrize(
    ("ids", "because", "said"),
    [
        (["nonsense"], "x", "There is no change with the id 'nonsense'."),
        (["effect-raised"], "x", "No change has the id effect-raised; nothing was recorded."),
        (["owner-changed"], " ", "--allow needs a reason."),
    ],
)
def test_exception_without_a_change_or_a_reason_is_refused(compared, folder, ids, because, said):
    result = allow(compared, *ids, because=because)
    assert (result.exit_code, said in result.stderr) == (2, True)
    assert not (folder / "counterseal.lock").exists()


def test_exception_that_was_edited_to_nonsense_is_refused(compared, folder):
    allow(compared, "owner-changed")
    file = folder / "counterseal.lock"
    file.write_text(file.read_text().replace('"ends_on": "2', '"ends_on": "some day 2'))
    result = compared(GOOD, SCOPED)
    assert result.exit_code == 2
    assert "ends_on a day such as 2027-01-31" in result.stderr


def test_missing_side_is_explained(run, write):
    write("counterseal.toml", '[tools]\npaths = ["contracts"]\n')
    write("contracts/one.yaml", GOOD)
    result = run("diff", "contracts")
    assert result.exit_code == 2
    assert "name both sides: `counterseal diff OLD NEW`" in result.stderr
