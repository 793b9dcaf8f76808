"""Makes a contract of a definition and an overlay.

The definition has the tool's schemas and texts, the overlay its effect and rules. The upstream is
untrusted: its annotations can contradict an effect that is too mild, but not lower one. An overlay
can make arguments stricter, not looser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from textwrap import wrap
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from counterseal.canonical import at, pointer, steps, thaw
from counterseal.contract.bindings import McpBinding
from counterseal.contract.effects import EFFECTS, Effect, Trust
from counterseal.contract.lint import examine
from counterseal.contract.lint.dangerous_inputs import is_credential, written_texts
from counterseal.contract.model import Contract
from counterseal.contract.outputs import BLOCKS, is_blocks
from counterseal.contract.schema_diff import compare_schemas
from counterseal.contract.schemas import is_scalar, listed, properties_of, types_of, without_refs
from counterseal.contract.sources.effect_guess import contradiction, propose_mcp_effect, strictest
from counterseal.contract.sources.foreign_text import plain, visible
from counterseal.contract.sources.mcp.definition import HINTS, Definition, instructions
from counterseal.contract.sources.mcp.fitting import fit_input, fit_output
from counterseal.contract.sources.mcp.overlay_files import (
    RULE,
    Overlay,
    OverlayEntry,
    apply_entries,
    contract_name,
    locate_problem,
    suggestion,
)
from counterseal.errors import ContractError, Problem, Severity

Schema = Mapping[str, Any]


class OverlayFault(NamedTuple):
    place: str
    """JSON Pointer inside the entry."""
    message: str
    fix: str = ""


def _apply_keywords(schema: dict[str, Any], name: str, keywords: Schema) -> Iterator[OverlayFault]:
    place, properties = pointer("arguments", name), properties_of(schema)
    if name not in properties:
        fix = suggestion(name, properties.keys()) or "Remove it."
        yield OverlayFault(place, f"it has no argument {name}", fix)
    elif "remove" not in keywords:
        held = properties[name]
        schema["properties"][name] = _merged(held if isinstance(held, dict) else {}, keywords)
    elif name in listed(schema, "required"):
        fix = "Bound it with an enum or a pattern, or hide the tool."
        yield OverlayFault(place, f"{name} can't be removed: the tool requires it", fix)
    else:
        del schema["properties"][name]


def _merged(under: Schema, over: Schema) -> dict[str, Any]:
    merged = dict(under)
    for word, value in over.items():
        held = merged.get(word)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[word] = _merged(held, value)
        else:
            merged[word] = thaw(value)
    return merged


def _loosened(given: Schema, wanted: Schema, entry: OverlayEntry) -> Iterator[OverlayFault]:
    """Yield a fault for each argument that an entry's keywords would make looser."""
    kept = {name for name, keywords in entry.arguments.items() if "remove" not in keywords}
    # Compared backwards: if the upstream's schema is stricter than the result, that is looser.
    for change in compare_schemas(wanted, thaw(given), side="input"):
        if change.path[:1] != ("properties",) or not kept.intersection(change.path[1:2]):
            continue
        name, word = change.path[1], change.path[-1]
        if change.breaking and word != "default":
            yield OverlayFault(
                pointer("arguments", *change.path[1:]),
                f"{word} does not make {name} stricter than the upstream has it",
                "An overlay can only tighten: the upstream would refuse the rest.",
            )


def _drop_credentials(schema: dict[str, Any]) -> None:
    """Remove optional arguments that are credentials."""
    for path, name, _ in list(written_texts(schema)):
        holder = at(schema, pointer(*path[:-2])) or {}  # empty inside of a removed one
        optional = name in properties_of(holder) and name not in listed(holder, "required")
        if is_credential(name) and optional:
            del holder["properties"][name]


def redaction_faults(output: Schema, entry: OverlayEntry) -> Iterator[OverlayFault]:
    """Yield a fault for each pointer that matches no field: the data would not be redacted."""
    for index, place in enumerate(entry.redact):
        if is_blocks(output):
            fix = "Remove `redact`, or hide the tool."
            yield OverlayFault(
                f"/redact/{index}", "it answers in blocks, which have no fields", fix
            )
        elif not _reached(output, place):
            fix = f"It returns {', '.join(properties_of(output)) or 'nothing that it declares'}."
            yield OverlayFault(f"/redact/{index}", f"{place} leads to no field of its output", fix)


def _reached(root: Schema, place: str) -> list[Any]:
    """Return the schemas that a pointer leads to."""
    reached: list[Any] = [root]
    for step in steps(place):
        reached = [inner for held in reached for inner in _inside(root, held, step)]
    return reached


def _inside(root: Schema, schema: Any, step: str) -> Iterator[Any]:
    """Yield the schemas that a step leads to; an empty one for an undescribed field."""
    full = without_refs(root, schema)
    branches = [branch for word in ("allOf", "anyOf", "oneOf") for branch in listed(full, word)]
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


