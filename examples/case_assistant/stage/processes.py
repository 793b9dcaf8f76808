"""The programs that the demo starts, each known by its process id. Nothing else is ever ended.

Their ids are written down as they start. When the demo itself was killed, the next one finds there
what was left running. An id may belong to somebody else by then, so the moment at which the process
began is written beside it.
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
"""Seconds that a process is given to end by itself."""
_PROC: Final = Path("/proc")


class Processes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._running: list[subprocess.Popen[str]] = []

    def end_leftovers(self) -> int:
        """End what another demo started and left behind. How many there were."""
        if not self._file.exists():
            return 0
        with suppress(ValueError):  # torn, or empty: there is nothing to be read in it
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
        """Start a program whose results are read from a pipe; what it says goes into a file."""
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=cwd,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them in order
            )
        self._running.append(process)
        self._note()
        return process

    def stop(self) -> None:
        """All of them, together; whoever does not end in time is ended."""
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
        """Those that have ended by themselves."""
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
    """When a process began; None if there is none (any more)."""
    if (_PROC / "self" / "stat").exists():
        with suppress(OSError):
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return None if fields[0] == "Z" else fields[19]
        return None
    told = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None
