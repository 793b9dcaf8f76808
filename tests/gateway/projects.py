"""A project with MCP servers behind its gateway, and the gateway as people run it.

project = Project(folder)
project.upstream("git", ["mcp-server-git"], tools={"git_status": {"effect": "retrieve"}})
project.grant("bot", "git_status")
project.pin("git", {"name": "git_status", ...})  # accept it, as it stands on the wire
with project.serving() as url: ...            # `counterseal serve`, in a process of its own
async with project.gateway() as running: ...  # the same in this process, without HTTP
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from counterseal import Principal
from counterseal.config import load_settings, open_runtime
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock
from counterseal.gateway.running import Gateway, gateway
from counterseal.web.identity import principal_of
from tests.gateway.served import BOT, Served, listening
from tests.waiting import until
from tests.warm import warm

PATIENCE = 60.0
"""Seconds after which something that should have happened long ago is missed."""
CONSOLE = "https://console.test"


class Project:
    """A folder with a configuration, overlays and a lock."""

    def __init__(self, folder: Path, *, store: str | None = None, wait: float = 1.0) -> None:
        self.folder = folder
        self.store = store or f"sqlite:///{folder / 'calls.db'}"
        self._wait = wait
        self._upstreams: dict[str, dict[str, Any]] = {}
        self._grants: list[tuple[str, str]] = []
        self.more: list[str] = []
        """Other tables, as they stand in the file."""
        (folder / "overlays").mkdir(exist_ok=True)
        self.write()

    def upstream(
        self,
        name: str,
        way: Sequence[str] | str,
        *,
        tools: Mapping[str, Mapping[str, Any]] | str = "",
        **table: Any,
    ) -> None:
        """Put a server behind the gateway: a command or a URL. `tools` are its overlay's."""
        reach = {"url": way} if isinstance(way, str) else {"command": list(way)}
        self._upstreams[name] = {**reach, **table}
        if tools:
            text = tools if isinstance(tools, str) else json.dumps({"server": name, "tools": tools})
            (self.folder / "overlays" / f"{name}.yaml").write_text(text)
        self.write()

    def grant(self, agent: str, *tools: str) -> None:
        self._grants += [(agent, tool) for tool in tools]
        self.write()

    def write(self) -> None:
        lines = [
            f"[store]\nurl = {json.dumps(self.store)}\nlease_seconds = 3",
            f"[gateway]\napproval_wait_seconds = {self._wait}",
            '[approvers.boss]\ntenants = ["acme"]',
            '[agents.bot]\ntenant = "acme"\nuser = "u_1"',
        ]
        lines += self.more
        for name, table in self._upstreams.items():
            lines.append(f"[upstreams.{name}]")
            plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
            lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
            for key in table.keys() - plain.keys():
                pairs = [f"{inner} = {json.dumps(text)}" for inner, text in table[key].items()]
                lines.append(f"{key} = {{ {', '.join(pairs)} }}")
        lines += [f'[[grants]]\nagent = "{agent}"\ntool = "{tool}"' for agent, tool in self._grants]
        (self.folder / "counterseal.toml").write_text("\n".join(lines) + "\n")

    @property
    def settings(self) -> Any:
        return load_settings(self.folder / "counterseal.toml")

    @property
    def lock(self) -> Path:
        return self.folder / "counterseal.lock"

    def pin(self, server: str, *tools: Mapping[str, Any]) -> None:
        """A person accepts these, as they stand on the wire."""
        lock = Lock.load(self.lock)
        for one in tools:
            lock = lock.accept(server, Definition.of(one), by="tests", at="2026-11-16T10:00:00Z")
        Lock.update(self.lock, lambda _: lock)

    # --- the command line -------------------------------------------------------------------------

    async def run(self, *words: str, code: int | None = 0) -> str:
        """What a command prints."""
        return await asyncio.to_thread(self.run_now, *words, code=code)

    def run_now(self, *words: str, code: int | None = 0) -> str:
        done = subprocess.run(
            warm("-m", "counterseal", *words),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert code is None or done.returncode == code, done.stderr or done.stdout
        return done.stdout

    async def keys(self, **who: Principal) -> dict[str, str]:
        """API keys, issued for each of them."""
        async with open_runtime(self.settings) as runtime:
            operator = runtime.operator("tests")
            return {
                name: (await operator.issue_key(one, reason="for a test"))[0]
                for name, one in who.items()
            }

    @contextlib.contextmanager
    def serving(self, *options: str) -> Iterator[Serving]:
        """`counterseal serve`, ready."""
        process = subprocess.Popen(
            warm("-m", "counterseal", "serve", "--port", "0", "--json", *options),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        serving = Serving(process)
        try:
            serving.await_ready()
            yield serving
        finally:
            if process.poll() is None:
                process.kill()
            serving.close()

    # --- in this process --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def gateway(
        self, who: Callable[[], Principal] = lambda: BOT
    ) -> AsyncIterator[GatewayInProcess]:
        """The gateway for one caller, without HTTP before it."""
        said: list[str] = []
        options: dict[str, Any] = {"caller": who, "console": CONSOLE, "tell": said.append}
        async with gateway(self.settings, **options) as running:
            yield GatewayInProcess(running, said)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Served]:
        """The gateway over HTTP, for callers with a key."""
        async with self.gateway(principal_of) as running, listening(running.server) as url:
            yield Served(running.runtime, running.server, url)


class Serving:
    """A `counterseal serve` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: dict[str, Any] = {}
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(iter(self.process.stderr.readline, ""))

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        assert text, self.errors
        self.told = json.loads(text)

    @property
    def url(self) -> str:
        return str(self.told["mcp_url"])

    @property
    def errors(self) -> str:
        """What it has said on stderr."""
        if self.process.poll() is not None:
            self._reader.join(PATIENCE)
        return "".join(self._errors)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end. The exit code."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, PATIENCE)

    def close(self) -> None:
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class GatewayInProcess:
    """A gateway in this process."""

    def __init__(self, running: Gateway, said: list[str]) -> None:
        self.runtime = running.runtime
        self.server = running.server
        self.upstreams = running.upstreams
        self.said = said

    def client(self, mode: str = "2026-07-28", **options: Any) -> Client:
        return Client(self.server.sdk_server, mode=mode, **options)


@contextlib.asynccontextmanager
async def connected(
    url: str, key: str | None = None, mode: str = "2026-07-28", **options: Any
) -> AsyncIterator[Client]:
    """The SDK's client before a gateway that is reached over HTTP."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(PATIENCE)
    async with httpx2.AsyncClient(
        trust_env=False, verify=False, headers=headers, timeout=timeout
    ) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client


async def there(path: Path) -> None:
    """Until another process has made a file."""
    await until(path.exists)
