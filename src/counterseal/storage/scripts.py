"""The SQL files of the databases: statements by name, and numbered migrations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Final, NamedTuple

from counterseal.errors import StoreError

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_FILE: Final = re.compile(r"^(\d{4})_(\w+)\.sql$")


def sql_folder(database: str) -> Traversable:
    """Return the folder with the statements and migrations of a database."""
    return files("counterseal.storage") / "sql" / database


@cache
def statements(database: str) -> Mapping[str, str]:
    """Return all statements of a database by name."""
    return named((sql_folder(database) / "queries.sql").read_text(encoding="utf-8"))


def named(text: str) -> Mapping[str, str]:
    """Return the statements of a file, each after its `-- name:` line, without comments."""
    parts = _NAME.split(text)[1:]
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError("two statements have the same name")
    result = {
        name: " ".join(_COMMENT.sub("", body).split()).removesuffix(";")
        for name, body in zip(names, bodies, strict=True)
    }
    return MappingProxyType(result)


class Migration(NamedTuple):
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations_in(folder: Traversable) -> tuple[Migration, ...]:
    """Return the migrations of a folder, in their order."""
    migrations = []
    for file in folder.iterdir():
        match = _FILE.match(file.name)
        if match is not None:
            text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
            migrations.append(Migration(int(match[1]), match[2], text))
    return tuple(sorted(migrations))


def missing_migrations(
    applied: Mapping[int, str], known: Sequence[Migration], where: str, kind: str
) -> Sequence[Migration]:
    """Return what is still to be applied. StoreError when another program's schema is there.

    `applied` maps numbers to checksums; `kind` names what the schema is in: a file, a database.
    """
    newest = max(applied, default=0)
    if newest > len(known):
        raise StoreError(
            f"{where} has schema {newest}, and this program knows schema {len(known)} at most;"
            f" use a newer Counterseal, or another {kind}"
        )
    for migration in known[:newest]:
        if applied.get(migration.number) != migration.checksum:
            raise StoreError(
                f"{where} was made with another migration {migration.number}"
                f" ({migration.name}) than this program's; use the Counterseal that made it"
            )
    return known[newest:]
