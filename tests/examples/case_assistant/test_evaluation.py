"""The seven tools of the case assistant pass the evaluation that their contracts generate."""

import pytest

from counterseal.config.project import open_project
from counterseal.evaluation.evaluator import evaluate, subjects_of
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
