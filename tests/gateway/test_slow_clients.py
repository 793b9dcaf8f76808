"""Slow clients, and clients that claim another address, at the server itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from counterseal.web.server import SlowClients
from tests.gateway.servers import UVICORN, serving_on
from tests.gateway.servers import rest_of as ended
from tests.waiting import until

PATIENCE = 30.0
HEAD = "GET /who HTTP/1.1\r\nHost: a\r\n"


class World:
    def __init__(self):
        self.now = 0.0
        self.begun = asyncio.Event()
        self.door = asyncio.Event()
        self.port = 0

    async def who(self, request: Request):
        return PlainTextResponse(request.client.host)

    async def linger(self, request: Request):
        self.begun.set()
        await self.door.wait()
        return PlainTextResponse("done")

    async def read(self, request: Request):
        self.begun.set()
        return PlainTextResponse(str(len(await request.body())))

    async def say(self, text):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(text.encode())
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def open_world(**options):
    world = World()
    routes = [
        Route("/who", world.who),
        Route("/linger", world.linger),
        Route("/read", world.read, methods=["POST"]),
    ]
    slow = SlowClients(10.0, clock=lambda: world.now)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        world.port = bound.getsockname()[1]
        app = Starlette(routes=routes)
        async with serving_on(bound, app, UVICORN, slow_clients=slow, **options) as server:
            world.connections = server.server_state.connections
            world.hang_up = lambda: slow.close_overdue(world.connections)
            try:
                yield world
            finally:
                world.door.set()


async def connected(world, number=1):
    await until(lambda: len(world.connections) == number)


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: 12", HEAD])
async def test_request_whose_head_never_comes_is_given_up(sent):
    async with open_world() as world:
        reader, writer = await world.say(sent)
        await connected(world)
        world.hang_up()
        world.now = 9.0
        world.hang_up()
        assert not next(iter(world.connections)).transport.is_closing()
        world.now = 10.0
        world.hang_up()
        assert await ended(reader) == b""
        await connected(world, 0)
        writer.close()


async def test_second_request_of_a_connection_has_no_more_time_than_the_first():
    async with open_world() as world:
        reader, writer = await world.say(f"{HEAD}\r\n")
        async with asyncio.timeout(PATIENCE):
            await reader.readuntil(b"\r\n\r\n127.0.0.1")
        writer.write(HEAD.encode())  # ends uvicorn's own patience with idle ones
        await writer.drain()
        world.hang_up()
        world.now = 10.0
        world.hang_up()
        assert await ended(reader) == b""
        writer.close()


async def test_head_that_drips_is_no_reason_to_wait_on():
    async with open_world() as world:
        reader, writer = await world.say(HEAD)
        await connected(world)
        world.hang_up()
        for at in range(1, 10):
            writer.write(f"X-{at}: y\r\n".encode())
            await writer.drain()
            world.now = float(at)
            world.hang_up()
        assert world.connections
        world.now = 10.0
        world.hang_up()
        assert await ended(reader) == b""
        writer.close()


async def test_body_that_never_comes_is_given_up_where_no_route_does_it():
    async with open_world() as world:
        head = "POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"
        reader, writer = await world.say(head)
        await world.begun.wait()
        world.hang_up()
        world.now = 10.0
        world.hang_up()
        await ended(reader)
        await connected(world, 0)
        writer.close()


async def test_request_that_is_there_may_take_as_long_as_it_takes():
    async with open_world() as world:
        reader, writer = await world.say("GET /linger HTTP/1.1\r\nHost: a\r\n\r\n")
        await world.begun.wait()
        for at in range(5):
            world.now = at * 100.0
            world.hang_up()
        world.door.set()
        async with asyncio.timeout(PATIENCE):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


@pytest.mark.parametrize(
    ("proxies", "seen"), [((), b"127.0.0.1"), (("127.0.0.0/8",), b"203.0.113.9")]
)
async def test_only_a_trusted_proxy_says_where_a_request_comes_from(proxies, seen):
    async with open_world(proxies=proxies) as world:
        forged = "X-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
        reader, writer = await world.say(HEAD + forged)
        async with asyncio.timeout(PATIENCE):
            assert (await reader.read()).endswith(b"\r\n\r\n" + seen)
        writer.close()
