"""Questions of an upstream in the middle of a call: passed to the client in front, or refused.

An upstream may ask only what its settings allow (`relay`), and only what the client can answer. On
2026-07-28 it ends a request with its questions, and gets the request again with the answers. On
earlier revisions it sends requests of its own over the connection, which do not say to which call
they belong: those go to the one call that has the connection to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

import mcp_types
from pydantic import BaseModel, ValidationError

from counterseal.contract.tool_context import AgentClient, RefusedError
from counterseal.masking import NO_MASK

_MAX_ROUNDS: Final = 10
"""The most times that an upstream may answer one request with questions."""
_REPEAT: Final = (0.05, 0.25)
"""Seconds, first and longest, before a request is repeated that was answered without a question."""

_CAPABILITIES: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


def client_capabilities(relay: frozenset[str], client: AgentClient) -> dict[str, Any]:
    """Return the capabilities that an upstream is told: what it may ask and the client can do."""
    capabilities: dict[str, Any] = {name: {} for name in sorted(relay) if client.can(name)}
    if "elicitation" in capabilities:
        capabilities["elicitation"] = {"form": {}}
        if client.can("elicitation.url"):
            capabilities["elicitation"]["url"] = {}
    return capabilities


def _check(
    relay: frozenset[str], client: AgentClient, method: str, params: Mapping[str, Any]
) -> None:
    """Raise RefusedError if the question is not allowed, or the client can't answer it."""
    capability = _CAPABILITIES.get(method)
    if capability is None:
        raise RefusedError(f"the upstream asks for {method}, which the gateway does not relay")
    if capability not in relay:
        raise RefusedError(
            f"the upstream asks for {capability}, which is not allowed; add it to its `relay`",
            missing=capability,
        )
    if capability == "elicitation" and params.get("mode") == "url":
        capability = "elicitation.url"
    if not client.can(capability):
        raise RefusedError(
            f"the client in front of this call can't do {capability}", missing=capability
        )


# --- 2026-07-28 -----------------------------------------------------------------------------------


async def send_until_answered(
    send: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
    params: Mapping[str, Any],
    relay: frozenset[str],
    client: AgentClient,
) -> dict[str, Any]:
    """Send a request, and again with the client's answers while it is answered with questions."""
    pause = _REPEAT[0]
    result = await send(params)
    for _ in range(_MAX_ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        again = dict(params)
        questions = result.get("inputRequests")
        if questions:
            again["inputResponses"] = await _answers(relay, client, questions)
        else:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _REPEAT[1])
        if result.get("requestState") is not None:
            again["requestState"] = result["requestState"]
        result = await send(again)
    if result.get("resultType") != "input_required":
        return result
    raise RefusedError(f"the upstream asked questions more than {_MAX_ROUNDS} times in one request")


async def _answers(
    relay: frozenset[str], client: AgentClient, requests: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the client's answers to all questions, by the upstream's keys."""
    questions: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for key, request in requests.items():
        if not isinstance(request, Mapping) or not isinstance(request.get("method"), str):
            raise RefusedError("the upstream sent an invalid question: it has no method")
        method, given = request["method"], request.get("params")
        params = given if isinstance(given, Mapping) else {}
        _check(relay, client, method, params)
        questions[key] = method, params
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                key: group.create_task(client.ask(method, params, name=key))
                for key, (method, params) in questions.items()
            }
    except BaseExceptionGroup as errors:
        # One refusal is enough; the group has cancelled the other questions.
        raise errors.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


# --- earlier revisions ----------------------------------------------------------------------------


class QuestionRelay:
    """Passes the questions that come over one connection to the call that has it to itself."""

    def __init__(self, relay: frozenset[str]) -> None:
        self._relay = relay
        self.mask = NO_MASK
        """Hides our credentials, which the upstream knows, from the client."""
        self._client: AgentClient | None = None
        self._context: Context | None = None
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()

    def begin(self, client: AgentClient) -> None:
        """Pass questions to this client from now on."""
        self._client, self._context = client, copy_context()

    def end(self) -> None:
        """Refuse questions from now on, and cancel those that are open."""
        self._client = self._context = None
        for task in self._tasks:
            task.cancel()

    def callbacks(self) -> dict[str, Any]:
        """Return the arguments with which the SDK's session announces what may be asked."""
        callbacks: dict[str, tuple[str, str, type[BaseModel]]] = {
            "elicitation": ("elicitation_callback", "elicitation/create", mcp_types.ElicitResult),
            "sampling": (
                "sampling_callback",
                "sampling/createMessage",
                mcp_types.CreateMessageResult,
            ),
            "roots": ("list_roots_callback", "roots/list", mcp_types.ListRootsResult),
        }
        wanted = (callbacks[name] for name in self._relay)
        return {callback: partial(self._ask, method, kind) for callback, method, kind in wanted}

    async def _ask(
        self, method: str, kind: type[BaseModel], _: object, params: BaseModel | None = None
    ) -> BaseModel:
        """Answer a question, as a callback of the SDK: after its context come the params."""
        if getattr(params, "tools", None):
            kind = mcp_types.CreateMessageResultWithTools
        client, context = self._client, self._context
        if client is None:
            return _refusal("no call is in progress that this question could belong to")
        wire: dict[str, Any] = {}
        if params is not None:
            wire = self.mask.data(params.model_dump(by_alias=True, mode="json", exclude_none=True))
            # It belongs to the upstream's request, which is not passed on itself.
            wire.pop("_meta", None)
        try:
            _check(self._relay, client, method, wire)
            # A task of its own, which ends with the call and runs in the context of the call.
            task = asyncio.get_running_loop().create_task(client.ask(method, wire), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
            if task.cancelled():
                return _refusal("the call has ended")
            return kind.model_validate(task.result(), by_name=False)
        except RefusedError as error:
            return _refusal(str(error))
        except ValidationError:
            return _refusal("the client's answer does not fit the question")
        except Exception:  # noqa: BLE001 - the upstream is told only that it failed
            return _refusal("the client could not be asked")


def _refusal(message: str) -> mcp_types.ErrorData:
    return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=message)
