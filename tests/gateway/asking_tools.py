"""Tools that ask their client in the middle of a call, and clients that answer."""

from __future__ import annotations

import asyncio

import mcp_types as types

from counterseal import Context, tool
from counterseal.contract.tool_context import RefusedError

READS = {"effect": "read_only", "version": "1.0.0", "owner": "desk"}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WHO = {"message": "Who?", "requestedSchema": NAME}


@tool(**READS)
async def greet(ctx: Context) -> dict[str, str]:
    """Greet somebody."""
    answer = await ctx.client.ask("elicitation/create", WHO, name="who")
    if answer["action"] != "accept":
        return {"greeting": answer["action"]}
    return {"greeting": f"Hello, {answer['content']['name']}"}


@tool(**READS)
async def write(ctx: Context) -> dict[str, str]:
    """Have a model write something."""
    message = {"role": "user", "content": {"type": "text", "text": "A line, please."}}
    asked = {"messages": [message], "maxTokens": 10}
    answer = await ctx.client.ask("sampling/createMessage", asked)
    return {"written": answer["content"]["text"]}


@tool(**READS)
async def look(ctx: Context) -> dict[str, str]:
    """Look where the client is at home."""
    answer = await ctx.client.ask("roots/list", {})
    return {"root": answer["roots"][0]["uri"]}


@tool(**READS)
async def survey(ctx: Context) -> dict[str, list[str]]:
    """Ask two things at once, and a third after that."""
    ask = ctx.client.ask
    both = await asyncio.gather(
        ask("elicitation/create", {**WHO, "message": "One?"}, name="one"),
        ask("elicitation/create", {**WHO, "message": "Two?"}, name="two"),
    )
    last = await ask("elicitation/create", {**WHO, "message": "Three?"})
    return {"names": [answer["content"]["name"] for answer in (*both, last)]}


@tool(**READS)
async def polite(ctx: Context) -> dict[str, str]:
    """Ask the client, and go on without an answer if there is none."""
    try:
        await ctx.client.ask("elicitation/create", WHO)
    except RefusedError as refusal:
        return {"refused": str(refusal.missing)}
    return {"refused": ""}


TOOLS = [greet, write, look, survey, polite]


def naming(name="Ada", action="accept"):
    async def answer(context, params):
        content = {"name": name if isinstance(name, str) else name(params.message)}
        return types.ElicitResult(action=action, content=content if action == "accept" else None)

    return answer
