"""The example's README: its tables are the contracts', and what it says can be done works."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterseal.cli.app import app
from tests.examples.case_assistant.office import FOLDER, REASON, TOOLS, example
from tests.examples.case_assistant.tables import BLOCK, EVENTS, FAILURES, README, tables, written

TEXT = README.read_text(encoding="utf-8")


def test_its_tables_are_up_to_date():
    """If not: python -m tests.examples.case_assistant.tables."""
    assert written(TEXT) == TEXT


def test_it_has_every_table_once_and_all_ten_deliverables():
    assert sorted(found[2] for found in BLOCK.finditer(TEXT)) == sorted(tables())
    assert re.findall(r"^### (\d+)\. ", TEXT, re.MULTILINE) == [str(n) for n in range(1, 11)]
    for name in TOOLS:
        assert TEXT.count(f"| `{name}` |") >= 8


def test_every_failure_test_that_it_names_is_there_and_every_tool_has_some():
    for (_, file), tests in FAILURES.items():
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        assert not [name for name in tests.values() if f"def test_{name}(" not in text]
    named = {who for who, _ in FAILURES}
    assert set(TOOLS) - named == {"get_case_summary"}, "which is one of the reads"


def test_what_it_links_to_is_there():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 15
    assert not [link for link in links if not (FOLDER / link).exists()]


def test_its_commands_for_a_try_by_hand_work(tmp_path, monkeypatch):
    example.project.write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CASE_ASSISTANT_HOME", raising=False)
    commands = re.findall(r"^\$ counterseal (.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command), prog_name="counterseal")
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", TOOLS)
async def test_a_call_with_which_all_goes_well_leaves_the_events_that_it_lists(own_office, name):
    office, case_id = own_office, "case_100001"
    if name == "send_approved_notice":
        assert (await office.send(await office.approved(case_id))).ok
    elif name == "request_human_approval":
        await office.in_review(case_id)
    elif name == "create_notice_draft":
        await office.draft(case_id)
    elif name == "update_case_status":
        await office.move(case_id, "under_review")
    else:
        asked = {"case_id": case_id, "query": "flour"}
        wanted = TOOLS[name].affordance.input_schema["properties"]
        given = {"topic": "appeals"} if "topic" in wanted else asked
        given = {key: value for key, value in given.items() if key in wanted}
        assert (await office.call("risk-agent", name, **given)).ok
    await office.reconcile()
    events = [event for event in await office.events() if event.caller.tool == name]
    assert tuple(event.type.value for event in events) == EVENTS[name]


async def test_what_it_says_of_other_ends_is_so(own_office):
    office, asked = own_office, {"draft_id": "x", "reason": REASON}
    refused = await office.move("case_100001", "closed", who="intake-agent")
    mended = await office.call("risk-agent", "request_human_approval", **asked)
    notice = await office.approved("case_100001")
    office.books.misbehave("lose_answer")
    found = await office.send(notice)
    await office.send(notice)
    await office.reconcile()
    every = await office.events()
    kinds = {
        seen.call_id: [one.type.value for one in every if one.caller.call_id == seen.call_id]
        for seen in (refused, mended, found)
    }
    assert kinds[refused.call_id] == ["gate.policy.refused", "tool.denied"]
    assert kinds[mended.call_id] == ["gate.schema.refused", "tool.denied", "path.repair"]
    assert "tool.reconciled" in kinds[found.call_id]
    assert "tool.replayed" in [one.type.value for one in every]
