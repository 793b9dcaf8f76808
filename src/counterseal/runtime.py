"""The runtime: where a proposal goes in and an observation comes out.

`submit` is the way of a call, in one screen. What each step does is in `passage/`; what the gates
ask is in `gates/`. Nothing of a call is kept here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import getrandbits
from types import TracebackType
from typing import Any, Self

from counterseal.codes import Code
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.protocol import PlainTool
from counterseal.errors import Problem
from counterseal.execution.local import Secrets
from counterseal.gates.base import Decision, deny
from counterseal.gates.compile import compile_record
from counterseal.gates.compiled import Compiled
from counterseal.gates.parse import is_id
from counterseal.observation import Observation, Redactor
from counterseal.passage import Passage, Preview
from counterseal.policy import Policy
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Grant, Registry, RegistryRecord
from counterseal.storage import open_store
from counterseal.storage.base import Budgets, RunRecord, Store
from counterseal.telemetry import Telemetry, trace_in

__all__ = ["Preview", "Runtime", "Tenant"]

IDLE_SECONDS = 3600.0
"""After how long without a call an implicit run is over."""
_MOST_IDLE = 10_000
_ROUNDS = 3
"""How often a call is decided anew because something changed while it was decided."""
_log = logging.getLogger("counterseal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """What an operator says of a tenant: its budgets for a day, and facts for policy."""

    budgets: Budgets | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.budgets and (self.budgets.seconds, self.budgets.retries) != (None, None):
            raise ValueError("budgets: seconds and retries are a run's; a tenant has neither")


class Runtime:
    """Use it as `async with Runtime.open(url) as runtime`."""

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | None = None,
        secrets: Secrets | None = None,
        tenants: Mapping[str, Tenant] | None = None,
        pii: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.store = store
        self.clock = clock
        self.pause = pause
        """How to wait between attempts."""
        self.policy = policy or Policy.default()
        self.secrets: Secrets = secrets if secrets is not None else {}
        self.tenants = dict(tenants or {})
        self.redactor = Redactor(pii=tuple(pii))
        self.registry = Registry(clock=lambda: datetime.fromtimestamp(clock(), UTC))
        self._compiled: dict[tuple[str, str], Compiled] = {}
        self._idle: dict[Principal, tuple[float, float]] = {}
        """Principals with an implicit run: when it began, and when it was last used."""
        self._telemetry = Telemetry()

    @classmethod
    def open(cls, url: str, **options: Any) -> Self:
        """A runtime on the store that the URL names. `memory:` forgets at the end."""
        return cls(open_store(url), **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.store.close()

    def register(
        self,
        *tools: Tool[..., Any] | Contract | PlainTool,
        grants: Iterable[Grant] = (),
        **settings: Any,
    ) -> tuple[Problem, ...]:
        """Take in tools and grants: all of them, or none. Returns the warnings."""
        warnings = self.registry.register(*tools, grants=grants, **settings)
        for record in self.registry.records:
            self.compiled_for(record)
        return warnings

    def compiled_for(self, record: RegistryRecord) -> Compiled:
        """A record made ready for calls; once, at registration."""
        key = (record.name, record.version)
        if key not in self._compiled:
            self._compiled[key] = compile_record(record, self.policy)
        return self._compiled[key]

    async def submit(self, proposal: Proposal, principal: Principal) -> Observation:
        """Carry out a proposal if it may be, and say what came of it."""
        run = await self._run_of(proposal, principal)
        for _ in range(_ROUNDS):
            call = Passage(self, proposal, principal)
            end = (
                call.receive(run)  # gate parse; the run's version of the tool
                or call.check()  # gates schema, scope
                or await call.recall()  # one read; what was done before is answered from it
                or await call.decide()  # gates semantics, policy, state, approval, budget
                or await call.admit()  # one transaction: spend, reserve, record
            )
            if end is None:
                await call.execute()  # the tool, within its deadline
                end = await call.settle(call.observe())  # one transaction: the outcome
            elif isinstance(end, Decision):
                end = await call.refuse(end)  # a refusal is put on record too
            if isinstance(end, Observation):
                self.tell(call, end)
                return end
            run = await self._run_of(proposal, principal)  # something moved: decide anew
        restless = "What the call depends on kept changing while it was decided."
        return await call.refuse(deny("ledger", Code.DEPENDENCY_UNAVAILABLE, restless))

    async def preview(self, proposal: Proposal, principal: Principal) -> Preview:
        """What the gates would say. Nothing is recorded, held, spent or executed."""
        run_id = self._run_id(proposal, principal)
        run = await self.store.find_run(principal.tenant, run_id) or RunRecord(
            tenant=principal.tenant, run_id=run_id, started_at=self.clock()
        )
        return await Passage(self, proposal, principal).preview(run)

    async def run(
        self,
        principal: Principal,
        run_id: str,
        *,
        objective: str | None = None,
        allowed_tools: Iterable[str] | None = None,
        budgets: Budgets | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> RunRecord:
        """Open a run, or find it as it was opened."""
        return await self.store.open_run(
            RunRecord(
                tenant=principal.tenant,
                run_id=run_id,
                started_at=self.clock(),
                objective=objective,
                allowed_tools=None if allowed_tools is None else frozenset(allowed_tools),
                budgets=budgets or Budgets(),
                config=dict(config or {}),
            )
        )

    async def _run_of(self, proposal: Proposal, principal: Principal) -> RunRecord:
        """The run that a proposal names, else the implicit one of its principal."""
        run_id = self._run_id(proposal, principal)
        return await self.store.find_run(principal.tenant, run_id) or await self.run(
            principal, run_id
        )

    def _run_id(self, proposal: Proposal, principal: Principal) -> str:
        # An id that no store could keep is refused by the first gate; until then it names no run.
        if proposal.run_id is not None and is_id(proposal.run_id):
            return proposal.run_id
        now = self.clock()
        last = self._idle.pop(principal, None)
        began = now if last is None or now - last[1] > IDLE_SECONDS else last[0]
        self._idle[principal] = (began, now)
        if len(self._idle) > _MOST_IDLE:
            del self._idle[next(iter(self._idle))]  # the one that was used least lately
        return _implicit_run(principal, began)

    def trace_of(self, traceparent: str | None) -> str:
        """The trace that a call belongs to: the caller's, else a new one."""
        given = None if traceparent is None else trace_in(traceparent)
        if given is not None:
            return given
        if self._telemetry.listening:
            return self._telemetry.current_trace() or f"{getrandbits(128):032x}"
        return f"{getrandbits(128):032x}"

    def tell(self, call: Passage, answer: Observation) -> None:
        """Let telemetry know that a call was answered, if anybody listens."""
        if self._telemetry.listening:
            self._telemetry.emit(call.finished(answer))

    def report(self, call_id: str, where: str, error: BaseException) -> None:
        """Tell the operator what a model must not see."""
        _log.error("%s failed in call %s", where, call_id, exc_info=error)


def _implicit_run(principal: Principal, began: float) -> str:
    who = (principal.tenant, principal.user or "", principal.agent)
    named = "\0".join((*who, str(began)))
    return f"run_{hashlib.sha256(named.encode()).hexdigest()[:24]}"
