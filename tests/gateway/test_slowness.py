"""A slow disk, slow tools and slow clients hold up their own calls, and nobody else's.

While the slow part stands still, other callers of `/v1` and other readers of the console are
answered. What is slow is let go by the test, so that no time is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import threading
from typing import Any

import httpx
import pytest

from counterseal import tool
from counterseal.accounts import People
from counterseal.accounts.users import Passwords
from tests.gateway.served import ANN, BOT, Desk, Sum, Text, serving
from tests.slow_disk import SlowDisk
from tests.waiting import until

PASSWORD = "correct horse battery"
PATIENCE = 60.0
TOOLS = 50
PLENTY = {"rate_limits": {"window_sec": 1, "max_requests": 100_000}}


class Slow(Desk):
    """A desk with tools that wait for a door, awaiting it or in a thread, and a large answer."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.gate = threading.Event()
        fast = {"version": "1.0.0", "owner": "desk", "budget": 10_000, "runtime": PLENTY}
        slow = {**fast, "runtime": {**PLENTY, "timeout_ms": 60_000}}

        @tool(effect="read_only", **slow)
        async def wait_awaiting(text: Text) -> dict[str, str]:
            """Wait for the door."""
            self.waiting += 1
            await self.door.wait()
            return {"text": text}

        @tool(effect="read_only", **slow)
        def wait_plain(text: Text) -> dict[str, str]:
            """Wait for the door, in a thread."""
            self.waiting += 1
            self.gate.wait(PATIENCE)
            return {"text": text}

        @tool(effect="read_only", **fast)
        def length(text: Text) -> Sum:
            """Return the length of a text."""
            return Sum(total=len(text))

        @tool(effect="draft", **fast)
        async def tick(text: Text) -> dict[str, str]:
            """Write something down."""
            return {"text": text}

        @tool(effect="read_only", max_output_bytes=4_000_000, **fast)
        async def large() -> dict[str, str]:
            """Return a large text."""
            return {"text": "x" * 2_000_000}

        self.tools = [*self.tools, wait_awaiting, wait_plain, length, tick, large]

    def open_doors(self) -> None:
        self.door.set()
        self.gate.set()


def worked(answer: httpx.Response) -> bool:
    return bool(answer.json()["status"].get("taxonomy_class") == "SUCCESS")


class Others:
    """A caller of `/v1` and a reader of the console, who have nothing to do with what is slow."""

    def __init__(self, http: httpx.AsyncClient, key: str, cookie: str) -> None:
        self.http = http
        self.key = {"Authorization": f"Bearer {key}"}
        self.cookie = {"Cookie": f"counterseal={cookie}"}

    async def call(self, name: str, arguments: dict[str, Any]) -> httpx.Response:
        body = {"tool": name, "arguments": arguments}
        return await self.http.post("/v1/calls", json=body, headers=self.key)

    async def are_served(self, rounds: int = 5) -> None:
        """Calls, pages and answers of `/v1` come."""
        for number in range(rounds):
            assert worked(await self.call("add", {"a": number, "b": 1}))
            assert worked(await self.call("length", {"text": "x" * number}))
            await self.are_shown()

    async def are_shown(self, *pages: str) -> None:
        """Pages and answers of `/v1` come."""
        for page in pages or ("/", "/runs", "/v1/me", "/v1/tools", "/health"):
            who = self.key if page.startswith("/v1") else self.cookie
            assert (await self.http.get(page, headers=who)).status_code == 200, page


@pytest.fixture
def disk(monkeypatch):
    disk = SlowDisk()
    monkeypatch.setattr(sqlite3, "connect", disk.connect)
    yield disk
    disk.let_go()


@pytest.fixture
def desk():
    desk = Slow()
    yield desk
    desk.open_doors()


@pytest.fixture
async def site(desk, disk, tmp_path):
    async with serving(desk.tools, store=f"sqlite:////{tmp_path}/store.db") as served:
        yield served
        desk.open_doors()
        disk.let_go()


