"""What every party of `call.py` is asked to do: the same function, the same text as arguments.

The text is what a model wrote, so that parsing it is part of every call, for everybody.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import Field

NAME = "find_notices"
TEXT = '{"case_id": "case_000042", "kind": "letter", "limit": 10, "words": "late payment"}'
ANSWER = {"status": "open", "count": 3}
DESCRIPTION = "Find notices of a case."

CaseId = Annotated[str, Field(pattern="^case_[0-9]{6}$", description="The case.")]
Kind = Annotated[Literal["letter", "email"], Field(description="Which kind.")]
Limit = Annotated[int, Field(ge=1, le=50, description="How many.")]
Words = Annotated[str, Field(max_length=200, description="What to look for.")]

ran = 0
"""How often the function ran in this process."""


async def find_notices(
    case_id: CaseId, kind: Kind, limit: Limit = 5, words: Words = ""
) -> dict[str, Any]:
    """Find notices of a case."""
    del case_id, kind, limit, words
    global ran  # noqa: PLW0603 - a count that proves that every call got here
    ran += 1
    return ANSWER


def proven(answer: object, before: int) -> None:
    """Leave, loudly, unless the function ran once and its answer came back."""
    said = str(answer)
    if ran != before + 1 or "open" not in said or "3" not in said:
        sys.exit(f"The tool ran {ran - before} times, and the answer was {said!r}.")
