"""A scratch runtime for one case: the real gates and ledger on a store in memory, and one tool.

The tool is the project's function, or a stub that answers from the output schema. A stub has a
small world: it keeps what was done by key, as a destination that honours keys does, and its probe
finds the expected state after a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, cast

from counterseal.approvals.terms import Demand, Voter
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.approval_terms import Pattern
from counterseal.contract.declare import Tool
from counterseal.contract.fill import TemplateError, expected_state
from counterseal.contract.model import Contract, ExecutedBy
from counterseal.contract.tool_context import Context, Secret
from counterseal.errors import StoreError
from counterseal.evaluation.samples import GoodCall, output_for
from counterseal.evaluation.values import fitting
from counterseal.execution.probes import ProbeRequest, probe
from counterseal.ledger.records import Held
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Grant, RegistryRecord, checks
from counterseal.runtime import Runtime
from counterseal.storage.memory import MemoryStore
from counterseal.storage.store import Store
from counterseal.testing import FakeClock

RUN: Final = "run_evaluation"
_GOOD: Final[Any] = object()
"""Stands for the arguments of the good call; None would be arguments that are null."""
_CONTEXT: Final = "counterseal_call"
"""The parameter in which every tool here gets its call, so that its key is known."""

Inner = Callable[[], Awaitable[Any]]
Proxy = Callable[[int, Inner], Awaitable[Any]]
"""Stands between the runtime and the tool: it gets the number of the execution, from 1 on."""


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution of the tool's function, as its destination sees it."""

    tool: str
    arguments: Mapping[str, Any]
    key: str | None
    injected: Mapping[str, Any]
    output: Any


@dataclass(slots=True)
class StubWorld:
    """The world of stubs: the state of the target, and their outputs by key."""

    target: dict[str, Any] | None
    done: dict[str, Any] = field(default_factory=dict)
    effects: int = 0
    """How often a stub acted. A repeat under a known key does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A tool under evaluation, and everything that a scratch runtime for it is made from."""

    record: RegistryRecord
    source: Runtime
    """The runtime with the policy, the tenants and the other tools. It is never called."""
    caller: Principal
    grant: Grant
    good: GoodCall
    real: bool = False
    """Whether the project's own function runs, with its own probe, instead of a stub."""
    asks: bool = False
    """Whether its good call has to be approved."""
    now: float = 0.0
    reset: Callable[[], Any] | None = None
    """Called before each case, to put the tool's own data back in order."""

    @property
    def contract(self) -> Contract:
        return self.record.contract

    @property
    def name(self) -> str:
        return self.record.name

    def scratch(self, **options: Any) -> Scratch:
        """Return a new scratch runtime; the options are those of `Scratch`."""
        return Scratch(self, **options)


