"""Does the registry stay as fast when it is full? Registering and resolving, by size.

Each round measures every size in turn, so that a busy moment of the machine touches all of them,
and medians are compared. A ratio of 1 means that size does not matter. The target is for the same
use of a fuller registry. Using thousands of tools in turn costs more again, since they no longer
fit into the processor's cache; that row has no target and shows how much. Resolving includes the
authorization that follows it. Contracts are made beforehand: that is not the registry's work.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.house import Block, House
from benchmarks._house.rows import Row, Turn
from counterseal.contract.model import Contract
from counterseal.proposal import Principal
from counterseal.registry import Grant, Registry, RegistryRecord

FEW, MANY = 10, 10_000
SOME, MORE = 200, 2_000
RESOLVES = 2_000
RESOLVE_TARGET = 1.5
RESOLVE_FEW = f"resolve, {FEW:,} registered"
RESOLVE_MANY = f"resolve, {MANY:,} registered, {FEW:,} in use"
RESOLVE_SCATTERED = f"resolve, {MANY:,} registered, {RESOLVES:,} in use"
REGISTER_SOME = f"register, one of {SOME:,}"
REGISTER_MORE = f"register, one of {MORE:,}"
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


def filled(made: list[Contract]) -> Registry:
    registry = Registry()
    registry.register(*made, grants=[Grant(agent=AGENT, tool=one.name) for one in made])
    return registry


def register(made: list[Contract]) -> tuple[Registry, float]:
    """A registry that took them in one by one, and the seconds that each of them cost."""
    registry = Registry()
    started = time.perf_counter()
    for contract in made:
        registry.register(contract, grants=[Grant(agent=AGENT, tool=contract.name)])
    return registry, (time.perf_counter() - started) / len(made)


def resolve(registry: Registry, names: list[str]) -> float:
    """Seconds of one resolve and authorize."""
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
    return (time.perf_counter() - started) / len(names)


def lookups(made: list[Contract], different: int, number: int) -> list[str]:
    """Names to resolve: `number` of them, going round over so many different tools."""
    step = len(made) // different
    chosen = [contract.name for contract in made[::step]][:different]
    return [chosen[index % different] for index in range(number)]


def rows() -> list[Row]:
    def row(key: str, what: str, ours: str, theirs: str, reach: float | None = None) -> Row:
        return Row(
            key=f"registry/{key}", what=what, ours=ours, theirs=theirs, better="lower", reach=reach
        )

    return [
        row(
            "resolve", f"{RESOLVE_MANY}, beside {FEW:,}", RESOLVE_MANY, RESOLVE_FEW, RESOLVE_TARGET
        ),
        row("scattered", f"{RESOLVE_SCATTERED}, beside {FEW:,}", RESOLVE_SCATTERED, RESOLVE_FEW),
        row("register", f"{REGISTER_MORE}, beside {SOME:,}", REGISTER_MORE, REGISTER_SOME),
    ]


async def bench(house: House) -> None:
    house.doing("making contracts")
    made = contracts(MANY)
    few, many = filled(made[:FEW]), filled(made)

    def resolving(registry: Registry, names: list[str]) -> Block:
        async def block() -> Turn:
            return Turn(resolve(registry, names), (), len(names))

        return block

    def registering(size: int) -> Block:
        async def block() -> Turn:
            return Turn(register(made[:size])[1], (), size)

        return block

    blocks = {
        RESOLVE_FEW: resolving(few, lookups(made[:FEW], FEW, RESOLVES)),
        RESOLVE_MANY: resolving(many, lookups(made, FEW, RESOLVES)),
        RESOLVE_SCATTERED: resolving(many, lookups(made, RESOLVES, RESOLVES)),
    }
    resolved, registered = rows()[:2], rows()[2:]
    await house.compare("resolving", blocks, resolved, rounds=house.pick(15, 5))
    # Registering is slow enough to be measured well in fewer rounds.
    sizes = {REGISTER_SOME: registering(SOME), REGISTER_MORE: registering(MORE)}
    await house.compare("registering", sizes, registered, rounds=house.pick(5, 1), warm=False)


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("registry", bench)
