"""Contracts as the tools that providers take: MCP, OpenAI (chat and responses), Anthropic.

Each function gives a `View`: the provider's tool, what it could not express, and the mapping of
calls to and from it. A provider refuses a whole request for one bad tool, so what is known to be
refused is said in a warning too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from counterseal.canonical import pointer, thaw
from counterseal.contract.effects import EFFECTS, Effect, RiskClass, Trust
from counterseal.contract.formats.description import describe
from counterseal.contract.formats.names import MCP_CHARACTERS, MCP_LIMIT, NameMap
from counterseal.contract.formats.strict import Conversion, convert
from counterseal.contract.model import Contract

__all__ = ["FORMATS", "Format", "View", "anthropic", "mcp", "openai_chat", "openai_responses"]

_OPENAI_DESCRIPTION: Final = 1_024
_ANTHROPIC_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_ANTHROPIC_ROOT: Final = frozenset({"anyOf", "oneOf", "allOf"})
_OPENAI_ROOT: Final = _ANTHROPIC_ROOT | {"enum", "const", "not"}
"""What may not stand at the root of a schema."""

# Whoever these reach or read from is not known beforehand. An irreversible tool may stay inside or
# not; the hint claims the wider reach, because a client is careful where it is true.
_OPEN_WORLD: Final = frozenset({Effect.RETRIEVE, Effect.EXTERNAL_NOTIFICATION, Effect.IRREVERSIBLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One contract as one provider sees it."""

    definition: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    conversion: Conversion | None = field(default=None, repr=False)

    @property
    def tool(self) -> dict[str, Any]:
        """The provider's tool, as a copy that may be changed."""
        copy: dict[str, Any] = thaw(self.definition)
        return copy

    def to_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call as the provider's model wrote it, in the contract's own form."""
        return self.conversion.restore(arguments) if self.conversion else dict(arguments)

    def from_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call in the contract's own form, as the provider's model has to write it."""
        return self.conversion.to_strict(arguments) if self.conversion else dict(arguments)


class Format(Protocol):
    def __call__(self, contract: Contract, *, names: NameMap | None = None) -> View: ...


def mcp(contract: Contract, *, names: NameMap | None = None) -> View:
    """An MCP tool (2025-11-25), with its effect as annotations."""
    names = names or NameMap([contract.name], characters=MCP_CHARACTERS, limit=MCP_LIMIT)
    schema, output = contract.affordance.input_schema, contract.affordance.output_schema
    definition = {
        "name": names.to_provider(contract.name),
        "title": _title(contract.name),
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
    return View(definition=definition, warnings=tuple(warnings))


def openai_chat(contract: Contract, *, strict: bool = True, names: NameMap | None = None) -> View:
    """A function of OpenAI's chat completions."""
    function, warnings, conversion = _function(contract, names, strict=strict)
    definition = {"type": "function", "function": function}
    return View(definition=definition, warnings=warnings, conversion=conversion)


def openai_responses(
    contract: Contract, *, strict: bool = True, names: NameMap | None = None
) -> View:
    """A function of OpenAI's responses."""
    function, warnings, conversion = _function(contract, names, strict=strict)
    definition = {"type": "function", **function}
    return View(definition=definition, warnings=warnings, conversion=conversion)


def anthropic(contract: Contract, *, names: NameMap | None = None) -> View:
    """A tool of Anthropic's messages."""
    schema = contract.affordance.input_schema
    definition = {
        "name": (names or NameMap([contract.name])).to_provider(contract.name),
        "description": describe(contract),
        "input_schema": schema,
    }
    refused = (
        f"#{pointer('properties', name)}: Anthropic takes property names of up to 64 letters, "
        "digits, dots, dashes and underscores"
        for name in schema.get("properties", {})
        if not _ANTHROPIC_PROPERTY.fullmatch(name)
    )
    return View(
        definition=definition,
        warnings=(*_root_refused(schema, "Anthropic", _ANTHROPIC_ROOT), *refused),
    )


FORMATS: Final[Mapping[str, Format]] = {
    "mcp": mcp,
    "openai": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
}


def _function(
    contract: Contract, names: NameMap | None, *, strict: bool
) -> tuple[dict[str, Any], tuple[str, ...], Conversion | None]:
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
        warnings.append(
            f"the description has {len(description)} characters; "
            f"some of OpenAI's models take {_OPENAI_DESCRIPTION}"
        )
    function = {
        "name": (names or NameMap([contract.name])).to_provider(contract.name),
        "description": description,
        "parameters": conversion.schema if conversion else schema,
        "strict": conversion is not None,
    }
    return function, tuple(warnings), conversion


def _root_refused(
    schema: Mapping[str, Any], provider: str, refused: frozenset[str]
) -> Iterator[str]:
    if schema.get("type") != "object" or not refused.isdisjoint(schema):
        yield f"#: {provider} takes only a plain object at the root"


def _title(name: str) -> str:
    words = " ".join(re.split(r"[._-]+", name)).strip()
    return words[:1].upper() + words[1:] or name


def _annotations(contract: Contract) -> dict[str, bool]:
    effect = contract.effect or Effect.IRREVERSIBLE
    mutates = EFFECTS[effect].mutates
    return {
        # A raised risk class may say that a "read" writes after all, if only for a while.
        "readOnlyHint": not mutates and contract.risk is RiskClass.READ_ONLY,
        # A draft only adds. Anything else that mutates may overwrite, or cannot be taken back.
        "destructiveHint": mutates and effect is not Effect.DRAFT,
        # Equal arguments in one run are one operation, unless the tool says that they may be two.
        "idempotentHint": not mutates
        or (contract.idempotency.required and not contract.repeatable),
        "openWorldHint": effect in _OPEN_WORLD or contract.trust is Trust.UNTRUSTED,
    }
