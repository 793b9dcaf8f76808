"""What can go wrong, as exceptions, and the problem record that most of them carry.

Exceptions are for bugs, outages and refused declarations. A refused *proposal* is never an
exception: it is a decision, and comes back as an observation.

    CountersealError
    ├── ContractError      a contract is refused; `.problems` holds everything that is wrong with it
    ├── ExpressionError    a CEL expression can't be accepted, or failed while it ran
    ├── GrantError         a grant is refused
    ├── RegistryError      the registry was asked for something that it can't do
    ├── SecretUnavailableError   a credential could not be had
    ├── ToolFailedError    a tool said itself that it failed
    │   └── SpokenError    in words that its caller may read, too
    │       └── NotDoneError   raised by a tool: nothing was done, and why
    ├── NotSentError       a request never left this machine: nothing can have come of it
    ├── AnswerLostError    a request left, and whoever should have answered did not
    ├── EgressError        a tool wanted to connect where its contract does not let it
    ├── ResponseTooLargeError    somebody answered with more than is read
    ├── FilesError         a path leads out of a tool's own directory, or to no plain file
    ├── IsolationError     the isolation that a contract asks for can't be had here
    ├── StoreError         the store can't be opened, read or written
    ├── PolicyError        (policy) a policy can't be loaded; `.problems` as above
    │   └── PlanningError  (planning) plan rules can't be loaded
    ├── RunError           (runs) a run can't be opened, or is not there
    ├── ConfigError        (config) counterseal.toml can't be used
    ├── ProbeError         (execution.probes) the world could not be asked
    ├── FillingError       (contract.filling) a template names what is not there
    ├── KeysError          (keys) a key, or the folder of keys, can't be used
    ├── VaultError         (vault) a kept value can't be opened
    ├── TokenError         (approvals.token) an approval's token is refused; `.why` says for what
    └── UnknownNameError   (contract.formats.names) a provider's name stands for no tool
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

__all__ = [
    "AnswerLostError",
    "ContractError",
    "CountersealError",
    "EgressError",
    "ExpressionError",
    "FilesError",
    "GrantError",
    "IsolationError",
    "NotDoneError",
    "NotSentError",
    "Problem",
    "RegistryError",
    "ResponseTooLargeError",
    "SecretUnavailableError",
    "Severity",
    "Source",
    "SpokenError",
    "StoreError",
    "ToolFailedError",
]


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A place in a file. Lines and columns count from one."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a contract, a grant or a policy: which rule, where, what to do.

    `pointer` is a JSON Pointer into the contract's record; `source` is where that stands in a file,
    when it came from one.
    """

    rule: str
    message: str
    fix: str = ""
    pointer: str = ""
    severity: Severity = Severity.ERROR
    tool: str = ""
    source: Source | None = None

    def at(self, source: Source | None) -> Problem:
        return replace(self, source=source)

    def of(self, tool: str) -> Problem:
        return replace(self, tool=tool)

    def record(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            "tool": self.tool,
            "pointer": self.pointer,
            "message": self.message,
            "fix": self.fix,
            "file": self.source.file if self.source else None,
            "line": self.source.line if self.source else None,
            "column": self.source.column if self.source else None,
        }

    def __str__(self) -> str:
        place = (
            str(self.source) if self.source else " ".join(filter(None, (self.tool, self.pointer)))
        )
        text = f"[{self.rule}] {self.message}"
        return _printable(f"{place}: {text}" if place else text)


def _printable(text: str) -> str:
    """Somebody else's words may hold what a terminal would obey."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class CountersealError(Exception):
    """The root of everything that this package raises on purpose."""


class ContractError(CountersealError):
    """A contract, or a set of them, is refused. Nothing of it was registered."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        count = len(self.problems)
        lines = [f"{count} problem{'' if count == 1 else 's'}"]
        for problem in self.problems:
            lines.append(f"  {problem}")
            if problem.fix:
                lines.append(f"    fix: {problem.fix}")
        super().__init__("\n".join(lines))


class ExpressionError(CountersealError):
    """A CEL expression can't be accepted, or did not evaluate to a yes or a no."""


class GrantError(CountersealError):
    """A grant is refused: the tool is unknown, deprecated, or never for agents."""


class RegistryError(CountersealError):
    """The registry holds no such record, or the change asked for makes no sense."""


class SecretUnavailableError(CountersealError):
    """A credential could not be had. Says its name, never its value."""


class ToolFailedError(CountersealError):
    """A tool reported a failure of its own. `details` is for people, never for a model."""

    def __init__(self, tool: str, details: Any = None) -> None:
        self.details = details
        super().__init__(f"{tool} reported a failure")


class SpokenError(ToolFailedError):
    """A tool reported a failure in words that are meant for its caller. They come from outside."""

    def __init__(self, tool: str, words: str) -> None:
        super().__init__(tool, words)
        self.words = words


class NotDoneError(SpokenError):
    """For a tool to raise: nothing was done, and this is why. Its caller reads the words."""

    def __init__(self, words: str) -> None:
        super().__init__("the tool", words)
        self.args = (words,)


class NotSentError(CountersealError):
    """A request never left this machine: nothing can have come of it.

    A tool may raise it, too. Its text is for operators.
    """


class AnswerLostError(CountersealError):
    """A request left, and whoever should have answered did not, or not in words that make sense."""


class EgressError(CountersealError):
    """A tool wanted to connect where its contract does not let it. Says where, and why not."""


class ResponseTooLargeError(CountersealError):
    """Somebody answered with more than is read."""


class FilesError(CountersealError):
    """A path leads out of a tool's own directory, or to something that is no plain file."""


class IsolationError(CountersealError):
    """The isolation that a contract asks for can't be had here. Says what is missing."""


class StoreError(CountersealError):
    """The store can't be opened, read or written. Nothing of what was asked was written.

    Says which one, why, and what to do about it; never what was to be kept.
    """
