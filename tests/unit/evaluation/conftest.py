"""Evaluate a tool in a runtime of its own."""

import pytest

from counterseal.evaluation.evaluator import evaluate, subjects_of
from counterseal.evaluation.modes import MODES
from counterseal.testing import runtime_for


@pytest.fixture
def evaluated():
    """Return the report of a tool, of one mode if it is named."""

    async def run(*tools, mode=None, declared=None, reset=None, only=None, **options):
        runtime = runtime_for(*tools, **options)
        chosen = [one for one in MODES if mode in (None, one.name)]
        names = [only] if only else []
        subjects = await subjects_of(
            runtime, names, declared=declared, allow_effects=True, reset=reset
        )
        return await evaluate(subjects, modes=chosen)

    return run


@pytest.fixture
def failures(evaluated):
    """Return what failed, as (mode, case, message), of a tool whose own function runs."""

    async def run(*tools, stubbed=False, **options):
        names = [getattr(one, "contract", one).name for one in tools]
        declared = {} if stubbed else {name: {"run": "real"} for name in names}
        declared |= options.pop("declared", {})
        report = await evaluated(*tools, declared=declared, **options)
        return [(cell.mode, case.name, case.message) for cell, case in report.failures]

    return run
