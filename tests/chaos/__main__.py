"""`python3 dev.py chaos`: rounds by the thousand, seeds to see them again, evidence of breaches."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from counterseal.cli.render import ProgressBar

from .planning import POINTS
from .rounds import Outcome
from .running import STORES, Job, jobs_of, run
from .summary import Summary

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "chaos"
STATE = FOLDER / "state.json"
_WIDTH = 130
"""What the table needs."""


def main() -> int:
    options = _parser().parse_args()
    told = Console(stderr=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if options.resume:
        if not STATE.is_file():
            sys.exit("There is nothing to resume.")
        state = json.loads(STATE.read_text())
    else:
        seed = (
            random.SystemRandom().randrange(10**6) * 10**3 if options.seed is None else options.seed
        )
        asked = {"seed": seed, "rounds": options.rounds, "store": options.store}
        state = {**asked, "point": options.point, "done": [], "summary": {}}
        _write(STATE, state)
    summary = Summary(state["summary"])
    stores = STORES if state["store"] == "both" else (state["store"],)
    points = POINTS if state["point"] is None else (state["point"],)
    done = set(state["done"])
    jobs = list(jobs_of(state["seed"], state["rounds"], points, stores))
    left = [job for job in jobs if job.number not in done]
    told.print(f"seed {state['seed']}, {len(left)} of {len(jobs)} rounds, on {', '.join(stores)}")
    try:
        asyncio.run(_play(left, len(jobs), state, summary))
    except KeyboardInterrupt:
        told.print("Interrupted; `python3 dev.py chaos --resume` goes on from here.")
        return 130
    _show(summary, as_json=options.json, seed=state["seed"])
    return 1 if summary.violations else 0


async def _play(left: list[Job], total: int, state: dict[str, Any], summary: Summary) -> None:
    with ProgressBar("round") as progress:

        def ended(job: Job, outcome: Outcome) -> None:
            summary.add(outcome)
            state["done"].append(job.number)
            state["summary"] = summary.record()
            _write(STATE, state)
            if outcome.violations:
                progress.print(_kept(outcome))
            violations = f"{summary.violations} violations, {outcome.plan.point}"
            progress.show(len(state["done"]), total, violations)

        await run(left, ended)


def _write(path: Path, what: Any) -> None:
    """All of it, or as it was."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(what, default=str, indent=1))
    new.replace(path)


def _kept(outcome: Outcome) -> str:
    """Put the evidence aside, and say how to see it again."""
    plan = outcome.plan
    folder = FOLDER / plan.tenant
    folder.mkdir(exist_ok=True)
    _write(folder / "evidence.json", outcome.evidence)
    lines = "\n".join(f"  {one}" for one in outcome.violations)
    again = f"python3 dev.py chaos --seed {plan.seed} --point {plan.point} --store {plan.store}"
    return f"violation {plan.tenant}\n{lines}\n  again: {again} --rounds 1\n  {folder}"


def _show(summary: Summary, *, as_json: bool, seed: int) -> None:
    if as_json:
        json.dump({"seed": seed, **summary.record()}, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    table = Table(title=f"seed {seed}", box=None)
    for name in ("point", "store"):
        table.add_column(name, no_wrap=True)
    for name in Summary.COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for (point, store), row in summary.rows():
        table.add_row(point, store, *(f"{row[name]:.0f}" for name in Summary.COLUMNS))
    screen = Console()
    Console(width=max(screen.width, _WIDTH)).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dev.py chaos", description="Kill workers at every point, and count what happened."
    )
    parser.add_argument("--rounds", type=int, default=2000, metavar="N")
    parser.add_argument("--seed", type=int, help="of the first round; each next one has one more")
    parser.add_argument("--store", choices=(*STORES, "both"), default="both")
    parser.add_argument("--point", choices=POINTS, help="only rounds of this one")
    parser.add_argument("--resume", action="store_true", help="go on where the last run ended")
    parser.add_argument("--json", action="store_true", help="the summary, for programs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