@pytest.fixture
async def others(site):
    people = People(site.runtime, passwords=Passwords(time_cost=1, memory_kib=8))
    await people.accounts("tests").add("vera", PASSWORD, {"acme": ["viewer"]}, reason="for a test")
    cookie, _ = await people.sign_in("vera", PASSWORD, source="192.0.2.1")
    url = site.url.removesuffix("/mcp")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        others = Others(http, await site.key(ANN), cookie)
        await others.are_served(1)
        yield others


@contextlib.asynccontextmanager
async def slow_reader(site, path, headers, body=b""):
    """A client that has sent its request and reads a byte when it is told to."""
    host, port = site.url.removeprefix("http://").removesuffix("/mcp").split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, (host, int(port)))
        method = "POST" if body else "GET"
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", *headers]
        lines += [f"Content-Length: {len(body)}"] if body else []
        await loop.sock_sendall(raw, "\r\n".join([*lines, "", ""]).encode() + body)

        async def read() -> bytes:
            async with asyncio.timeout(PATIENCE):
                return await loop.sock_recv(raw, 1)

        yield read


async def test_pages_and_answers_come_while_a_commit_waits_for_the_disk(site, others, disk):
    disk.seconds = 0.01
    for number in range(6):  # then the store has noticed that its disk is slow
        assert worked(await others.call("note", {"text": f"n{number}"}))
    disk.seconds = 0.0
    disk.hold()
    change = asyncio.ensure_future(others.call("note", {"text": "held"}))
    await until(disk.reached.is_set)
    read = asyncio.ensure_future(others.call("add", {"a": 1, "b": 1}))
    record = asyncio.ensure_future(others.are_shown("/runs"))
    for _ in range(5):
        await others.are_shown("/", "/v1/me", "/v1/tools", "/health")
    assert not change.done()
    disk.let_go()
    assert worked(await change)
    assert worked(await read), "its budget is counted in the transaction after the held one"
    await record


async def test_readers_of_the_record_are_answered_while_changes_keep_a_slow_disk_busy(
    site, others, disk
):
    disk.seconds = 0.01
    over = asyncio.Event()
    made = []

    async def changes(who: int) -> None:
        while not over.is_set():
            made.append(worked(await others.call("tick", {"text": f"n{who}-{len(made)}"})))

    writers = [asyncio.ensure_future(changes(who)) for who in range(8)]
    try:
        await until(lambda: len(made) > 16)
        for _ in range(5):
            await others.are_served(1)
    finally:
        over.set()
        await asyncio.gather(*writers)
    assert all(made)


@pytest.mark.parametrize("name", ["wait_awaiting", "wait_plain"])
async def test_fifty_slow_tools_hold_up_only_their_own_calls(site, others, desk, name):
    key = await site.key(BOT)
    url = site.url.removesuffix("/mcp")
    limits = httpx.Limits(max_connections=TOOLS)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=PATIENCE, limits=limits, trust_env=False
    ) as http:
        calls = [
            asyncio.ensure_future(
                http.post("/v1/calls", json={"tool": name, "arguments": {"text": f"t{number}"}})
            )
            for number in range(TOOLS)
        ]
        await until(lambda: desk.waiting == TOOLS)
        await others.are_served()
        assert not any(call.done() for call in calls)
        desk.open_doors()
        assert all([worked(await call) for call in calls])


async def test_client_that_reads_byte_by_byte_holds_up_nobody(site, others):
    key = await site.key(BOT)
    headers = [f"Authorization: Bearer {key}", "Content-Type: application/json"]
    body = b'{"tool": "large", "arguments": {}}'
    async with slow_reader(site, "/v1/calls", headers, body) as read:
        for byte in b"HTTP/1.1 200":
            assert await read() == bytes([byte])
            await others.are_served(1)


async def test_reader_of_an_event_stream_who_hardly_reads_holds_up_nobody(site, others):
    cookie = [f"Cookie: {others.cookie['Cookie']}"]
    async with slow_reader(site, "/events?tenant=acme", cookie) as read:
        for number, byte in enumerate(b"HTTP/1.1 200"):
            assert await read() == bytes([byte])
            assert worked(await others.call("note", {"text": f"n{number}"}))
            await others.are_served(1)
