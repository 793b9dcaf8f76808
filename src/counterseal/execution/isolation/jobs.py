"""A call for another process, and what comes back: plain data both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from counterseal.execution.isolation.address import Address

__all__ = ["Job", "Kind", "Reply", "Tell"]

Tell = Callable[[str, Any], None]
"""Takes `"progress"` with `[done, total, message]`, and `"log"` with `[level, text]`."""

Kind = Literal["value", "partial", "unserialisable", "fault", "died", "late", "unavailable"]


class Job(NamedTuple):
    """A call for another process: all of it plain data."""

    address: Address
    arguments: Mapping[str, Any]
    injected: Mapping[str, Any]
    """By parameter: secrets, config and state, already resolved."""
    context_params: Sequence[str]
    context: Mapping[str, Any]
    """The fields of a `Context`, the services left out."""
    egress: Mapping[str, Any]
    files: str | None
    memory_mb: int
    secrets: Mapping[str, str] = {}
    """By name: those of the injected values that nothing which is printed, logged or raised may
    show. Both sides hide them before they cut what is too long."""


class Reply(NamedTuple):
    """What came back."""

    kind: Kind
    value: Any = None
    """What the tool returned; for `partial` an object of completed, failed and data."""
    fault: Any = None
    """The record of a `Fault`, as the child wrote it."""
    trace: str = ""
    """For an operator: a traceback, or how the child died and what it last printed."""
    words: str = ""
    """What the tool said of its failure, for its caller."""
    began: bool = True
    """False when the call never reached the tool's function."""
    interrupted: bool = False
    """Whether the caller went away meanwhile. The rest is true all the same."""
