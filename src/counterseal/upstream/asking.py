"""What an upstream asks back in the middle of a call: passed on to the client in front, or refused.

It may ask only what the upstream's settings let it (`relay`), and only where the client can answer.
In 2026-07-28 an upstream ends a request with what it wants to know, and is asked again with the
answers; before that, it sends requests of its own over the connection, which do not say to which
call they belong: those go to the one call that has the connection for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

import mcp_types
from mcp.client.session import ClientRequestContext
from pydantic import BaseModel, ValidationError

from counterseal.contract.tool_context import Client, RefusedError
from counterseal.masking import NO_MASK

__all__ = ["Asked", "capabilities", "until_answered"]

_ROUNDS: Final = 10
"""So many times an upstream may answer with questions."""
_AGAIN: Final = (0.05, 0.25)
"""Seconds, from and to, until an upstream that only wants to be asked again is."""

_WHAT: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
_Answer = TypeVar("_Answer", bound=BaseModel)


def capabilities(relay: frozenset[str], client: Client) -> dict[str, Any]:
    """What an upstream is told that it may ask: what it is let, as far as the client can."""
    can: dict[str, Any] = {name: {} for name in sorted(relay) if client.can(name)}
    if "elicitation" in can:
        can["elicitation"] = {"form": {}}
        if client.can("elicitation.url"):
            can["elicitation"]["url"] = {}
    return can


def _check(relay: frozenset[str], client: Client, method: str, params: Mapping[str, Any]) -> None:
    """RefusedError: that may not be asked, or the client can't answer it."""
    what = _WHAT.get(method)
    if what is None:
        raise RefusedError(f"the upstream asks for {method}, which nobody here answers")
    if what not in relay:
        raise RefusedError(
            f"the upstream asks for {what}, which it is not let; add it to its `relay`",
            missing=what,
        )
    if what == "elicitation" and params.get("mode") == "url":
        what = "elicitation.url"
    if not client.can(what):
        raise RefusedError(f"the client in front of this call can't do {what}", missing=what)


async def until_answered(
    send: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
    params: Mapping[str, Any],
    relay: frozenset[str],
    client: Client,
) -> dict[str, Any]:
    """The result of a request: sent anew with answers, while it is answered with questions."""
    pause = _AGAIN[0]
    result = await send(params)
    for _ in range(_ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        again = dict(params)
        questions = result.get("inputRequests")
        if questions:
            again["inputResponses"] = await _answers(relay, client, questions)
        else:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _AGAIN[1])
        if result.get("requestState") is not None:
            again["requestState"] = result["requestState"]
        result = await send(again)
    if result.get("resultType") != "input_required":
        return result
    raise RefusedError(f"the upstream asked more than {_ROUNDS} times for one request")


async def _answers(
    relay: frozenset[str], client: Client, requests: Mapping[str, Any]
) -> dict[str, Any]:
    """The client's answers to all that an upstream wants to know, by the upstream's own keys."""
    asked = {key: _question(request) for key, request in requests.items()}
    for method, params in asked.values():
        _check(relay, client, method, params)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                key: group.create_task(client.ask(method, params, name=key))
                for key, (method, params) in asked.items()
            }
    except BaseExceptionGroup as group_error:
        # One refusal is enough, and the others were told to stop.
        raise group_error.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


def _question(request: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(request, Mapping) or not isinstance(request.get("method"), str):
        raise RefusedError("the upstream asks for something that is no request")
    params = request.get("params")
    return request["method"], params if isinstance(params, Mapping) else {}


class Asked:
    """The one call that a connection before 2026-07-28 is busy with, and may ask things of."""

    def __init__(self, relay: frozenset[str]) -> None:
        self._relay = relay
        self.mask = NO_MASK
        """Hides our credentials, which the upstream knows, from the client."""
        self._client: Client | None = None
        self._context: Context | None = None
        self._asking: set[asyncio.Task[dict[str, Any]]] = set()

    def begin(self, client: Client) -> None:
        """A call of this client's has the connection from now on."""
        self._client, self._context = client, copy_context()

    def end(self) -> None:
        """It is over: nobody answers any longer."""
        self._client = self._context = None
        for task in self._asking:
            task.cancel()

    def callbacks(self) -> dict[str, Any]:
        """For the library's session, which tells an upstream that it may ask what stands here."""
        every = {
            "elicitation": ("elicitation_callback", self._elicit),
            "sampling": ("sampling_callback", self._sample),
            "roots": ("list_roots_callback", self._roots),
        }
        return dict(every[name] for name in self._relay)

    async def _elicit(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        return await self._ask("elicitation/create", params, mcp_types.ElicitResult)

    async def _sample(
        self, context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> (
        mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools | mcp_types.ErrorData
    ):
        kind = mcp_types.CreateMessageResultWithTools if params.tools else None
        return await self._ask(
            "sampling/createMessage", params, kind or mcp_types.CreateMessageResult
        )

    async def _roots(
        self, context: ClientRequestContext
    ) -> mcp_types.ListRootsResult | mcp_types.ErrorData:
        return await self._ask("roots/list", None, mcp_types.ListRootsResult)

    async def _ask(
        self, method: str, params: BaseModel | None, kind: type[_Answer]
    ) -> _Answer | mcp_types.ErrorData:
        client, context = self._client, self._context
        if client is None:
            return _refusal("no call is under way that this could belong to")
        wire = {} if params is None else self.mask.data(_wire(params))
        try:
            _check(self._relay, client, method, wire)
            # In a task of its own: it ends with the call, and sees what the call sees.
            task = asyncio.get_running_loop().create_task(client.ask(method, wire), context=context)
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
            if task.cancelled():
                return _refusal("nobody waits for this call any longer")
            return kind.model_validate(task.result(), by_name=False)
        except RefusedError as error:
            return _refusal(str(error))
        except ValidationError:
            return _refusal("the client's answer is none to this question")
        except Exception:  # noqa: BLE001 - the upstream is told no more than that it failed
            return _refusal("the client could not be asked")


def _wire(params: BaseModel) -> dict[str, Any]:
    wire = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    wire.pop("_meta", None)  # it is about the upstream's request, which ends here
    return wire


def _refusal(why: str) -> mcp_types.ErrorData:
    return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=why)
