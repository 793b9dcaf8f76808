"""The task of every party of `call.py`: one of three functions, and its arguments as text.

The text is what a model wrote, so that parsing it is part of every call. The functions are those
that people write: one awaits something, one is a plain `def`, and one awaits an HTTP answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

TEXT = '{"case_id": "case_000042", "kind": "letter", "limit": 10, "words": "late payment"}'
ANSWER = {"status": "open", "count": 3}
URL = "BENCH_URL"
"""The environment variable with the address of the local server that `fetch_notices` asks."""

CaseId = Annotated[str, Field(pattern="^case_[0-9]{6}$", description="The case.")]
Kind = Annotated[Literal["letter", "email"], Field(description="Which kind.")]
Limit = Annotated[int, Field(ge=1, le=50, description="How many.")]
Words = Annotated[str, Field(max_length=200, description="What to look for.")]

runs = 0
"""How often a function ran in this process."""
_client: Any = None


def _count() -> dict[str, Any]:
    global runs  # noqa: PLW0603 - a count that proves that every call got here
    runs += 1
    return ANSWER


async def await_notices(
    case_id: CaseId, kind: Kind, limit: Limit = 5, words: Words = ""
) -> dict[str, Any]:
    """Find notices of a case."""
    del case_id, kind, limit, words
    await asyncio.sleep(0)
    return _count()


def read_notices(
    case_id: CaseId, kind: Kind, limit: Limit = 5, words: Words = ""
) -> dict[str, Any]:
    """Find notices of a case."""
    del case_id, kind, limit, words
    return _count()


async def fetch_notices(
    case_id: CaseId, kind: Kind, limit: Limit = 5, words: Words = ""
) -> dict[str, Any]:
    """Find notices of a case."""
    del kind, limit, words
    global _client  # noqa: PLW0603 - one pooled client a process, as programs have it
    if _client is None:
        import httpx  # noqa: PLC0415 - the other functions do without it

        _client = httpx.AsyncClient()
    answer = await _client.get(os.environ[URL], params={"case_id": case_id})
    answer.raise_for_status()
    return _count()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "await": await_notices,
    "def": read_notices,
    "http": fetch_notices,
}


def check_answer(answer: object, before: int) -> None:
    """Exit with a message unless the function ran once and its answer came back."""
    text = str(answer)
    if runs != before + 1 or "open" not in text or "3" not in text:
        sys.exit(f"The tool ran {runs - before} times, and the answer was {text!r}.")
