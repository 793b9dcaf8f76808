"""A model's conversation without a framework: its tools, and the answers to its tool calls.

Takes assistant messages of OpenAI (chat and responses) and Anthropic, as dicts or as objects of
their libraries, and returns the messages to append. Calls no model. Which tool is meant, whether
it may be called, and whether it was called before, is decided by the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from counterseal.contract.formats import (
    NameMap,
    ProviderView,
    UnknownNameError,
    anthropic,
    openai_chat,
    openai_responses,
)
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal, part
from counterseal.runtime import Runtime

Message = dict[str, Any]
Answered = Sequence[tuple[str, Observation]]
"""The ids of tool calls, and what came of them."""


# --- providers ------------------------------------------------------------------------------------


class Provider(NamedTuple):
    """The forms of a provider."""

    tool: Callable[..., ProviderView]
    calls: Callable[[Any], list[Any]]
    """Returns the tool calls of an assistant message."""
    answers: Callable[[Answered], list[Message]]


def _last(message: Any) -> Any:
    """Return the last message of a list; a single message as it is."""
    return (message[-1] if message else {}) if isinstance(message, list | tuple) else message


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _of_type(kind: str, items: Any) -> list[Any]:
    return [item for item in _items(items) if part(item, "type", None) == kind]


def _tool_messages(answered: Answered) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": call_id, "content": seen.for_model()}
        for call_id, seen in answered
    ]


def _function_outputs(answered: Answered) -> list[Message]:
    return [
        {"type": "function_call_output", "call_id": call_id, "output": seen.for_model()}
        for call_id, seen in answered
    ]


def _tool_results(answered: Answered) -> list[Message]:
    """Return one message with all results: Anthropic refuses them in several."""
    content = [
        {
            "type": "tool_result",
            "tool_use_id": call_id,
            "content": seen.for_model(),
            "is_error": not seen.ok,
        }
        for call_id, seen in answered
    ]
    return [{"role": "user", "content": content}] if content else []


# Without OpenAI's strict mode: arguments come back as the contract has them, and reach the gates as
# the model wrote them. The gates refuse what does not fit.
PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": Provider(
        partial(openai_chat, strict=False),
        lambda message: _items(part(_last(message), "tool_calls", None)),
        _tool_messages,
    ),
    "openai-responses": Provider(
        partial(openai_responses, strict=False),
        partial(_of_type, "function_call"),
        _function_outputs,
    ),
    "anthropic": Provider(
        anthropic,
        lambda message: _of_type("tool_use", part(_last(message), "content", None)),
        _tool_results,
    ),
}


# --- the conversation -----------------------------------------------------------------------------


class Conversation:
    """One conversation of a model. Its name is the run, a tool call's id the operation.

    So a repeated message, or a retry after a crash, carries out nothing twice. `options` are those
    of `Runtime.submit`, such as `wait` and `timeout`.
    """

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        name: str,
        *,
        provider: str = "openai",
        **options: Any,
    ) -> None:
        if provider not in PROVIDERS:
            raise ValueError(f"provider must be one of {', '.join(PROVIDERS)}, got {provider!r}")
        self._runtime, self._principal, self._options = runtime, principal, options
        self.name = name
        self._provider = PROVIDERS[provider]
        self._names: NameMap | None = None

    async def tools(self) -> list[Message]:
        """Return the tools that the model may use now, in the provider's form."""
        run = await self._runtime.run(self._principal, self.name)
        contracts = await run.contracts()
        self._names = names = NameMap(contract.name for contract in contracts)
        return [self._provider.tool(contract, names=names).tool for contract in contracts]

    async def answer(self, message: Any) -> list[Message]:
        """Carry out the tool calls of an assistant message, and return the messages to append.

        `message` is that message, or a list that ends with it; for OpenAI's responses, the list of
        output items. Returns an empty list if there is no tool call. Calls are carried out in
        their order. A refused or held call is answered with the reason, in words for the model.
        """
        if self._names is None:
            await self.tools()
        answered = []
        for call in self._provider.calls(message):
            proposal = Proposal.from_call(
                call, name_of=self._contract, run_id=self.name, conversation_id=self.name
            )
            proposal = replace(proposal, operation_id=proposal.call_id)
            seen = await self._runtime.submit(proposal, self._principal, **self._options)
            answered.append((proposal.call_id or "", seen))
        return self._provider.answers(answered)

    def _contract(self, name: str) -> str:
        """Return the contract's name; an unknown one as it is, for the gates to refuse."""
        try:
            return name if self._names is None else self._names.to_contract(name)
        except UnknownNameError:
            return name
