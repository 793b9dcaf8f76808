"""`Call`: what is known of one proposal on its way through the runtime; and its steps' services.

The steps in this folder fill the record, each its own part; nothing else writes to it. A step
returns an `End` to stop the call, or None to go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol, TypeVar

from counterseal.audit import CallFields
from counterseal.clocks import boottime
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.errors import StoreError
from counterseal.execution.attempt import Outcome, ProgressCallback
from counterseal.execution.executor import Executor
from counterseal.execution.failures import MAY_HAVE_HAPPENED
from counterseal.gates.base import CompiledContract, Decision, GateContext, TimedDecision, Verdict
from counterseal.keys import KeyRing
from counterseal.ledger.entry import Entry, Phase
from counterseal.ledger.records import Budgets, Due, Held
from counterseal.ledger.requests import Charge
from counterseal.ledger.rows import LONGEST_LEASE
from counterseal.observation import Observation, Observed, Redactor
from counterseal.proposal import Principal
from counterseal.registry import Registry, RegistryRecord
from counterseal.storage.store import Store
from counterseal.telemetry import Telemetry
from counterseal.vault import Vault

T = TypeVar("T")
_log = logging.getLogger("counterseal")

NOT_BEGUN: Final = Outcome(Code.TIMEOUT, began=False)
MAX_LOOKS: Final = 10
"""How often a resumed call is looked at before a person has to find out what became of it."""


class DecideAgain:
    """Returned by a step when something changed since the decision, which must be made anew."""


DECIDE_AGAIN: Final = DecideAgain()
End = Decision | Observation | DecideAgain
"""How a step ends a call: with a refusal, an answer, or a new decision from the start."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One proposal on its way through the runtime."""

    # --- from the start ---------------------------------------------------------------------------
    ctx: GateContext
    """All that gates may see. Immutable; `learn` puts a changed copy in its place."""
    started_ns: int
    trace_id: str
    epoch: int
    """The registry's epoch when the call came in."""
    progress: ProgressCallback | None = None
    traced: bool = False
    """True if an OpenTelemetry SDK is configured, so that a span has to be emitted."""
    decided_before: bool = False
    """True from the second decision on: something had changed after the first."""
    resumed: bool = False
    """True if a worker continues what another one began; no agent waits for the answer."""
    proposal_facts: dict[str, Any] | None = None
    """What events say of the proposal; see `capture.proposal_facts`."""
    captured: Mapping[str, Any] = field(default_factory=dict)
    """What events say of its capture: its place or why there is none, and what it lacks."""
    caller: CallFields | None = None
    """Part of every event; see `events.event`."""

    # --- receive, decide --------------------------------------------------------------------------
    decisions: list[TimedDecision] = field(default_factory=list)
    recall_first: bool = False
    """True if stored data matters to the decision."""
    needs_counters: bool = False
    """True if recall must also read the counters, for a policy rule or an approver."""
    approval_requirement: Decision | None = None
    """The approval gate's decision that approvers must be asked."""
    budget_requirements: tuple[Decision, ...] = ()
    """Decisions that require approval because budgets are exhausted."""
    first_decision: int = 0
    """Number of decisions before the gates that `decide` runs."""
    policy_version: str | None = None
    skip_state_gate: bool = False
    """True for a step of a plan whose target an earlier step may change."""
    refused_by: Decision | None = None
    """The decision that refused the call, once it is recorded."""
    answered: bool = False
    """True from when it is certain that the event which ends the call will be written."""
    attempts_exhausted: bool = False
    """True if the agent has used up its attempts to get this call right."""

    # --- recall, admit ----------------------------------------------------------------------------
    key: str | None = None
    """The key of the ledger entry."""
    request_hash: bytes = b""
    """The hash of the arguments as proposed."""
    counters_recalled: bool = False
    overdrawn: tuple[Charge, int] | None = None
    """The charge that was refused because of its budget, and how much of that was spent."""
    takes_over: int | None = None
    """Fence number of an earlier call under the same key, whose outcome is unknown."""
    entry: Entry | None = None
    """The reservation in the ledger."""

    # --- execute, observe, settle -----------------------------------------------------------------
    attempt: int = 1
    outcome: Outcome = NOT_BEGUN
    in_doubt: bool = False
    """True if an attempt under this key may have taken effect without an answer."""
    retry_blocked: bool = False
    """True if the call was not retried because it might have been executed twice."""
    reported: bool = False
    """True if the client has carried the call out, and reports the outcome."""
    settled: bool = False
    """True once the outcome is written; it is not if another worker or report was faster."""
    reconciled: bool = False
    """True if the outcome was found out by asking the destination."""
    cancellation: BaseException | None = None
    """What ended the caller's wait; while the tool runs, it is raised after settling."""
    observed: Observed | None = None
    still_running: bool = False
    """True if an abandoned attempt still runs, and keeps the entry's lease."""

    def learn(self, **facts: Any) -> None:
        """Put facts into the context for the gates and steps that follow."""
        self.ctx = self.ctx.replace(**facts)

    def add_decision(self, decision: Decision) -> None:
        """Append a decision that no gate has made."""
        self.decisions.append(TimedDecision(decision))

    def overrule(self, decision: Decision) -> Decision:
        """Put a decision in the place of the one that its gate made before, and return it."""
        for index, (earlier, nanoseconds) in enumerate(self.decisions):
            if earlier.gate == decision.gate:
                self.decisions[index] = TimedDecision(decision, nanoseconds)
                return decision
        self.add_decision(decision)
        return decision

    def forget_decisions(self) -> None:
        """Take back the decisions since `first_decision`, before the gates run anew."""
        del self.decisions[self.first_decision :]
        self.approval_requirement = None
        self.learn(requirements=self.budget_requirements, approval_id=None)

    @property
    def tenant(self) -> str:
        return self.ctx.principal.tenant

    @property
    def call_id(self) -> str:
        return self.ctx.call_id

    @property
    def until(self) -> float:
        """The deadline of the caller, of the run, or of the run's budget: the earliest."""
        run, until = self.ctx.run, self.ctx.until
        if run.deadline is not None:
            until = min(until, run.deadline)
        if run.budgets.seconds is not None:
            until = min(until, run.started_at + run.budgets.seconds)
        return until

    @property
    def contract(self) -> Contract:
        """The contract, once `receive` has resolved the tool."""
        return self.ctx.resolved.contract

    @property
    def outcome_unknown(self) -> bool:
        """True if the call may have changed something, and no answer says so."""
        return self.outcome.code is not Code.SUCCESS and (self.in_doubt or self.attempt_unanswered)

    @property
    def attempt_unanswered(self) -> bool:
        """True if the last attempt may have changed something, and no answer says so."""
        outcome = self.outcome
        if not outcome.began or not self.ctx.resolved.mutates:
            return False
        if not outcome.answered:
            return True
        return not outcome.not_done and outcome.code in MAY_HAVE_HAPPENED


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would become of a call: the decisions of its gates. Nothing was executed."""

    decisions: tuple[TimedDecision, ...]
    arguments: Mapping[str, Any]
    verdict: str
    code: str | None
    reason: str

    @classmethod
    def of(cls, call: Call, verdict: Verdict, code: Code | None, reason: str) -> Preview:
        """Return the preview of a call that ended with this verdict."""
        return cls(
            decisions=tuple(call.decisions),
            arguments=call.ctx.arguments,
            verdict=verdict.value,
            code=None if code is None else code.value,
            reason=reason,
        )


# --- services -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An operator's settings for a tenant: its budgets for a day, and facts for policy rules."""

    budgets: Budgets | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    keep_arguments_days: int | None = None
    """How long arguments of proposals are kept; 0: not at all. None: the operator's setting."""

    def __post_init__(self) -> None:
        of_runs = ("repairs", "seconds", "retries", "tokens")
        if self.budgets and any(getattr(self.budgets, name) is not None for name in of_runs):
            raise ValueError(
                "budgets: repairs, seconds, retries and tokens are limits of a run, not of a tenant"
            )


