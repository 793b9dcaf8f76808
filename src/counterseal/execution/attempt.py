"""An admitted call as the executor sees it, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from counterseal.codes import Code
from counterseal.contract.surroundings import Context
from counterseal.execution.failures import Fault
from counterseal.masking import NO_MASK, Mask

__all__ = ["AttemptRequest", "Outcome", "Progress", "ProgressCallback"]


class Progress(NamedTuple):
    """How far a running call is, in the tool's own measure."""

    call_id: str
    done: float
    total: float | None = None
    message: str = ""


ProgressCallback = Callable[[Progress], None]


class AttemptRequest(NamedTuple):
    """One attempt at a call."""

    arguments: Mapping[str, Any]
    context: Callable[[], Context]
    """Made only for a tool that asks for it."""
    seconds: float
    """How long this attempt may take."""
    tell: ProgressCallback | None = None


class Outcome(NamedTuple):
    """What came of it. `code` is SUCCESS when the function returned."""

    code: Code
    value: Any = None
    fault: Fault | None = None
    trace: str = ""
    """For the vault and the operator's log; never for a model."""
    began: bool = True
    """False when nothing can have happened: the tool's own code, or its request, never left."""
    answered: bool = True
    """False when the tool was given up on, or died: nobody knows how far it came."""
    interrupted: bool = False
    """Whether the caller went away meanwhile."""
    misfit: tuple[str, str] | None = None
    """An argument that could not be sent: its JSON Pointer, and why not; fit for a model."""
    late: asyncio.Future[Any] | None = None
    """What still runs, though nobody waits for it any more."""
    words: str = ""
    """What the tool said of its failure, for its caller: somebody else's words."""
    mask: Mask = NO_MASK
    """What must not be seen of this attempt."""
