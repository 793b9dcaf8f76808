"""The agents' journal, one file per task: a restarted agent reads it first.

A line is written after each answer. A call in progress during a crash is not in it: the agent makes
it again, and the gateway knows whether it was executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crew.model import Answer, Ask, Done, Seen, Task

__all__ = ["Journal"]


class Journal:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def seen(self, task: str) -> list[Seen]:
        """Return the answers so far, oldest first."""
        return [
            Seen(Ask(**line["ask"]), Answer(**line["answer"]))
            for line in self._lines(self._file(task))
            if "ask" in line
        ]

    def done(self, task: str) -> Done | None:
        for line in self._lines(self._file(task)):
            if "done" in line:
                return Done(**line["done"])
        return None

    def add(self, task: Task, seen: Seen) -> None:
        line = {"tenant": task.tenant, "ask": seen.ask._asdict(), "answer": asdict(seen.answer)}
        self._write(task.name, line)

    def end(self, task: Task, done: Done) -> None:
        self._write(task.name, {"done": {"words": done.words, "hands_on": dict(done.hands_on)}})

    def everything(self) -> Iterator[tuple[str, Seen]]:
        """Return every answer that any agent received, with its tenant."""
        for file in sorted(self._folder.glob("*.jsonl")):
            for line in self._lines(file):
                if "ask" in line:
                    yield line["tenant"], Seen(Ask(**line["ask"]), Answer(**line["answer"]))

    # --- the files --------------------------------------------------------------------------------

    def _file(self, task: str) -> Path:
        return self._folder / f"{task}.jsonl"

    def _write(self, task: str, line: dict[str, Any]) -> None:
        file = self._file(task)
        torn = file.exists() and not file.read_bytes().endswith(b"\n")
        with file.open("a", encoding="utf-8") as out:
            out.write(("\n" if torn else "") + json.dumps(line) + "\n")

    @staticmethod
    def _lines(file: Path) -> Iterator[dict[str, Any]]:
        if not file.exists():
            return
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # the writer was killed in the middle of this line
                continue
