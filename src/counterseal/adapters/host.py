"""What all adapters share: a framework's tool call becomes a proposal, and its own function runs.

`Host` registers the framework's tools and submits their calls. The framework's function is what the
runtime executes, for this one call, in the framework's own context: state, dependencies and streams
that the framework injects keep working. It is handed over beside the proposal, in a context
variable that only `Host.submit` sets, so nothing that a model writes can name a function.

Nothing here knows a framework, and nothing here decides: gates, ledger and approvals do.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Final, Literal, NamedTuple, Required, TypedDict, TypeVar

from packaging.specifiers import SpecifierSet
from pydantic_core import from_json, to_json

from counterseal.approvals.terms import Voter
from counterseal.canonical import thaw
from counterseal.codes import RESPONSES, Code
from counterseal.contract.approval_terms import Then
from counterseal.contract.declare import Tool, closed_input, set_option
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract, Isolation
from counterseal.contract.schemas import Validator, compile_schema
from counterseal.contract.tool_context import Context
from counterseal.errors import (
    ContractError,
    CountersealError,
    NotDoneError,
    NotSentError,
    Problem,
    StoreError,
)
from counterseal.observation import Observation, refusal
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal, Proposal, RiskLevel
from counterseal.registry import Grant
from counterseal.runtime import Runtime

T = TypeVar("T")
_log = logging.getLogger("counterseal.adapters")

_WRAPPED: Final = {
    "type": "object",
    "properties": {"result": {}},
    "required": ["result"],
    "additionalProperties": False,
}
"""The output schema of a tool whose framework declares none: any result."""
_AWAITING_DECISION: Final = RESPONSES[Code.CONFIRMATION_MISSING].next_action
_PARAMETER: Final = "counterseal_call"
_MARK: Final = "counterseal_host_executed"
_ELSEWHERE: Final = "This tool is executed by its agent framework; make the call there."
_PAUSED: Final = "The tool paused itself before it did anything."


class NotRecordedError(CountersealError):
    """The store is down, so nothing was executed. Adapters raise it into their framework.

    A framework that turned it into text for the model would go on without a record.
    """


class HostTool(NamedTuple):
    """A framework's tool, as its model sees it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """One tool call, as a framework hands it over."""

    tool: str
    arguments: str | bytes | Mapping[str, Any]
    call_id: str | None
    """The provider's id of the call. The same on every re-entry of this call."""
    run_id: str | None
    """The conversation or thread, which survives a resume; never the id of one invocation."""
    context: Any
    """The host's own context, for `principal` and `voter`."""
    execute: Callable[[dict[str, Any]], Any]
    """The framework's own function, sync or async, with the arguments after corrections."""
    to_plain: Callable[[Any], Any] = lambda result: result
    """Turns the framework's result into plain data. Raises SpokenError for an error result."""
    passes: tuple[type[BaseException], ...] = ()
    """The framework's own exceptions that pause a run: nothing was done, and they are re-raised."""
    threaded: bool = False
    """True if `execute` blocks, and has to run in a thread."""


