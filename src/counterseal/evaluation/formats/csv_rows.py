"""CSV: a row for each trial, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from counterseal.audit.events import csv_cell
from counterseal.evaluation.scores import MEASURES
from counterseal.evaluation.trials import ScenarioReport


def write(reports: Sequence[ScenarioReport]) -> str:
    """Return the reports as CSV: two columns for each measure, the count and its total."""
    head = ["label", "agent", "wording", "scenario", "trial", "passed", "wrong"]
    measures = [f"{name}{part}" for name in MEASURES for part in ("", "_of")]
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow([*head, *measures, "duration_ms", "tokens"])
    for report in reports:
        for trial in report.trials:
            score = trial.score
            shares = [value for name in MEASURES for value in score.shares.get(name, ("", ""))]
            texts = [report.label, report.agent, report.wording, trial.scenario]
            wrong = "; ".join(score.wrong)
            times = [trial.trajectory.duration_ms, score.tokens]
            plain = [trial.number, score.passed]
            cells = [*map(csv_cell, texts), *plain, csv_cell(wrong), *shares, *times]
            rows.writerow(cells)
    return out.getvalue()
