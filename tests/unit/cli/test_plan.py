"""`counterseal plan`: what becomes of each step, what the verdict is, and that nothing happens."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from counterseal import Runtime

TOOLS = '''\
from pathlib import Path
from typing import Annotated

from pydantic import Field

from counterseal import DROP_STEP, Invariant, tool

Words = Annotated[str, Field(max_length=80, description="What to look for.")]
Web = Annotated[bool, Field(description="Search the web as well.")]


@tool(
    effect="retrieve",
    version="1.0.0",
    owner="evidence",
    invariants=[
        Invariant(
            id="WEB",
            rule="A search for news needs the web.",
            check="!call.words.contains('news') || (has(call.web) && call.web)",
            correct={"set": {"web": True}},
        ),
        Invariant(
            id="ONCE",
            rule="Nothing is searched twice.",
            check="!earlier.exists(step, step.arguments.words == call.words)",
            correct=DROP_STEP,
        ),
    ],
)
def search(words: Words, web: Web = False) -> dict[str, str]:
    """Search."""
    Path("searched").touch()
    return {}


@tool(effect="external_notification", version="1.0.0", owner="evidence", consequence="Sent.")
def send(words: Words) -> dict[str, str]:
    """Send it."""
    Path("sent").touch()
    return {}
'''
CONFIG = """\
[tools]
paths = ["tools.py"]
[planning]
paths = ["rules.yaml"]
[[grants]]
agent = "bot"
tool = "search"
[[grants]]
agent = "bot"
tool = "send"
[agents.bot]
tenant = "acme"
user = "u_1"
"""
RULES = """\
plan_rules:
  - id: sent-plans-search-first
    rule: What is sent was searched for in the same plan.
    when: run.objective != null && run.objective.contains("careful")
    check: steps.exists(s, s.tool == "search") || !steps.exists(s, s.tool == "send")
