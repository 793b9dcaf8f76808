"""From a definition and an overlay to a contract.

The definition says how a tool is called, the overlay what calling it means. Of a stranger's word
only what is stricter counts: annotations can contradict an entry that sounds too harmless, and
arguments can be tightened but not loosened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from counterseal.contract.bindings import McpBinding
from counterseal.contract.effects import Effect, Trust
from counterseal.contract.lint import examine
from counterseal.contract.model import Contract
from counterseal.contract.outputs import BLOCKS
from counterseal.contract.schemas import listed, properties_of, types_of, without_refs
from counterseal.contract.sources.mcp.characters import plain
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.entries import (
    RULE,
    Entry,
    Overlay,
    blame,
    contract_name,
    lay,
)
from counterseal.contract.sources.mcp.fitting import fit_input, fit_output
from counterseal.contract.sources.mcp.posture import contradiction, strictest
from counterseal.contract.sources.mcp.reading import read_overlay
from counterseal.contract.sources.mcp.tightening import (
    Fault,
    drop_credentials,
    redaction_faults,
    tightened,
)
from counterseal.errors import ContractError, Problem, Severity

__all__ = ["Entry", "Overlay", "consequence_of", "contract_of", "read_overlay", "shown_name"]

_LONGEST_DESCRIPTION: Final = 8_000
_FOR_UNLISTED: Final = (
    "scopes",
    "owner",
    "data_classification",
    "residency",
    "invariants",
    "timeout_ms",
    "max_output_bytes",
)
"""Of an overlay's defaults, what a tool without an entry gets: nothing that could loosen it."""
_TOLD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLAIN: Final = frozenset({"string", "integer", "number", "boolean"})


def contract_of(
    definition: Definition,
    overlay: Overlay | None,
    *,
    server: str,
    prefix: str = "",
    unlisted: str = "hidden",
    revision: int = 1,
) -> Contract | None:
    """The contract of a tool; None when it is hidden.

    A tool without an entry is `hidden`, or `gated`: visible, and a person approves each call.
    ContractError says what is wrong, in the overlay's file where it stands there.
    """
    if unlisted not in ("hidden", "gated"):
        raise ValueError(f"unlisted is hidden or gated, not {unlisted!r}")
    if overlay is not None and overlay.server != server:
        message = f"this is the overlay of {overlay.server}, not of {server}"
        raise ContractError([Problem(rule=RULE, message=message, source=overlay.source("/server"))])
    name = shown_name(definition.name, overlay, prefix=prefix, unlisted=unlisted)
    if name is None:
        return None
    entry = overlay.tools.get(definition.name) if overlay else None
    if overlay is None or entry is None:
        making = _Making(definition, server, overlay, _gate(definition, server, overlay))
    else:
        making = _Making(definition, server, overlay, entry, overlay.defaults)
    return making.contract(name, revision)


def shown_name(tool: str, overlay: Overlay | None, *, prefix: str, unlisted: str) -> str | None:
    """The name that agents have for a tool, whatever its definition says; None: it is hidden."""
    entry = overlay.tools.get(tool) if overlay else None
    if entry.hidden if entry else unlisted == "hidden":
        return None
    return prefix + contract_name((entry and entry.rename) or tool)


def consequence_of(definition: Definition, server: str) -> str:
    """A sentence for approvers, where nobody has written one."""
    schema = definition.input_schema
    told = [
        f"{name} {{{name}}}"
        for name in listed(schema, "required")
        if isinstance(name, str) and _TOLD.fullmatch(name) and _is_plain(schema, name)
    ]
    with_these = f" with {', '.join(told[:4])}" if told else ""
    return f"{definition.name} of {server}{with_these}."


def _is_plain(schema: Mapping[str, Any], name: str) -> bool:
    types = types_of(without_refs(schema, properties_of(schema).get(name)))
    return bool(types) and _PLAIN.issuperset(types)


