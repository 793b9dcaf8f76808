"""An agent loop without a framework: `python agent.py`.

`ask_model` is the only part that you must replace: call your provider there. The one here follows a
script, so that the loop can be tried without a key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import counterseal


def ask_model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the next message of the model.

    With OpenAI: `openai.chat.completions.create(model=…, messages=messages, tools=tools)`, and of
    its answer `.choices[0].message`.
    """
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": messages[-1]["content"]}
    arguments = {"recipient": "a@example.org", "text": "We open on Monday."}
    function = {"name": tools[0]["function"]["name"], "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def main() -> None:
    """Run the agent until the model makes no more tool calls."""
    with counterseal.sync.open_project(Path(__file__).parent) as project:
        chat = project.conversation(project.principal("writer"), "conversation-1")
        messages = [{"role": "user", "content": "Tell a@example.org that we open on Monday."}]
        while True:
            messages.append(ask_model(messages, chat.tools()))
            answers = chat.answer(messages[-1])
            if not answers:
                break
            messages += answers
        print(messages[-1]["content"])


if __name__ == "__main__":
    main()
