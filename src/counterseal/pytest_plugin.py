"""The pytest plugin: generated cases as tests of the user's own repository.

`pytest --counterseal` adds every case of every mode for the tools of the nearest counterseal.toml.
The fixture `counterseal_cases` evaluates a project or a runtime inside of a test. pytest loads this
module in every environment that has Counterseal installed, so it imports nothing else until needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from counterseal.evaluation.evaluator import EvaluationTarget
    from counterseal.evaluation.report import EvaluationReport
    from counterseal.runtime import Runtime

_FILE = "counterseal.toml"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("counterseal")
    group.addoption(
        "--counterseal",
        action="store_true",
        help="try the tools of the nearest counterseal.toml with cases from their contracts",
    )
    group.addoption(
        "--counterseal-allow-effects",
        action="store_true",
        help="run functions that change something, where [evaluation.TOOL] declares it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the project's file to what is collected, unless a named folder contains it."""
    if not config.getoption("--counterseal"):
        return
    here = config.invocation_params.dir
    file = next((one / _FILE for one in (here, *here.parents) if (one / _FILE).is_file()), None)
    if file is None:
        raise pytest.UsageError(f"--counterseal: no {_FILE} in {here} or a folder above it")
    named = [(here / arg.partition("::")[0]).resolve() for arg in config.args]
    if not any(file.is_relative_to(one) for one in named):
        config.args.append(str(file))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a project's file, if `--counterseal` is given."""
    if file_path.name != _FILE or not parent.config.getoption("--counterseal"):
        return None
    return ProjectFile.from_parent(parent, path=file_path)


class ProjectFile(pytest.File):
    """A counterseal.toml, whose tests are the generated cases of its tools."""

    def collect(self) -> Iterator[pytest.Item]:
        from counterseal.evaluation.evaluator import planned  # noqa: PLC0415 - when needed
        from counterseal.evaluation.modes import MODES  # noqa: PLC0415 - as above

        effects = bool(self.config.getoption("--counterseal-allow-effects"))
        for candidate in asyncio.run(_candidates(self.path, allow_effects=effects)):
            for mode in MODES:
                reason, applies, cases = planned(candidate, mode)
                place = f"{candidate.subject.name}::{mode.name}"
                for case in cases:
                    yield CaseItem.from_parent(
                        self, name=f"{place}::{case.name}", candidate=candidate, case=case
                    )
                if applies and not cases:
                    yield CaseItem.from_parent(self, name=place, reason=reason)


class CaseItem(pytest.Item):
    """One generated case."""

    def __init__(
        self,
        *,
        candidate: EvaluationTarget | None = None,
        case: Any = None,
        reason: str = "",
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self._candidate, self._case, self._reason = candidate, case, reason

    def runtest(self) -> None:
        from counterseal.evaluation.evaluator import carried_out  # noqa: PLC0415 - when needed
        from counterseal.evaluation.report import CellStatus  # noqa: PLC0415 - as above

        if self._candidate is None:
            pytest.skip(self._reason)
        result = asyncio.run(carried_out(self._candidate.subject, self._case))
        if result.status is CellStatus.NOT_TRIED:
            pytest.skip(result.message)
        if result.status is CellStatus.FAILED:
            lines = [result.message, f"from {result.why}", f"arguments: {result.arguments}"]
            pytest.fail("\n".join(lines), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


async def _candidates(
    project: str | Path | Runtime | None, names: Sequence[str] = (), **options: Any
) -> list[EvaluationTarget]:
    from counterseal.config.build import open_runtime  # noqa: PLC0415 - when needed
    from counterseal.config.project import settings_at  # noqa: PLC0415 - as above
    from counterseal.evaluation.evaluator import for_evaluation, subjects_of  # noqa: PLC0415
    from counterseal.runtime import Runtime  # noqa: PLC0415 - as above

    if not isinstance(project, Runtime):
        project = open_runtime(for_evaluation(settings_at(project)), "memory:")
    return await subjects_of(project, names, **options)


@pytest.fixture(scope="session")
def counterseal_cases() -> Callable[..., EvaluationReport]:
    """Return a function that evaluates a project, the nearest one by default, or a runtime.

    Its other parameters are tools by name, `modes`, `declared`, `allow_effects` and `reset`.
    """

    def evaluated(
        project: str | Path | Runtime | None = None,
        *tools: str,
        modes: Sequence[str] = (),
        declared: Mapping[str, Any] | None = None,
        allow_effects: bool = False,
        reset: Callable[[], Any] | None = None,
    ) -> EvaluationReport:
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - when needed

        from counterseal.evaluation.evaluator import evaluate  # noqa: PLC0415 - as above
        from counterseal.evaluation.modes import MODES  # noqa: PLC0415 - as above

        unknown = sorted({*modes} - {mode.name for mode in MODES})
        if unknown:
            known = ", ".join(mode.name for mode in MODES)
            raise ValueError(f"modes: {unknown[0]!r} is not a mode; modes are: {known}")
        options = {"declared": declared, "allow_effects": allow_effects, "reset": reset}

        async def run() -> EvaluationReport:
            chosen = [mode for mode in MODES if not modes or mode.name in modes]
            return await evaluate(await _candidates(project, tools, **options), modes=chosen)

        with start_blocking_portal() as portal:  # a test may have a running event loop
            return portal.call(run)

    return evaluated
