"""Answers go out as a whole: what is written in one turn is one write, and nothing is held back."""

import asyncio
import contextlib
import socket

import httpx2
import uvicorn

from counterseal.gateway.onewrite import OneWriteProtocol, _Gathering
from tests.gateway.served import until


class Recorded:
    """A transport that says what was done to it."""

    def __init__(self):
        self.done = []

    def write(self, data):
        self.done.append(data)

    def close(self):
        self.done.append("closed")

    def is_closing(self):
        return "closed" in self.done


async def test_what_is_written_in_one_turn_is_one_write():
    recorded = Recorded()
    gathering = _Gathering(recorded, asyncio.get_running_loop())
    gathering.write(b"head ")
    gathering.write(b"content")
    assert recorded.done == []
    await asyncio.sleep(0)
    assert recorded.done == [b"head content"]
    gathering.write(b"more")
    await asyncio.sleep(0)
    assert recorded.done == [b"head content", b"more"]


async def test_what_was_written_goes_out_before_the_end():
    recorded = Recorded()
    gathering = _Gathering(recorded, asyncio.get_running_loop())
    assert not gathering.is_closing()
    gathering.write(b"last words")
    gathering.close()
    assert gathering.is_closing()
    await asyncio.sleep(0)
    assert recorded.done == [b"last words", "closed"]


@contextlib.asynccontextmanager
async def served(app):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", http=OneWriteProtocol)
        server = uvicorn.Server(config)
        task = asyncio.ensure_future(server.serve(sockets=[bound]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def test_answers_streams_and_ends_of_connections_are_as_before():
    go = asyncio.Event()

    async def app(scope, receive, send):
        length = [] if scope["path"] == "/stream" else [(b"content-length", b"1000000")]
        ending = [(b"connection", b"close")] if scope["path"] == "/last" else []
        headers = [*length, *ending]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await go.wait()
            await send({"type": "http.response.body", "body": b"two"})
        else:
            await send({"type": "http.response.body", "body": b"x" * 1_000_000})

    async with served(app) as url, httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        for path in ("/whole", "/whole", "/last", "/whole"):
            answer = await http.get(url + path)
            assert len(answer.content) == 1_000_000
        async with http.stream("GET", f"{url}/stream") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"one", "it does not wait for the rest"
            go.set()
            assert await anext(parts) == b"two"
