"""Message lists of OpenAI: chat completions, and items of the responses API.

Written from OpenAI's documentation. A file has a list of messages, or objects with `messages` and a
`name` or `id`, one a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from counterseal.evaluation.trajectories import AgentCall, Trajectory, parsed_arguments
from counterseal.proposal import Proposal


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
    answers = {
        str(one.get("tool_call_id") or one.get("call_id")): text_of(
            one.get("content", one.get("output"))
        )
        for one in messages
        if one.get("role") == "tool" or one.get("type") == "function_call_output"
    }
    for message in messages:
        calls = message.get("tool_calls") or []
        for call in [message] if message.get("type") == "function_call" else calls:
            proposal = Proposal.from_call(call)
            own = proposal.call_id or ""
            arguments = parsed_arguments(proposal.arguments)
            yield AgentCall(
                tool=proposal.tool, arguments=arguments, id=own, answer=answers.get(own, "")
            )


# --- what all message lists share -----------------------------------------------------------------


def conversations(data: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each conversation with its name. ValueError if there is none."""
    items = data if isinstance(data, list) else [data]
    if items and all(
        isinstance(one, Mapping) and ("role" in one or "type" in one) for one in items
    ):
        items = [{"messages": items}]
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping) or not isinstance(item.get("messages"), list):
            raise ValueError("expected a list of messages, or objects with `messages`")
        if not all(isinstance(message, Mapping) for message in item["messages"]):
            raise ValueError("a message is not an object")
        yield str(item.get("name") or item.get("id") or f"conversation {number}"), item["messages"]


def text_of(content: Any) -> str:
    """Return the text of a message's content: a text, or blocks with `text`."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(block.get("text") or text_of(block.get("content")))
            for block in content
            if isinstance(block, Mapping)
        )
    return ""


def first_words(messages: list[Any], role: str) -> str:
    """Return the first text of a role."""
    texts = (text_of(one.get("content")) for one in messages if one.get("role") == role)
    return next((text for text in texts if text), "")


def last_words(messages: list[Any]) -> str:
    """Return the assistant's last text."""
    return first_words(messages[::-1], "assistant")