def _gate(definition: Definition, server: str, overlay: Overlay | None) -> Entry:
    """The entry of a tool that has none."""
    defaults = overlay.defaults.declared if overlay and overlay.defaults else {}
    kept = {name: defaults[name] for name in _FOR_UNLISTED if name in defaults}
    given = {"effect": strictest(definition), "consequence": consequence_of(definition, server)}
    return Entry(declared={**kept, **given}, place="/tools")


@dataclass(frozen=True, slots=True)
class _Making:
    """One contract on its way."""

    definition: Definition
    server: str
    overlay: Overlay | None
    entry: Entry
    defaults: Entry | None = None

    def contract(self, name: str, revision: int) -> Contract:
        data = self.data(name, revision)
        faults = [
            *self.annotation_faults(data.get("effect")),
            *redaction_faults(data["affordance"]["output_schema"], self.entry),
        ]
        made, errors = _examined(data)
        if drop_credentials(data["affordance"]["input_schema"], errors):
            made, errors = _examined(data)
        if made is None or errors or faults:
            told = [self.placed(fault) for fault in faults]
            raise ContractError([*told, *(self.blamed(problem) for problem in errors)])
        return made

    def data(self, name: str, revision: int) -> dict[str, Any]:
        own, entry = self.definition, self.entry
        output = own.output_schema
        data: dict[str, Any] = {
            "redact": list(entry.redact),
            "identity": {"name": name, "version": f"{revision}.0.0"},
            "affordance": {
                "model_description": _description(own),
                "input_schema": self.input_schema(),
                "output_schema": BLOCKS if output is None else fit_output(output),
            },
            "trust": Trust.UNTRUSTED,
            # Nothing of it is run here; what the upstream does with it, the effect has to tell.
            "runs_code": False,
            "mcp": McpBinding(server=self.server, tool=own.name, definition=own.hash),
        }
        lay(data, self.defaults, entry)
        told = str(data["affordance"]["model_description"])
        data.setdefault("usage", plain(told, _LONGEST_DESCRIPTION))
        return data

    def input_schema(self) -> dict[str, Any]:
        wanted, faults = tightened(self.definition.input_schema, self.entry)
        if faults:
            raise ContractError(self.placed(fault) for fault in faults)
        try:
            made = fit_input(wanted)
        except ValueError as error:
            raise ContractError([self.placed(Fault("", str(error)))]) from None
        for name, keywords in self.entry.arguments.items():
            if "remove" in keywords and name in properties_of(made):
                fault = Fault("/arguments", f"{name} can't be removed: parts of the schema name it")
                raise ContractError([self.placed(fault)])
        return made

    def annotation_faults(self, effect: Any) -> Iterator[Fault]:
        known = next((one for one in Effect if one == effect), None)
        said = contradiction(self.definition, known) if known else ""
        if said and not self.entry.annotations_reviewed:
            yield Fault(
                "/effect",
                f"{known} says that it changes nothing, but {self.server} says {said}",
                "Declare the effect that it has; or, if you have looked and it is harmless, "
                "annotations_reviewed: true.",
            )

    # --- problems ---------------------------------------------------------------------------------

    def placed(self, fault: Fault) -> Problem:
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

    def blamed(self, problem: Problem) -> Problem:
        """Lint's advice is for whoever writes the schema; here that is a stranger."""
        theirs = problem.pointer.startswith(("/affordance/input_", "/affordance/output_"))
        told = replace(problem, fix=self.hide_it()) if theirs else problem
        return told if self.overlay is None else blame(told, self.overlay, self.entry)

    def hide_it(self) -> str:
        hidden = f"{self.definition.name}: {{hidden: true}}"
        return f"If {self.server} can't be mended, hide the tool in its overlay: {hidden}."


def _examined(data: Mapping[str, Any]) -> tuple[Contract | None, list[Problem]]:
    made, problems = examine(data)
    return made, [problem for problem in problems if problem.severity is Severity.ERROR]


def _description(definition: Definition) -> str:
    told = plain(definition.description, _LONGEST_DESCRIPTION)
    if told:
        return told
    title = plain(definition.title or "", 200)
    return f"{title or definition.name} (its author gave no description)"
