"""The twelve modes of evaluation, one file each.

A mode is a file here with a `MODE`, and its place in `MODES`.
"""

from typing import Final

from counterseal.evaluation.cases import EvaluationMode
from counterseal.evaluation.modes import (
    approval_gate,
    duplicates,
    faults,
    injection,
    observations,
    permission_boundaries,
    repair_loop,
    replayed,
    reversal,
    schema_conformance,
    schema_drift,
    semantic_rules,
)

MODES: Final[tuple[EvaluationMode, ...]] = (
    schema_conformance.MODE,
    semantic_rules.MODE,
    permission_boundaries.MODE,
    approval_gate.MODE,
    duplicates.MODE,
    faults.MODE,
    repair_loop.MODE,
    observations.MODE,
    reversal.MODE,
    injection.MODE,
    schema_drift.MODE,
    replayed.MODE,
)
