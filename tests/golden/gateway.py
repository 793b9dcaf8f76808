"""What a gateway says over HTTP: the OpenAPI document, and one session of each MCP revision.

`counterseal serve` runs in a process of its own, and a plain HTTP client speaks to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.golden.commands import BY, invoke, project
from tests.golden.normalise import Mask, as_text
from tests.warm import warm

PATIENCE = 60.0
MODERN = "2026-07-28"
LEGACY = ("2025-06-18", "2025-11-25")
HEADERS_KEPT = ("content-type", "cache-control", "allow", "www-authenticate", "mcp-session-id")
INFO = {"name": "golden", "version": "1"}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("find_order", {"order_id": "ord_1"}),
    ("find_order", {"order_id": "1"}),
    ("draft_reply", {"text": "hello"}),
    ("draft_reply", {"text": "hello"}),
    ("search", {"text": "news"}),
    ("send_letter", {"to": "ann"}),
    ("send_letter", {"to": "nobody"}),
    ("no_such_tool", {}),
)
"""Calls of every session."""


def outputs() -> dict[str, str]:
    """The golden files of the gateway."""
    with project() as folder:
        for purpose in ("vault", "audit", "approval"):
            invoke("keys", "new", purpose)
        _, printed = invoke(
            *("keys", "issue", "--tenant", "acme", "--agent", "clerk", "--user", "u_1", "--json"),
            *BY,
        )
        key = json.loads(printed)["key"]
        with serving(folder) as told, httpx.Client(timeout=PATIENCE) as http:
            document = http.get(f"{told['url']}/v1/openapi.json").json()
            sessions = {
                revision: Session(http, told["mcp_url"], revision, key).transcript()
                for revision in (*LEGACY, MODERN)
            }
    files = {
        "gateway/serve.json": as_text(Mask({folder: "<project>"})(told)),
        "gateway/openapi.json": as_text(without_prose(document), in_any_order=True),
    }
    for revision, transcript in sessions.items():
        files[f"gateway/mcp-{revision}.json"] = as_text(Mask()(transcript), in_any_order=True)
    return files


def without_prose(document: Any) -> Any:
    """Return the document without descriptions, summaries and titles made from names."""
    prose = ("description", "summary", "title")
    if isinstance(document, dict):
        return {
            name: without_prose(value)
            for name, value in document.items()
            if not (name in prose and isinstance(value, str))
        }
    if isinstance(document, list):
        return [without_prose(value) for value in document]
    return document


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, Any]]:
    """`counterseal serve --json`: what it says of itself once it is ready."""
    process = subprocess.Popen(
        warm("-m", "counterseal", "serve", "--port", "0", "--json"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        yield json.loads(text)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close()


class Session:
    """A client of one revision that says a fixed list of things, and keeps all answers."""

    def __init__(self, http: httpx.Client, url: str, revision: str, key: str) -> None:
        self._http = http
        self._url = url
        self._revision = revision
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": revision,
        }
        self._number = 0
        self._transcript: list[dict[str, Any]] = []

    def transcript(self) -> list[dict[str, Any]]:
        """Everything that was sent and what came back."""
        self._send("tools/list", headers={"Authorization": ""})
        if self._revision in LEGACY:
            self._open()
        else:
            self._request("server/discover")
        self._request("tools/list")
        for tool, arguments in CALLS:
            meta = {"counterseal/run_id": f"run_{self._revision}"}
            self._request("tools/call", name=tool, arguments=arguments, _meta=meta)
        self._request("tools/dance")
        self._request("tools/call", arguments={})
        self._post(b"{", "not JSON")
        if self._revision in LEGACY:
            self._request("ping")
            self._keep("DELETE", self._http.delete(self._url, headers=self._headers))
        return self._transcript

    def _open(self) -> None:
        capabilities: dict[str, Any] = {}
        answer = self._send(
            "initialize",
            {"protocolVersion": self._revision, "capabilities": capabilities, "clientInfo": INFO},
        )
        self._headers["Mcp-Session-Id"] = answer.headers.get("mcp-session-id", "none")
        self._send("notifications/initialized", notification=True)

    def _request(self, method: str, **params: Any) -> None:
        headers: dict[str, str] = {}
        if self._revision == MODERN:
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": INFO,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            params["_meta"] = {**meta, **params.get("_meta", {})}
            headers["Mcp-Method"] = method
            if "name" in params:
                headers["Mcp-Name"] = params["name"]
        self._send(method, params, headers=headers)

    def _send(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        notification: bool = False,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if not notification:
            self._number += 1
            message["id"] = self._number
        if params is not None:
            message["params"] = params
        shown = {name: value for name, value in message.items() if name != "jsonrpc"}
        return self._post(json.dumps(message).encode(), shown, headers)

    def _post(
        self, content: bytes, shown: Any, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        sent = {**self._headers, "Content-Type": "application/json", **(headers or {})}
        sent = {name: value for name, value in sent.items() if value}
        answer = self._http.post(self._url, content=content, headers=sent)
        self._keep(shown, answer)
        return answer

    def _keep(self, sent: Any, answer: httpx.Response) -> None:
        headers = {name: answer.headers[name] for name in HEADERS_KEPT if name in answer.headers}
        self._transcript.append(
            {"sent": sent, "status": answer.status_code, "headers": headers, "came": body(answer)}
        )


def body(answer: httpx.Response) -> Any:
    """Return the JSON of an answer, or the messages of an event stream."""
    if "text/event-stream" in answer.headers.get("content-type", ""):
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line]
    try:
        return answer.json()
    except ValueError:
        return answer.text
