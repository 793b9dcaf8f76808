"""Answers go out as a whole, and headers come in clean."""

import asyncio

import httpx2

from counterseal.web.connection import Connection
from tests.gateway.wires import answer_in, asking, connected, received, sent, served


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


def straight(taken):
    """An application that answers with what it was sent; `taken` has how it came by that."""

    async def app(scope, receive, send):
        connection = Connection.of(scope)
        body = connection.body_of(scope)
        if "/slow" in scope["path"]:
            await asyncio.sleep(0.05)
        if body is None:
            body = await received(receive)
            taken.append("received")
        else:
            taken.append("whole")
        body = scope["path"].encode() + b" " + body
        if connection.answer(scope, b"x-own: yes\r\n", body):
            taken.append("at once")
            return
        taken.append("sent")
        await sent(send, body)

    return app


async def test_whole_requests_are_answered_at_once_one_after_the_other():
    taken = []
    async with served(straight(taken)) as url, connected(url) as (reader, writer):
        for number in range(3):
            writer.write(asking(f"/{number}", b"hello"))
            head, body = await answer_in(reader)
            assert body == b"/%d hello" % number
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"x-own: yes\r\n" in head
            assert b"date: " in head, "what the server tells in all answers"
    assert taken == ["whole", "at once"] * 3


async def test_requests_sent_without_waiting_are_answered_in_their_order():
    taken = []
    async with served(straight(taken)) as url, connected(url) as (reader, writer):
        paths = ["/slow1", "/2", "/slow3", "/4"]
        writer.write(b"".join(asking(path, b"x") for path in paths))
        told = [(await answer_in(reader))[1] for _ in paths]
    assert told == [path.encode() + b" x" for path in paths]


async def test_a_body_that_comes_in_parts_is_received():
    taken = []
    async with served(straight(taken)) as url, connected(url) as (reader, writer):
        whole = asking("/", b"y" * 200_000)
        writer.write(whole[:100])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(whole[100:])
        assert (await answer_in(reader))[1] == b"/ " + b"y" * 200_000
        writer.write(asking("/again", b"z"))
        assert (await answer_in(reader))[1] == b"/again z"
    assert taken[:2] == ["received", "at once"]


async def test_who_asks_before_sending_is_told_to_go_on():
    async with served(straight([])) as url, connected(url) as (reader, writer):
        whole = asking("/", b"later", "Expect: 100-continue")
        writer.write(whole[:-5])
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        writer.write(whole[-5:])
        assert (await answer_in(reader))[1] == b"/ later"


async def test_the_last_answer_of_a_connection_says_so_and_ends_it():
    taken = []
    async with served(straight(taken)) as url, connected(url) as (reader, writer):
        writer.write(asking("/", b"bye", "Connection: close"))
        head, body = await answer_in(reader)
        assert (body, await asyncio.wait_for(reader.read(), 30)) == (b"/ bye", b"")
    assert b"connection: close" in head
    assert taken == ["whole", "sent"]


async def test_nobody_is_answered_twice():
    refused = []

    async def app(scope, receive, send):
        connection = Connection.of(scope)
        assert connection.answer(scope, b"", b"once")
        refused.append(connection.answer(scope, b"", b"twice"))
        refused.append(connection.body_of({**scope}))

    async with served(app) as url, connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(asking())
            assert (await answer_in(reader))[1] == b"once"
    assert refused == [False, None] * 2


async def test_a_quiet_connection_is_ended_and_one_in_use_is_not():
    async with (
        served(straight([]), timeout_keep_alive=1) as url,
        connected(url) as (reader, writer),
        connected(url) as (quiet, asked_once),
    ):
        asked_once.write(asking())
        await answer_in(quiet)
        ended = asyncio.ensure_future(quiet.read())
        while not ended.done():
            writer.write(asking("/", b"x"))
            await answer_in(reader)
            await asyncio.sleep(0.05)
        assert await ended == b""
        begun = asking("/last", b"x")
        writer.write(begun[:-1])  # from now on a request is on its way, however slow it is
        await asyncio.sleep(1.5)
        writer.write(begun[-1:])
        assert (await answer_in(reader))[1] == b"/last x"


async def test_spaces_around_values_are_no_part_of_them():
    async def app(scope, receive, send):
        told = b"|".join(name + b"=" + value for name, value in scope["headers"])
        await sent(send, told)

    async with served(app) as url, connected(url) as (reader, writer):
        lines = [
            "GET / HTTP/1.1",
            "Host: \t tools.example \t",
            "A:  b c ",
            "Connection: close",
            "",
            "",
        ]
        writer.write("\r\n".join(lines).encode())
        answer = await asyncio.wait_for(reader.read(), 30)
    assert answer.endswith(b"host=tools.example|a=b c|connection=close")
