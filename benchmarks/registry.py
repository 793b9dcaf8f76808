"""Does the registry stay as fast when it is full? Registering and resolving, by size.

Each round measures every size in turn, so that a busy moment of the machine touches all of them,
and medians are compared. A ratio of 1 means that size does not matter. The target is for the same
use of a fuller registry. Using thousands of tools in turn costs more again, since they no longer
fit into the processor's cache; that row has no target and shows how much. Resolving includes the
authorization that follows it. Contracts are made beforehand: that is not the registry's work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from itertools import count
from typing import Any

from counterseal.contract.model import Contract
from counterseal.proposal import Principal
from counterseal.registry import Grant, Registry, RegistryRecord

FEW, SOME, MANY = 10, 1_000, 10_000
RESOLVES = 2_000
RESOLVE_TARGET = 1.5
RESOLVE_FEW = f"resolve, {FEW:,} registered"
RESOLVE_MANY = f"resolve, {MANY:,} registered, {FEW:,} in use"
RESOLVE_SCATTERED = f"resolve, {MANY:,} registered, {RESOLVES:,} in use"
REGISTER_SOME = f"register, one of {SOME:,}"
REGISTER_MANY = f"register, one of {MANY:,}"
AGENT = "case-assistant"
PRINCIPAL = Principal(
    tenant="tenant_1", user="u_7", agent=AGENT, roles={"clerk"}, scopes={"case:read", "case:write"}
)
EFFECTS = ("read_only", "retrieve", "compute", "draft", "internal_mutation")


def contracts(number: int) -> list[Contract]:
    return [_contract(index) for index in range(number)]


def _contract(index: int) -> Contract:
    effect = EFFECTS[index % len(EFFECTS)]
    fields: dict[str, Any] = {
        "case_id": {
            "type": "string",
            "pattern": "^case_[0-9a-f]{8}$",
            "maxLength": 13,
            "description": "The case.",
        },
        f"detail_{index}": {
            "type": "string",
            "maxLength": 40 + index % 60,
            "description": "What the tool looks at.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "How many."},
    }
    return Contract.model_validate(
        {
            "effect": effect,
            "identity": {
                "name": f"{effect}_case_part_{index}",
                "version": f"{1 + index % 3}.{index % 10}.0",
                "owner": f"team-{index % 40}",
            },
            "affordance": {
                "model_description": f"Works on part {index} of a case and on nothing else.",
                "input_schema": {
                    "type": "object",
                    "properties": fields,
                    "required": ["case_id"],
                    "additionalProperties": False,
                },
                "output_schema": {
                    "type": "object",
                    "properties": {"status": {"type": "string"}, "found": {"type": "integer"}},
                    "required": ["status"],
                    "additionalProperties": False,
                },
            },
            "security": {"required_scopes": ["case:read"]},
            "usage": f"When part {index} of a case is asked for.",
        }
    )


def register(made: list[Contract]) -> tuple[Registry, float]:
    """A registry that took them in one by one, and the microseconds that each of them cost."""
    registry = Registry()
    started = time.perf_counter()
    for contract in made:
        registry.register(contract, grants=[Grant(agent=AGENT, tool=contract.name)])
    return registry, (time.perf_counter() - started) * 1e6 / len(made)


def resolve(registry: Registry, names: list[str]) -> float:
    """Microseconds of one resolve and authorize."""
    runs = count()
    started = time.perf_counter()
    for name in names:
        record = registry.resolve(
            name, tenant=PRINCIPAL.tenant, run_id=f"run_{next(runs)}", pins={}, agent=AGENT
        )
        if not isinstance(record, RegistryRecord):
            raise SystemExit(record.message)
        grant = registry.authorize(record, PRINCIPAL)
        if not isinstance(grant, Grant):
            raise SystemExit(grant.message)
    return (time.perf_counter() - started) * 1e6 / len(names)


def lookups(made: list[Contract], different: int, number: int) -> list[str]:
    """Names to resolve: `number` of them, going round over so many different tools."""
    step = len(made) // different
    chosen = [contract.name for contract in made[::step]][:different]
    return [chosen[index % different] for index in range(number)]


def measure(rounds: int, resolves: int) -> dict[str, list[float]]:
    made = contracts(MANY)
    few, many = register(made[:FEW])[0], register(made)[0]
    scattered = min(MANY, resolves)
    resolving = {
        RESOLVE_FEW: (few, lookups(made[:FEW], FEW, resolves)),
        RESOLVE_MANY: (many, lookups(made, FEW, resolves)),
        RESOLVE_SCATTERED: (many, lookups(made, scattered, resolves)),
    }
    for registry, names in resolving.values():
        resolve(registry, names)  # fills what is worked out on first use
    times: defaultdict[str, list[float]] = defaultdict(list)
    for turn in range(rounds):
        # Whoever goes first in a round goes last in the next.
        for name, (registry, names) in list(resolving.items())[:: 1 if turn % 2 else -1]:
            times[name].append(resolve(registry, names))
        if turn % 3:
            continue  # registering is slow enough to be measured well in fewer rounds
        for name, size in ((REGISTER_SOME, SOME), (REGISTER_MANY, MANY))[:: 1 if turn % 2 else -1]:
            times[name].append(register(made[:size])[1])
    return times


def report(rounds: int, resolves: int) -> dict[str, Any]:
    before = os.getloadavg()
    times = measure(rounds, resolves)
    medians = {name: statistics.median(values) for name, values in times.items()}

    def row(name: str, base: str, target: float | None = None) -> dict[str, Any]:
        return {
            "name": name,
            "ratio": round(medians[name] / medians[base], 2),
            "target_ratio": target,
            "median_us": round(medians[name], 2),
            "fastest_us": round(min(times[name]), 2),
            "rounds": len(times[name]),
        }

    return {
        "benchmark": "registry",
        "rounds": rounds,
        "resolves_per_round": resolves,
        "load_average": {
            "before": round(before[0], 2),
            "after": round(os.getloadavg()[0], 2),
        },
        "rows": [
            row(RESOLVE_FEW, RESOLVE_FEW),
            row(RESOLVE_MANY, RESOLVE_FEW, RESOLVE_TARGET),
            row(RESOLVE_SCATTERED, RESOLVE_FEW),
            row(REGISTER_SOME, REGISTER_SOME),
            row(REGISTER_MANY, REGISTER_SOME),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The registry with few and with many contracts.")
    parser.add_argument("--rounds", type=int, default=None, help="measurements of each size")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = report(options.rounds or (3 if options.quick else 11), RESOLVES)
    if options.json:
        print(json.dumps(found))
        return
    load = found["load_average"]
    print(
        f"{found['resolves_per_round']} resolves a round; load average "
        f"{load['before']} before, {load['after']} after"
    )
    print(f"{'once':<42}{'ratio':>8}{'target':>9}{'median µs':>12}{'fastest µs':>12}{'rounds':>8}")
    for line in found["rows"]:
        target = "" if line["target_ratio"] is None else f"≤ {line['target_ratio']}"
        print(
            f"{line['name']:<42}{line['ratio']:>8}{target:>9}"
            f"{line['median_us']:>12}{line['fastest_us']:>12}{line['rounds']:>8}"
        )


if __name__ == "__main__":
    main()
