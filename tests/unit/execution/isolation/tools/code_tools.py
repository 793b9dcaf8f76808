"""Runs what a model wrote: what a sandbox is for."""

from typing import Any

from counterseal import Context, tool


@tool(
    effect="compute",
    version="1.0.0",
    owner="tests",
    isolation="sandbox",
)
def run_code(code: str, ctx: Context) -> Any:
    """Run Python code. Its `result` is the output."""
    scope: dict[str, Any] = {"ctx": ctx}
    exec(code, scope)
    return scope.get("result")


@tool(effect="compute", version="1.0.0", owner="tests", isolation="sandbox")
async def patient(ctx: Context) -> None:
    """Wait for very long, in an event loop."""
    import asyncio

    ctx.progress(1)
    await asyncio.sleep(3600)


@tool(effect="compute", version="1.0.0", owner="tests", isolation="sandbox")
def greet() -> str:
    """Use a module that stands beside this one."""
    from beside import GREETING

    return GREETING
