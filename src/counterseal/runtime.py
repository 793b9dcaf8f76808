"""The runtime: a proposal goes in, and an observation comes out.

`submit` is the way of a call, on one screen. Its steps are in `call/`, the gates in `gates/`.
The runtime holds the services that steps use, and nothing about any single call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from os import getpid
from pathlib import Path
from random import getrandbits
from socket import gethostname
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from counterseal.call.admit import admit, count_tokens
from counterseal.call.call import (
    DECIDE_AGAIN,
    BackgroundTasks,
    Call,
    Leases,
    Preview,
    RefusedLimit,
    Tenant,
)
from counterseal.call.decide import decide, new_call, preview, receive
from counterseal.call.events import emit_span, note_cancelled, refuse, refuse_unrecorded
from counterseal.call.execute import execute, observe
from counterseal.call.handover import Report, hand_over, settle_report
from counterseal.call.recall import recall, wait_for_other_call
from counterseal.call.settle import settle
from counterseal.codes import Code
from counterseal.contract.declare import PlainTool, Tool
from counterseal.contract.effects import RiskClass
from counterseal.contract.model import Contract, KeepReads
from counterseal.errors import ContractError, IsolationError, Problem, StoreError
from counterseal.execution.attempt import ProgressCallback
from counterseal.execution.executor import Executor
from counterseal.execution.secrets import Secrets
from counterseal.execution.webhook import Webhook
from counterseal.gates import compile_record
from counterseal.gates.base import CompiledContract, Decision, deny
from counterseal.gates.parse import caller_ids, is_id
from counterseal.keys import KeyRing, fingerprint_key
from counterseal.ledger.changes import implicit_run
from counterseal.ledger.records import Budgets, Due, DueKind, Held, RunRecord
from counterseal.observation import Observation, Redactor
from counterseal.operations.approver import Approvals, work_for
from counterseal.operations.operator import Operator, catch_up, review_versions
from counterseal.plans import Plan, PlanRule, distinct
from counterseal.plans.plan import judge_plan
from counterseal.policy import Policy
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Grant, Registry, RegistryRecord
from counterseal.runs import Run, RunError, check_settings, settings_of
from counterseal.storage import open_store
from counterseal.storage.store import Store
from counterseal.telemetry import Telemetry
from counterseal.vault import PLAIN

if TYPE_CHECKING:
    from counterseal.execution.network import Network

_MAX_DECISIONS = 3
"""How often a call is decided: once, and again when something has changed since."""
_log = logging.getLogger("counterseal")
T = TypeVar("T")


class Runtime:
    """Use it as `async with Runtime.open(url) as runtime`."""

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | None = None,
        secrets: Secrets | None = None,
        plan_rules: Iterable[PlanRule] = (),
        tenants: Mapping[str, Tenant] | None = None,
        pii: Iterable[str] = (),
        keep_reads: KeepReads | str = KeepReads.REDACTED,
        keep_reads_bytes: int = 16_384,
        keep_arguments_days: int | None = None,
        files: str | Path | None = None,
        network: Network | None = None,
        keys: KeyRing | None = None,
        webhook: Webhook | None = None,
        lease: float = 30.0,
        strict: bool = False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.store = store
        self.clock = clock
        self.pause = pause
        """Waits between attempts."""
        self.policy = policy or Policy.default()
        self.executor = Executor(secrets, files=files, network=network)
        self.plan_rules = distinct(plan_rules)
        self.tenants = dict(tenants or {})
        self.redactor = Redactor(pii=tuple(pii))
        self._keep_reads, self.keep_reads_bytes = _checked_reads(keep_reads, keep_reads_bytes)
        """Limits of the observations of reads that are kept."""
        self.keep_arguments_days = keep_arguments_days
        """How long arguments of proposals are kept; None: as long as the vault keeps things."""
        self.refused_captures = RefusedLimit()
        self.strict = strict
        """Whether tools whose parameters have no description are refused at registration."""
        self.registry = Registry(clock=lambda: datetime.fromtimestamp(clock(), UTC))
        self.keys = keys
        self.vault = PLAIN if keys is None else keys.vault()
        self.worker = f"{gethostname()[:40]}:{getpid()}:{getrandbits(32):08x}"
        """The name under which this process holds leases."""
        self.tasks = BackgroundTasks()
        self.leases = Leases(store, lease, self.tasks, clock, steady)
        self.due = asyncio.Event()
        """Set when due work was added, to wake the reconciler of this process."""
        self.approvals = Approvals(self)
        self.webhook = webhook
        self._compiled: dict[tuple[str, str, RiskClass], CompiledContract] = {}
        self.telemetry = Telemetry(fingerprint_key(keys))

    @classmethod
    def open(cls, url: str, **options: Any) -> Self:
        """Return a runtime on the store that the URL names. `memory:` is lost at the end."""
        return cls(open_store(url), **options)

    async def __aenter__(self) -> Self:
        try:
            await self.store.ready()
            await self.catch_up()
        except BaseException:
            await self.store.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.tasks.finish()
            await self.executor.aclose()
        finally:
            self.tasks.closed = True
            self.leases.close()
            await self.store.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start a task that runs to its end; closing the runtime waits for it."""
        return self.tasks.begin(work)

    def begin_if_open(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task, unless the runtime has closed meanwhile."""
        self.tasks.begin_if_open(work)

    def fingerprint(self, tenant: str, value: str) -> str:
        """Return a per-tenant HMAC of a value, the same in every process that has the keys."""
        return self.telemetry.fingerprint(tenant, value)

    def notices(self, held: Held) -> Sequence[tuple[float, Due]]:
        """Return the due work that notifies the webhook of a request for approval."""
        return () if self.webhook is None else ((0.0, work_for(DueKind.NOTIFY, held)),)

    def operator(self, by: str) -> Operator:
        """Return an operator who changes the registry for all workers, recorded by this name."""
        return Operator(self.store, self.registry, by=by, clock=self.clock)

    async def catch_up(self) -> bool:
        """Apply what operators have changed on any worker. Returns False if nothing changed.

        New versions are compared with the stored ones, and held if they widen anything.
        """
        changed = await catch_up(self.store, self.registry)
        await review_versions(self.store, self.registry, self.clock, register=True)
        return changed

    def register(
        self,
        *tools: Tool[..., Any] | Contract | PlainTool,
        grants: Iterable[Grant] = (),
        **settings: Any,
    ) -> tuple[Problem, ...]:
        """Register tools and grants: all of them, or none. Returns the warnings.

        `settings` are those of `Registry.register`; `strict` is the runtime's own if left out.
        """
        self._refuse_unrunnable(tools)
        settings.setdefault("strict", self.strict)
        warnings = self.registry.register(*tools, grants=grants, **settings)
        for record in self.registry.records:
            self.compiled_for(record)
        return warnings

    def _refuse_unrunnable(self, tools: Iterable[object]) -> None:
        """Raise ContractError for tools whose isolation is not available on this machine."""
        problems = []
        for tool in tools:
            if not isinstance(tool, Tool) or tool.contract.by_client:
                continue
            try:
                self.executor.check(tool.contract, tool)
            except IsolationError as error:
                problem = Problem(
                    rule="isolation-unavailable",
                    tool=tool.contract.name,
                    pointer="/isolation",
                    message=str(error),
                    source=tool.source_of("/isolation"),
                )
                problems.append(problem)
        if problems:
            raise ContractError(problems)

    def compiled_for(self, record: RegistryRecord) -> CompiledContract:
        """Return the compiled contract of a record.

        Compiled at registration, and again when an operator accepts a lower risk class.
        """
        key = (record.name, record.version, record.risk)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = compile_record(record, self.policy, self.executor, self._keep_reads)
            self._compiled[key] = compiled
        return compiled

    async def submit(
        self,
        proposal: Proposal,
        principal: Principal,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds the tool, not this function
        wait: float = 0.0,
        progress: ProgressCallback | None = None,
    ) -> Observation:
        """Carry out a proposal if every gate allows it, and return the observation.

        `timeout` bounds the tool, in seconds; `wait` bounds the wait for another call with the same
        key that is in progress; `progress` is called with the tool's progress reports.
        """
        until = inf if timeout is None else self.clock() + _seconds("timeout", timeout)
        waits_until, rounds = time.monotonic() + _seconds("wait", wait), 0
        while rounds < _MAX_DECISIONS:
            call = new_call(
                proposal, principal, self, until=until, progress=progress, decided_before=rounds > 0
            )
            try:
                if self.registry.unreviewed:
                    await self.catch_up()  # a new version may be held for review
                run = await self._run_of(proposal.run_id, principal, call.ctx.now)
                refused = receive(call, run, self)  # gates parse, schema, scope; the run's version
                end = (
                    await count_tokens(call, self)  # of the model, as its host reports them
                    or refused
                    or await recall(call, self)  # ONE read, if stored data matters
                    or await decide(call, self)  # gates semantics, policy, state, approval, budget
                    or await admit(call, self)  # ONE transaction: spend, reserve, record
                    or hand_over(call)  # to the client, if the client carries it out
                )
                if end is None:
                    await execute(call, self)  # secrets, deadline, isolation, retries
                    observed = observe(call, self)  # checked, redacted, bounded, labelled
                    end = await settle(call, observed, self)  # ONE transaction: the outcome
                elif isinstance(end, Decision):
                    if await wait_for_other_call(call, end, waits_until, self):
                        proposal = replace(proposal, tokens=None)  # they were counted
                        continue  # the other call has ended: look at its outcome
                    if end.gate == "scope" and await self.catch_up():
                        end = DECIDE_AGAIN  # an operator may have granted it on another worker
                    else:
                        end = await refuse(call, end, self)  # a refusal is recorded, too
            except StoreError as error:
                end = refuse_unrecorded(call, error, self)
            except asyncio.CancelledError as error:
                note_cancelled(call, error, self)  # before it was admitted
                raise
            if isinstance(end, Observation):
                return self._answer(call, end)
            rounds += 1
        return await self._give_up_deciding(call)

    async def _give_up_deciding(self, call: Call) -> Observation:
        reason = "What the call depends on kept changing while it was decided."
        refused = deny("ledger", Code.DEPENDENCY_UNAVAILABLE, reason)
        try:
            answer = await refuse(call, refused, self)
        except StoreError as error:
            answer = refuse_unrecorded(call, error, self)
        return self._answer(call, answer)

    def _answer(self, call: Call, answer: Observation) -> Observation:
        """Return the answer with the id by which the caller knows its call."""
        emit_span(call, answer, self.telemetry)
        own = caller_ids(call.ctx.proposal).get("call_id")
        return answer if own is None else answer._replace(caller_call_id=own)

    async def report_outcome(
        self,
        call_id: str,
        principal: Principal,
        *,
        fence: int,
        output: Any = None,
        error: Mapping[str, Any] | str | None = None,
        not_done: bool = False,
    ) -> Observation:
        """Settle a call that the client has carried out, and return its observation.

        `call_id` and `fence` came with the call. A client reports an `output` or an `error`;
        `not_done` says that nothing was done. ReportError says why a report is refused.
        """
        if output is not None and (error is not None or not_done):
            raise ValueError("output: a call that failed, or was not carried out, has none")
        report = Report(call_id, fence, output, error, not_done)
        return await settle_report(report, principal, self)

    async def preview(self, proposal: Proposal, principal: Principal) -> Preview:
        """Return what the gates decide. Nothing is recorded, held, spent or executed."""
        await self.catch_up()
        run = await self._find_run(principal, proposal.run_id)
        return await preview(new_call(proposal, principal, self), run, self)

    async def plan(
        self,
        steps: Iterable[Proposal | Mapping[str, Any]],
        principal: Principal,
        *,
        run_id: str | None = None,
    ) -> Plan:
        """Return what would become of a plan. Nothing is held, spent or executed.

        Corrections and dropped steps are recorded.
        """
        await self.catch_up()
        run, rules = await self._find_run(principal, run_id), self.plan_rules
        plan, events = await judge_plan(steps, principal, run, self, rules=rules, run_id=run_id)
        if events:
            run = await self._run_of(run_id, principal, self.clock())  # a run on record, as they
        for event in events:
            self.store.note(event._replace(caller=event.caller._replace(run_id=run.run_id)))
        return plan

    async def run(
        self,
        principal: Principal,
        run_id: str | None = None,
        *,
        objective: str | None = None,
        allowed_tools: Iterable[str] | None = None,
        deadline: float | None = None,
        budgets: Budgets | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Run:
        """Open or return a run. Raises RunError if it was opened with other settings."""
        settings = settings_of(
            objective=objective,
            allowed_tools=allowed_tools,
            deadline=deadline,
            budgets=budgets,
            config=config,
        )
        now = self.clock()
        if run_id is None:
            run_id = f"run_{int(now * 1000):011x}{getrandbits(52):013x}"
        if not is_id(run_id):
            raise RunError(
                f"run_id must be a text of 1 to 512 characters without NUL,"
                f" got {ascii(run_id)[:80]}"
            )
        wanted = RunRecord(tenant=principal.tenant, run_id=run_id, started_at=now, **settings)
        record = await self.store.open_run(wanted)
        return Run(self, principal, check_settings(record, settings))

    async def _run_of(self, run_id: str | None, principal: Principal, now: float) -> RunRecord:
        """Return the run that a proposal names, else the implicit run of its principal."""
        store, tenant = self.store, principal.tenant
        # An invalid id names no run here; the parse gate refuses it.
        if run_id is None or not is_id(run_id):
            return await store.implicit_run(tenant, principal.agent, principal.user, now)
        run = await store.find_run(tenant, run_id)
        if run is None:
            run = await store.open_run(RunRecord(tenant=tenant, run_id=run_id, started_at=now))
        return run

    async def _find_run(self, principal: Principal, run_id: str | None) -> RunRecord:
        """Return the run of a preview. A run that would be opened is not stored."""
        tenant, now = principal.tenant, self.clock()
        if run_id is not None and is_id(run_id):
            run = await self.store.find_run(tenant, run_id)
            return run or RunRecord(tenant=tenant, run_id=run_id, started_at=now)
        owner = (tenant, principal.agent, principal.user)
        return await self.store.find_implicit_run(*owner, now) or implicit_run(*owner, now)

    def report(self, call_id: str, where: str, error: BaseException | str) -> None:
        """Log an error for the operator. A text is a trace from which secrets were removed."""
        if isinstance(error, str):
            extra = {"counterseal_trace": error}
            _log.error("%s failed in call %s\n%s", where, call_id, error, extra=extra)
        else:
            _log.error("%s failed in call %s", where, call_id, exc_info=error)


def _seconds(name: str, seconds: float) -> float:
    if not seconds >= 0:  # also true of nan
        raise ValueError(f"{name} must be 0 or more seconds, got {seconds!r}")
    return seconds


def _checked_reads(kind: KeepReads | str, most: int) -> tuple[KeepReads, int]:
    if kind not in list(KeepReads):
        raise ValueError(f"keep_reads must be one of {', '.join(KeepReads)}, got {kind!r}")
    if most < 1:
        raise ValueError(f"keep_reads_bytes must be 1 or more, got {most!r}")
    return KeepReads(kind), most
