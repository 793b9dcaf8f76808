"""A faulty server as a test holds it: its folder, and a project that has it behind its gateway."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gateway.projects import Project
from tests.waiting import until
from tests.warm import warm

SERVER = Path(__file__).with_name("server.py")
TEXT = {"type": "string", "maxLength": 100}
INPUT = {"type": "object", "properties": {"do": TEXT, "text": TEXT}}
OVERLAY: dict[str, Any] = {
    "look": {"effect": "retrieve"},
    "pay": {"effect": "internal_mutation", "consequence": "Pays."},
}


def definition(name: str, description: str = "Does something.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": INPUT, **more}


class Faulty:
    """The folder of a server, by which it is told what to do, and tells what it did."""

    def __init__(self, folder: Path, *tools: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.has(*(tools or (definition("look"), definition("pay"))))

    def has(self, *tools: dict[str, Any]) -> None:
        """From now on it lists these."""
        beside = self.folder / "tools.new"
        beside.write_text(json.dumps(tools))
        beside.replace(self.folder / "tools.json")

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What it lists."""
        return list(json.loads((self.folder / "tools.json").read_text()))

    @property
    def command(self) -> list[str]:
        return warm(SERVER, self.folder)

    @property
    def calls(self) -> list[str]:
        """What reached it."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def headers(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.folder / "headers").read_text().splitlines()]

    def kill(self) -> None:
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def go(self) -> None:
        """Calls that wait may go on."""
        (self.folder / "go").touch()

    async def reached(self, count: int = 1) -> None:
        """Until so many calls have come."""
        await until(lambda: len(self.calls) >= count)

    @contextlib.contextmanager
    def web(self) -> Iterator[str]:
        """The same server over HTTP, under its URL."""
        command = [*self.command, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.kill()


def project_before(
    folder: Path,
    *,
    tools: dict[str, Any] | None = None,
    store: str | None = None,
    **servers: Faulty,
) -> Project:
    """A project whose one agent may use what these servers have, all of it accepted."""
    folder.mkdir(exist_ok=True)
    project = Project(folder, store=store)
    entries = OVERLAY if tools is None else tools
    for name, faulty in servers.items():
        project.upstream(name, faulty.command, tools=entries)
        project.pin(name, *faulty.tools)
    project.grant("bot", *entries)
    return project
