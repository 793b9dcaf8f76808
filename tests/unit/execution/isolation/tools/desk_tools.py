"""Tools of a desk that trusts none of them, for journeys through the runtime."""

import ctypes
from typing import Annotated, Any

from pydantic import Field

from counterseal import Context, Secret, tool

APART = {"version": "1.0.0", "owner": "tests", "isolation": "process"}
Text = Annotated[str, Field(max_length=2000, description="What it is given.")]


@tool(effect="compute", **APART)
def stamp(text: Text, ctx: Context, token: Annotated[str, Secret("token")]) -> dict[str, Any]:
    """Stamp a text, report, and say too much."""
    ctx.progress(1, 2, f"using {token}")
    ctx.log.warning("the token is %s", token)
    print("printed", token)  # noqa: T201 - so do tools
    ctx.files.write_text("stamp.txt", text)
    return {"text": text, "tenant": ctx.tenant, "debug": token, "kept": ctx.files.list()}


@tool(effect="draft", **APART)
def crash() -> dict[str, str]:
    """End badly."""
    return {"never": str(ctypes.string_at(0))}


@tool(effect="draft", **APART, timeout_ms=3000)
def spin() -> dict[str, str]:
    """Never end."""
    while True:
        pass


@tool(effect="compute", version="1.0.0", owner="tests", isolation="sandbox")
def calculate(code: Text, ctx: Context) -> dict[str, Any]:
    """Run what somebody wrote."""
    scope: dict[str, Any] = {}
    exec(code, scope)
    return {"result": scope.get("result"), "files": ctx.files.list()}
