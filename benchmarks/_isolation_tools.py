"""The same small function at every level of isolation, for `isolation.py`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from counterseal import tool

Words = Annotated[str, Field(max_length=200, description="What to look for.")]
Answer = dict[str, str]


@tool(effect="compute", version="1.0.0", owner="bench", isolation="inline")
async def inline(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="inline")
async def inline_task(words: Words) -> Answer:
    """Answer after a wait, as a tool that asks somebody does."""
    await asyncio.sleep(0)
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="thread")
def thread(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="process")
def process(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="sandbox")
def sandbox(words: Words) -> Answer:
    """Answer."""
    return {"found": words}
