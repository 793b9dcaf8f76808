"""Inspect (`inspect_ai`): an approver, so that any evaluation can run under contracts.

    governed = Counterseal(runtime, [send_mail()], principal=..., effects={"send_mail": "draft"})
    await eval_async(task, approval=[ApprovalPolicy(governed.approver, "*")])

Inspect executes its tools itself. A call is judged and claimed before that, and settled afterwards
with what Inspect reports; without a report, its outcome is unknown. A held call is rejected with
the reason: a decision of Inspect's own human approver is no approval of Counterseal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Unpack
from uuid import uuid4
from weakref import WeakSet

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    Pending,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.declare import Tool
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import AnswerLostError, ContractError, Problem, SpokenError
from counterseal.runtime import Runtime

try:
    from inspect_ai.approval import Approval, approver
    from inspect_ai.event import ToolEvent
    from inspect_ai.hooks import Hooks, SampleAttemptEnd, SampleAttemptStart, SampleEvent, hooks
    from inspect_ai.tool import Tool as InspectTool
    from inspect_ai.tool import ToolCall, ToolDef
    from inspect_ai.util import store
except ImportError as error:
    raise missing_extra("inspect-ai", error) from error

TESTED: Final = {"inspect_ai": ">=0.3.280,<0.4"}
"""The versions that the adapter was tested with."""
_RUN: Final = "counterseal/run"
_UNGOVERNED: Final = "{} is not under contract here, so it is not called."
_BEFORE: Final = "This call was made before, and is not made again. Its result was:\n{}"
_LOST: Final = "The sample ended, and Inspect did not say what came of this call."

check_versions(TESTED)

_GOVERNED: WeakSet[Counterseal] = WeakSet()


class InspectContext(NamedTuple):
    """A call of Inspect, as the functions `principal` and `run_id` get it."""

    message: str
    call: ToolCall
    history: list[Any]


def host_tool(tool: InspectTool | HostTool) -> HostTool:
    """Return a tool with the name, description and schema that its model sees."""
    if isinstance(tool, HostTool):
        return tool
    own = ToolDef(tool)
    schema = own.parameters.model_dump(mode="json", exclude_none=True)
    return HostTool(own.name, own.description, schema)


def contract_for(tool: InspectTool | HostTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


@dataclass(eq=False, slots=True)
class _InspectClaim:
    """One call between its approval and Inspect's report."""

    allowed: asyncio.Future[dict[str, Any]] = field(default_factory=asyncio.Future)
    """The arguments after corrections, once the call is admitted."""
    outcome: asyncio.Future[Any] = field(default_factory=asyncio.Future)
    answer: asyncio.Task[Answer] | None = None

    async def execute(self, arguments: dict[str, Any]) -> Any:
        if not self.allowed.done():  # another attempt of the same call
            self.allowed.set_result(arguments)
        return await self.outcome

    async def settle(self, result: Any, error: Exception | None = None) -> None:
        """Report what came of the call, and wait until it is on record."""
        if self.outcome.done() or self.answer is None:
            return
        if error is None:
            self.outcome.set_result(result)
        else:
            self.outcome.set_exception(error)
        with suppress(Exception):  # Inspect goes on; what could not be recorded is unknown
            await self.answer


class Counterseal:
    """The tools of an evaluation under contract. All samples may use it at the same time."""

    def __init__(
        self,
        runtime: Runtime,
        tools: Iterable[InspectTool | HostTool],
        **options: Unpack[HostOptions],
    ) -> None:
        listed = [host_tool(tool) for tool in tools]
        given = [
            each.contract if isinstance(each, Tool) else each
            for each in options.get("contracts", ())
        ]
        declared = {*options.get("effects", {}), *(contract.name for contract in given)}
        problems = [
            Problem(
                rule="effect-undeclared",
                tool=tool.name,
                pointer="/effect",
                message=f"{tool.name} has no contract here, and its effect is not declared",
                fix=f"Give effects={{'{tool.name}': …}} or contracts=[…].",
            )
            for tool in listed
            if tool.name not in declared
        ]
        # Else a function of the runtime with this name would run beside that of Inspect.
        if problems:
            raise ContractError(problems)
        # The model makes a held call again under another id.
        options.setdefault("same", "intent")
        self._host = Host(runtime, listed, **options)
        self._names = {tool.name for tool in listed}
        self._claims: dict[tuple[str, str], _InspectClaim] = {}
        self.pending: dict[str, Pending] = {}
        """Requests for approval, by the id of the rejected call."""
        _GOVERNED.add(self)

    @property
    def approver(self) -> Any:
        """For `ApprovalPolicy(governed.approver, "*")`."""

        async def approve(message: str, call: ToolCall, _view: Any, history: list[Any]) -> Approval:
            return await self.approve(message, call, history)

        registered: Any = approver(name="counterseal")  # its name in the log
        return registered(lambda: approve)()

    async def approve(self, message: str, call: ToolCall, history: list[Any]) -> Approval:
        """Judge and claim a call. Raises NotRecordedError if nothing can be recorded."""
        if call.function not in self._names:
            return Approval(decision="reject", explanation=_UNGOVERNED.format(call.function))
        context = InspectContext(message, call, history)
        sample = store().get(_RUN) or str(uuid4())
        store().set(_RUN, sample)
        claim = _InspectClaim()
        host_call = HostCall(
            tool=call.function,
            arguments=call.arguments,
            call_id=call.id,
            run_id=self._host.run_id(context, f"run_{sample}"),
            context=context,
            execute=claim.execute,
        )
        claim.answer = asyncio.ensure_future(self._host.submit(host_call))
        either: list[asyncio.Future[Any]] = [claim.answer, claim.allowed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        self.pending.pop(call.id, None)
        if claim.allowed.done():
            self._claims[sample, call.id] = claim
            arguments = claim.allowed.result()
            if arguments == call.arguments:
                return Approval(decision="approve")
            modified = replace(call, arguments=arguments)
            return Approval(decision="modify", modified=modified, explanation="Corrected.")
        answer = claim.answer.result()
        if answer.pending is not None:
            self.pending[call.id] = answer.pending
        text = _BEFORE.format(answer.text) if answer.ok else answer.text
        return Approval(
            decision="reject",
            explanation=text,
            metadata={"code": answer.observation.code.value, "call_id": answer.observation.call_id},
        )

    async def report(self, sample: str, event: ToolEvent) -> None:
        """Settle a call with what Inspect reports."""
        claim = self._claims.pop((sample, event.id), None)
        if claim is None:
            return
        if event.error is None:
            await claim.settle(event.result)
        elif event.error.type == "timeout":
            await claim.settle(None, TimeoutError(event.error.message))
        else:
            await claim.settle(None, SpokenError(event.function, event.error.message))

    async def end(self, sample: str) -> None:
        """Settle the calls of an ended sample that have no report: their outcome is unknown."""
        for place in [place for place in self._claims if place[0] == sample]:
            await self._claims.pop(place).settle(None, AnswerLostError(_LOST))


@hooks(
    name="counterseal", description="Reports the outcome of calls that were made under contract."
)
class _Reports(Hooks):
    def enabled(self) -> bool:
        return bool(_GOVERNED)

    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        store().set(_RUN, data.sample_id)

    async def on_sample_event(self, data: SampleEvent) -> None:
        if isinstance(data.event, ToolEvent):
            for governed in list(_GOVERNED):
                await governed.report(data.sample_id, data.event)

    async def on_sample_attempt_end(self, data: SampleAttemptEnd) -> None:
        for governed in list(_GOVERNED):
            await governed.end(data.sample_id)
