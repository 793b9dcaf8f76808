"""The modes of evaluation, one file each: a `MODE`, and its place in `MODES`.

A file is named after what it tries (`duplicates`), a mode after what it shows (`idempotency`).
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
