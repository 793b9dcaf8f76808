"""Who is measured: each in a process of its own, on loopback, before the same upstream."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import _gateway_servers as servers

PATIENCE = 60.0
"""Seconds for a server to start."""
AGENT, PLENTY = "bench", 10**9
SETTINGS = """\
[store]
url = "sqlite:///bench.db"

[gateway]
port = {port}

[upstreams.bench]
url = "{url}"
overlay = "overlay.yaml"

[agents.{agent}]
tenant = "acme"
"""
GRANT = """
[[grants]]
agent = "{agent}"
tool = "{tool}"
max_calls_per_run = {plenty}
"""
OVERLAY = """\
server: bench
defaults:
  owner: bench
  runtime: {rate_limits: {window_sec: 1, max_requests: 1000000}}
tools:
  echo: {effect: retrieve}
  slow: {effect: retrieve}
  note: {effect: draft}
"""
TOOLS = ("echo", "slow", "note")


class Party(NamedTuple):
    url: str
    pid: int

    def cpu(self) -> float:
        """Seconds of a processor that it has taken so far; 0 where the system does not tell."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def parties(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Party]]:
    """The upstream as `direct`, and those of `gateway`, `shared`, `fresh` that are wanted."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, port: int, command: list[str], cwd: Path) -> Party:
        log = folder / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(command, cwd=cwd, stdout=stream, stderr=stream)
        started.append(process)
        _await(name, process, port, log)
        return Party(f"http://{servers.HOST}:{port}/mcp", process.pid)

    def peer(name: str, *words: str) -> Party:
        port = _free_port()
        command = [sys.executable, servers.__file__, *words[:1], str(port), *words[1:]]
        return start(name, port, command, folder)

    try:
        made = {"direct": peer("direct", "upstream")}
        for name in names:
            if name == "gateway":
                made[name] = start(name, *_ours(folder, made["direct"].url))
            elif name != "direct":
                made[name] = peer(name, name, made["direct"].url)
        yield made
    finally:
        for process in reversed(started):
            _stop(process)


def _ours(folder: Path, url: str) -> tuple[int, list[str], Path]:
    """The folder of somebody who serves that upstream's tools to one agent, and the command."""
    port, home = _free_port(), folder / "gateway"
    home.mkdir()
    grants = (GRANT.format(agent=AGENT, tool=tool, plenty=PLENTY) for tool in TOOLS)
    settings = SETTINGS.format(port=port, url=url, agent=AGENT) + "".join(grants)
    (home / "counterseal.toml").write_text(settings, encoding="utf-8")
    (home / "overlay.yaml").write_text(OVERLAY, encoding="utf-8")
    program = [sys.executable, "-m", "counterseal"]
    _run([*program, "diff", "--accept", "--yes", "--by", AGENT], home)
    return port, [*program, "serve", "--anonymous-as", AGENT], home


def _run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((servers.HOST, 0))
        return int(probe.getsockname()[1])


def _await(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection((servers.HOST, port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    said = log.read_text(encoding="utf-8", errors="replace")
    sys.exit(f"{name} did not start:\n{said}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
