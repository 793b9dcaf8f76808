"""What the server has to do for the gateway, whichever it is: heads, bodies, keep-alive, ends."""

import asyncio

import httpx2
import pytest

from counterseal.web.server import MAX_HEAD_BYTES
from tests.gateway.servers import (
    HYPERCORN,
    TIMEOUT,
    UVICORN,
    connected,
    request,
    response_from,
    rest_of,
    running,
)

BOTH = pytest.mark.parametrize("server", [UVICORN, HYPERCORN])


async def body_of(receive):
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def send_whole(send, body, status=200, *more):
    headers = [(b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def echo(door=None):
    """An application that answers with its path and body; at `/wait` when the door opens."""

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return await lifespan(receive, send)
        body = await body_of(receive)
        if door is not None and scope["path"].startswith("/wait"):
            await door.wait()
        return await send_whole(send, scope["path"].encode() + b" " + body)

    return app


async def lifespan(receive, send):
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})


@BOTH
async def test_whole_answers_streams_and_ends_of_connections(server):
    go = asyncio.Event()

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return await lifespan(receive, send)
        if scope["path"] != "/stream":
            ending = [(b"connection", b"close")] if scope["path"] == "/last" else []
            return await send_whole(send, b"x" * 1_000_000, 200, *ending)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await go.wait()
        return await send({"type": "http.response.body", "body": b"two"})

    async with (
        running(app, server) as port,
        httpx2.AsyncClient(
            trust_env=False, timeout=TIMEOUT, base_url=f"http://127.0.0.1:{port}"
        ) as http,
    ):
        for path in ("/whole", "/whole", "/last", "/whole"):
            answer = await http.get(path)
            assert len(answer.content) == 1_000_000
        async with http.stream("GET", "/stream") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"one", "it does not wait for the rest"
            go.set()
            assert await anext(parts) == b"two"


@BOTH
async def test_one_connection_carries_many_requests(server):
    async with running(echo(), server) as port, connected(port) as (reader, writer):
        for number in range(3):
            writer.write(request(f"/{number}", b"hello"))
            head, body = await response_from(reader)
            assert body == b"/%d hello" % number
            assert head.startswith(b"HTTP/1.1 200 ")


@BOTH
async def test_pipelined_requests_are_answered_in_their_order(server):
    door = asyncio.Event()
    async with running(echo(door), server) as port, connected(port) as (reader, writer):
        paths = ["/wait1", "/2", "/wait3", "/4"]
        writer.write(b"".join(request(path, b"x") for path in paths))
        await writer.drain()
        door.set()
        bodies = [(await response_from(reader))[1] for _ in paths]
    assert bodies == [path.encode() + b" x" for path in paths]


@BOTH
async def test_a_body_that_arrives_in_parts_is_received(server):
    begun = asyncio.Event()

    async def app(scope, receive, send):
        if scope["type"] == "http":
            begun.set()
        await echo()(scope, receive, send)

    async with running(app, server) as port, connected(port) as (reader, writer):
        whole = request("/", b"y" * 200_000)
        writer.write(whole[:100])
        await writer.drain()
        await asyncio.wait_for(begun.wait(), TIMEOUT)
        writer.write(whole[100:])
        assert (await response_from(reader))[1] == b"/ " + b"y" * 200_000
        writer.write(request("/again", b"z"))
        assert (await response_from(reader))[1] == b"/again z"


async def test_a_client_that_asks_before_sending_is_told_to_go_on():
    async with running(echo()) as port, connected(port) as (reader, writer):
        whole = request("/", b"later", "Expect: 100-continue")
        writer.write(whole[:-5])
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)
        writer.write(whole[-5:])
        assert (await response_from(reader))[1] == b"/ later"


@BOTH
async def test_the_last_response_of_a_connection_says_so_and_ends_it(server):
    async with running(echo(), server) as port, connected(port) as (reader, writer):
        writer.write(request("/", b"bye", "Connection: close"))
        head, body = await response_from(reader)
        assert (body, await rest_of(reader)) == (b"/ bye", b"")
    assert b"connection: close" in head.lower()


async def test_an_idle_connection_is_closed():
    async with running(echo(), keep_alive=1) as port, connected(port) as (reader, writer):
        writer.write(request())
        await response_from(reader)
        assert await rest_of(reader) == b""


@BOTH
async def test_spaces_around_values_are_no_part_of_them(server):
    async def app(scope, receive, send):
        if scope["type"] != "http":
            return await lifespan(receive, send)
        shown = [(n, v) for n, v in scope["headers"] if n != b"connection"]
        return await send_whole(send, b"|".join(n + b"=" + v for n, v in shown))

    async with running(app, server) as port, connected(port) as (reader, writer):
        lines = ["GET / HTTP/1.1", "Host: \t tools.example \t", "A:  b c ", "", ""]
        writer.write("\r\n".join(lines).encode())
        _, body = await response_from(reader)
    assert body == b"host=tools.example|a=b c"


async def test_a_call_is_told_when_its_client_has_left():
    begun, left = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return await lifespan(receive, send)
        await body_of(receive)
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        return left.set()

    async with running(app) as port:
        async with connected(port) as (_, writer):
            writer.write(request())
            await asyncio.wait_for(begun.wait(), TIMEOUT)
        await asyncio.wait_for(left.wait(), TIMEOUT)


# --- heads are bounded ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endless",
    [b"X-Long: ", b"GET /", b"", b"GET / HTTP/1.1\r\nHost: x\r\nCookie: "],
    ids=["a header", "a path", "no HTTP", "a second header"],
)
async def test_a_head_without_end_closes_the_connection(endless):
    served = []

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return await lifespan(receive, send)
        return served.append(scope["path"])

    async with running(app) as port, connected(port) as (reader, writer):
        begin = endless if endless.startswith(b"GET") else b"GET / HTTP/1.1\r\n" + endless
        writer.write(begin)
        written = 0
        try:
            while written < 8 * 1024 * 1024 and not reader.at_eof():
                writer.write(b"a" * 4096)
                written += 4096
                await writer.drain()
        except ConnectionError:
            pass
        answer = await rest_of(reader)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert served == []
    assert written < 8 * 1024 * 1024, "it is not read to its end"


async def test_a_head_with_a_large_token_is_within_the_bound():
    token = "t" * (16 * 1024)
    assert len(token) < MAX_HEAD_BYTES
    async with running(echo()) as port, connected(port) as (reader, writer):
        writer.write(request("/", b"x", f"Authorization: Bearer {token}"))
        assert (await response_from(reader))[1] == b"/ x"
