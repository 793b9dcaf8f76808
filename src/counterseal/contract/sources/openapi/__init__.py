"""Converts an OpenAPI 3 document to contracts for review, one HTTP request for each operation.

The document is untrusted: its texts are cleaned and bounded, and nothing outside of it is fetched.
Missing information is guessed strictly and marked for review. Unsupported operations are left out,
with the reason.
"""

from counterseal.contract.sources.openapi.document import Review, read_openapi
from counterseal.contract.sources.openapi.importing import (
    Imported,
    ImportedTool,
    LeftOut,
    contracts_from_openapi,
    to_yaml,
)

__all__ = [
    "Imported",
    "ImportedTool",
    "LeftOut",
    "Review",
    "contracts_from_openapi",
    "read_openapi",
    "to_yaml",
]
