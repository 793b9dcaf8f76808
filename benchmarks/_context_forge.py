"""IBM ContextForge before the upstream, as it comes and in its fastest setting.

It runs with a SQLite database of its own and one process, as everybody here does. The upstream is
made known to it and offered as a virtual server, with a token for its administrator.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks._house.environments import Unavailable, python_of
from benchmarks._servers import HOST, PATIENCE, Served, free_port, run, server

SECRET = "a secret that is only used on loopback, in a benchmark"  # noqa: S105 - as it says
PASSWORD = "Bench-Pass-0123456789"  # noqa: S105 - as above
EMAIL = "admin@example.com"
FORGE_SETTINGS = {
    "JWT_SECRET_KEY": SECRET,
    "AUTH_ENCRYPTION_SECRET": SECRET,
    "BASIC_AUTH_PASSWORD": PASSWORD,
    "DEFAULT_USER_PASSWORD": PASSWORD,
    "PLATFORM_ADMIN_PASSWORD": PASSWORD,
    "PLATFORM_ADMIN_EMAIL": EMAIL,
    "SSRF_ALLOW_LOCALHOST": "true",
    "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    "RATE_LIMITING_ENABLED": "false",
    "LOG_LEVEL": "ERROR",
}
"""Secrets, a log that is quiet, no limit on calls, and leave to reach an upstream on loopback."""
FASTEST = {
    "USE_STATEFUL_SESSIONS": "true",  # a session of a client's keeps one with the upstream
    "CACHE_TYPE": "memory",
    "COMPRESSION_ENABLED": "false",
}


@contextmanager
def context_forge(folder: Path, upstream: str, *, stateful: bool) -> Iterator[Served]:
    """With the upstream's tools as one of its virtual servers."""
    folder.mkdir()
    python = python_of("contextforge")
    shutil.copy(_empty_database(python), folder / "mcp.db")
    port = free_port()
    settings = {
        **FORGE_SETTINGS,
        **(FASTEST if stateful else {}),
        "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
    }
    command = [str(python.with_name("mcpgateway")), "--host", HOST, "--port", str(port)]
    with server(command, port, folder, settings) as served:
        make = [str(python), "-m", "mcpgateway.utils.create_jwt_token", "--admin"]
        words = ["--username", EMAIL, "--exp", "600", "--secret", SECRET]
        token = run([*make, *words], folder, settings).strip().splitlines()[-1]
        headers = {"Authorization": f"Bearer {token}"}
        where = f"http://{HOST}:{port}/v1"
        with httpx.Client(base_url=where, headers=headers, timeout=PATIENCE) as client:
            number = _offered(client, upstream)
        yield Served(f"http://{HOST}:{port}/servers/{number}/mcp", served.pid, headers, "bench-")


def _empty_database(python: Path) -> Path:
    """With its schema, which takes it minutes to make on a slow disk: made once."""
    made = python.parents[1] / "empty.db"
    if not made.exists():
        new = made.with_suffix(".new")
        new.unlink(missing_ok=True)
        settings = {**FORGE_SETTINGS, "DATABASE_URL": f"sqlite:///{new}"}
        run([str(python), "-m", "mcpgateway.bootstrap_db"], made.parent, settings)
        new.replace(made)
    return made


def _offered(client: httpx.Client, upstream: str) -> str:
    """The id of the virtual server that offers the upstream's tools."""
    transport = {"name": "bench", "url": upstream, "transport": "STREAMABLEHTTP"}
    _posted(client, "/gateways", transport)
    found = client.get("/tools").json()
    tools = [tool["id"] for tool in (found if isinstance(found, list) else found["data"])]
    made = _posted(client, "/servers", {"server": {"name": "bench", "associated_tools": tools}})
    return str(made["id"])


def _posted(client: httpx.Client, path: str, content: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=content)
    if answer.status_code >= 400:
        raise Unavailable(f"POST {path}: {answer.status_code} {answer.text[:300]}")
    said: dict[str, Any] = json.loads(answer.text)
    return said
