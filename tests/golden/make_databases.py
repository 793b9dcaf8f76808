"""Makes the databases that later versions must open and continue; run it with an old version.

    PYTHONPATH=OLD/src:. python -m tests.golden.make_databases

Everything is done through the command line, so that any version can be asked. A call of every kind
is in them: settled, held, approved, rejected, with an unknown outcome, and one whose worker died in
its middle; and operators' changes, users, keys, due work, sealed checkpoints and events after them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.golden.commands import BY, PASSWORD, parsed

HERE = Path(__file__).parent / "database"
SQLITE = HERE / "sqlite.database"
POSTGRES = HERE / "postgres.sql"
KEYS = HERE / "keys"
FACTS = HERE / "facts.json"
CRASHED = 70


class Shell:
    """The command line, a process for each command, on one store."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        use_store(folder, store)

    def run(self, *words: str, stdin: str = "", code: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "counterseal", *words, "--json"],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name != "COUNTERSEAL_STORE"},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode} {done.stdout} {done.stderr}"
        return parsed(done.stdout)

    def call(self, tool: str, code: int = 0, **arguments: str) -> Any:
        words = ("call", tool, json.dumps(arguments), "--as", "clerk", "--run", "run_1")
        return self.run(*words, code=code)


def use_store(folder: Path, store: str) -> None:
    """Have the project's settings name this store."""
    file = folder / "counterseal.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(r'(?m)^url = ".*"$', f'url = "{store}"', text), encoding="utf-8")


def fill(shell: Shell) -> dict[str, Any]:
    """Make the calls and changes; return what a test has to know of them."""
    facts: dict[str, Any] = {}
    shell.call("find_order", order_id="ord_1")
    shell.call("find_order", order_id="1", code=1)
    shell.call("search", text="news")
    shell.call("draft_reply", text="settled")
    for to in ("ann", "ben", "cy", "dan"):
        facts[to] = shell.call("send_letter", to=to, code=3)["approval_id"]
    facts["charge"] = shell.call("charge", order_id="ord_1", code=3)["approval_id"]
    shell.run("approvals", "approve", facts["ann"], "--as", "ada", "--yes")
    shell.run("reconcile")
    shell.run("approvals", "approve", facts["cy"], "--as", "ada", "--yes")
    shell.run("approvals", "reject", facts["dan"], "--as", "ada", "--yes", "--reason", "no")
    confirmed = ("--yes", "--confirm", "charge", "--justification", "by phone")
    shell.run("approvals", "approve", facts["charge"], "--as", "ada", *confirmed)
    shell.call("file_return", text="shoes", code=1)
    shell.run("registry", "kill", "search", "--yes", *BY)
    shell.run("registry", "disable", "crash", *BY)
    shell.run("registry", "enable", "crash", *BY)
    issued = shell.run("keys", "issue", "--tenant", "acme", "--agent", "clerk", *BY)
    user = ("ann", "--tenant", "acme", "--role", "approver", "--password-stdin", *BY)
    shell.run("users", "add", *user, stdin=f"{PASSWORD}\n")
    own = shell.run("users", "key", "ann", *BY)
    facts |= {"key": issued["key"], "personal_key": own["key"]}
    shell.run("audit", "seal")
    undone = shell.call("draft_reply", text="undone")["tool_identity"]["call_id"]
    shell.run("reconcile", "undo", undone, "--tenant", "acme", *BY)
    shell.call("book_room", text="blue")
    shell.call("crash", text="a", code=CRASHED)
    facts["made_at"] = time.time()
    return facts


async def dumped(url: str, schema: list[str]) -> str:
    """Return a database as SQL: its schema as it was made, and a row a line."""
    import asyncpg

    lines = [*schema]
    connection = await asyncpg.connect(url)
    tables = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'public'::regnamespace ORDER BY relname"
    )
    for (table,) in tables:
        found = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum",
            table,
        )
        names = [f'"{name}"' for (name,) in found]
        values = ", ', ', ".join(f"quote_nullable({name}::text)" for name in names)
        rows = await connection.fetch(f'SELECT concat({values}) AS row FROM "{table}" ORDER BY 1')
        lines += [
            f'INSERT INTO "{table}" ({", ".join(names)}) OVERRIDING SYSTEM VALUE'
            f" VALUES ({row['row']});"
            for row in rows
        ]
    await connection.close()
    return "\n".join(lines) + "\n"


def main() -> None:
    import counterseal
    from tests.postgres_server import bare_database

    scripts = sorted(Path(counterseal.__file__).parent.glob("storage/sql/postgres/0*.sql"))
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        shutil.copytree(HERE / "project", folder)
        keys = Shell(folder, "sqlite:///calls.db")
        for purpose in ("vault", "audit", "approval"):
            keys.run("keys", "new", purpose)
        facts["sqlite"] = fill(keys)
        with closing(sqlite3.connect(folder / "calls.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("VACUUM")
        shutil.copyfile(folder / "calls.db", SQLITE)
        url = bare_database()
        (folder / "book.txt").unlink()
        facts["postgres"] = fill(Shell(folder, url))
        schema = [script.read_text(encoding="utf-8") for script in scripts]
        POSTGRES.write_text(asyncio.run(dumped(url, schema)), encoding="utf-8")
        shutil.copytree(folder / "keys", KEYS, dirs_exist_ok=True)
    FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
