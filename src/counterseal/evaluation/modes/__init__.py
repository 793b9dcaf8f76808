"""The twelve modes of evaluation, one file each.

A mode is a file here with a `MODE`, and its place in `MODES`.
"""

from typing import Final

from counterseal.evaluation.cases import EvaluationMode
from counterseal.evaluation.modes import (
    permission_boundaries,
    schema_conformance,
    semantic_rules,
)

MODES: Final[tuple[EvaluationMode, ...]] = (
    schema_conformance.MODE,
    semantic_rules.MODE,
    permission_boundaries.MODE,
)