"""
NEWS = {"tool": "search", "arguments": {"words": "news"}}
SEND = {"tool": "send", "arguments": {"words": "news"}}


@pytest.fixture
def plan(run, write):
    write("tools.py", TOOLS)
    write("counterseal.toml", CONFIG)
    write("rules.yaml", RULES)

    def plan(data, *flags, name="plan.json"):
        write(name, data if isinstance(data, str | bytes) else json.dumps(data))
        return run("plan", name, "--as", "bot", *flags)

    return plan


def fates(result):
    return re.findall(
        r"^  \d+ +\S* +(keep|correct|hold|drop|reject)\b", result.stdout, re.MULTILINE
    )


def test_page_shows_every_step_what_was_corrected_and_the_verdict(plan):
    result = plan([NEWS, NEWS, SEND])
    assert result.exit_code == 0
    assert result.stdout == (
        "plan.json  as bot (tenant acme, user u_1)\n"
        "\n"
        "  Step  Tool    Outcome  Why\n"
        "  1     search  correct  A search for news needs the web.\n"
        "  2     search  drop     This step should not be taken: Nothing is searched\n"
        "                         twice.\n"
        "  3     send    hold     A person must approve a call that reaches people or\n"
        "                         systems outside.\n"
        "\n"
        "Corrected\n"
        "  step 1 web: not given → true (WEB)\n"
        "\n"
        "Nothing was executed.\n"
        "accepted: 3 steps, 1 corrected, 1 held, 1 dropped\n"
    )
    assert result.stderr == ""


def test_rejected_plan_tells_every_fault_at_once_and_exits_1(plan):
    steps = [{"tool": "search", "arguments": {"words": 7}}, {"tool": "serch"}, SEND, 7]
    result = plan({"objective": "be careful", "steps": steps})
    assert result.exit_code == 1
    assert fates(result) == ["reject", "reject", "hold", "reject"]
    for told in (
        "/words: words must be string",
        "There is no such tool here.",
        "expected one of: search, send",
        "A step is a tool and its arguments.",
        "\nBroken plan rules\n  sent-plans-search-first: What is sent was searched for",
        "\nrejected: 4 steps, 1 held, 3 rejected, 1 plan rule broken\n",
    ):
        assert told in result.stdout


@pytest.mark.parametrize(
    ("data", "flags", "code"),
    [
        ([SEND], [], 0),
        ([SEND], ["--objective", "be careful"], 1),
        ({"steps": [SEND], "objective": "be careful"}, [], 1),
        ({"steps": [SEND], "objective": "be careful"}, ["--objective", "be quick"], 0),
        ({"steps": [SEND], "objective": None}, ["--run", "run_7"], 0),
        ([], ["--objective", "be careful"], 0),
    ],
)
def test_objective_comes_from_the_file_unless_it_is_given(plan, data, flags, code):
    assert plan(data, *flags).exit_code == code


def test_yaml_is_read_too(plan):
    text = "objective: news\nsteps:\n  - tool: search\n    arguments: {words: a, web: false}\n"
    result = plan(text, name="plan.yaml")
    assert (result.exit_code, fates(result)) == (0, ["keep"])


def test_json_is_the_plans_record(plan):
    result = plan([NEWS, {"tool": "gone"}], "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (data["ok"], data["next_action"]) == (False, "replan")
    assert [step["fate"] for step in data["steps"]] == ["correct", "reject"]
    changes = data["steps"][0]["corrections"][0]["changes"]
    assert changes == [{"field": "/web", "after": True}]


@pytest.mark.parametrize("flags", [["--tenant", "globex", "--user", "u_9"]])
def test_flags_stand_instead_of_what_the_file_says(plan, flags):
    assert "as bot (tenant globex, user u_9)" in plan([NEWS], *flags).stdout


def test_nothing_is_executed_and_only_what_was_changed_is_recorded(plan, folder, monkeypatch):
    opened = []
    real = Runtime.open.__func__

    def spy(cls, *arguments, **options):
        opened.append(real(cls, *arguments, **options))
        return opened[0]

    monkeypatch.setattr(Runtime, "open", classmethod(spy))
    assert plan([NEWS, NEWS, SEND, {"tool": "gone"}]).exit_code == 1
    store = opened[0].store

    async def kept():
        memory = await store.recall("acme", "run_1", None)
        counted = [counters for counters in memory[2:] if counters]
        return [event.type for _, event in await store.events("acme")], counted

    assert asyncio.run(kept()) == (["tool.corrected", "tool.dropped"], [])
    assert not Path(folder, "searched").exists()
    assert not Path(folder, "sent").exists()


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("plan.json", "7", "not a plan"),
        ("plan.json", {"step": []}, "not a plan"),
        ("plan.json", {"steps": {}}, "not a plan"),
        ("plan.json", {"steps": [], "goal": "x"}, "unknown key 'goal' in a plan"),
        ("plan.json", {"steps": [], "objective": 7}, "objective must be a text"),
        ("plan.json", '{"steps": [', "plan.json:1:12: not JSON"),
        ("plan.yaml", "steps: [\n  a: b: c\n", "plan.yaml:2:"),
        ("plan.json", b"\xff", "byte 0xff is not UTF-8"),
        ("plan.txt", "[]", "the suffix is .txt"),
        ("plan.json", " " * 300_000, "the limit is"),
    ],
)
def test_input_that_is_no_plan_is_wrong_use(plan, name, data, told):
    result = plan(data, name=name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_missing_file_agent_and_run_are_wrong_use(plan, run):
    assert "can't be opened: No such file" in run("plan", "gone.json", "--as", "bot").stderr
    assert run("plan", "gone.json", "--as", "bot").exit_code == 2
    assert plan([], "--run", "").exit_code == 2
    nobody = run("plan", "plan.json")
    assert (nobody.exit_code, "--as AGENT" in nobody.stderr) == (2, True)


def test_plan_rules_that_cannot_be_used_are_wrong_use_with_a_place(plan, write):
    write("rules.yaml", RULES.replace("check:", "chek:"))
    result = plan([NEWS])
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(r"rules\.yaml:5:5: .*chek is not a field of a plan rule", result.stderr)


def test_page_fits_into_80_columns_whatever_the_plan_says(plan):
    long = {"tool": "x" * 128 + "\x1b[31m\n", "arguments": {"words": "y" * 500}}
    other = {"tool": "search", "arguments": {"words": "news " * 15, "z" * 300: 1}}
    result = plan([long, other, {"tool": "search", "arguments": {"words": "news " * 15}}])
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout


@pytest.mark.slow
def test_terminal_without_the_arrow_gets_a_plain_one(plan):
    plan([NEWS])
    done = subprocess.run(
        [sys.executable, "-m", "counterseal", "plan", "plan.json", "--as", "bot"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
    )
    assert "web: not given -> true (WEB)" in done.stdout
