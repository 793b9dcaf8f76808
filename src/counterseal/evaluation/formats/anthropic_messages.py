"""Message lists of Anthropic: blocks `tool_use` and `tool_result`.

Written from Anthropic's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from counterseal.evaluation.formats.openai_messages import (
    conversations,
    first_words,
    last_words,
    text_of,
)
from counterseal.evaluation.trajectories import AgentCall, Trajectory


def read(data: Any) -> list[Trajectory]:
    """Return a trajectory for each conversation."""
    return [
        Trajectory(
            name=name,
            objective=first_words(messages, "user"),
            uses=tuple(_uses(messages)),
            words=last_words(messages),
        )
        for name, messages in conversations(data)
    ]


def _uses(messages: list[Any]) -> Iterator[AgentCall]:
    blocks = [
        block
        for message in messages
        for block in (message["content"] if isinstance(message.get("content"), list) else ())
        if isinstance(block, Mapping)
    ]
    answers = {
        str(block.get("tool_use_id")): text_of(block.get("content"))
        for block in blocks
        if block.get("type") == "tool_result"
    }
    for block in blocks:
        if block.get("type") == "tool_use":
            own = str(block.get("id") or "")
            yield AgentCall(
                tool=str(block.get("name") or ""),
                arguments=block.get("input"),
                id=own,
                answer=answers.get(own, ""),
            )
