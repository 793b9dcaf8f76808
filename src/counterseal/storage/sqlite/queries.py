"""The SQL that lives beside this package, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Final

__all__ = ["named", "queries", "sql_folder"]

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)


def sql_folder() -> Traversable:
    """Where the migrations and the queries are."""
    return files("counterseal.storage") / "sql" / "sqlite"


def named(text: str) -> Mapping[str, str]:
    """The statements of a file, each after its `-- name:` line, without comments."""
    parts = _NAME.split(text)[1:]
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError("two queries have one name")
    found = {
        name: " ".join(_COMMENT.sub("", body).split()).removesuffix(";")
        for name, body in zip(names, bodies, strict=True)
    }
    return MappingProxyType(found)


@cache
def queries() -> Mapping[str, str]:
    """All that the store asks."""
    return named((sql_folder() / "queries.sql").read_text(encoding="utf-8"))
