"""Trajectories and reports in the forms of other programs: one file a format.

A format has `read(data) -> list[Trajectory]`, `write(reports) -> str`, or both, and its line in
`READERS` or `WRITERS`. A trajectory that is read is untrusted: its calls are proposed to a runtime
again, and nothing else of it counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from counterseal.errors import CountersealError
from counterseal.evaluation.formats import (
    anthropic_messages,
    csv_rows,
    inspect_logs,
    junit_xml,
    langsmith_runs,
    openai_messages,
    otel_spans,
    tau2_results,
)
from counterseal.evaluation.trajectories import Trajectory
from counterseal.evaluation.trials import ScenarioReport


class FormatError(CountersealError):
    """A file is not in the format that it is said to be in."""


Reader = Callable[[Any], list[Trajectory]]
Writer = Callable[[Sequence[ScenarioReport]], str]


def _own(data: Any) -> list[Trajectory]:
    return [Trajectory.from_record(item) for item in (data if isinstance(data, list) else [data])]


READERS: Final[Mapping[str, Reader]] = {
    "trajectories": _own,
    "openai": openai_messages.read,
    "anthropic": anthropic_messages.read,
    "otel": otel_spans.read,
    "langsmith": langsmith_runs.read,
    "inspect": inspect_logs.read,
    "tau2": tau2_results.read,
}
WRITERS: Final[Mapping[str, Writer]] = {
    "trajectories": lambda reports: "".join(
        json.dumps(trial.trajectory.record(), ensure_ascii=False) + "\n"
        for report in reports
        for trial in report.trials
    ),
    "junit": junit_xml.write,
    "csv": csv_rows.write,
    "inspect": inspect_logs.write,
    "otel": otel_spans.write,
}


def read_trajectories(path: Path, form: str = "trajectories") -> list[Trajectory]:
    """Return the trajectories of a file of JSON or JSON Lines. FormatError says what is wrong."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise FormatError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not UTF-8 text; {form} is read as JSON") from None
    try:
        found = READERS[form](_parsed(text))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"{path} is not in the format {form}: {what}") from error
    if not found:
        raise FormatError(f"{path} has no trajectories in the format {form}")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
