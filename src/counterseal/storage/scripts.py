"""The SQL that lives beside the stores: statements by name, and numbered migrations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["Migration", "migrations_in", "named"]

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_FILE: Final = re.compile(r"^(\d{4})_(\w+)\.sql$")


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


class Migration(NamedTuple):
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations_in(folder: Traversable) -> tuple[Migration, ...]:
    """The migrations of a folder, in their order."""
    found = []
    for file in folder.iterdir():
        match = _FILE.match(file.name)
        if match is not None:
            text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
            found.append(Migration(int(match[1]), match[2], text))
    return tuple(sorted(found))
