"""What tools say of a run's state, and whether it fits together. Asked at registration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from counterseal.contract.tool_context import StateEffect
from counterseal.errors import Problem, Severity

__all__ = ["Declared"]


class Declared:
    """What was said so far, tool by tool. The versions of one tool may differ."""

    def __init__(self) -> None:
        self._variables: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._merges: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def add(self, tool: str, index: int, effect: StateEffect) -> Iterator[Problem]:
        """Take in one effect of a tool; what is wrong with it beside those of other tools."""
        place, variable = f"/state_effects/{index}", effect.prompt_template_var
        if variable is not None:
            other = _otherwise(self._variables[variable], tool, effect.key)
            if other is not None:
                yield Problem(
                    rule="variable-ambiguous",
                    pointer=f"{place}/prompt_template_var",
                    message=f"{variable} stands for {effect.key} here, and for {other}",
                    fix="Give one of them another name.",
                )
        other = _otherwise(self._merges[effect.key], tool, effect.merge)
        if other is not None:
            yield Problem(
                rule="state-merge-conflict",
                severity=Severity.WARNING,
                pointer=f"{place}/merge",
                message=f"{effect.key} is merged by {effect.merge} here, and by {other}",
                fix="Let all who write a key merge it alike, or write another key.",
            )


def _otherwise(said: dict[str, str], tool: str, value: str) -> str | None:
    """What another tool says instead, and which, if one does. What this one says is kept."""
    said[tool] = value
    others = (f"{theirs} in {other}" for other, theirs in said.items() if theirs != value)
    return next(others, None)
