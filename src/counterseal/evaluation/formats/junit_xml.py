"""JUnit XML: a suite for each report, a test case for each trial, for CI systems."""

from __future__ import annotations

from collections.abc import Sequence

from counterseal.evaluation.report import JUnitCase, junit_text
from counterseal.evaluation.trials import ScenarioReport


def write(reports: Sequence[ScenarioReport]) -> str:
    """Return the reports as JUnit XML."""
    suites = {
        report.label: [
            JUnitCase(
                group=trial.scenario,
                name=f"trial {trial.number}",
                failed=None if trial.score.passed else trial.score.wrong[0],
                details="\n".join(trial.score.wrong),
            )
            for trial in report.trials
        ]
        for report in reports
    }
    return junit_text("counterseal scenarios", suites)
