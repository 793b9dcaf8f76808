"""An imported contract as YAML for people: what to review stands beside what was guessed."""

from __future__ import annotations

from io import StringIO
from textwrap import wrap
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from counterseal.canonical import pointer
from counterseal.contract.sources.openapi.importing import ImportedTool
from counterseal.contract.sources.openapi.texts import visible

__all__ = ["to_yaml"]

_WIDTH = 100
_INDENT = 2


def to_yaml(tool: ImportedTool, *, source: str) -> str:
    """The text of a contract file. `source` says where the document came from."""
    yaml = YAML()
    yaml.width = _WIDTH
    yaml.indent(mapping=_INDENT, sequence=_INDENT + 2, offset=_INDENT)
    yaml.representer.ignore_aliases = lambda *_: True  # contract files have no anchors
    reviews: dict[str, list[str]] = {}
    for review in tool.reviews:
        reviews.setdefault(review.pointer, []).append(review.text)
    stream = StringIO()
    yaml.dump(_node(tool.data, (), reviews), stream)
    return _head(tool, source, reviews.get("", [])) + stream.getvalue()


def _head(tool: ImportedTool, source: str, notes: list[str]) -> str:
    lines = [
        f"Imported from {source}: {tool.method} {tool.path}",
        "What was guessed is marked with `review:`. Take a mark out when you have looked.",
        *(f"review: {note}" for note in notes),
    ]
    return "".join(f"# {part}\n" for line in lines for part in _wrapped(line, 0))


def _wrapped(text: str, indent: int) -> list[str]:
    return wrap(visible(text), max(40, _WIDTH - 2 - indent), break_long_words=False)


def _node(value: Any, path: tuple[str | int, ...], reviews: dict[str, list[str]]) -> Any:
    if isinstance(value, dict):
        made = CommentedMap()
        for key, item in value.items():
            here = (*path, key)
            made[_text(key)] = _node(item, here, reviews)
            indent = _INDENT * len(path)
            told = "; ".join(reviews.get(pointer(*here), []))
            lines = _wrapped(f"review: {told}", indent) if told else []
            if lines:
                made.yaml_set_comment_before_after_key(key, before="\n".join(lines), indent=indent)
        return made
    if isinstance(value, list | tuple):
        sequence = CommentedSeq(_node(item, (*path, i), reviews) for i, item in enumerate(value))
        if all(not isinstance(item, dict | list) for item in value):
            sequence.fa.set_flow_style()
        return sequence
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """Quoted in full where a plain scalar might not come back as it was."""
    return text if text.isprintable() else DoubleQuotedScalarString(text)
