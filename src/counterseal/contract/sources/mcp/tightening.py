"""What an entry asks of a tool's schemas: stricter arguments, fields taken out of the output.

Each function returns what is wrong as faults; where they stand in the overlay's file is said by a
place inside the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from counterseal.canonical import pointer, thaw
from counterseal.contract.outputs import is_blocks
from counterseal.contract.schema_diff import compare_schemas
from counterseal.contract.schemas import listed, properties_of, types_of, without_refs
from counterseal.contract.sources.mcp.entries import Entry, meant
from counterseal.errors import Problem

__all__ = ["Fault", "drop_credentials", "redaction_faults", "tightened"]

Schema = Mapping[str, Any]


class Fault(NamedTuple):
    place: str
    """JSON Pointer, from the entry on."""
    message: str
    fix: str = ""


def tightened(given: Schema, entry: Entry) -> tuple[dict[str, Any], list[Fault]]:
    """An input schema with what an entry says of its arguments laid over it."""
    schema: dict[str, Any] = thaw(given)
    faults = [
        fault
        for name, keywords in entry.arguments.items()
        for fault in _lay_over(schema, name, keywords)
    ]
    return schema, faults or list(_loosened(given, schema, entry))


def _lay_over(schema: dict[str, Any], name: str, keywords: Schema) -> Iterator[Fault]:
    place, properties = pointer("arguments", name), properties_of(schema)
    if name not in properties:
        fix = meant(name, properties.keys()) or "Take it out."
        yield Fault(place, f"it has no argument {name}", fix)
    elif "remove" not in keywords:
        held = properties[name]
        schema["properties"][name] = _merged(held if isinstance(held, dict) else {}, keywords)
    elif name in listed(schema, "required"):
        fix = "Bound it with an enum or a pattern, or hide the tool."
        yield Fault(place, f"{name} can't be removed: the tool requires it", fix)
    else:
        del schema["properties"][name]


def _merged(under: Schema, over: Schema) -> dict[str, Any]:
    made = dict(under)
    for word, value in over.items():
        held = made.get(word)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            made[word] = _merged(held, value)
        else:
            made[word] = thaw(value)
    return made


def _loosened(given: Schema, wanted: Schema, entry: Entry) -> Iterator[Fault]:
    """Where what an entry lays over an argument would let more through."""
    kept = {name for name, keywords in entry.arguments.items() if "remove" not in keywords}
    # Told the other way round: on the way back from ours to theirs nothing may become stricter.
    for change in compare_schemas(wanted, thaw(given), side="input"):
        if change.path[:1] != ("properties",) or not kept.intersection(change.path[1:2]):
            continue
        name, word = change.path[1], change.path[-1]
        if change.breaking and word != "default":
            yield Fault(
                pointer("arguments", *change.path[1:]),
                f"{word} does not make {name} stricter than the upstream has it",
                "An overlay can only tighten: the upstream would refuse the rest.",
            )


def drop_credentials(schema: dict[str, Any], errors: list[Problem]) -> bool:
    """Take out optional arguments that no model may write. Whether there were any."""
    dropped = False
    for problem in errors:
        if problem.rule != "credential-argument":
            continue
        *path, _, name = [_unescaped(part) for part in problem.pointer.split("/")[3:]]
        holder: Any = schema
        for part in path:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        if name not in listed(holder, "required") and name in properties_of(holder):
            del holder["properties"][name]
            dropped = True
    return dropped


# --- redaction ------------------------------------------------------------------------------------


def redaction_faults(output: Schema, entry: Entry) -> Iterator[Fault]:
    """Pointers that can't lead to anything: what they were to hide would be shown."""
    for at, place in enumerate(entry.redact):
        if is_blocks(output):
            fix = "Take `redact` out, or hide the tool."
            yield Fault(f"/redact/{at}", "it answers in blocks, which have no fields", fix)
        elif not _leads(output, place):
            fix = f"It returns {', '.join(properties_of(output)) or 'nothing that it declares'}."
            yield Fault(f"/redact/{at}", f"{place} leads to no field of its output", fix)


def _leads(root: Schema, place: str) -> bool:
    reached: list[Any] = [root]
    for part in place.split("/")[1:]:
        step = _unescaped(part)
        reached = [inner for held in reached for inner in _inside(root, held, step)]
    return bool(reached)


def _inside(root: Schema, schema: Any, step: str) -> Iterator[Any]:
    """What a step leads to; an empty schema where nothing is said of what is there."""
    full = without_refs(root, schema)
    branches = [one for word in ("allOf", "anyOf", "oneOf") for one in listed(full, word)]
    for branch in branches:
        if branch is not schema:
            yield from _inside(root, branch, step)
    named, rest = properties_of(full), full.get("additionalProperties")
    if step in named:
        yield named[step]
    elif step == "*" and isinstance(full.get("items"), Mapping):
        yield full["items"]
    elif isinstance(rest, Mapping):
        yield rest
    elif not named and not branches and "items" not in full and rest is not False:
        types = types_of(full)
        if not types or ("array" if step == "*" else "object") in types:
            yield {}


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
