"""The processes that the demo starts. Only these are ever stopped.

Their ids are written to a file, so that the next demo can stop what a killed demo left running. An
id may have been reused by then, so the start time of the process is written beside it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["Processes"]

GRACE: Final = 15.0
"""Seconds for a process to stop by itself."""
_PROC: Final = Path("/proc")


class Processes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._running: list[subprocess.Popen[str]] = []

    def end_leftovers(self) -> int:
        """Stop processes that another demo left running; return how many."""
        if not self._file.exists():
            return 0
        with suppress(ValueError):  # incomplete or empty
            known = json.loads(self._file.read_text(encoding="utf-8"))
            left = [int(pid) for pid, born in known.items() if _birth(int(pid)) == born]
            for pid in left:
                _signal(pid, signal.SIGTERM)
            until = time.monotonic() + GRACE
            while any(map(_birth, left)) and time.monotonic() < until:
                time.sleep(0.05)
            for pid in left:
                if _birth(pid) == known[str(pid)]:
                    _signal(pid, signal.SIGKILL)
            self._file.unlink()
            return len(left)
        return 0

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> subprocess.Popen[str]:
        """Start a program; stdout is a pipe, stderr goes to a log file."""
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=cwd,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C reaches only the demo, which stops them in order
            )
        self._running.append(process)
        self._note()
        return process

    def stop(self) -> None:
        """Stop all processes together; kill those that do not stop in time."""
        for process in self._running:
            process.terminate()
        until = time.monotonic() + GRACE
        for process in self._running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._running.clear()
        self._file.unlink(missing_ok=True)

    def ended(self) -> list[subprocess.Popen[str]]:
        """Return the processes that have ended by themselves."""
        return [process for process in self._running if process.poll() is not None]

    def _note(self) -> None:
        known = {process.pid: _birth(process.pid) for process in self._running}
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(known), encoding="utf-8")
        written.replace(self._file)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _birth(pid: int) -> str | None:
    """Return the start time of a process, or None if it does not exist."""
    if (_PROC / "self" / "stat").exists():
        with suppress(OSError):
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return None if fields[0] == "Z" else fields[19]
        return None
    told = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None
