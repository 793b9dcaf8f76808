"""The result of an evaluation: a table of tools and modes, as rows, Markdown, JSON and JUnit.

A cell says what was tried, or why nothing was. A cell without a tried case never counts as passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from xml.etree import ElementTree as ET

from pydantic_core import from_json

from counterseal.evaluation.cases import CaseKind


class CellStatus(StrEnum):
    """The result of one mode for one tool, or of one case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"
    NOT_APPLICABLE = "not applicable"


FORMAT: Final = "counterseal-evaluation/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCase:
    """One case and how it went."""

    name: str
    why: str
    status: CellStatus
    kind: CaseKind | None = None
    message: str = ""
    arguments: Mapping[str, Any] | None = None
    """The shortest arguments found with which a failed case fails."""

    def record(self) -> dict[str, Any]:
        """Return the case as plain JSON data."""
        return {
            "name": self.name,
            "why": self.why,
            "status": self.status.value,
            "kind": None if self.kind is None else self.kind.value,
            "message": self.message,
            "arguments": None if self.arguments is None else dict(self.arguments),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One mode for one tool."""

    tool: str
    mode: str
    cases: tuple[EvaluatedCase, ...] = ()
    reason: str = ""
    """Why the mode was not tried, or does not apply."""
    applies: bool = True

    @property
    def status(self) -> CellStatus:
        if not self.applies:
            return CellStatus.NOT_APPLICABLE
        statuses = {case.status for case in self.cases}
        if CellStatus.FAILED in statuses:
            return CellStatus.FAILED
        return CellStatus.PASSED if CellStatus.PASSED in statuses else CellStatus.NOT_TRIED

    def counted(self, status: CellStatus) -> int:
        return sum(case.status is status for case in self.cases)

    def shown(self) -> str:
        """Return the cell in a few characters: how many cases passed, or why there are none."""
        if self.status is CellStatus.PASSED:
            return str(self.counted(CellStatus.PASSED))
        if self.status is CellStatus.FAILED:
            return f"{self.counted(CellStatus.FAILED)} FAILED"
        return self.status.value if self.applies else "-"

    def record(self) -> dict[str, Any]:
        """Return the cell as plain JSON data."""
        return {
            "tool": self.tool,
            "mode": self.mode,
            "status": self.status.value,
            "reason": self.reason,
            "cases": [case.record() for case in self.cases],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTool:
    """A tool of the evaluation: what ran in its place, and what it was called with."""

    name: str
    version: str
    contract_hash: str
    ran: str
    """What was executed: its function, a recorded output, or a stub."""
    arguments: str
    """Where the arguments of the good call come from."""
    note: str = ""

    def record(self) -> dict[str, Any]:
        """Return the tool as plain JSON data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The whole table."""

    tools: tuple[EvaluatedTool, ...]
    modes: tuple[str, ...]
    cells: tuple[Cell, ...]
    evaluated_at: float

    def cell(self, tool: str, mode: str) -> Cell:
        return next(one for one in self.cells if (one.tool, one.mode) == (tool, mode))

    @property
    def failures(self) -> list[tuple[Cell, EvaluatedCase]]:
        return [
            (cell, case)
            for cell in self.cells
            for case in cell.cases
            if case.status is CellStatus.FAILED
        ]

    @property
    def ok(self) -> bool:
        return not self.failures

    def missing(self) -> dict[str, list[str]]:
        """Return the kinds of case that tools have not passed, by tool; empty if all passed all."""
        lacking = {}
        for tool in self.tools:
            cases = [case for cell in self.cells if cell.tool == tool.name for case in cell.cases]
            kinds = [
                kind.value
                for kind in CaseKind
                if not any(case.kind is kind and case.status is CellStatus.PASSED for case in cases)
                or any(case.kind is kind and case.status is CellStatus.FAILED for case in cases)
            ]
            if kinds:
                lacking[tool.name] = kinds
        return lacking

    def summary(self) -> dict[str, int]:
        """Return how many cases there are by status, and how many tools and modes."""
        cases = [case for cell in self.cells for case in cell.cases]
        counts = {status.value: sum(case.status is status for case in cases) for status in _TRIED}
        return {"tools": len(self.tools), "modes": len(self.modes), "cases": len(cases), **counts}

    def record(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        return {
            "format": FORMAT,
            "evaluated_at": self.evaluated_at,
            "summary": self.summary(),
            "modes": list(self.modes),
            "tools": [tool.record() for tool in self.tools],
            "results": [cell.record() for cell in self.cells],
            "missing": self.missing(),
        }

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Return the report that `record` has written to a file; None if there is no file.

        ValueError says what is wrong with a file that can't be read.
        """
        if not file.is_file():
            return None
        try:
            record = from_json(file.read_bytes())
            report = cls(
                tools=tuple(EvaluatedTool(**tool) for tool in record["tools"]),
                modes=tuple(record["modes"]),
                cells=tuple(_cell(cell) for cell in record["results"]),
                evaluated_at=float(record["evaluated_at"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file.name} can't be read as an evaluation: {error}") from None
        if record.get("format") != FORMAT:
            raise ValueError(f"{file.name} can't be read: its format is not {FORMAT}")
        return report

    def rows(self) -> Iterator[list[str]]:
        """Yield the table: a row for each mode, a column for each tool."""
        for mode in self.modes:
            yield [mode, *(self.cell(tool.name, mode).shown() for tool in self.tools)]

    def markdown(self) -> str:
        """Return the table and the failures as Markdown."""
        head = ["mode", *(tool.name for tool in self.tools)]
        lines = [_markdown_row(head), _markdown_row(["---"] * len(head))]
        lines += map(_markdown_row, self.rows())
        counts = self.summary()
        lines += ["", f"{counts['passed']} of {counts['cases']} cases passed."]
        for cell, case in self.failures:
            lines += ["", f"**{cell.tool}, {cell.mode}: {case.name}**", "", case.message]
            if case.arguments is not None:
                lines += ["", f"Arguments: `{dict(case.arguments)}`"]
        return "\n".join(lines) + "\n"

    def junit(self) -> str:
        """Return the report as JUnit XML: a suite for each tool, a test case for each case."""
        suites = {}
        for tool in self.tools:
            cells = [cell for cell in self.cells if cell.tool == tool.name]
            suites[tool.name] = [
                JUnitCase(
                    group=f"{tool.name}.{cell.mode}",
                    name=case.name,
                    failed=case.message if case.status is CellStatus.FAILED else None,
                    skipped=case.message if case.status in _SKIPPED else None,
                    details=f"{case.why}\narguments: {case.arguments}",
                )
                for cell in cells
                for case in _shown_cases(cell)
            ]
        return junit_text("counterseal evaluate", suites)


class JUnitCase(NamedTuple):
    """One test case of a JUnit report."""

    group: str
    name: str
    failed: str | None = None
    """Why it failed; None if it did not."""
    skipped: str | None = None
    details: str = ""


def junit_text(name: str, suites: Mapping[str, Sequence[JUnitCase]]) -> str:
    """Return test suites as JUnit XML."""
    root = ET.Element("testsuites", name=name)
    for suite_name, cases in suites.items():
        failed = sum(case.failed is not None for case in cases)
        skipped = sum(case.skipped is not None for case in cases)
        counts = {"tests": len(cases), "failures": failed, "errors": 0, "skipped": skipped}
        texts = {count: str(number) for count, number in counts.items()}
        suite = ET.SubElement(root, "testsuite", {"name": _xml(suite_name), **texts})
        for case in cases:
            about = {"classname": _xml(case.group), "name": _xml(case.name)}
            element = ET.SubElement(suite, "testcase", about)
            if case.failed is not None:
                failure = ET.SubElement(element, "failure", message=_xml(case.failed))
                failure.text = _xml(case.details)
            elif case.skipped is not None:
                ET.SubElement(element, "skipped", message=_xml(case.skipped))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_TRIED: Final = (CellStatus.PASSED, CellStatus.FAILED, CellStatus.NOT_TRIED)
_SKIPPED: Final = (CellStatus.NOT_TRIED, CellStatus.NOT_APPLICABLE)


def _cell(record: Mapping[str, Any]) -> Cell:
    """Return a cell from its record."""
    cases = []
    for case in record["cases"]:
        kind = None if case["kind"] is None else CaseKind(case["kind"])
        cases.append(EvaluatedCase(**{**case, "status": CellStatus(case["status"]), "kind": kind}))
    return Cell(
        tool=record["tool"],
        mode=record["mode"],
        cases=tuple(cases),
        reason=record["reason"],
        applies=record["status"] != CellStatus.NOT_APPLICABLE,
    )


def _shown_cases(cell: Cell) -> Sequence[EvaluatedCase]:
    """Return the cases of a cell. A cell without cases gets one that says why."""
    if cell.cases:
        return cell.cases
    why = cell.reason
    return [EvaluatedCase(name=cell.mode, why=why, status=cell.status, message=why)]


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _xml(text: str) -> str:
    """Return text that XML can hold: control characters as escapes."""
    return "".join(
        char if char.isprintable() or char in "\t\n" else ascii(char)[1:-1] for char in text
    )
