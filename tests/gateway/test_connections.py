"""Connections beside one another: bounded by address, and none delays or starves another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from tests.gateway.served import BOT, Desk, serving
from tests.gateway.servers import TIMEOUT, UVICORN, request, response_from, rest_of, serving_on
from tests.gateway.test_http_server import echo
from tests.waiting import until

BEGUN = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: "
"""A head that has no end yet."""
ENDLESS = 8 * 1024 * 1024
"""So many bytes that a server that takes them has no bound."""


class Server:
    """A server, and the connections to it."""

    def __init__(self, port, server):
        self.port = port
        self.server = server
        self.writers = []

    @property
    def open(self):
        return len(self.server.server_state.connections)

    async def connect(self, sent=b"", source="127.0.0.1"):
        local = (source, 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=local)
        self.writers.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader, writer

    async def answer(self, path="/", source="127.0.0.1"):
        """The body of the response to a request on a connection of its own."""
        reader, writer = await self.connect(request(path, b"x"), source)
        _, body = await response_from(reader)
        writer.close()
        return body


@contextlib.asynccontextmanager
async def opened(app, **settings):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with serving_on(bound, app, UVICORN, **settings) as server:
            world = Server(bound.getsockname()[1], server)
            try:
                yield world
            finally:
                for writer in world.writers:
                    writer.close()


async def is_open(connection):
    """Whether a connection that waits is still served: it gets an answer to the rest of a head."""
    reader, writer = connection
    try:
        writer.write(b"y\r\nContent-Length: 0\r\n\r\n")
        await response_from(reader)
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return True


# --- bounds ---------------------------------------------------------------------------------------


async def test_one_address_holds_a_bounded_number_of_connections():
    async with opened(echo(), connections_per_address=8) as world:
        held = [await world.connect(BEGUN) for _ in range(30)]
        await until(lambda: world.open == 8)
        assert [await is_open(one) for one in held] == [False] * 22 + [True] * 8
        assert await world.answer("/new") == b"/new x"


async def test_an_address_that_floods_takes_no_connection_from_another():
    async with opened(echo(), connections_per_address=8, max_connections=12) as world:
        others = [await world.connect(BEGUN, source="127.0.0.2") for _ in range(4)]
        await until(lambda: world.open == 4)
        flood = [await world.connect(BEGUN) for _ in range(40)]
        await until(lambda: world.open == 12)
        assert all([await is_open(one) for one in others])
        assert await world.answer("/new", source="127.0.0.3") == b"/new x"
        assert sum([await is_open(one) for one in flood]) <= 8


async def test_a_connection_with_a_request_under_way_is_never_closed_for_another():
    door = asyncio.Event()
    async with opened(echo(door), connections_per_address=4) as world:
        busy = [await world.connect(request("/wait", b"x")) for _ in range(10)]
        await until(lambda: len(world.server.server_state.tasks) == 10)
        for _ in range(20):
            await world.connect(BEGUN)
        await until(lambda: world.open == 14)
        door.set()
        assert [(await response_from(reader))[1] for reader, _ in busy] == [b"/wait x"] * 10


async def test_a_trusted_proxy_speaks_for_many():
    async with opened(echo(), connections_per_address=4, proxies=["127.0.0.0/30"]) as world:
        held = [await world.connect(BEGUN) for _ in range(12)]
        assert all([await is_open(one) for one in held])


async def test_health_answers_while_strangers_hold_every_connection():
    limits = {"max_connections": 20, "connections_per_address": 50}
    async with serving(Desk().tools, connections=limits) as served:
        port = int(served.url.rpartition(":")[2].removesuffix("/mcp"))
        held = []
        for number in range(60):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.0.0.{2 + number % 4}", 0)
            )
            writer.write(BEGUN)
            held.append(writer)
        async with served.http(BOT) as http:
            for _ in range(5):
                answer = await http.get(served.url.replace("/mcp", "/health"))
                assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        for writer in held:
            writer.close()


async def test_endless_heads_cost_the_others_no_answer():
    """Four strangers send a head without an end; every request beside them is answered.

    It is answered while the heads still grow, and while they are sent as fast as they are read.
    """
    async with opened(echo()) as world:
        heads = [await world.connect(BEGUN) for _ in range(4)]
        for number in range(40):
            for _, writer in heads:
                writer.write(b"a" * 512)
                await writer.drain()
            assert await world.answer(f"/{number}") == b"/%d x" % number
            assert not any(reader.at_eof() for reader, _ in heads), "the heads are still open"

        async def flood(reader, writer):
            written = 0
            with contextlib.suppress(ConnectionError):
                while written < ENDLESS and not reader.at_eof():
                    writer.write(b"a" * 16_384)
                    written += 16_384
                    await writer.drain()
            return written

        floods = asyncio.gather(*(flood(*head) for head in heads))
        assert await world.answer("/beside") == b"/beside x"
        assert max(await floods) < ENDLESS, "no head is read to its end"
        assert await world.answer("/after") == b"/after x"


# --- dead connections -----------------------------------------------------------------------------


def reset(writer):
    """End a connection with RST, so that the server can't send what it still has."""
    made = writer.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_dead_connections_delay_no_request():
    """Clients send pipelined requests and vanish, while others wait for their own answers.

    Every other request is answered while the requests of the dead still wait.
    """
    door = asyncio.Event()
    async with opened(echo(door)) as world:
        for _ in range(20):
            pipelined = b"".join(request("/wait", b"x" * 100) for _ in range(50))
            _, writer = await world.connect(pipelined)
            await until(lambda: len(world.server.server_state.tasks) > 0)
            reset(writer)
        victims = await asyncio.gather(*(world.answer(f"/{number}") for number in range(50)))
        assert victims == [b"/%d x" % number for number in range(50)]
        assert not door.is_set()
        door.set()
        await until(lambda: not world.server.server_state.tasks)
        assert await world.answer("/after") == b"/after x"