class RefusedLimit:
    """How many refused proposals of one caller are kept in an hour, by this process."""

    MOST: Final = 200

    def __init__(self) -> None:
        self._hour = 0
        self._counts: Counter[tuple[str, str, str | None]] = Counter()

    def take(self, principal: Principal, now: float) -> bool:
        """Return True if one more may be kept, and count it."""
        hour = int(now // 3600)
        if hour != self._hour:
            self._hour, self._counts = hour, Counter()
        caller = (principal.tenant, principal.agent, principal.user)
        self._counts[caller] += 1
        return self._counts[caller] <= self.MOST


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

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work as part of the caller's task. `finish` waits for it, too."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.add(end)
        try:
            return await work
        finally:
            self._tasks.discard(end)
            end.set_result(None)

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


Moment = tuple[float, float]
"""A moment by the clock that counts suspension, and by the wall clock."""
_APART: Final = 1.0
"""Wall and monotonic clock part by more seconds only when one is set, or the machine sleeps."""
_MOST_ORPHANS: Final = 100_000


class Leases:
    """The ledger entries that this process executes; renews their leases while they run.

    Most calls end long before their lease does. For the others, one timer renews all leases of the
    process together; no timer runs while nothing is executed. Clocks can be set, so that a lease
    seems to be over: see `mistrusted` and `orphaned_for`.
    """

    def __init__(
        self,
        store: Store,
        seconds: float,
        tasks: BackgroundTasks,
        clock: Callable[[], float],
        steady: Callable[[], float],
    ) -> None:
        if not 0 < seconds <= LONGEST_LEASE:
            raise ValueError(f"lease must be above 0, and at most {LONGEST_LEASE:g} seconds")
        self.seconds = seconds
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._steady = steady
        self._held: dict[tuple[str, str], tuple[Entry, Moment]] = {}
        self._orphans: dict[tuple[str, str], tuple[int, float]] = {}
        self._ahead = clock() - steady()
        self._set_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def moment(self) -> Moment:
        """Return the moment at which a lease begins, if it is asked for next."""
        return boottime(), self._clock()

    def _age(self, since: Moment) -> float:
        """Return the seconds since then, by the clock by which they are more."""
        return max(boottime() - since[0], self._clock() - since[1])

    def hold(self, entry: Entry, since: Moment) -> None:
        """Keep an entry. `since` is a moment before its lease began."""
        self._held[entry.tenant, entry.key] = (entry, since)
        if self._timer is None or self._loop is not asyncio.get_running_loop():
            self._schedule()

    def may_have_lapsed(self, entry: Entry) -> bool:
        """Return True if so much time has passed that another worker may have taken over."""
        held = self._held.get((entry.tenant, entry.key))
        return held is None or self._age(held[1]) >= self.seconds

    async def still_held(self, entry: Entry) -> bool:
        """Ask the store whether the entry is still this worker's, and renew its lease if so."""
        since = self.moment()
        (held,) = await self._store.renew([entry], self.seconds)
        if held:
            self.hold(entry, since)
        return held and self._age(since) <= self.seconds

    def mistrusted(self) -> bool:
        """Return True for one lease after this machine's clock was set, or the machine slept.

        A lease that seems to be over may belong to a live worker, which renews it in that time.
        """
        now = self._steady()
        ahead = self._clock() - now
        if abs(ahead - self._ahead) > _APART:
            self._set_at = now
        self._ahead = ahead
        return now - self._set_at < self.seconds

    def orphaned_for(self, entry: Entry) -> float:
        """Return the seconds since this process first saw the entry as UNKNOWN.

        From then on no worker may begin an attempt, until the key is reserved anew. Each
        reservation is counted anew; `fence - looks` identifies it. Only this process's monotonic
        clock counts: any other may be set, and while the machine sleeps, a request does not get
        any further.
        """
        if entry.phase is not Phase.UNKNOWN:
            return 0.0
        place, reservation = (entry.tenant, entry.key), entry.fence - entry.looks
        now = self._steady()
        known = self._orphans.get(place)
        if known is None or known[0] != reservation:
            if len(self._orphans) >= _MOST_ORPHANS:
                del self._orphans[next(iter(self._orphans))]
            known = self._orphans[place] = (reservation, now)
        return now - known[1]

    def let_go(self, entry: Entry) -> None:
        """Stop renewing an entry: it is settled, or another worker will settle it."""
        place = (entry.tenant, entry.key)
        held = self._held.get(place)
        # Another fence number belongs to a later call of this process.
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
        held = self._held.values()
        old = [entry for entry, since in held if self._age(since) >= self.seconds / 4]
        if old:
            self._tasks.begin(self._renew(old))
        self._schedule()

    async def _renew(self, entries: list[Entry]) -> None:
        since = self.moment()
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


class ErrorReport(Protocol):
    """Takes errors that callers are not shown."""

    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...


class CallServices(Protocol):
    """What the steps of a call use of the runtime. `Runtime` is its implementation.

    One protocol for all steps: recall may have to settle an earlier call, and admission may
    decide anew, so most steps need almost everything.
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
    keep_arguments_days: int | None
    refused_captures: RefusedLimit
    worker: str
    clock: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]

    def compiled_for(self, record: RegistryRecord) -> CompiledContract: ...
    def notices(self, held: Held) -> Sequence[tuple[float, Due]]: ...
    async def catch_up(self) -> bool: ...
    def report(self, call_id: str, where: str, error: BaseException | str) -> None: ...
