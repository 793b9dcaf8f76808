"""Exceptions of the package, and `Problem`, the record that most of them carry.

Exceptions are for bugs, outages and refused declarations. A refused *proposal* is never an
exception: it is a decision, and comes back as an observation. The most important ones:

    CountersealError
    ├── ContractError      a contract is refused; `.problems` lists everything that is wrong with it
    ├── ExpressionError    a CEL expression was refused, or failed during evaluation
    ├── GrantError         a grant is refused
    ├── RegistryError      the registry cannot do what it was asked to do
    ├── SecretUnavailableError   a credential could not be resolved
    ├── ToolFailedError    a tool reported that it failed
    │   └── SpokenError    with a message that its caller may read
    │       └── NotDoneError   raised by a tool: nothing was done, and why
    ├── NotSentError       a request never left this machine, so it had no effect
    │   └── TooLateError   its call's deadline or lease had passed right before it was sent
    ├── AnswerLostError    a request was sent, and no usable answer arrived
    ├── EgressError        a tool tried to connect to a place that its contract does not allow
    ├── ResponseTooLargeError    a response exceeds the size limit
    ├── FilesError         a path leads out of a tool's directory, or to something else than a file
    ├── IsolationError     the isolation that a contract asks for is not available here
    ├── StoreError         the store can't be opened, read or written
    ├── PolicyError        (policy) a policy can't be loaded; `.problems` as above
    │   └── PlanningError  (plans) plan rules can't be loaded
    ├── RunError           (runs) a run can't be opened, or does not exist
    ├── ConfigError        (config) counterseal.toml can't be used
    ├── ProbeError         (execution) a probe could not read the state of its target
    ├── TemplateError      (contract.fill) a template refers to a value that does not exist
    ├── KeysError          (keys) a key, or the folder of keys, can't be used
    ├── VaultError         (vault) a stored value can't be decrypted
    ├── ApprovalError      (operations.approver) a vote is refused; `.why` is the cause
    ├── LockError          (contract.sources.mcp.lock) the lock file can't be read or written
    ├── TokenError         (approvals.tokens) an approval token is refused; `.why` is the cause
    └── UnknownNameError   (contract.formats) no tool has this name at the provider
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


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
    """One finding about a contract, a grant or a policy: the rule, the place and the fix.

    `pointer` is a JSON Pointer into the contract's record; `source` is the position in the file
    that the contract was read from.
    """

    rule: str
    message: str
    fix: str = ""
    pointer: str = ""
    severity: Severity = Severity.ERROR
    tool: str = ""
    source: Source | None = None

    def at(self, source: Source | None) -> Problem:
        """Return the problem with its position in a file."""
        return replace(self, source=source)

    def of(self, tool: str) -> Problem:
        """Return the problem with the name of the tool that it is about."""
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
    """Escape characters that a terminal would obey; messages can quote foreign text."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class CountersealError(Exception):
    """Base class of every exception that this package raises on purpose."""


class ContractError(CountersealError):
    """A contract, or a set of contracts, is refused. None of them was registered."""

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
    """A CEL expression was refused, or did not evaluate to true or false."""


class GrantError(CountersealError):
    """A grant is refused: the tool is unknown, deprecated, or not for agents."""


class RegistryError(CountersealError):
    """The registry has no such record, or the requested change is not valid."""


class SecretUnavailableError(CountersealError):
    """A credential could not be resolved. The message names it and never shows its value."""


class ToolFailedError(CountersealError):
    """A tool reported a failure of its own. `details` is for people, never for a model."""

    def __init__(self, tool: str, details: Any = None) -> None:
        self.details = details
        super().__init__(f"{tool} reported a failure")


class SpokenError(ToolFailedError):
    """A tool reported a failure with a message for its caller. The message is untrusted text.

    `reported` are the tool's own names for the failure, which a contract can map to codes. `fields`
    are further fields of its error that the caller may read, as untrusted as the message.
    """

    def __init__(
        self,
        tool: str,
        words: str,
        reported: tuple[str, ...] = (),
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tool, words)
        self.words = words
        self.reported = reported
        self.fields = fields or {}


class NotDoneError(SpokenError):
    """Raised by a tool that did nothing. The message says why, and its caller reads it."""

    def __init__(self, words: str) -> None:
        super().__init__("the tool", words)
        self.args = (words,)


class NotSentError(CountersealError):
    """A request never left this machine, so it had no effect.

    Tools may raise it as well. The message is for operators.
    """


class TooLateError(NotSentError):
    """A request was not sent, because its call may not be this worker's any more.

    The call's deadline has passed, or its lease, most likely while the process was suspended. What
    the tool did before is not known.
    """


class AnswerLostError(CountersealError):
    """A request was sent, and no answer arrived, or none that can be understood."""


class EgressError(CountersealError):
    """A tool tried to connect to a place that its contract does not allow."""


class ResponseTooLargeError(CountersealError):
    """A response exceeds the size limit."""


class FilesError(CountersealError):
    """A path leads out of a tool's directory, or to something else than a plain file."""


class IsolationError(CountersealError):
    """The isolation that a contract asks for is not available here."""


class StoreError(CountersealError):
    """The store can't be opened, read or written.

    The failed operation wrote nothing, or it is not known whether it did. The message names the
    store, the cause and the fix; it never shows stored values.
    """
