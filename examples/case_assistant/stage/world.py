"""The demo's processes: mail server, store and gateway workers, with one home folder.

    with World.open(home, postgres=True, port=8787, tell=print) as world:
        world.urls                        # of the gateway workers

The home keeps all state: a demo that opens it again, after Ctrl-C or a crash, continues. A home is
for one demo at a time. Every program runs in its own process, as a user would start it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from project import add_register, write_project

from counterseal.config import load_settings
from stage.people import SignIns, admit
from stage.postgres import Postgres
from stage.processes import Processes
from stage.trouble import Trouble

__all__ = ["COUNTERSEAL", "World"]

COUNTERSEAL: Final = [sys.executable, "-m", "counterseal"]
HERE: Final = Path(__file__).resolve().parents[1]
"""The example's folder, from which its packages are imported."""
MARK: Final = "case-assistant.json"
"""A file in every home with the options that it was created with."""
WORKERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    home: Path
    store: str
    urls: tuple[str, ...]
    sign_ins: SignIns
    environment: dict[str, str]
    """The environment of the gateway's processes."""

    @classmethod
    @contextmanager
    def open(
        cls, home: Path, *, postgres: bool, port: int, fresh: bool, tell: Callable[[str], None]
    ) -> Iterator[World]:
        """Start all processes, and stop them at the end in any case."""
        with ExitStack() as stack:
            stack.enter_context(_claimed(home))
            processes = Processes(home / "processes.json")
            if left := processes.end_leftovers():
                tell(f"Ended {left} programs that an earlier demo had left running.")
            if fresh:
                _empty(home)
            _begin(home, postgres=postgres)
            store = f"sqlite:///{home / 'counterseal.db'}"
            if postgres:
                server = Postgres(home)
                stack.callback(server.stop)
                store = server.start()
            stack.callback(processes.stop)
            smtp = ("127.0.0.1", _free_port())
            config = write_project(home, store_url=store, smtp=smtp)
            add_register(home)
            settings = load_settings(config)
            environment = {"CASE_ASSISTANT_HOME": str(home), "COUNTERSEAL_STORE": store}
            starting = _Starting(home, processes, environment)
            sink = starting.sink(smtp[1])
            sign_ins = admit(settings, store, home / "sign-ins.json")
            gateways = [
                starting.gateway(number, port and port + number)
                for number in range(WORKERS if postgres else 1)
            ]
            starting.await_sink(sink)
            urls = tuple(starting.await_gateway(*one) for one in gateways)
            yield cls(home=home, store=store, urls=urls, sign_ins=sign_ins, environment=environment)

    @property
    def base(self) -> str:
        """The address of the console and the HTTP API."""
        return self.urls[0].removesuffix("/mcp")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Return a shell command that runs `counterseal` in this home."""
        return subprocess.run(
            [*COUNTERSEAL, *words],
            cwd=self.home,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )


# --- the home -------------------------------------------------------------------------------------


@contextmanager
def _claimed(home: Path) -> Iterator[None]:
    """Lock the home. Raises Trouble if another demo uses it."""
    if home.exists() and any(home.iterdir()) and not (home / MARK).exists():
        raise Trouble(f"{home} is not empty, and no home of this demo.", "Give another --home.")
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).touch()
    with (home / "lock").open("a+", encoding="utf-8") as file:
        if not _locked(file):
            file.seek(0)
            who = file.read().strip()
            raise Trouble(f"A demo is running in {home} (process {who}).", "End it first.")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _locked(file: TextIO) -> bool:
    """Take the lock if it is free; the system releases it when the process ends."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows, where homes are not guarded
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _begin(home: Path, *, postgres: bool) -> None:
    """Write down the home's options; its store cannot change later."""
    chosen = {"store": "postgres" if postgres else "sqlite"}
    mark = home / MARK
    had = json.loads(mark.read_text(encoding="utf-8") or "null")
    if had is None:
        mark.write_text(json.dumps(chosen), encoding="utf-8")
    elif had != chosen:
        option = "with" if had["store"] == "postgres" else "without"
        raise Trouble(
            f"{home} was begun {option} --postgres.",
            f"Go on {option} it, begin anew with --fresh, or give another --home.",
        )


def _empty(home: Path) -> None:
    """Remove everything that a demo has left in this home."""
    with suppress(Trouble):
        if (home / "postgres").exists() or (home / "postgres.path").exists():
            Postgres(home).remove()
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
    (home / MARK).touch()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- programs -------------------------------------------------------------------------------------


class _Starting:
    """Starts programs first and waits for them afterwards, so that they start in parallel."""

    def __init__(self, home: Path, processes: Processes, environment: dict[str, str]) -> None:
        self._home = home
        self._processes = processes
        self._environment = environment
        self._logs = home / "logs"
        self._logs.mkdir(exist_ok=True)

    def sink(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "office.sink", str(self._home), "--port", str(port)]
        return self._start(command, "mail", cwd=HERE)

    def gateway(self, number: int, port: int) -> tuple[subprocess.Popen[str], str]:
        name = f"gateway-{number + 1}"
        command = [*COUNTERSEAL, "serve", "--port", str(port), "--json"]
        return self._start(command, name, cwd=self._home), name

    def await_sink(self, process: subprocess.Popen[str]) -> None:
        """Wait until the mail server listens; the tools read its address from the project."""
        if process.stdout is None or "listening" not in process.stdout.readline():
            raise self._failed(process, "mail")

    def await_gateway(self, process: subprocess.Popen[str], name: str) -> str:
        """Wait until a worker accepts requests, and return its MCP endpoint."""
        text = ""
        for line in process.stdout or ():
            text += line
            if line == "}\n":
                return str(json.loads(text)["mcp_url"])
        raise self._failed(process, name)

    def _start(self, command: list[str], name: str, *, cwd: Path) -> subprocess.Popen[str]:
        log = self._logs / f"{name}.log"
        log.unlink(missing_ok=True)
        return self._processes.start(command, env=self._environment, cwd=cwd, log=log)

    def _failed(self, process: subprocess.Popen[str], name: str) -> Trouble:
        process.wait()
        command: list[str] = process.args  # type: ignore[assignment]
        log = self._logs / f"{name}.log"
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = "\n".join(said[-5:])
        if "in use" in words:
            port = command[command.index("--port") + 1]
            fix = "Give another --port; 0 takes a free one."
            return Trouble(f"{name}: port {port} is taken.", fix)
        return Trouble(f"{name} did not start.\n{words}", f"Everything that it said: {log}")
