"""What the agents have been through, a file for each task: whoever is started anew reads it first.

A line is written when an answer has come. What was under way at a crash is not in it: the agent
makes that call again, and the gateway knows whether it was carried out.
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
        """What came back so far, oldest first."""
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
        """All that agents were ever told, with the tenant that they work for."""
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
            except ValueError:  # whoever wrote it was killed in the middle
                continue
