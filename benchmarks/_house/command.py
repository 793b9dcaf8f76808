"""The command line: runs benchmarks in one house, shows the table, keeps or checks the figures.

`--keep` makes a run's rows the reference: `benchmarks/results/latest.json`, the chart, and the
table on the page about performance. Rows that were not measured stay as they are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from benchmarks._house import environments
from benchmarks._house.chart import chart
from benchmarks._house.check import compared
from benchmarks._house.environments import FOLDER, ROOT
from benchmarks._house.house import House
from benchmarks._house.results import Results
from benchmarks._house.table import brief, markdown, show
from counterseal.cli.render import ProgressBar

Bench = Callable[[House], Awaitable[None]]
LAST = FOLDER / "last.json"
KEPT = ROOT / "benchmarks" / "results" / "latest.json"
CHART = ROOT / "docs" / "images" / "benchmarks.svg"
PAGE = ROOT / "docs" / "performance.md"
FRONT = ROOT / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def main(benches: Mapping[str, Bench], arguments: Sequence[str] | None = None) -> int:
    options = parser(benches).parse_args(arguments)
    console = Console(stderr=True)
    if options.page:
        return page(check=options.check)
    chosen = {name: benches[name] for name in options.only or _usual(benches, soak=options.soak)}
    results = Results(LAST)
    with environments.alone(LAST.parent):
        finished = run(chosen, results, options)
    if options.json:
        print(json.dumps(results.record(), ensure_ascii=False))
    else:
        show(results, Console(width=None if sys.stdout.isatty() else 220))
    kept = Results.read(KEPT)
    code = told(kept, results, console) if options.check else 0
    if options.keep and results.rows:
        keep(kept.merged(results))
    return code if finished else 130


def _usual(benches: Mapping[str, Bench], *, soak: bool) -> list[str]:
    return ["soak"] if soak else [name for name in benches if name != "soak"]


def parser(benches: Mapping[str, Bench]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="dev.py bench", description="Measure Counterseal beside others, in turns."
    )
    made.add_argument("--only", action="append", choices=list(benches), help="can be repeated")
    made.add_argument("--quick", action="store_true", help="fewer rounds: minutes, and rougher")
    made.add_argument("--big", action="store_true", help="growth to ten million rows, too")
    made.add_argument("--soak", action="store_true", help="ten minutes under load, and no more")
    made.add_argument("--check", action="store_true", help="fail when a kept ratio got worse")
    made.add_argument("--keep", action="store_true", help="make these figures the reference")
    made.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    made.add_argument(
        "--page", action="store_true", help="write (--check: check) page and chart only"
    )
    return made


# --- running --------------------------------------------------------------------------------------


def run(chosen: Mapping[str, Bench], results: Results, options: argparse.Namespace) -> bool:
    """One after the other. False when it was broken off: what was measured is in the results."""
    ended: list[str] = []
    with ProgressBar("benchmark") as progress:

        def say(what: str, done: float) -> None:
            progress.show(len(ended), len(chosen), f"{done:.0%} of {what}")

        house = House(results, quick=options.quick, big=options.big, soak=options.soak, say=say)
        try:
            asyncio.run(_each(chosen, house, ended.append))
        except (KeyboardInterrupt, asyncio.CancelledError):
            progress.print("Broken off; this is what was measured.")
            return False
    return True


async def _each(chosen: Mapping[str, Bench], house: House, done: Callable[[str], None]) -> None:
    with suppress(NotImplementedError, RuntimeError):  # a terminated run tells what it has, too
        task = asyncio.current_task()
        if task:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name, bench in chosen.items():
        try:
            await bench(house)
        except Exception as error:  # noqa: BLE001 - one that fails must not cost the others
            house.missing(f"the rest of {name}", f"{type(error).__name__}: {error}")
        done(name)


# --- afterwards -----------------------------------------------------------------------------------


def told(kept: Results, now: Results, console: Console) -> int:
    """Say what got worse; 1 when something did."""
    changes = compared(kept.rows, now.rows)
    worse = [one for one in changes if one.worse]
    for one in worse:
        console.print(f"Worse: {one}", highlight=False)
    console.print(f"{len(changes)} rows compared with the kept ones, {len(worse)} got worse.")
    return 1 if worse else 0


def keep(results: Results) -> None:
    """Make these the reference, with their chart and their page."""
    results.write(KEPT)
    page(check=False)


def caption(results: Results) -> str:
    about = results.machine
    return (
        f"Right of 1x: faster than it. Marks are targets. Measured in turns on "
        f"{about['processors']} processors; repeat it: python3 dev.py bench"
    )


def page(*, check: bool) -> int:
    """Write the chart, and the table between its marks in the page; or look whether they are so."""
    kept = Results.read(KEPT)
    wanted = {
        PAGE: _marked(PAGE, markdown(kept)),
        FRONT: _marked(FRONT, brief(kept)),
        CHART: chart(list(kept.rows.values()), caption(kept)),
    }
    if not check:
        for path, new in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
        return 0
    stale = [
        path.name
        for path, new in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != new
    ]
    if stale:
        print(f"Stale: {', '.join(stale)}. Fix: python3 dev.py bench --page", file=sys.stderr)
    return int(bool(stale))


def _marked(path: Path, made: str) -> str:
    """A page with this between its marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def alone(name: str, bench: Bench) -> None:
    """For a script that is started by itself."""
    sys.exit(main({name: bench}))
