"""Events of the demo, `python3 dev.py demo --auto`: which kinds, of which tool, with which fields.

Agents work at the same time, so events of different calls come in any order; those of one call do
not. Kept are the kinds in the order of each call, how often each order occurs, and the fields.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.golden.normalise import as_text
from tests.journeys.demo_runs import finished, new_home
from tests.warm import warm

STORE = "counterseal.db"
REPEATED = ["tool.replayed(SUCCESS)"]
"""How often an agent asks again for what a person has approved meanwhile depends on the load."""


def outputs() -> dict[str, str]:
    """The golden files of the demo."""
    with new_home() as home:
        done = finished(home, "--auto")
        assert done.code == 0, done.story
        events = exported(home)
        told = json.loads(done.out)
    invariants = [f"{one['name']}: {'ok' if one['ok'] else 'BROKEN'}" for one in told["invariants"]]
    found = {
        "calls": calls(events),
        "fields": fields(events),
        "figures": {tenant: figures(table) for tenant, table in told["figures"].items()},
        "invariants": invariants,
    }
    return {"demo/events.json": as_text(found)}


def exported(home: Path) -> list[dict[str, Any]]:
    """Return every event of every tenant, as `audit export` tells them."""
    done = subprocess.run(
        warm("-m", "counterseal", "audit", "export", "--json"),
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COUNTERSEAL_STORE": f"sqlite:///{home / STORE}"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def calls(events: list[dict[str, Any]]) -> dict[str, int]:
    """Count how often each sequence of events occurs, by tenant, tool and kinds."""
    sequences: dict[tuple[str, str], list[str]] = defaultdict(list)
    tools: dict[tuple[str, str], str] = {}
    for event in events:
        call = (event["tenant"], event["call_id"] or "")
        decision = event["decision"]
        sequences[call].append(f"{event['type']}({decision})" if decision else event["type"])
        tools[call] = event["tool"] or "-"
    counted = Counter(
        f"{call[0]} {tools[call]}: {', '.join(kinds)}"
        for call, kinds in sequences.items()
        if call[1] and kinds != REPEATED
    )
    return dict(sorted(counted.items()))


def figures(table: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that do not depend on how often an agent asked again."""
    return {name: value for name, value in table.items() if name not in ("proposals", "replayed")}


def fields(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The fields of each kind of event; those of its body as `body.name`."""
    names: dict[str, set[str]] = defaultdict(set)
    for event in events:
        names[event["type"]] |= event.keys() - {"body"}
        names[event["type"]] |= {f"body.{name}" for name in event.get("body") or ()}
    return {kind: sorted(found) for kind, found in sorted(names.items())}