_LONGEST_DESCRIPTION: Final = 8_000
_DEFAULTS_FOR_UNLISTED: Final = (
    *("scopes", "owner", "data_classification", "residency", "invariants"),
    *("timeout_ms", "max_output_bytes"),
)
"""The defaults that also apply to a tool without an entry: none can make it less strict."""
_PLACEHOLDER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def contract_of(
    definition: Definition,
    overlay: Overlay | None,
    *,
    server: str,
    prefix: str = "",
    unlisted: str = "hidden",
    revision: int = 1,
) -> Contract | None:
    """Return the contract of a tool, or None if it is hidden.

    A tool without an entry is `hidden`, or `gated`: visible, and a person approves each call.
    Raise ContractError with the problems, and their places in the overlay's file.
    """
    if unlisted not in ("hidden", "gated"):
        raise ValueError(f"unlisted must be hidden or gated, not {unlisted!r}")
    if overlay is not None and overlay.server != server:
        message = f"this is the overlay of {overlay.server}, not of {server}"
        raise ContractError([Problem(rule=RULE, message=message, source=overlay.source("/server"))])
    name = shown_name(definition.name, overlay, prefix=prefix, unlisted=unlisted)
    if name is None:
        return None
    entry, defaults = (
        (overlay.tools.get(definition.name), overlay.defaults) if overlay else (None, None)
    )
    if entry is None:  # a person approves each call
        held = defaults.declared if defaults else {}
        declared = {option: held[option] for option in _DEFAULTS_FOR_UNLISTED if option in held}
        declared["effect"] = strictest(definition)
        declared["consequence"] = consequence_of(definition, server)
        entry, defaults = OverlayEntry(declared=declared, place="/tools"), None
    return _ContractBuilder(definition, server, overlay, entry, defaults).contract(name, revision)


def shown_name(tool: str, overlay: Overlay | None, *, prefix: str, unlisted: str) -> str | None:
    """Return the name that agents see for a tool, or None if it is hidden."""
    entry = overlay.tools.get(tool) if overlay else None
    if entry.hidden if entry else unlisted == "hidden":
        return None
    return prefix + contract_name((entry and entry.rename) or tool)


def consequence_of(definition: Definition, server: str) -> str:
    """Return a default consequence."""
    schema = definition.input_schema
    arguments = [
        f"{name} {{{name}}}"
        for name in listed(schema, "required")
        if isinstance(name, str) and _PLACEHOLDER.fullmatch(name)
        if is_scalar(without_refs(schema, properties_of(schema).get(name)))
    ]
    with_these = f" with {', '.join(arguments[:4])}" if arguments else ""
    return f"{definition.name} of {server}{with_these}."


@dataclass(frozen=True, slots=True)
class _ContractBuilder:
    """Builds a contract, and places its problems in the overlay."""

    definition: Definition
    server: str
    overlay: Overlay | None
    entry: OverlayEntry
    defaults: OverlayEntry | None = None

    def contract(self, name: str, revision: int) -> Contract:
        data = self.data(name, revision)
        faults = list(redaction_faults(data["affordance"]["output_schema"], self.entry))
        effect = next((member for member in Effect if member == data.get("effect")), None)
        annotation = contradiction(self.definition, effect) if effect else ""
        if annotation and not self.entry.annotations_reviewed:
            fault = OverlayFault(
                "/effect",
                f"{effect} says that it changes nothing, but {self.server} says {annotation}",
                "Declare the tool's real effect. If you reviewed the tool and it is harmless, "
                "set annotations_reviewed: true.",
            )
            faults.insert(0, fault)
        contract, found = examine(data)
        errors = [problem for problem in found if problem.severity is Severity.ERROR]
        if contract is None or errors or faults:
            problems = [self.placed(fault) for fault in faults]
            raise ContractError([*problems, *(self.located(problem) for problem in errors)])
        return contract

    def data(self, name: str, revision: int) -> dict[str, Any]:
        own, entry, output = self.definition, self.entry, self.definition.output_schema
        title = plain(own.title or "", 200) or own.name
        description = plain(own.description, _LONGEST_DESCRIPTION)
        data: dict[str, Any] = {
            "redact": list(entry.redact),
            "identity": {"name": name, "version": f"{revision}.0.0"},
            "affordance": {
                "model_description": description or f"{title} (its author gave no description)",
                "input_schema": self.input_schema(),
                "output_schema": BLOCKS if output is None else fit_output(output),
            },
            "trust": Trust.UNTRUSTED,
            # The upstream runs it, not this process; the declared effect has to cover that.
            "runs_code": False,
            "mcp": McpBinding(server=self.server, tool=own.name, definition=own.hash),
        }
        apply_entries(data, self.defaults, entry)
        usage = str(data["affordance"]["model_description"])
        data.setdefault("usage", plain(usage, _LONGEST_DESCRIPTION))
        return data

    def input_schema(self) -> dict[str, Any]:
        """Return the upstream's schema with the entry's keywords for its arguments."""
        wanted: dict[str, Any] = thaw(self.definition.input_schema)
        faults = [
            fault
            for name, keywords in self.entry.arguments.items()
            for fault in _apply_keywords(wanted, name, keywords)
        ]
        faults = faults or list(_loosened(self.definition.input_schema, wanted, self.entry))
        if faults:
            raise ContractError(self.placed(fault) for fault in faults)
        try:
            schema = fit_input(wanted)
        except ValueError as error:
            raise ContractError([self.placed(OverlayFault("", str(error)))]) from None
        for name, keywords in self.entry.arguments.items():
            if "remove" in keywords and name in properties_of(schema):
                fault = f"{name} can't be removed: parts of the schema name it"
                raise ContractError([self.placed(OverlayFault("/arguments", fault))])
        _drop_credentials(schema)
        return schema

    def placed(self, fault: OverlayFault) -> Problem:
        own = self.definition.name
        problem = Problem(
            rule=RULE if fault.place else "definition-unusable",
            tool=own,
            message=fault.message,
            fix=fault.fix or self.hide_it(),
        )
        if self.overlay is None:
            return problem
        source = self.overlay.source(self.entry.place + fault.place)
        return replace(problem, message=f"{own}: {fault.message}", source=source)

    def located(self, problem: Problem) -> Problem:
        """Replace lint's fix where it concerns the upstream's schema, which the user can't edit.

        The problem's place is the overlay's file, if there is one.
        """
        if problem.pointer.startswith(("/affordance/input_", "/affordance/output_")):
            problem = replace(problem, fix=self.hide_it())
        if self.overlay is None:
            return problem
        return locate_problem(problem, self.overlay, self.entry)

    def hide_it(self) -> str:
        hidden = f"{self.definition.name}: {{hidden: true}}"
        return f"If {self.server} can't be changed, hide the tool in its overlay: {hidden}."