async def test_a_client_that_reads_nothing_delays_no_other():
    """Each of the first requests has an answer that its client never reads."""
    large = b"z" * 4_000_000

    async def app(scope, receive, send):
        if scope.get("path") != "/large":
            return await echo()(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        return await send({"type": "http.response.body", "body": large})

    async with opened(app) as world:
        silent = [await world.connect(request("/large", b"x") * 5) for _ in range(10)]
        victims = await asyncio.gather(*(world.answer(f"/{number}") for number in range(50)))
        assert victims == [b"/%d x" % number for number in range(50)]
        for _, writer in silent:
            reset(writer)


# --- trailers -------------------------------------------------------------------------------------


def chunked(path, body, headers, trailers):
    """A POST with a chunked body, and headers after it."""
    lines = [f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked", *headers, "", ""]
    after = ["0", *trailers, "", ""]
    return (
        "\r\n".join(lines).encode()
        + b"%x\r\n%s\r\n" % (len(body), body)
        + "\r\n".join(after).encode()
    )


async def test_a_trailer_is_no_header():
    seen = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            seen.append((scope["client"][0], sorted(name for name, _ in scope["headers"])))
        await echo()(scope, receive, send)

    trailers = ["Authorization: Bearer x", "Idempotency-Key: k", "X-Forwarded-For: 203.0.113.9"]
    async with opened(app, proxies=["127.0.0.1"]) as world:
        sent = chunked("/", b"hello", ["Host: x"], trailers)
        reader, _ = await world.connect(sent + request("/next", b"y"))
        assert (await response_from(reader))[1] == b"/ hello"
        assert (await response_from(reader))[1] == b"/next y"
    headers = [b"host", b"transfer-encoding"]
    assert seen == [("127.0.0.1", headers), ("127.0.0.1", [b"content-length", b"host"])]


async def test_a_trailer_is_neither_credential_nor_host_nor_key():
    desk = Desk()
    async with serving(desk.tools) as served:
        authority = served.url.removeprefix("http://").removesuffix("/mcp")
        port, key = int(authority.rpartition(":")[2]), await served.key(BOT)
        body = b'{"tool": "note", "arguments": {"text": "a"}}'
        json = "Content-Type: application/json"
        host, credential = f"Host: {authority}", f"Authorization: Bearer {key}"

        async def answer(headers, trailers):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(chunked("/v1/calls", body, [json, *headers], trailers))
            head, _ = await response_from(reader)
            writer.close()
            return head.split(b" ")[1]

        assert await answer([host], [credential]) == b"401"
        assert await answer([credential], [host]) == b"400"
        assert await answer(["Host: evil.test", credential], [host]) == b"421"
        assert desk.notes == []
        assert await answer([host, credential], ["Idempotency-Key: one"]) == b"200"
        assert await answer([host, credential, "Idempotency-Key: two"], []) == b"200"
        assert desk.notes == ["a", "a"]
        store = served.runtime.store
        assert await store.look_up("acme", "call:note:one") is None
        assert await store.look_up("acme", "call:note:two") is not None


@pytest.mark.parametrize("endless", [b"0\r\nX-Long: ", b"5;extension="])
async def test_what_follows_a_chunk_is_bounded_too(endless):
    async with opened(echo()) as world:
        begin = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + endless
        reader, writer = await world.connect(begin)
        written = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(TIMEOUT):
                while written < ENDLESS and not reader.at_eof():
                    writer.write(b"a" * 4096)
                    written += 4096
                    await writer.drain()
        assert b" 200 " not in await rest_of(reader)
        assert written < ENDLESS, "it is not read to its end"
        assert await world.answer() == b"/ x"
