"""Servers that are measured: each in a process of its own, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks._house.environments import ROOT, Unavailable

HOST = "127.0.0.1"
PATIENCE = 120.0
"""Seconds for a server to start."""


class Served(NamedTuple):
    """One that listens."""

    url: str
    pid: int
    headers: Mapping[str, str] = {}
    """What a request to it must carry."""
    tools: str = ""
    """What its tools' names begin with."""

    def cpu(self) -> float:
        """Return the processor time that the server has taken so far, in seconds."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


@contextmanager
def server(
    command: list[str], port: int, cwd: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Start it, wait until it listens, and stop it afterwards. Unavailable when it does not."""
    log = cwd / f"server-{port}.log"
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **(settings or {})}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=cwd, stdout=stream, stderr=stream, env=surroundings, start_new_session=True
        )
    try:
        _await(process, port, log)
        yield Served(f"http://{HOST}:{port}/mcp", process.pid)
    finally:
        _stop(process)


def run(command: list[str], cwd: Path, settings: Mapping[str, str] | None = None) -> str:
    """What a program says. Unavailable when it fails."""
    surroundings = {**os.environ, **(settings or {})}
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env=surroundings
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {done.stdout}{done.stderr}"[-400:])
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            time.sleep(0.005)
        else:
            return
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise Unavailable(f"it did not start: {' / '.join(said[-3:])}"[:400])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
