"""One attempt at an admitted call: its request, its outcome, and the services of its `Context`.

`LocalServices` are for tools that run in this process. Tools in another process get theirs from
`isolation.worker`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from counterseal.clocks import boottime
from counterseal.codes import Code
from counterseal.contract.egress import Egress
from counterseal.contract.tool_context import Context
from counterseal.execution.failures import Fault
from counterseal.execution.files import Files
from counterseal.execution.logs import call_logger
from counterseal.masking import NO_MASK, Mask

if TYPE_CHECKING:
    import httpx

    from counterseal.execution.network import Clients

_LONGEST_MESSAGE = 500


class Progress(NamedTuple):
    """The progress of a running call, in the tool's own units."""

    call_id: str
    done: float
    total: float | None = None
    message: str = ""


ProgressCallback = Callable[[Progress], None]


def never() -> bool:
    """Return False: nothing of this call can lapse."""
    return False


class AttemptRequest(NamedTuple):
    """One attempt at a call."""

    arguments: Mapping[str, Any]
    context: Callable[[], Context]
    """Makes the context; called only for a tool that declares one."""
    seconds: float
    """The time limit of this attempt."""
    tell: ProgressCallback | None = None
    lapsed: Callable[[], bool] = never
    """Returns whether the call's lease may have lapsed, so that another worker may execute it."""


class Outcome(NamedTuple):
    """The result of one attempt. `code` is SUCCESS when the function returned."""

    code: Code
    value: Any = None
    fault: Fault | None = None
    trace: str = ""
    """The traceback, for the vault and the operator's log; never for a model."""
    began: bool = True
    """False when nothing can have happened: the tool did not start, or its request was not sent."""
    not_done: bool = False
    """True if the tool, or its contract, says of this failure that nothing was done."""
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
    error_fields: Mapping[str, Any] = MappingProxyType({})
    """Further fields of the tool's error, for the caller. Untrusted."""
    mask: Mask = NO_MASK
    """Masks the secrets of this attempt."""


TOO_LATE: Final[ContextVar[Callable[[], str]]] = ContextVar("counterseal_too_late", default=str)
"""Returns why the call that runs in this context may send nothing any more; empty if it may."""


class Provision(NamedTuple):
    """The executor's parts for every call of one tool."""

    tool: str
    egress: Egress
    clients: Callable[[], Clients]
    directory: Callable[[Context, str], Path]
    own_clients: bool = False
    """True if each call makes and closes its clients, because it has its own event loop."""


class LocalServices:
    """The services of one call, each made on first use. `close` ends them with the call."""

    cancelled = False

    def __init__(self, work: AttemptRequest, provision: Provision) -> None:
        self._work = work
        self._provision = provision
        self._until = boottime() + work.seconds
        """The deadline, as a moment of `boottime`."""
        self.mask = NO_MASK
        """Masks the credentials of the call, once they are known."""
        self._closed = False
        self._tell = work.tell
        self._loop = None if work.tell is None else asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @cached_property
    def about(self) -> Context:
        """The call, without these services."""
        return self._work.context()

    @cached_property
    def http(self) -> httpx.AsyncClient:
        seconds = self._work.seconds
        return self._clients.client(self._provision.egress, self.too_late, seconds=seconds)

    @cached_property
    def sync_http(self) -> httpx.Client:
        seconds = self._work.seconds
        return self._clients.sync_client(self._provision.egress, self.too_late, seconds=seconds)

    def too_late(self) -> str:
        """Return why nothing may be sent any more; empty if it may."""
        if boottime() >= self._until:
            return "the call's deadline has passed"
        lapsed = "the call's lease may have lapsed, and another worker may execute it"
        return lapsed if self._work.lapsed() else ""

    @cached_property
    def _clients(self) -> Clients:
        if self._closed:
            raise RuntimeError("the call has ended, and its HTTP clients are closed")
        return self._provision.clients()

    @cached_property
    def files(self) -> Files:
        return Files(self._provision.directory(self.about, self._provision.tool))

    @cached_property
    def log(self) -> logging.LoggerAdapter[Any]:
        about = self.about
        ids = {"tenant": about.tenant, "run_id": about.run_id, "call_id": about.call_id}
        return call_logger(self.mask, **ids, tool=self._provision.tool)

    def progress(self, done: float, total: float | None, message: str) -> None:
        tell = self._tell  # another thread may close the services at the same time
        if tell is None or self.cancelled:
            return
        report = progress_of(self.about.call_id, done, total, message, self.mask)
        if threading.get_ident() == self._thread:
            tell(report)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell, report)

    def end(self) -> bool:
        """Refuse further use. Returns True if clients were made, which `close` has to close."""
        self._tell, self._closed = None, True
        return "_clients" in vars(self)

    async def close(self) -> None:
        """Close the clients of this call. Pooled connections stay open for the next call."""
        self.end()
        made = vars(self)
        clients: Clients | None = made.pop("_clients", None)
        try:
            if "http" in made:
                await self.http.aclose()
            if "sync_http" in made:
                self.sync_http.close()
            if self._provision.own_clients and clients is not None:
                await clients.aclose()
        except Exception:
            self.log.warning("a connection could not be closed", exc_info=True)


def progress_of(call_id: str, done: Any, total: Any, message: Any, mask: Mask) -> Progress:
    """Return a progress report for the caller: finite numbers, and text without secrets."""
    text = mask.text(str(message))[:_LONGEST_MESSAGE]
    return Progress(call_id, _number(done) or 0.0, _number(total), text)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
