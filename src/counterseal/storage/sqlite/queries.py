"""The SQL that lives beside this package, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from counterseal.storage.scripts import named

__all__ = ["queries", "sql_folder"]


def sql_folder() -> Traversable:
    """Where the migrations and the queries are."""
    return files("counterseal.storage") / "sql" / "sqlite"


@cache
def queries() -> Mapping[str, str]:
    """All that the store asks."""
    return named((sql_folder() / "queries.sql").read_text(encoding="utf-8"))
