"""The case assistant, run as users run it, and what it leaves behind, read with nothing of its own.

done = finished(home, "--auto")               # to its end: exit code, story, summary
with running(home) as demo: ...               # until it is stopped
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.warm import PYTHON, programs, warm

DEMO = Path(__file__).parents[2] / "examples" / "case_assistant"
PATIENCE = 400.0
"""Seconds after which something that should have happened long ago is missed."""
ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}

STATUSES = {
    "case_100002": "awaiting_reply",
    "case_100004": "under_review",
    "case_100007": "under_review",
    "case_100009": "decided",
    "case_100011": "under_review",
    "case_100013": "awaiting_reply",
    "case_100014": "closed",
    "case_100015": "under_review",
    "case_200005": "awaiting_reply",
    "case_200008": "decided",
    "case_200010": "under_review",
    "case_200012": "awaiting_reply",
}
"""Where the cases of the story stand at its end."""
NOTICES = {
    ("case_100002", "hearing"),
    ("case_100009", "penalty"),
    ("case_100013", "information_request"),
    ("case_200005", "information_request"),
    ("case_200008", "penalty"),
    ("case_200012", "information_request"),
}
"""What has been sent by then; the one of case_100004 was rejected."""


def command(home: Path, *options: str) -> list[str]:
    return warm(DEMO, "--home", home, "--port", "0", *options)


def surroundings(**more: str) -> dict[str, str]:
    """What it starts itself starts warm, too."""
    return {**os.environ, **ENVIRONMENT, PYTHON: str(programs() / "python"), **more}


@dataclass
class Finished:
    home: Path
    code: int
    out: str
    story: str
    """What was told: stderr with --json, stdout without."""

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def held(self) -> dict[str, bool]:
        return {one["name"]: one["ok"] for one in self.told["invariants"]}


def finished(home: Path, *options: str, **env: str) -> Finished:
    done = subprocess.run(
        command(home, "--json", *options),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=surroundings(**env),
    )
    return Finished(home, done.returncode, done.stdout, done.stderr)


def shared_day(folders: pytest.TempPathFactory) -> Finished:
    """Return a day on SQLite with --auto that came to its end; not to be changed, but copied.

    With several workers, the first one that wants it runs it, and the others read what it did. The
    programs that are named in its project are not those of one worker.
    """
    base = folders.getbasetemp()
    folder = (base.parent if "popen-gw" in base.name else base) / "shared-day"
    folder.mkdir(exist_ok=True)
    told = folder / "told.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            done = finished(folder / "home", "--auto", **{PYTHON: sys.executable})
            told.write_text(json.dumps([done.code, done.out, done.story]))
    return Finished(folder / "home", *json.loads(told.read_text()))


class Running:
    """A demo that runs, with its story and its summary apart."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.story: list[str] = []
        self.out: list[str] = []
        self._told: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(process.stderr, self.story)),
            threading.Thread(target=self._read, args=(process.stdout, self.out)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, into: list[str]) -> None:
        for line in stream:
            into.append(line)
            self._told.put(line)
        self._told.put("")

    def until(self, words: str) -> str:
        """The next line with these words in it."""
        while True:
            line = self._told.get(timeout=PATIENCE)
            if words in line:
                return line
            assert line or self.process.poll() is None, "".join(self.story)

    def end(self, signal: int) -> int:
        self.process.send_signal(signal)
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code


@contextlib.contextmanager
def running(home: Path, *options: str) -> Any:
    process = subprocess.Popen(
        command(home, "--json", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(),
    )
    demo = Running(process)
    try:
        yield demo
    finally:
        if process.poll() is None:
            demo.end(2)
        for stream in (process.stdout, process.stderr):
            stream.close()


@contextlib.contextmanager
def new_home() -> Any:
    """A folder that any user gets at: Postgres does not run as root."""
    folder = Path(tempfile.mkdtemp(prefix="case-assistant-"))
    folder.chmod(0o711)
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- what it leaves behind ------------------------------------------------------------------------


def rows(file: Path, query: str) -> list[dict[str, Any]]:
    """What a query finds in a SQLite file, for somebody who only looks."""
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(query)]


def write(file: Path, statement: str, *values: Any) -> None:
    """What somebody might do who can write to the file."""
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute(statement, values)
        db.commit()


def mails(home: Path) -> list[dict[str, Any]]:
    return rows(home / "mail.db", "SELECT * FROM mails ORDER BY number")


def statuses(home: Path) -> dict[str, str]:
    told = rows(home / "cases.db", "SELECT case_id, status FROM cases")
    return {row["case_id"]: row["status"] for row in told}


def notices(home: Path) -> list[dict[str, Any]]:
    """Each notice with its draft, its case, and the mailbox on the case file."""
    return rows(
        home / "cases.db",
        "SELECT n.*, d.case_id, d.template, c.tenant AS owner, k.mailbox FROM notices n"
        " JOIN drafts d ON d.draft_id = n.draft_id JOIN cases c ON c.case_id = d.case_id"
        " JOIN companies k ON k.register_no = c.register_no AND k.tenant = c.tenant",
    )


def answers(home: Path) -> list[dict[str, Any]]:
    """Everything that agents were told, by the tenant that they work for."""
    lines = [
        json.loads(line)
        for file in sorted((home / "journal").glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [line for line in lines if "ask" in line]
