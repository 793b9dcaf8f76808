"""One attempt at an admitted call: the request to the executor, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from counterseal.codes import Code
from counterseal.contract.tool_context import Context
from counterseal.execution.failures import Fault
from counterseal.masking import NO_MASK, Mask


class Progress(NamedTuple):
    """The progress of a running call, in the tool's own units."""

    call_id: str
    done: float
    total: float | None = None
    message: str = ""


ProgressCallback = Callable[[Progress], None]


class AttemptRequest(NamedTuple):
    """One attempt at a call."""

    arguments: Mapping[str, Any]
    context: Callable[[], Context]
    """Makes the context; called only for a tool that declares one."""
    seconds: float
    """The time limit of this attempt."""
    tell: ProgressCallback | None = None


class Outcome(NamedTuple):
    """The result of one attempt. `code` is SUCCESS when the function returned."""

    code: Code
    value: Any = None
    fault: Fault | None = None
    trace: str = ""
    """The traceback, for the vault and the operator's log; never for a model."""
    began: bool = True
    """False when nothing can have happened: the tool did not start, or its request was not sent."""
    answered: bool = True
    """False when the tool was given up or died, so that its effect is unknown."""
    interrupted: bool = False
    """True if the caller was cancelled while the tool ran."""
    misfit: tuple[str, str] | None = None
    """An argument that can't be sent: its JSON Pointer and the reason. Safe for a model."""
    late: asyncio.Future[Any] | None = None
    """The tool, if it still runs after the call was given up."""
    words: str = ""
    """The tool's own message about its failure, for the caller. Untrusted text."""
    mask: Mask = NO_MASK
    """Masks the secrets of this attempt."""
