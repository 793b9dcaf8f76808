"""The tools that are struck down: real HTTP to the effects server, one for each `on_unknown`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from counterseal import Context, Contract, Grant, Tool, tool
from counterseal.contract.declare import PlainTool

__all__ = ["AGENT", "KEYED", "PATIENCE_MS", "UNDO", "all_tools", "grants_for", "worker_name"]

AGENT: Final = "agent"
KEYED: Final = frozenset({"charge_keyed", "charge_http", "cancel_keyed"})
"""Tools whose destination performs once for each key. The others' performs whatever it gets.

One contract lies about that, `charge_careless`: with it the test shows that it would notice.
"""
UNDO: Final = {"book_keyed": "cancel_keyed", "book_plain": "cancel_plain"}
PATIENCE_MS: Final = 800
"""How long an attempt may take, and so how long "not there" proves nothing."""

Op = Annotated[str, Field(max_length=80, description="Which operation this is.")]
Receipt = Annotated[str, Field(max_length=80, description="What is to be undone.")]


class Done(BaseModel):
    op: str
    receipt: str


def worker_name() -> str:
    """How a request names its sender, for the effects server to strike at."""
    return f"worker-{os.getpid():08d}"


class _World:
    """The effects server, as tools reach it."""

    def __init__(self, port: int, hit: Callable[[str], None], ahead: Callable[[], float]) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self._hit = hit
        self._ahead = ahead

    async def perform(self, ctx: Context, what: str, op: str) -> Done:
        self._hit("tool.before")
        mode = "keyed" if what in KEYED else "plain"
        headers = {"Idempotency-Key": ctx.key or "", "Worker": worker_name()}
        if ctx.deadline is not None:
            headers["Deadline"] = str(ctx.deadline.timestamp() - self._ahead())
        answer = await ctx.http.post(f"{self.base}/{mode}/{what}", json={"op": op}, headers=headers)
        self._hit("tool.after")
        answer.raise_for_status()
        return Done.model_validate(answer.json())

    def finder(self, what: str) -> Callable[..., Any]:
        async def find(ctx: Context) -> Done | None:
            asked = {"what": what, "key": ctx.key or ""}
            answer = await ctx.http.get(f"{self.base}/effects", params=asked)
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            return Done.model_validate(answer.json())

        find.__name__ = find.__qualname__ = f"find_{what}"
        return find


def all_tools(
    port: int, hit: Callable[[str], None], ahead: Callable[[], float]
) -> list[Tool[..., Any] | PlainTool]:
    """The same contracts in every worker, so that one can go on where another was killed."""
    world = _World(port, hit, ahead)

    def declared(what: str, **more: Any) -> Tool[..., Any]:
        reverses = what.startswith("cancel")

        async def act(op: Op, ctx: Context) -> Done:
            return await world.perform(ctx, what, op)

        async def reverse(op: Op, receipt: Receipt, ctx: Context) -> Done:
            return await world.perform(ctx, what, op)

        function = reverse if reverses else act
        function.__name__ = function.__qualname__ = what
        function.__doc__ = f"Have the effects server {what.replace('_', ' ')}."
        if more.get("on_unknown") == "read_back":
            more["read_back"] = world.finder(what)
        common = {
            "effect": "internal_mutation",
            "version": "1.0.0",
            "owner": "tests",
            "egress": [f"127.0.0.1:{port}"],
            "budget": 50,
            "timeout_ms": PATIENCE_MS,
        }
        return tool(**{**common, **more})(function)

    notice = {"effect": "external_notification", "consequence": "{op} is told to somebody."}
    return [
        declared("charge_keyed", on_unknown="retry_same_key"),
        declared("charge_read_back", on_unknown="read_back"),
        declared("charge_careless", on_unknown="retry_same_key"),
        declared("send_escalate", on_unknown="escalate"),
        declared("notify_read_back", on_unknown="read_back", **notice),
        declared("notify_escalate", on_unknown="escalate", **notice),
        declared("book_keyed", on_unknown="read_back", compensation_tool="cancel_keyed"),
        declared("cancel_keyed", on_unknown="retry_same_key"),
        declared("book_plain", on_unknown="read_back", compensation_tool="cancel_plain"),
        declared("cancel_plain", on_unknown="read_back"),
        _http(port),
    ]


def _http(port: int) -> Contract:
    """A tool without Python. Who sends it is told by a credential, because contracts are equal."""
    text = {"type": "string", "maxLength": 80}
    data = {
        "effect": "internal_mutation",
        "identity": {"name": "charge_http", "version": "1.0.0", "owner": "tests"},
        "affordance": {
            "model_description": "Have the effects server charge, by one HTTP request.",
            "input_schema": {
                "type": "object",
                "properties": {"op": {**text, "description": "Which operation this is."}},
                "required": ["op"],
                "additionalProperties": False,
            },
            "output_schema": {
                "type": "object",
                "properties": {"op": text, "receipt": text},
                "required": ["op", "receipt"],
                "additionalProperties": False,
            },
        },
        "usage": "In the kill test.",
        "runtime": {"timeout_ms": PATIENCE_MS},
        "on_unknown": "retry_same_key",
        "budget": 50,
        "secrets": ["worker"],
        "egress": [f"127.0.0.1:{port}"],
        "http": {
            "method": "POST",
            "url": f"http://127.0.0.1:{port}/keyed/charge_http",
            "headers": {"Worker": "{secret:worker}"},
            "body": {"op": "{op}"},
        },
    }
    return Contract.model_validate(data)


def grants_for(tools: list[Any]) -> list[Grant]:
    names = [getattr(one, "contract", one).name for one in tools]
    return [Grant(agent=AGENT, tool=name, max_calls_per_run=50) for name in names]
