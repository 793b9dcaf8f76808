"""Databases that an older version has left behind, in a copy that a test may use up.

    with restored("sqlite") as database:
        database.run(["audit", "verify"])       # all commands of one call run in one process

Time goes on from two minutes after the database was made, however long that is ago.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.golden.make_databases import FACTS, HERE, KEYS, POSTGRES, SQLITE, use_store
from tests.golden.normalise import Mask, as_text
from tests.postgres_server import bare_database, drop_database, execute

LATER = 120.0
ROOT = Path(__file__).parents[2]
LISTED: tuple[tuple[str, ...], ...] = (
    ("audit", "verify"),
    ("audit", "export"),
    ("approvals", "list"),
    ("approvals", "list", "--status", "approved"),
    ("approvals", "list", "--status", "rejected"),
    ("approvals", "list", "--status", "spent"),
    ("reconcile", "list"),
    ("registry", "list"),
    ("registry", "log"),
    ("users", "list"),
    ("keys", "issued"),
    ("metrics", "--tenant", "acme"),
)
"""Commands that only look."""


class Database:
    """A project with one of the databases."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.now = facts["made_at"] + LATER

    def run(self, *commands: Sequence[str]) -> list[Any]:
        """Run commands one after the other; return what each has printed."""
        return [one["output"] for one in self.results(*commands)]

    def results(self, *commands: Sequence[str]) -> list[dict[str, Any]]:
        """Run commands one after the other; return exit codes and outputs."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.golden.at_time", str(self.now)],
            input=json.dumps(commands),
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.now += 1.0
        return json.loads(done.stdout)


def environment() -> dict[str, str]:
    import os

    known = {name: value for name, value in os.environ.items() if name != "COUNTERSEAL_STORE"}
    paths = [str(ROOT), *filter(None, [known.get("PYTHONPATH")])]
    return {**known, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def restored(kind: str) -> Iterator[Database]:
    """A copy of the database, in a project with its tools and keys."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve() / "project"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HERE / "project", folder, ignore=ignored)
        shutil.copytree(KEYS, folder / "keys")
        (folder / "keys").chmod(0o700)
        for key in (folder / "keys").iterdir():
            key.chmod(0o600)
        if kind == "sqlite":
            shutil.copyfile(SQLITE, folder / "calls.db")
        else:
            url = bare_database()
            stack.callback(drop_database, url)
            execute(url, POSTGRES.read_text(encoding="utf-8"))
            use_store(folder, url)
        yield Database(folder, json.loads(FACTS.read_text(encoding="utf-8"))[kind])


def outputs() -> dict[str, str]:
    """The golden files of the databases: what the commands that only look say of each."""
    return {f"databases/{kind}.json": looked_at(kind) for kind in ("sqlite", "postgres")}


def looked_at(kind: str) -> str:
    """What the commands that only look say of one database."""
    with restored(kind) as database:
        mask = Mask({database.folder: "<project>"})
        told = database.run(*LISTED)
    found = {" ".join(words): mask(data) for words, data in zip(LISTED, told, strict=True)}
    return as_text(found)
