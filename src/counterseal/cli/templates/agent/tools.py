"""The tools of the agent. Replace what they do with your own systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from counterseal import Effect, tool

OUTBOX = Path(__file__).with_name("outbox.txt")  # stands for a mail server


class Sent(BaseModel):
    recipient: str


def find_letter(recipient: str, text: str) -> Sent | None:
    """Look for a letter in the outbox, after a call and whenever its answer did not come."""
    found = OUTBOX.exists() and f"{recipient}: {text}\n" in OUTBOX.read_text("utf-8")
    return Sent(recipient=recipient) if found else None


@tool(
    effect=Effect.EXTERNAL_NOTIFICATION,
    version="1.0.0",
    owner="office",
    consequence="A letter goes to {recipient}: {text}",
    business_key=["recipient", "text"],
    read_back=find_letter,
)
async def send_letter(
    recipient: Annotated[str, Field(max_length=254, description="Who gets it: an address.")],
    text: Annotated[str, Field(max_length=2000, description="What the letter says.")],
) -> Sent:
    """Send a letter to one recipient. Does not keep drafts."""
    with OUTBOX.open("a", encoding="utf-8") as outbox:
        outbox.write(f"{recipient}: {text}\n")
    return Sent(recipient=recipient)
