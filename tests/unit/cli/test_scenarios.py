"""`counterseal scenarios`: pages, exit codes, comparisons."""

import json

import pytest

from tests.unit.evaluation.scenario_world import CONFIG, TOOLS

GOOD = """\
scenarios:
  - name: look
    objective: Look o_1 up.
    agent: support
    expect: {calls: [{tool: get_order}]}
    script: [{tool: get_order, arguments: {order_id: o_1}}]
"""


@pytest.fixture(autouse=True)
def project(write):
    write("counterseal.toml", CONFIG)
    write("tools.py", TOOLS)
    write("good.yaml", GOOD)
    write("bad.yaml", GOOD.replace("order_id: o_1", "order: o_1"))


def test_report_names_scenarios_measures_and_powers(run):
    result = run("scenarios", "run", "good.yaml", "--trials", "2")
    assert result.exit_code == 0
    assert "look      2 of 2" in result.stdout
    assert "Selection accuracy" in result.stdout
    assert "pass^2 100%" in result.stdout


def test_failed_trial_is_explained_and_fails_the_command(run):
    result = run("scenarios", "run", "bad.yaml")
    assert result.exit_code == 1
    assert "get_order() was not carried out" in result.stdout
    assert "Refused by: schema 1." in result.stdout


def test_saved_reports_are_compared(run):
    for name in ("good", "bad"):
        run("scenarios", "run", f"{name}.yaml", "--save", f"{name}.json", "--label", name)
    result = run("scenarios", "compare", "good.json", "bad.json")
    assert result.exit_code == 0
    assert "pass^1                100%  0%" in result.stdout
    labels = [
        report["label"]
        for report in json.loads(
            run("scenarios", "compare", "good.json", "bad.json", "--json").stdout
        )
    ]
    assert labels == ["good", "bad"]


def test_comparison_names_contracts_that_differ(run, write):
    run("scenarios", "run", "good.yaml", "--save", "one.json")
    write("tools.py", TOOLS.replace("Look up an order.", "Look one order up."))
    run("scenarios", "run", "good.yaml", "--save", "other.json", "--label", "other")
    result = run("scenarios", "compare", "one.json", "other.json")
    assert "Differs between script and other: get_order." in result.stdout


def test_mutation_shows_wordings_side_by_side(run):
    result = run("scenarios", "run", "good.yaml", "--mutate", "descriptions", "--save", "m.json")
    assert result.exit_code == 0
    assert "no descriptions" in result.stdout
    assert run("scenarios", "compare", "m.json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "missing.yaml"], "can't be opened"),
        (["run", "good.yaml", "--agent", "nobody"], "is not an agent"),
        (["run", "good.yaml", "--mutate", "tools"], "--mutate must be descriptions"),
        (["run", "good.yaml", "--setup", "none.py:f"], "--setup: none.py can't be imported"),
        (["run", "good.yaml", "--prompt", "none.txt"], "Can't read none.txt"),
        (["run", "good.yaml", "--agent", "none.jsonl"], "can't read none.jsonl"),
        (["import", "excel", "good.yaml"], "FORMAT must be one of trajectories, openai"),
        (["import", "openai", "none.json"], "can't read none.json"),
        (["export", "word", "good.json"], "FORMAT must be one of trajectories, junit"),
        (["compare", "good.yaml"], "good.yaml: "),
        (["compare", "none.json"], "Can't read none.json"),
    ],
)
def test_wrong_use_says_what_is_wrong(run, words, message):
    result = run("scenarios", *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_trajectories_go_out_and_come_in_again(run, write):
    run("scenarios", "run", "good.yaml", "--save", "good.json")
    assert (
        run("scenarios", "export", "trajectories", "good.json", "--out", "did.jsonl").exit_code == 0
    )
    result = run("scenarios", "run", "good.yaml", "--agent", "did.jsonl")
    assert result.exit_code == 0
    assert "look      1 of 1" in result.stdout
    printed = run("scenarios", "export", "junit", "good.json").stdout
    assert printed.startswith("<?xml")
    both = run("scenarios", "export", "inspect", "good.json", "good.json")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "an Inspect log holds one report, and 2 were given" in both.stderr


def test_imported_conversation_is_named_after_its_scenario(run, write):
    write("chat.json", '[{"role": "user", "content": "Look."}]')
    result = run("scenarios", "import", "openai", "chat.json", "--name", "look", "--json")
    assert [one["name"] for one in json.loads(result.stdout)] == ["look"]
    write("two.json", '[{"name": "a", "messages": []}, {"name": "b", "messages": []}]')
    assert run("scenarios", "import", "openai", "two.json", "--name", "look").exit_code == 2
