"""What the steps of a call may use of the runtime: protocols, background tasks and leases.

A step names the protocol that it needs. `Runtime` satisfies all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

from counterseal.errors import StoreError
from counterseal.execution.executor import Executor
from counterseal.gates.base import CompiledContract
from counterseal.keys import KeyRing
from counterseal.ledger.entry import Entry
from counterseal.ledger.records import Budgets, Due, Held
from counterseal.observation import Redactor
from counterseal.registry import Registry, RegistryRecord
from counterseal.storage.store import Store
from counterseal.telemetry import Telemetry
from counterseal.vault import Vault

T = TypeVar("T")
_log = logging.getLogger("counterseal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An operator's settings for a tenant: its budgets for a day, and facts for policy rules."""

    budgets: Budgets | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of_runs = ("repairs", "seconds", "retries")
        if self.budgets and any(getattr(self.budgets, name) is not None for name in of_runs):
            raise ValueError(
                "budgets: repairs, seconds and retries are limits of a run; a tenant has none"
            )


class BackgroundTasks:
    """The tasks of one runtime that go on even if their caller is cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()
        self.closed = False

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start a task that runs to its end. `finish` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin_if_open(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task, unless the runtime has closed meanwhile."""
        if self.closed:
            work.close()
        else:
            self.begin(work)

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end. A cancellation of the caller is raised after that.

        A second cancellation ends the wait at once; the work goes on all the same.
        """
        task = self.begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise

    async def finish(self) -> None:
        """Wait until no task is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class Leases:
    """The ledger entries that this process executes; renews their leases while they run.

    Most calls end long before their lease does. For the others, one timer renews all leases of the
    process together; no timer runs while nothing is executed.
    """

    def __init__(self, store: Store, seconds: float, tasks: BackgroundTasks) -> None:
        self.seconds = seconds
        self._store = store
        self._tasks = tasks
        self._held: dict[tuple[str, str], tuple[Entry, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def hold(self, entry: Entry, since: float) -> None:
        """Keep an entry. `since` is a moment before its lease began, by the monotonic clock."""
        self._held[entry.tenant, entry.key] = (entry, since)
        if self._timer is None or self._loop is not asyncio.get_running_loop():
            self._schedule()

    def may_have_lapsed(self, entry: Entry) -> bool:
        """Return True if so much time has passed that another worker may have taken over."""
        held = self._held.get((entry.tenant, entry.key))
        return held is None or monotonic() - held[1] >= self.seconds

    async def still_held(self, entry: Entry) -> bool:
        """Ask the store whether the entry is still this worker's, and renew its lease if so."""
        since = monotonic()
        (held,) = await self._store.renew([entry], self.seconds)
        if held:
            self.hold(entry, since)
        return held and monotonic() - since <= self.seconds

    def let_go(self, entry: Entry) -> None:
        """Stop renewing an entry: it is settled, or another worker will settle it."""
        place = (entry.tenant, entry.key)
        held = self._held.get(place)
        # Another fencing number belongs to a later call of this process.
        if held is not None and held[0].fence == entry.fence:
            del self._held[place]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self.seconds / 3, self._renew_old)

    def _renew_old(self) -> None:
        self._timer = None
        if not self._held:
            return
        before = monotonic() - self.seconds / 4
        old = [entry for entry, since in self._held.values() if since <= before]
        if old:
            self._tasks.begin(self._renew(old))
        self._schedule()

    async def _renew(self, entries: list[Entry]) -> None:
        since = monotonic()
        try:
            renewed = await self._store.renew(entries, self.seconds)
        except StoreError as error:
            _log.warning("leases could not be renewed: %s", error)
            return
        for entry, held in zip(entries, renewed, strict=True):
            if held and (entry.tenant, entry.key) in self._held:
                self._held[entry.tenant, entry.key] = (entry, since)
            elif not held:
                # Its outcome still becomes an event; the worker that took over settles the entry.
                _log.warning(
                    "call %s outlived its lease; another worker has taken over", entry.call_id
                )
                self.let_go(entry)


# --- protocols ------------------------------------------------------------------------------------


class EventServices(Protocol):
    """To record events and refusals."""

    store: Store
    redactor: Redactor

    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class GateServices(Protocol):
    """To resolve a tool and to run its gates."""

    registry: Registry
    executor: Executor
    keys: KeyRing | None
    tenants: dict[str, Tenant]
    telemetry: Telemetry
    clock: Callable[[], float]

    def compiled_for(self, record: RegistryRecord) -> CompiledContract: ...
    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class HoldServices(Protocol):
    """To hold a call for approval."""

    store: Store
    redactor: Redactor
    vault: Vault

    def notices(self, held: Held) -> Sequence[tuple[float, Due]]: ...
    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class ExecuteServices(Protocol):
    """To run a tool and its hooks."""

    store: Store
    registry: Registry
    executor: Executor
    leases: Leases
    clock: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]

    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class ObserveServices(Protocol):
    """To make an observation of an outcome."""

    redactor: Redactor

    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class SettleServices(Protocol):
    """To write down what came of a call."""

    store: Store
    redactor: Redactor
    vault: Vault
    executor: Executor
    leases: Leases
    tasks: BackgroundTasks
    telemetry: Telemetry
    due: asyncio.Event
    keep_reads_bytes: int
    clock: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]

    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class CallServices(Protocol):
    """All of the above, for steps that may have to take a call to its end.

    Recall may find the outcome of an earlier call, and settle it; admission may decide anew.
    """

    store: Store
    registry: Registry
    executor: Executor
    redactor: Redactor
    vault: Vault
    keys: KeyRing | None
    tenants: dict[str, Tenant]
    leases: Leases
    tasks: BackgroundTasks
    telemetry: Telemetry
    due: asyncio.Event
    keep_reads_bytes: int
    worker: str
    clock: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]

    def compiled_for(self, record: RegistryRecord) -> CompiledContract: ...
    def notices(self, held: Held) -> Sequence[tuple[float, Due]]: ...
    async def catch_up(self) -> bool: ...
    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...
