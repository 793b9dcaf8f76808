"""From `[upstreams.NAME]` to what connects to it.

Apart from `settings`, because whoever only reads the file needs no MCP library.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import redirect_stdout
from operator import attrgetter
from typing import Any

from counterseal import upstream as mcp
from counterseal.config.settings import ConfigError, Settings

__all__ = ["reached"]


def reached(settings: Settings, *names: str) -> list[mcp.UpstreamSettings]:
    """How the upstreams are reached: those that are named, else all of them.

    ConfigError when a folder, or a server of Python's, is not there.
    """
    return [_reached(settings, name) for name in names or settings.upstreams]


def _reached(settings: Settings, name: str) -> mcp.UpstreamSettings:
    table = settings.upstreams[name]
    return mcp.UpstreamSettings(
        name=name,
        command=table.command or (),
        url=table.url or "",
        python=None if table.python is None else _server(settings, name, table.python),
        env=table.env,
        headers=table.headers,
        cwd=settings.cwd_path(name) if table.command else None,
        relay=frozenset(table.relay),
        connections=table.connections,
        tenants=table.tenants or (),
    )


def _server(settings: Settings, name: str, written: str) -> Any:
    """The object that `package.module:name` stands for; modules of the project are found first."""
    root = str(settings.file.parent.absolute())
    if root not in sys.path:
        sys.path.insert(0, root)
    module, _, attribute = written.partition(":")
    try:
        with redirect_stdout(sys.stderr):  # standard output may belong to a protocol
            return attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # noqa: BLE001 - importing runs somebody's code, which may raise anything
        fault = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{settings.file}: upstreams.{name}.python: {written} can't be had: {fault}"
        ) from None