# --- a first overlay for review -------------------------------------------------------------------


_WIDTH: Final = 100
_INDENT: Final = 2
_LONGEST_LINE: Final = 300


def overlay_text(server: str, definitions: Iterable[Definition], *, source: str = "") -> str:
    """Return the text of an overlay file for review. `source` names the server's address.

    A tool that can't have a contract is hidden, with the reason in a comment.
    """
    tools = CommentedMap()
    for definition in sorted(definitions, key=lambda definition: definition.name):
        entry, notes = _entry(definition, server)
        tools[definition.name] = entry
        tools.yaml_set_comment_before_after_key(
            definition.name, before="\n".join(notes), indent=_INDENT
        )
    yaml = YAML()
    yaml.width = 4096  # a sentence stays on its line
    yaml.indent(mapping=_INDENT, sequence=_INDENT + 2, offset=_INDENT)
    stream = StringIO()
    yaml.dump(CommentedMap(server=server, tools=tools), stream)
    origin = f", found at {source}" if source else ""
    head = (
        f"What the tools of {server} mean{origin}.",
        "Effects were proposed from names, descriptions and annotations: a stranger's words. What",
        "was guessed is marked with `review:`. Take a mark out when you have looked.",
    )
    return "".join(f"# {_line(line)}\n" for line in head) + stream.getvalue()


def _entry(definition: Definition, server: str) -> tuple[dict[str, Any], list[str]]:
    """Return a tool's entry, and the comments above it."""
    effect, reasons = propose_mcp_effect(definition)
    entry: dict[str, Any] = {"effect": effect.value}
    # The whole description, as the lines that a model will read.
    lines = visible(definition.description[:_LONGEST_DESCRIPTION]).splitlines()
    wrapped = [part for line in lines for part in wrap(line.strip(), _WIDTH - 20)] or ["nothing"]
    notes = [f"It says: {wrapped[0]}", *(f"         {line}" for line in wrapped[1:])]
    more = len(definition.description) - _LONGEST_DESCRIPTION
    if more > 0:
        notes.append(f"It says {more:,} characters more, which no model reads.")
    hints = {hint: definition.hint(hint) for hint in HINTS if definition.hint(hint) is not None}
    if hints:
        said = ", ".join(f"{hint}: {str(value).lower()}" for hint, value in hints.items())
        notes.append(f"Its annotations: {said}")
    notes += [
        f'review: {place} reads like an instruction to a model: "{part}"'
        for place, part in instructions(definition)
    ]
    try:
        contract_of(definition, None, server=server, unlisted="gated")
        notes.append(f"review: {effect.value}: {'; '.join(reasons)}")
        if EFFECTS[effect].mutates:
            entry["consequence"] = consequence_of(definition, server)
    except ContractError as error:
        entry = {"hidden": True}
        notes.append(f"review: it can't be put under contract: {error.problems[0].message}")
    return entry, [_line(note) for note in notes]


def _line(text: str) -> str:
    """Return the text as one line of a comment."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    line = indent + " ".join(visible(text).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
