"""Contracts as tools of a provider: MCP, OpenAI (chat and responses), Anthropic.

Each function returns a `ProviderView`: the provider's tool, warnings about what it could not
express, and the mapping of calls to and from it. A provider refuses a whole request because of one
bad tool, so there is also a warning for everything that is known to be refused. `strict_schema` and
`strict_shapes` convert schemas for strict mode. All of this is for models: no decision about a call
depends on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from counterseal.canonical import canonical, pointer, thaw
from counterseal.contract.effects import EFFECTS, Effect, RiskClass, Trust
from counterseal.contract.formats.strict_schema import Conversion, convert
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError

# --- description ----------------------------------------------------------------------------------


def describe(
    contract: Contract, *, show: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> str:
    """Return the text about the tool for a model.

    `show` converts the arguments of examples to the form that the model has to write.
    """
    affordance, row = contract.affordance, EFFECTS[contract.effect or Effect.IRREVERSIBLE]
    description, usage = affordance.model_description.strip(), contract.usage.strip()
    if _line(usage) in _line(description):
        purpose = description
    else:
        contained = _line(description) in _line(usage)
        purpose = usage if contained else f"{description}\n\n{usage}"
    effects = row.disclosure
    if contract.approvers:
        people = {1: "A person", 2: "Two people"}
        who = people.get(contract.approvers, f"{contract.approvers} people")
        effects += f" {who} must approve each call."
    elif row.mutates:
        effects += " A person is asked to approve a call only where policy says so."
    examples = (
        f"{_line(example.description)}: {canonical(thaw(show(example.arguments))).decode()}"
        for example in affordance.examples
    )
    rules = (
        _line(invariant.rule)
        + (" Otherwise a person has to approve the call." if invariant.asks else "")
        for invariant in contract.invariants
    )
    parts = (
        purpose,
        f"Side effects: {effects}",
        _sentence("Use for", affordance.allowed_use_cases),
        _sentence("Do not use for", affordance.forbidden_use_cases),
        _bullets("Rules", rules),
        _bullets("Examples", examples),
    )
    return "\n\n".join(part for part in parts if part)


def _sentence(label: str, items: Iterable[str]) -> str:
    text = "; ".join(_line(item).rstrip(".") for item in items)
    return f"{label}: {text}." if text else ""


def _bullets(label: str, items: Iterable[str]) -> str:
    lines = [f"- {item}" for item in items]
    return "\n".join([f"{label}:", *lines]) if lines else ""


def _line(text: str) -> str:
    return " ".join(text.split())


# --- names ----------------------------------------------------------------------------------------


CHARACTERS = "a-zA-Z0-9_-"
LIMIT = 64
"""The documented limits of OpenAI and Anthropic. Anthropic's API accepts 128 characters."""

MCP_CHARACTERS = "a-zA-Z0-9_.-"
MCP_LIMIT = 128

_SHORTEST_HASH = 8


class UnknownNameError(CountersealError, LookupError):
    """The map has no such name."""


class NameMap:
    """A fixed set of contract names, each with its provider name, one to one.

    Names that are valid at the provider are reserved first, so that no generated name replaces a
    real one. `characters` is the inside of a regular expression's character class.
    """

    __slots__ = ("_contracts", "_providers")

    def __init__(
        self, names: Iterable[str], *, characters: str = CHARACTERS, limit: int = LIMIT
    ) -> None:
        if limit < _SHORTEST_HASH + 2:
            raise ValueError(f"limit must leave room for a hash, got {limit} characters")
        fits = re.compile(rf"[{characters}]{{1,{limit}}}")
        # Sorted, so that the result does not depend on the order of registration.
        wanted = sorted(set(names))
        self._providers = {name: name for name in wanted if fits.fullmatch(name)}
        self._contracts = dict(self._providers)
        for name in wanted:
            if name in self._providers:
                continue
            readable = re.sub(rf"[^{characters}]", "_", name)
            free = (c for c in _candidates(name, readable, limit) if c not in self._contracts)
            self._providers[name] = next(free)
            self._contracts[self._providers[name]] = name

    def to_provider(self, name: str) -> str:
        try:
            return self._providers[name]
        except KeyError:
            raise UnknownNameError(f"this map has no contract {name!r}") from None

    def to_contract(self, provider_name: str) -> str:
        try:
            return self._contracts[provider_name]
        except KeyError:
            raise UnknownNameError(f"no tool has the provider name {provider_name!r}") from None


def _candidates(name: str, readable: str, limit: int) -> Iterator[str]:
    """Yield names with ever longer hashes, then with hashes of the name and a number."""
    raw = name.encode("utf-8", "surrogatepass")
    for number in count():
        digest = hashlib.sha256(raw + (f"\0{number}".encode() if number else b"")).hexdigest()
        for size in range(_SHORTEST_HASH, min(limit - 2, len(digest)) + 1):
            yield f"{readable[: limit - size - 1]}_{digest[:size]}"


# --- providers ------------------------------------------------------------------------------------

