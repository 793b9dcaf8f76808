"""A starting overlay for people to review: every tool, the effect that is proposed for it, and why.

What the upstream says of itself stands beside it as comments, with everything in it visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from counterseal.contract.effects import EFFECTS
from counterseal.contract.sources.mcp.characters import visible
from counterseal.contract.sources.mcp.definition import HINTS, Definition
from counterseal.contract.sources.mcp.overlay import consequence_of, contract_of
from counterseal.contract.sources.mcp.posture import propose
from counterseal.errors import ContractError

__all__ = ["overlay_text"]

_WIDTH: Final = 100
_INDENT: Final = 2
_LONGEST_LINE: Final = 300


def overlay_text(server: str, definitions: Iterable[Definition], *, source: str = "") -> str:
    """The text of an overlay file, tools by name. `source` says where the server was found.

    What can't be put under contract is hidden, with the reason.
    """
    tools = CommentedMap()
    for definition in sorted(definitions, key=lambda one: one.name):
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
    return _head(server, source) + stream.getvalue()


def _head(server: str, source: str) -> str:
    found = f", found at {source}" if source else ""
    lines = [
        f"What the tools of {server} mean{found}.",
        "Effects were proposed from names, descriptions and annotations: a stranger's words. What",
        "was guessed is marked with `review:`. Take a mark out when you have looked.",
    ]
    return "".join(f"# {_line(line)}\n" for line in lines)


def _entry(definition: Definition, server: str) -> tuple[dict[str, Any], list[str]]:
    """A tool's entry, and the comments above it."""
    effect, reasons = propose(definition)
    entry: dict[str, Any] = {"effect": effect.value}
    notes = [f"It says: {_first_line(definition.description) or 'nothing'}"]
    hints = [(hint, definition.hint(hint)) for hint in HINTS]
    if told := ", ".join(
        f"{hint}: {str(said).lower()}" for hint, said in hints if said is not None
    ):
        notes.append(f"Its annotations: {told}")
    hidden = _why_not(definition, server)
    if hidden:
        entry = {"hidden": True}
        notes.append(f"review: it can't be put under contract: {hidden}")
        return entry, [_line(note) for note in notes]
    notes.append(f"review: {effect.value}: {'; '.join(reasons)}")
    if EFFECTS[effect].mutates:
        entry["consequence"] = consequence_of(definition, server)
    return entry, [_line(note) for note in notes]


def _why_not(definition: Definition, server: str) -> str:
    try:
        contract_of(definition, None, server=server, unlisted="gated")
    except ContractError as error:
        return error.problems[0].message
    return ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in visible(text).splitlines() if line.strip()), "")


def _line(text: str) -> str:
    """One line of a comment, whatever it is made of."""
    line = " ".join(visible(text).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