class Pending(NamedTuple):
    """A call that waits for a person, as hosts show it."""

    approval_id: str
    consequence: str
    packet: Mapping[str, Any]
    link: str | None

    def record(self) -> dict[str, Any]:
        """Return plain JSON data, for the framework's pause."""
        return {**self._asdict(), "packet": dict(self.packet)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one call: a result, a refusal, or a pending approval."""

    observation: Observation
    native: tuple[Any] | None = None
    """The framework's own result, if the tool ran just now and nothing of it was withheld."""
    pending: Pending | None = None

    @property
    def ok(self) -> bool:
        return self.observation.ok

    @property
    def value(self) -> Any:
        """The tool's result as plain data, also of a call that was executed before."""
        data = thaw(self.observation.data)
        return data["result"] if isinstance(data, dict) and list(data) == ["result"] else data

    @property
    def text(self) -> str:
        """Text for the model: its result as text, or what was refused and what to do next."""
        if self.ok:
            return self.value if isinstance(self.value, str) else json.dumps(self.value)
        text = self.observation.for_model()
        if self.pending is None:
            return text
        place = f" at {self.pending.link}" if self.pending.link else ""
        return f"{text}\nHeld: a person decides{place}. Make the same call again after that."


class HostOptions(TypedDict, total=False):
    """The options of every adapter."""

    principal: Required[Callable[[Any], Any]]
    """Returns the `Principal` for the host's context; may be async. None or an error: denied."""
    effects: Mapping[str, Effect | str]
    """The effect of each tool that has no contract of its own."""
    contracts: Iterable[Contract | Tool[..., Any]]
    """Contracts for the framework's tools, by name: `@tool`s, contract files, `contract_for`."""
    grants: str | Iterable[Grant]
    """Grants, or the name of one agent that may use all these tools."""
    same: Literal["call", "intent"] | None
    """What makes two calls one operation: the call's id, or its arguments alone in the same run.
    Left out: `intent` for irreversible effects, else `call`."""
    pause: Literal["native", "wait"]
    """The framework's own pause, or a wait of `wait` seconds and then the answer "held"."""
    wait: float
    console: str
    """The console's address, for links."""
    voter: Callable[[Any, Mapping[str, Any]], Any]
    """Returns the `Voter` who gave this answer in the host, or None; may be async."""
    run_id: Callable[[Any], str | None]
    """Returns the run for the host's context, instead of the framework's conversation id."""


class _Execution:
    """The framework's function for one call, and what became of it."""

    __slots__ = ("call", "native", "principal", "raised", "run_id")

    def __init__(self, call: HostCall, principal: Principal, run_id: str | None) -> None:
        self.call = call
        self.principal = principal
        self.run_id = run_id
        self.native: tuple[Any] | None = None
        self.raised: BaseException | None = None


_EXECUTION: ContextVar[_Execution | None] = ContextVar("counterseal_execution", default=None)
_OUTER: ContextVar[_Execution | None] = ContextVar("counterseal_outer", default=None)
"""The governed call whose tool runs here; a call that is made inside is a sub-agent's."""
_CONTEXT: ContextVar[Context | None] = ContextVar("counterseal_context", default=None)


def current_call() -> Context | None:
    """Return the change in which the caller runs: its `key` is for the destination."""
    return _CONTEXT.get()


# --- contracts ------------------------------------------------------------------------------------


def contract_of(tool: HostTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract made from a framework's own schema. Takes the options of `@tool`."""
    data: dict[str, Any] = {
        "effect": effect,
        "identity": {"name": tool.name},
        "affordance": {
            "model_description": tool.description,
            "input_schema": closed_input(tool.name, tool.input_schema),
            "output_schema": _WRAPPED,
        },
    }
    for name, value in options.items():
        set_option(data, name, value)
    data.setdefault("usage", data["affordance"]["model_description"])
    return Contract.model_validate(data)


def host_executed(contract: Contract) -> Tool[..., Any]:
    """Return a tool that its framework executes: only `Host.submit` can hand a function over.

    After an approval nothing is executed until the host makes the same call again.
    """
    if contract.by_client:
        problem = Problem(
            rule="host-client",
            tool=contract.name,
            pointer="/executed_by",
            message="executed_by is client, but the framework executes this tool",
            fix="Leave executed_by out, or register the tool with the runtime instead.",
        )
        raise ContractError([problem])
    if contract.isolation not in (Isolation.AUTO, Isolation.INLINE):
        problem = Problem(
            rule="host-isolation",
            tool=contract.name,
            pointer="/isolation",
            message=f"isolation is {contract.isolation}, but the framework executes this tool",
            fix="Leave isolation out, or register the tool with the runtime instead.",
        )
        raise ContractError([problem])
    terms = contract.approval
    if terms is None or terms.then is not Then.RESUBMIT:
        own = {} if terms is None else terms.model_dump(exclude_none=True)
        contract = contract.model_copy(update={"approval": {**own, "then": Then.RESUBMIT}})
    fit = _fit_for(contract)
    # Neither is tried again at once, and both leave the way free for the call after the pause.
    paused = NotSentError if contract.idempotency.required else NotDoneError

    async def run(*, counterseal_call: Context | None = None, **arguments: Any) -> Any:
        execution = _EXECUTION.get()
        _EXECUTION.set(None)  # for this call only: what it calls in turn has its own
        if execution is None or execution.call.tool != contract.name:
            raise NotSentError(_ELSEWHERE)
        if execution.raised is not None:  # a retry of a call that has paused itself
            raise paused(_PAUSED)
        _CONTEXT.set(counterseal_call)
        call = execution.call
        try:
            if call.threaded:
                result = await asyncio.to_thread(call.execute, arguments)
            else:
                result = call.execute(arguments)
            result = await result if inspect.isawaitable(result) else result
        except call.passes as error:
            execution.raised = error
            raise paused(_PAUSED) from error
        plain = call.to_plain(result)
        execution.native = (result,)
        return fit(plain if isinstance(plain, str) else _kept(plain))

    run.__name__ = run.__qualname__ = contract.name
    setattr(run, _MARK, True)
    # A read has no key to pass on, so that it is spared the context.
    injected = {_PARAMETER: Context} if contract.mutates else {}
    return Tool(contract=contract, function=run, injected=injected)


def _kept(result: Any) -> Any:
    """Return a result as JSON data. Objects without a JSON form are kept by their type's name.

    The tool has run: that its result can't be kept whole must not look like a failure.
    """
    options: Any = {"bytes_mode": "base64", "inf_nan_mode": "strings", "fallback": _name_of}
    try:
        return from_json(to_json(result, **options))
    except Exception:  # noqa: BLE001 - an object's own code may raise anything here
        return _name_of(result)


def _name_of(result: Any) -> str:
    return f"[{type(result).__name__}, not kept]"


def _fit_for(contract: Contract) -> Callable[[Any], Any]:
    """Return the function that gives a result the form which the contract declares."""
    if thaw(contract.affordance.output_schema) == _WRAPPED:
        return lambda value: {"result": value}
    return partial(_fitting, compile_schema(contract.affordance.output_schema))


def _fitting(output: Validator, value: Any) -> Any:
    """Return a result in the form that the contract declares. Frameworks pass objects as text."""
    forms = [{"result": value}, value]
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except ValueError:
            pass
        else:
            forms += [{"result": parsed}, parsed]
    return next((form for form in forms if _is_valid(output, form)), value)


def _is_valid(output: Validator, form: Any) -> bool:
    try:
        return output.is_valid(form)
    except (ValueError, TypeError):  # no JSON: the runtime has a form for it, or refuses it
        return isinstance(form, dict) and list(form) == ["result"]


def _is_host_executed(tool: Tool[..., Any] | None) -> bool:
    return tool is not None and getattr(tool.function, _MARK, False)


# --- packages -------------------------------------------------------------------------------------


def missing_extra(extra: str, error: ImportError) -> ImportError:
    """Return the error for a framework that is not installed."""
    return ImportError(
        f"counterseal.adapters.{extra.replace('-', '_')} needs a package that is not installed "
        f"({error}). Fix: pip install 'counterseal[{extra}]'"
    )


def check_versions(tested: Mapping[str, str]) -> None:
    """Warn about packages outside of the versions that the adapter was tested with."""
    for package, wanted in tested.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if not SpecifierSet(wanted).contains(found, prereleases=True):
            message = f"{package} {found} is outside of the tested versions ({wanted})"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


# --- calls ----------------------------------------------------------------------------------------


class Host:
    """The tools of one framework's agent under contract. Adapters hold one and never decide."""

    patience: ClassVar[float] = 10.0
    """Seconds until a sync call gives up on an event loop that does not take it."""
    busy: ClassVar[float] = 5.0
    """Seconds that a call waits for the same call, made at the same time, to end."""

    def __init__(
        self,
        runtime: Runtime,
        tools: Iterable[HostTool],
        *,
        principal: Callable[[Any], Any],
        effects: Mapping[str, Effect | str] | None = None,
        contracts: Iterable[Contract | Tool[..., Any]] = (),
        grants: str | Iterable[Grant] = (),
        same: Literal["call", "intent"] | None = None,
        pause: Literal["native", "wait"] = "native",
        wait: float = 60.0,
        console: str = "",
        voter: Callable[[Any, Mapping[str, Any]], Any] | None = None,
        run_id: Callable[[Any], str | None] | None = None,
    ) -> None:
        for name, value, known in (
            ("same", same, ("call", "intent", None)),
            ("pause", pause, ("native", "wait")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
        self.runtime = runtime
        self.waits = pause == "wait"
        self.has_voter = voter is not None
        self._principal, self._voter, self._run_id = principal, voter, run_id
        self._same, self.seconds, self._console = same, wait, console.rstrip("/")
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):  # made before the loop runs: the first async call sets it
            self._loop = asyncio.get_running_loop()
        self.register(tools, effects or {}, contracts, grants)

    def register(
        self,
        tools: Iterable[HostTool],
        effects: Mapping[str, Effect | str],
        contracts: Iterable[Contract | Tool[..., Any]] = (),
        grants: str | Iterable[Grant] = (),
    ) -> None:
        """Put tools under contract. ContractError lists all tools without a declared effect."""
        listed = list(tools)
        own = (each.contract if isinstance(each, Tool) else each for each in contracts)
        declared = {contract.name: contract for contract in own}
        problems, new = [], []
        for tool in listed:
            known = self.runtime.registry.versions(tool.name)
            if tool.name in declared:
                new.append(host_executed(declared[tool.name]))
            elif tool.name in effects:
                new.append(host_executed(contract_of(tool, effect=effects[tool.name])))
            elif not known:
                problems.append(_undeclared(tool.name))
            elif all(record.tool is None and record.contract.http is None for record in known):
                problems.append(_without_code(tool.name))
        if problems:
            raise ContractError(problems)
        if isinstance(grants, str):
            grants = [Grant(agent=grants, tool=tool.name) for tool in listed]
        self.runtime.register(*self._unknown(new), grants=grants)

    def _unknown(self, tools: Iterable[Tool[..., Any]]) -> Iterator[Tool[..., Any]]:
        """Yield the tools that an earlier adapter has not registered just so."""
        for tool in tools:
            versions = self.runtime.registry.versions(tool.contract.name)
            same = [one for one in versions if one.contract.hash == tool.contract.hash]
            if not any(_is_host_executed(one.tool) for one in same):
                yield tool

    async def submit(self, call: HostCall) -> Answer:
        """Submit a call. Raises NotRecordedError if the store is down."""
        self._loop = asyncio.get_running_loop()
        principal = await self._principal_of(call)
        if isinstance(principal, Observation):
            return Answer(observation=principal)
        try:
            answer = await self._submit(call, principal)
            if self.waits and answer.pending is not None:
                place = (principal.tenant, answer.pending.approval_id)
                with suppress(ApprovalError):  # submitting it again says what is wrong with it
                    await self.runtime.approvals.wait(*place, self.seconds)
                answer = await self._submit(call, principal)
        except StoreError as error:
            raise _not_recorded(call) from error
        return answer

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work of a framework's sync entry point on the runtime's event loop."""
        started = threading.Event()

        async def main() -> T:
            started.set()
            return await work

        if self._loop is not None and self._loop.is_running():
            running = asyncio.run_coroutine_threadsafe(main(), self._loop)
            if started.wait(self.patience):
                return running.result()
            running.cancel()  # the loop is blocked, most likely by the call that waits here
        if not started.is_set():
            work.close()
        raise RuntimeError(
            "a sync call needs the runtime's event loop to run in another thread, and it does not; "
            "use the framework's async methods, or call it with asyncio.to_thread"
        )

    async def needs_approval(self, call: HostCall) -> bool:
        """Return whether the gates would hold this call now. Nothing is executed or recorded."""
        principal = await self._principal_of(call)
        if isinstance(principal, Observation):
            return False  # submitting it gives the refusal
        try:
            judged = await self.runtime.preview(await self._proposal(call), principal)
        except StoreError as error:
            raise _not_recorded(call) from error
        return judged.verdict == "require_approval"

    async def pending(self, observation: Observation, tenant: str) -> Pending | None:
        """Return what a person has to decide on, if the observation says so."""
        approval_id = observation.approval_id
        if observation.next_action != _AWAITING_DECISION or approval_id is None:
            return None
        link = f"{self._console}/approvals/{approval_id}" if self._console else None
        try:
            packet = await self.runtime.approvals.get(tenant, approval_id)
        except ApprovalError:
            return Pending(approval_id, f"{observation.tool} waits for a person.", {}, link)
        return Pending(approval_id, packet.consequence, packet.record(), link)

    async def vote(self, answer: Any, context: Any) -> str | None:
        """Record the decision that a host's answer holds, if `voter` names the person.

        The answer names its approval: `{"type": "approve" or "reject", "approval_id": …,
        "message": …}`. Any other answer, and every answer without a `voter`, decides nothing.
        Returns why the vote was refused.
        """
        if self._voter is None or not isinstance(answer, Mapping):
            return None
        approval_id, choice = answer.get("approval_id"), answer.get("type")
        if not isinstance(approval_id, str) or choice not in ("approve", "reject"):
            return None
        try:
            voter = await _result(self._voter(context, answer))
        except Exception:  # noqa: BLE001 - the host's own code; without an answer nothing is allowed
            _log.exception("voter failed, so the answer decides nothing")
            voter = None
        if not isinstance(voter, Voter):
            return "The host does not say who decided."
        comment = answer.get("message") or answer.get("comment") or ""
        try:
            await self.runtime.approvals.decide(approval_id, voter, choice, comment=str(comment))
        except ApprovalError as error:
            return str(error)
        return None

    # --- inside -----------------------------------------------------------------------------------

    async def _submit(self, call: HostCall, principal: Principal) -> Answer:
        proposal = await self._proposal(call)
        execution = _Execution(call, principal, proposal.run_id)
        ours, outer = _EXECUTION.set(execution), _OUTER.set(execution)
        try:
            observation = await self.runtime.submit(proposal, principal, wait=self.busy)
        finally:
            _EXECUTION.reset(ours)
            _OUTER.reset(outer)
        if execution.raised is not None:
            raise execution.raised
        if observation.ok:
            shown = observation.raw is None and not observation.redactions
            return Answer(observation=observation, native=execution.native if shown else None)
        if _is_unrecorded(observation):
            raise _not_recorded(call)
        pending = await self.pending(observation, principal.tenant)
        return Answer(observation=observation, pending=pending)

    async def _proposal(self, call: HostCall) -> Proposal:
        outer = _OUTER.get()
        return Proposal(
            tool=call.tool,
            arguments=call.arguments,
            run_id=call.run_id if outer is None else await self._run_of(outer),
            call_id=call.call_id,
            operation_id=call.call_id if self._is_one_call(call.tool) else None,
            conversation_id=call.run_id,
        )

    async def _run_of(self, outer: _Execution) -> str:
        """Return the run of a parent's call: its sub-agents are charged to the same budgets."""
        if outer.run_id is not None:
            return outer.run_id
        who, now = outer.principal, self.runtime.clock()
        return (await self.runtime.store.implicit_run(who.tenant, who.agent, who.user, now)).run_id

    def mutates(self, tool: str) -> bool:
        """Return whether a tool may change something; one that is not known counts as such."""
        records = self.runtime.registry.versions(tool)
        return not records or any(record.mutates for record in records)

    def _is_one_call(self, tool: str) -> bool:
        """Return whether the call's id is part of the operation, beside its arguments."""
        if self._same is not None:
            return self._same == "call"
        for record in self.runtime.registry.versions(tool):
            if record.contract.effect is Effect.IRREVERSIBLE and not record.contract.repeatable:
                return False
        return True

    async def _principal_of(self, call: HostCall) -> Principal | Observation:
        try:
            principal = await _result(self._principal(call.context))
        except Exception:  # noqa: BLE001 - the host's own code; without an answer nothing is allowed
            _log.exception("principal failed for a call of %s, so it is denied", call.tool)
            principal = None
        if not isinstance(principal, Principal):
            return self._denied(call, "The host does not say on whose behalf this call is made.")
        outer = _OUTER.get()
        if outer is None:
            return principal
        parent = outer.principal
        if (principal.tenant, principal.user) != (parent.tenant, parent.user):
            return self._denied(call, "A sub-agent works for the tenant and user of its parent.")
        return _limited(principal, parent)

    def _denied(self, call: HostCall, reason: str) -> Observation:
        now = self.runtime.clock()
        code = Code.PERMISSION_DENIED
        return refusal(code, tool=call.tool, call_id="", timestamp=now, reason=reason)

    def run_id(self, context: Any, conversation: str | None) -> str | None:
        """Return the run that a call belongs to."""
        return conversation if self._run_id is None else self._run_id(context)


def _limited(principal: Principal, parent: Principal) -> Principal:
    """Return a sub-agent's principal with no more roles and scopes than its parent has."""
    chain = parent.parents
    if principal.agent != parent.agent:
        chain = (*chain, parent.agent)
    return replace(
        principal,
        roles=principal.roles & parent.roles,
        scopes=principal.scopes & parent.scopes,
        risk_level=max(principal.risk_level, parent.risk_level, key=[*RiskLevel].index),
        parents=chain,
    )


def _not_recorded(call: HostCall) -> NotRecordedError:
    return NotRecordedError(f"{call.tool}: the store is down, so nothing was executed")


def _is_unrecorded(observation: Observation) -> bool:
    if observation.ok or observation.code is not Code.DEPENDENCY_UNAVAILABLE:
        return False
    return any(each.record()["rule"] == "store-failed" for each in observation.decisions)


async def _result(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _undeclared(tool: str) -> Problem:
    return Problem(
        rule="effect-undeclared",
        tool=tool,
        pointer="/effect",
        message=f"{tool} has no contract, and its effect is not declared",
        fix=f"Give the adapter effects={{'{tool}': …}} or a contract; see docs/contracts.md.",
    )


def _without_code(tool: str) -> Problem:
    return Problem(
        rule="host-unregistered",
        tool=tool,
        message=f"{tool} is registered as a contract without code, so the framework can't run it",
        fix="Give the contract to the adapter, with contracts=[…], instead of registering it.",
    )