_OPENAI_DESCRIPTION: Final = 1_024
_ANTHROPIC_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_ANTHROPIC_ROOT: Final = frozenset({"anyOf", "oneOf", "allOf"})
_OPENAI_ROOT: Final = _ANTHROPIC_ROOT | {"enum", "const", "not"}
"""Keywords that are not allowed at the root of a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """One contract as one provider sees it."""

    definition: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    conversion: Conversion | None = field(default=None, repr=False)

    @property
    def tool(self) -> dict[str, Any]:
        """The provider's tool, as a copy that can be changed."""
        copy: dict[str, Any] = thaw(self.definition)
        return copy

    def to_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments that the provider's model wrote to the contract's form."""
        return self.conversion.restore(arguments) if self.conversion else dict(arguments)

    def from_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments in the contract's form to what the provider's model has to write."""
        return self.conversion.to_strict(arguments) if self.conversion else dict(arguments)


def mcp(contract: Contract, *, names: NameMap | None = None) -> ProviderView:
    """Return an MCP tool (2025-11-25), with its effect as annotations."""
    names = names or NameMap([contract.name], characters=MCP_CHARACTERS, limit=MCP_LIMIT)
    schema, output = contract.affordance.input_schema, contract.affordance.output_schema
    words = " ".join(re.split(r"[._-]+", contract.name)).strip()
    definition = {
        "name": names.to_provider(contract.name),
        "title": words[:1].upper() + words[1:] or contract.name,
        "description": describe(contract),
        "inputSchema": schema,
        "outputSchema": output,
        "annotations": _annotations(contract),
    }
    warnings = []
    if schema.get("type") != "object":
        warnings.append("#: MCP takes only input schemas of type object")
    if output.get("type") != "object":
        del definition["outputSchema"]
        warnings.append("the output schema is left out: MCP takes only those of type object")
    return ProviderView(definition=definition, warnings=tuple(warnings))


def openai_chat(
    contract: Contract, *, strict: bool = True, names: NameMap | None = None
) -> ProviderView:
    """Return a function for OpenAI's chat completions."""
    view = openai_responses(contract, strict=strict, names=names)
    function = {key: value for key, value in view.definition.items() if key != "type"}
    return replace(view, definition={"type": "function", "function": function})


def openai_responses(
    contract: Contract, *, strict: bool = True, names: NameMap | None = None
) -> ProviderView:
    """Return a function for OpenAI's responses."""
    schema: Mapping[str, Any] = contract.affordance.input_schema
    conversion = convert(schema) if strict else None
    warnings = list(conversion.warnings) if conversion else []
    if conversion and conversion.schema is None:
        warnings.append("the tool is offered without strict mode, with its schema as it is")
        conversion = None
    if conversion is None:
        warnings += _root_refused(schema, "OpenAI", _OPENAI_ROOT)
    description = describe(contract, show=conversion.to_strict if conversion else dict)
    if len(description) > _OPENAI_DESCRIPTION:
        most = f"some of OpenAI's models take {_OPENAI_DESCRIPTION}"
        warnings.append(f"the description has {len(description)} characters; {most}")
    definition = {
        "type": "function",
        "name": (names or NameMap([contract.name])).to_provider(contract.name),
        "description": description,
        "parameters": conversion.schema if conversion else schema,
        "strict": conversion is not None,
    }
    return ProviderView(definition=definition, warnings=tuple(warnings), conversion=conversion)


def anthropic(contract: Contract, *, names: NameMap | None = None) -> ProviderView:
    """Return a tool for Anthropic's messages."""
    schema = contract.affordance.input_schema
    definition = {
        "name": (names or NameMap([contract.name])).to_provider(contract.name),
        "description": describe(contract),
        "input_schema": schema,
    }
    taken = (
        "Anthropic takes property names of up to 64 letters, digits, dots, dashes and underscores"
    )
    warnings = list(_root_refused(schema, "Anthropic", _ANTHROPIC_ROOT))
    warnings += [
        f"#{pointer('properties', name)}: {taken}"
        for name in schema.get("properties", {})
        if not _ANTHROPIC_PROPERTY.fullmatch(name)
    ]
    return ProviderView(definition=definition, warnings=tuple(warnings))


FORMATS: Final[Mapping[str, Callable[..., ProviderView]]] = {
    "mcp": mcp,
    "openai": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
}


def _root_refused(
    schema: Mapping[str, Any], provider: str, refused: frozenset[str]
) -> Iterator[str]:
    if schema.get("type") != "object" or not refused.isdisjoint(schema):
        yield f"#: {provider} takes only a plain object at the root"


def _annotations(contract: Contract) -> dict[str, bool]:
    effect = contract.effect or Effect.IRREVERSIBLE
    mutates = EFFECTS[effect].mutates
    # Tools that reach, or read from, parties outside. An irreversible tool may be internal; the
    # hint claims the wider reach, which makes clients more careful.
    open_world = (Effect.RETRIEVE, Effect.EXTERNAL_NOTIFICATION, Effect.IRREVERSIBLE)
    return {
        # A raised risk class can mean that a "read" writes something temporary.
        "readOnlyHint": not mutates and contract.risk is RiskClass.READ_ONLY,
        # A draft only adds. Other changes may overwrite, or can't be undone.
        "destructiveHint": mutates and effect is not Effect.DRAFT,
        # Equal arguments in one run are one operation, unless the contract says otherwise.
        "idempotentHint": not mutates
        or (contract.idempotency.required and not contract.repeatable),
        "openWorldHint": effect in open_world or contract.trust is Trust.UNTRUSTED,
    }
