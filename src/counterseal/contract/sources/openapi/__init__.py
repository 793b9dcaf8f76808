"""An OpenAPI 3 document as contracts with HTTP requests, one an operation, for a person to review.

The document is a stranger's: its texts are cleaned and bounded, nothing outside it is fetched, and
what it does not say is guessed on the strict side and marked. What can't be expressed is left out,
with the reason.
"""

from counterseal.contract.sources.openapi.document import read_openapi
from counterseal.contract.sources.openapi.importing import (
    Imported,
    ImportedTool,
    LeftOut,
    contracts_from_openapi,
    to_yaml,
)
from counterseal.contract.sources.review_notes import Review

__all__ = [
    "Imported",
    "ImportedTool",
    "LeftOut",
    "Review",
    "contracts_from_openapi",
    "read_openapi",
    "to_yaml",
]
