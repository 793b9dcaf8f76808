"""The seven tools of the case assistant pass the evaluation that their contracts generate."""

import pytest

from counterseal.config.project import open_project
from counterseal.evaluation.evaluator import evaluate, subjects_of
from counterseal.evaluation.modes import MODES
from tests.examples.case_assistant.office import example

pytestmark = pytest.mark.slow


async def test_every_tool_passes_every_mode_that_applies(tmp_path, monkeypatch):
    monkeypatch.setenv("CASE_ASSISTANT_HOME", str(tmp_path))
    runtime = open_project(example.project.write_project(tmp_path), store="memory:")
    report = await evaluate(await subjects_of(runtime))
    assert report.ok, report.markdown()
    assert report.missing() == {}
    assert len(report.tools) == 7
    untried = {(cell.tool, cell.mode) for cell in report.cells if cell.status == "not tried"}
    assert untried == set()
    applies = {cell.mode for cell in report.cells if cell.status == "passed"}
    assert applies == set(report.modes)


READS = {
    "get_case_summary": {"case_id": "case_100001"},
    "search_case_evidence": {"case_id": "case_100001", "query": "the"},
    "fetch_policy_excerpt": {"policy_id": "pol_appeals"},
}


async def test_the_functions_that_read_pass_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("CASE_ASSISTANT_HOME", str(tmp_path))
    runtime = open_project(example.project.write_project(tmp_path), store="memory:")
    declared = {name: {"run": "real", "arguments": given} for name, given in READS.items()}
    chosen = [mode for mode in MODES if mode.name in ("permissions", "observation", "injection")]
    report = await evaluate(
        await subjects_of(runtime, list(READS), declared=declared), modes=chosen
    )
    assert report.ok, report.markdown()
    assert {tool.ran for tool in report.tools} == {"its function"}
    assert {cell.status for cell in report.cells} == {"passed"}
