"""The text that a model reads about a tool.

Made of what a contract says to models: description, usage, consequences, use cases, rules and
examples. Scopes, secrets, keys, owners and limits never enter it. Equal contracts give equal text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from counterseal.canonical import canonical, thaw
from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.model import Contract

__all__ = ["describe"]

# The table's wording assumes the effect's own number of approvers; a contract may ask for another.
_USUAL_APPROVAL = re.compile(r"[^.]*\bmust approve each call\.")


def describe(
    contract: Contract, *, show: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> str:
    """Everything that a model is told about the tool.

    `show` puts the examples' arguments into the form in which the model has to write them.
    """
    affordance = contract.affordance
    examples = (
        f"{_line(example.description)}: {canonical(thaw(show(example.arguments))).decode()}"
        for example in affordance.examples
    )
    parts = (
        _purpose(affordance.model_description.strip(), contract.usage.strip()),
        f"Side effects: {_consequences(contract)}",
        _sentence("Use for", affordance.allowed_use_cases),
        _sentence("Do not use for", affordance.forbidden_use_cases),
        _bullets("Rules", (_line(invariant.rule) for invariant in contract.invariants)),
        _bullets("Examples", examples),
    )
    return "\n\n".join(part for part in parts if part)


def _purpose(description: str, usage: str) -> str:
    """Both texts, or the one that already says the other."""
    if _line(usage) in _line(description):
        return description
    if _line(description) in _line(usage):
        return usage
    return f"{description}\n\n{usage}"


def _consequences(contract: Contract) -> str:
    row = EFFECTS[contract.effect or Effect.IRREVERSIBLE]
    disclosure = _USUAL_APPROVAL.sub("", row.disclosure).strip()
    return f"{disclosure} {_approval(contract.approvers, mutates=row.mutates)}".strip()


def _approval(approvers: int, *, mutates: bool) -> str:
    if approvers == 0:
        return "A person is asked to approve a call only where policy says so." if mutates else ""
    if approvers == 1:
        return "A person must approve each call."
    count = "Two" if approvers == 2 else str(approvers)
    return f"{count} people must approve each call."


def _sentence(label: str, items: Iterable[str]) -> str:
    text = "; ".join(_line(item).rstrip(".") for item in items)
    return f"{label}: {text}." if text else ""


def _bullets(label: str, items: Iterable[str]) -> str:
    lines = [f"- {item}" for item in items]
    return "\n".join([f"{label}:", *lines]) if lines else ""


def _line(text: str) -> str:
    return " ".join(text.split())
