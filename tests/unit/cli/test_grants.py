"""`counterseal grants`: give, list and revoke, on record."""

import json

import pytest

SETTINGS = """\
[tools]
paths = ["tools"]

[store]
url = "sqlite:///calls.db"

[[grants]]
agent = "shop-agent"
tool = "find_order"
"""
WHY = ("--reason", "a pilot", "--by", "ana")


@pytest.fixture
def grants(run, write, good):
    write("counterseal.toml", SETTINGS)
    write("tools/find_order.yaml", good)

    def grants(*arguments):
        return run("grants", *arguments)

    return grants


def listed(grants, *options):
    return json.loads(grants("list", *options, "--json").stdout)["grants"]


def test_grant_is_given_listed_revoked_and_on_record(grants, run):
    limits = ("--version", ">=1.0,<2", "--max-calls", "3", "--tenant", "acme")
    made = grants("add", "pilot", "find_order", *limits, *WHY)
    assert (made.exit_code, made.stderr) == (0, "")
    assert "pilot may use find_order, up to read_only." in made.stdout
    (row,) = listed(grants, "--agent", "pilot")
    assert (row["version"], row["max_calls_per_run"], row["tenant"]) == (">=1.0,<2", 3, "acme")
    assert row["max_effect"] == "read_only"
    shown = " ".join(grants("list").stdout.split())
    assert "pilot find_order >=1.0,<2 tenant acme; up to read_only; calls a run 3" in shown

    gone = grants("revoke", row["id"], *WHY)
    assert gone.exit_code == 0
    assert listed(grants, "--agent", "pilot") == []
    log = json.loads(run("registry", "log", "--json").stdout)["changes"]
    assert [(one["op"], one["by"]) for one in log] == [("grant", "ana"), ("revoke", "ana")]


def test_grant_of_the_project_is_revoked_as_well(grants):
    (row,) = listed(grants, "--tool", "find_order")
    assert (row["agent"], row["max_effect"]) == ("shop-agent", None)
    assert grants("revoke", row["id"], *WHY).exit_code == 0
    assert listed(grants) == []
    assert "No grants." in grants("list").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "pilot", "nothing"), "the tool is not registered"),
        (("add", "pilot", "find_order", "--mode", "fly"), "mode: must be one of read, draft"),
        (("add", "pilot", "find_order", "--max-effect", "fly"), "max_effect: must be one of"),
        (("revoke", "grant_0"), "There is no grant 'grant_0'."),
    ],
)
def test_grant_that_makes_no_sense_is_refused(grants, arguments, said):
    result = grants(*arguments, *WHY)
    assert (result.exit_code, said in result.stderr) == (2, True)