class Scratch:
    """A runtime for one case. Use it with `async with`."""

    def __init__(
        self,
        subject: Subject,
        *,
        proxy: Proxy | None = None,
        target: Mapping[str, Any] | None = None,
        change: Mapping[str, Any] | None = None,
        grants: Sequence[Grant] | None = None,
        beside: Scratch | None = None,
        dies: bool = False,
        undo_proxy: Proxy | None = None,
        wired: bool = False,
        **options: Any,
    ) -> None:
        """Take other values of the contract as `change`, and other grants as `grants`.

        `beside` is another worker, whose store and world this one shares. A worker that `dies`
        executes calls and writes no outcome. `undo_proxy` stands in front of the compensation tool.
        A `wired` tool sends its HTTP request over the `network` among the options.
        """
        self.subject = subject
        self._grants = grants
        undo = subject.contract.transactional.compensation_tool or ""
        self._proxies = {undo: undo_proxy, subject.name: proxy}
        self._dies, self._wired = dies, wired
        self.reached = 0
        """How often the tool under evaluation, or the proxy in front of it, was reached."""
        self._is_first = beside is None
        found = subject.good.target if target is None else target
        self.clock: FakeClock = FakeClock(subject.now) if beside is None else beside.clock
        self.store: Store = MemoryStore(self.clock) if beside is None else beside.store
        self.executed: list[Executed] = [] if beside is None else beside.executed
        self.world: StubWorld = StubWorld(thaw(found)) if beside is None else beside.world
        self.runtime = self._open(change or {}, options)

    def _open(self, change: Mapping[str, Any], options: dict[str, Any]) -> Runtime:
        subject, source = self.subject, self.subject.source
        options.setdefault("secrets", _canaries(subject, source))
        runtime = Runtime(
            cast("Store", _DyingStore(self.store)) if self._dies else self.store,
            policy=options.pop("policy", source.policy),
            tenants=source.tenants,
            clock=self.clock,
            steady=self.clock.steady,
            pause=_no_pause,
            **options,
        )
        runtime.redactor = source.redactor
        if subject.real:
            runtime.executor.credentials = source.executor.credentials
        records = needed(source, subject.record)
        for record in reversed(records):
            own = change if record is subject.record else {}
            wired = self._wired and record is subject.record
            runtime.register(
                self._contract(record, own) if wired else self._tool(record, own),
                grants=self._grants_for(record) if record.exposed else (),
                allowed_agent_roles=record.allowed_agent_roles,
                allowed_tenants=record.allowed_tenants,
            )
        return runtime

    def _grants_for(self, record: RegistryRecord) -> list[Grant]:
        subject = self.subject
        known = [one for one in subject.source.registry.grants if one.tool == record.name]
        if record is not subject.record:
            return known
        if self._grants is not None:
            return list(self._grants)
        return known if subject.grant in known else [*known, subject.grant]

    # --- the tool ---------------------------------------------------------------------------------

    def _tool(self, record: RegistryRecord, change: Mapping[str, Any]) -> Tool[..., Any]:
        contract, original = record.contract, record.tool
        injected: dict[str, Any] = {_CONTEXT: Context}
        injected |= {} if original is None else original.injected
        if not self.subject.real:  # a stub gets every secret, so that it could leak each
            known = {mark.name for mark in injected.values() if isinstance(mark, Secret)}
            missing = set(contract.secrets) - known
            injected |= {f"counterseal_{name}": Secret(name) for name in missing}
        update: dict[str, Any] = {**change, "isolation": "auto", "http": None, "mcp": None}
        # A stub runs no code, and plays the client of a tool that the client carries out.
        update |= {"runs_code": False, "executed_by": ExecutedBy.SERVER}
        if contract.runtime.sandbox_isolated:
            update["runtime"] = contract.runtime.model_copy(update={"sandbox_isolated": False})
        contract = self._contract(record, update)
        real = original if self.subject.real else None

        async def run(**given: Any) -> Any:
            return await self._execute(contract, injected, real, given)

        binder = dict if real is None else real.binder
        return Tool(contract=contract, function=run, injected=injected, binder=binder)

    def _contract(self, record: RegistryRecord, update: Mapping[str, Any]) -> Contract:
        """Return the contract with changes, and with stubs for its hooks if its tool is a stub."""
        contract, hooks = record.contract, dict[str, Any]()
        if not self.subject.real:
            hooks = {"probe": self._probe, "read_back": self._read_back, "preview": _no_preview}
        own = {name: one for name, one in hooks.items() if getattr(contract, name)}
        return contract.model_copy(update={**update, **own})

    async def _execute(
        self,
        contract: Contract,
        injected: Mapping[str, Any],
        real: Tool[..., Any] | None,
        given: dict[str, Any],
    ) -> Any:
        arguments = {name: value for name, value in given.items() if name not in injected}
        context = given.pop(_CONTEXT, None)
        values = {name: value for name, value in given.items() if name in injected}
        key = context.key if isinstance(context, Context) else None
        output: Any = None

        async def inner() -> Any:
            nonlocal output
            if real is None:
                output = self._answer(contract, arguments, key)
            else:
                output = real.function(**given)
                output = await output if inspect.isawaitable(output) else output
            self.executed.append(Executed(contract.name, arguments, key, values, output))
            return output

        self.reached += contract.name == self.subject.name
        proxy = self._proxies.get(contract.name)
        return await inner() if proxy is None else await proxy(self.reached, inner)

    def _answer(self, contract: Contract, arguments: Mapping[str, Any], key: str | None) -> Any:
        if key is not None and key in self.world.done:
            return self.world.done[key]
        sample = self.subject.good.output
        if contract.name != self.subject.name:
            sample = fitting(contract.affordance.output_schema)
        output = output_for(contract, sample, arguments, self.world.target)
        self.world.effects += 1
        if key is not None:
            self.world.done[key] = output
        if contract.name == self.subject.contract.transactional.compensation_tool:
            self.world.target = thaw(self.subject.good.target)
        elif self.world.target is not None:
            try:
                after = expected_state(contract, arguments, output)
            except TemplateError:
                after = None
            self.world.target |= after or {}
        return output

    async def _probe(self) -> Any:
        return None if self.world.target is None else dict(self.world.target)

    async def _read_back(self, ctx: Context) -> Any:
        return self.world.done.get(ctx.key or "")

    # --- calls ------------------------------------------------------------------------------------

    async def submit(
        self,
        arguments: Any = _GOOD,
        principal: Principal | None = None,
        **fields: Any,
    ) -> Observation:
        """Submit the good call, or one with other arguments or fields."""
        given = self.subject.good.arguments if arguments is _GOOD else arguments
        fields.setdefault("run_id", RUN)
        proposal = Proposal(tool=self.subject.name, arguments=given, **fields)
        return await self.runtime.submit(proposal, principal or self.subject.caller)

    async def approve(self, approval_id: str, tenant: str | None = None) -> None:
        """Give every vote that a request needs, each by another person."""
        tenant = tenant or self.subject.caller.tenant
        held = await self.runtime.approvals.find(tenant, approval_id)
        for voter in voters_for(held):
            await self.runtime.approvals.decide(
                approval_id, voter, "approve", justification="Evaluated."
            )

    async def carry_out(self, arguments: Any = _GOOD, **fields: Any) -> Observation:
        """Submit a call, approve it if it is held, and return the observation of its end."""
        observation = await self.submit(arguments, **fields)
        if observation.code is not Code.CONFIRMATION_MISSING or observation.approval_id is None:
            return observation
        await self.approve(observation.approval_id)
        return await self.submit(arguments, **fields)

    async def look(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the state that the contract's probe finds now; None if it finds nothing."""
        contract = self.runtime.registry.versions(self.subject.name)[0].contract
        if contract.probe is None:
            return None
        caller = self.subject.caller
        request = ProbeRequest(
            contract=contract,
            arguments=arguments,
            context=lambda: Context(principal=caller, run_id=RUN, call_id="call_look"),
            registry=self.runtime.registry,
            executor=self.runtime.executor,
            seconds=contract.runtime.timeout_ms / 1000,
        )
        found = await probe(contract.probe, request)
        return None if found is None else found.state

    @property
    def executions(self) -> int:
        """How often the tool under evaluation was executed."""
        return sum(one.tool == self.subject.name for one in self.executed)

    async def __aenter__(self) -> Self:
        reset = self.subject.reset
        if reset is not None and self._is_first:
            waiting = reset()
            if inspect.isawaitable(waiting):
                await waiting
        await self.runtime.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.runtime.__aexit__(kind, error, trace)


class _DyingStore:
    """A store in which no outcome can be written: that of a worker that dies before it settles."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, _request: Any) -> bool:
        raise StoreError("this worker is gone")

    async def close(self) -> None:
        """Leave the store to the next worker."""


def needed(source: Runtime, record: RegistryRecord) -> list[RegistryRecord]:
    """Return a tool's record and those of the tools that it refers to, itself first."""
    found, waiting = {record.name: record}, [record]
    while waiting:
        for reference in checks.references(waiting.pop().contract):
            versions = source.registry.versions(reference.target)
            if versions and reference.target not in found:
                found[reference.target] = versions[0]
                waiting.append(versions[0])
    return list(found.values())


def voters_for(held: Held) -> list[Voter]:
    """Return as many people as a request needs, with all roles that it names."""
    demand = Demand.from_record(held.demand)
    roles = frozenset().union(*demand.roles, *demand.including)
    if demand.pattern is Pattern.USER_CONSENT and held.user is not None:
        return [Voter(user=held.user, tenant=held.tenant, roles=roles)]
    names = (f"approver-{number}" for number in range(1, demand.approvers + 1))
    return [Voter(user=name, tenant=held.tenant, roles=roles) for name in names]


def _canaries(subject: Subject, source: Runtime) -> dict[str, str]:
    """Return a value for each secret that is easily recognised in an output."""
    names = {name for one in needed(source, subject.record) for name in one.contract.secrets}
    return {name: f"canary-of-{name}-7f3a9c" for name in sorted(names)}


async def _no_pause(_seconds: float) -> None:
    """Make the next attempt without waiting."""


async def _no_preview(**_arguments: Any) -> dict[str, Any]:
    return {}
