"""A request in the place of another is served as any: in its order, and to its end."""

import asyncio

import pytest

from counterseal.web.connection import Connection
from counterseal.web.head import Head, Heads
from tests.gateway.served import soon, until
from tests.gateway.wires import (
    MARK,
    Keeper,
    Line,
    answer_in,
    asking,
    connected,
    known,
    rest_in,
    running,
    served,
    told,
)


@pytest.fixture
def keeper():
    return Keeper()


async def test_the_same_head_is_answered_again_and_again(keeper):
    async with served(keeper) as url, connected(url) as (reader, writer):
        for body in (b"hello", b"", b"x" * 10_000, b"GET / HTTP/1.1\r\n\r\n", b"bye"):
            writer.write(asking("/", body))
            head, answer = await answer_in(reader)
            assert answer == b"%d %b" % (len(body), body)
            assert b"date: " in head
    assert keeper.came == ["new"] + ["again"] * 4


async def test_of_two_connections_each_has_its_own(keeper):
    async with served(keeper) as url, connected(url) as first, connected(url) as second:
        for _ in range(2):
            for reader, writer in (first, second):
                writer.write(asking("/", b"x"))
                assert await told(reader) == b"1 x"
    assert keeper.came == ["new", "new", "again", "again"]


async def test_who_comes_through_a_proxy_is_where_its_own_head_says():
    came = []

    async def app(scope, receive, send):
        connection = Connection.of(scope)
        came.append(MARK in scope)
        scope[MARK] = True
        if connection.answer(scope, b"", scope["client"][0].encode()):
            connection.keep(scope)

    places = ["203.0.113.9"] * 3 + ["203.0.113.7"] * 3 + ["203.0.113.9", "127.0.0.1", "127.0.0.1"]
    async with (
        served(app, forwarded_allow_ips="127.0.0.1") as url,
        connected(url) as (reader, writer),
    ):
        for place in places:
            writer.write(asking("/", b"x", f"X-Forwarded-For: {place}"))
            assert await told(reader) == place.encode()
    assert came == [False, True, True, False, True, True, True, False, True]


# --- of one caller on several connections, and of several on one ----------------------------------


class Telling:
    """Answers with where a request came from, and whether it came again; and keeps the scope."""

    def __init__(self):
        self.own = []
        """Whether each found itself on the connection on which it came."""

    async def __call__(self, scope, receive, send):
        connection = Connection.of(scope)
        again = b"again" if MARK in scope else b"new"
        scope[MARK] = True
        self.own.append(connection.scope is scope and scope["client"] == connection.client)
        who = dict(scope["headers"]).get(b"x-who", b"")
        if connection.answer(scope, b"", b" ".join((again, who, connection.body_of(scope)))):
            connection.keep(scope)


async def test_a_head_that_is_known_from_another_connection_is_not_read_here():
    app = Telling()
    async with served(app) as url, connected(url) as first, connected(url) as second:
        for (reader, writer), who, came in (
            (first, "ann", b"new"),
            (second, "bob", b"new"),
            (first, "bob", b"again"),
            (second, "ann", b"again"),
            (second, "ann", b"again"),
            (first, "eve", b"new"),
            (second, "eve", b"again"),
            (second, "bob", b"again"),
        ):
            for body, how in ((b"hello", came), (b"x" * 1000, b"again")):
                writer.write(asking("/", body, f"X-Who: {who}"))
                assert await told(reader) == b" ".join((how, who.encode(), body))
    assert all(app.own)


async def test_what_one_server_knows_is_news_to_another():
    app = Telling()
    async with served(app) as here, served(app) as there:
        for url in (here, there):
            async with connected(url) as (reader, writer):
                for who in ("ann", "bob"):
                    writer.write(asking("/", b"", f"X-Who: {who}"))
                    assert (await told(reader)).startswith(b"new")


def test_the_heads_that_are_remembered_are_so_many_and_the_latest():
    heads = Heads()
    for number in range(3000):
        request = asking("/", b"hello", f"X-Who: {number:05d}")
        heads.add(Head.of(request), {"number": number})
    found = [heads.found(asking("/", b"you", f"X-Who: {n:05d}")) for n in range(3000)]
    known = [one[1]["number"] for one in found if one is not None]
    assert known == list(range(3000 - 1024, 3000))
    assert all(one is None or one[2] == b"you" for one in found)


def test_heads_of_few_lengths_are_looked_for():
    heads = Heads()
    requests = [asking("/" + "x" * length, b"hello") for length in range(10)]
    for request in requests:
        heads.add(Head.of(request), {})
    assert [heads.found(request) is not None for request in requests] == [False] * 6 + [True] * 4


@pytest.mark.parametrize("cut", [1, 20, 40, -1])
def test_what_is_no_whole_request_is_not_found(cut):
    heads = Heads()
    whole = asking("/", b"hello", "X-Who: ann")
    heads.add(Head.of(whole), {})
    assert heads.found(whole) is not None
    assert heads.found(whole[:cut]) is None
    assert heads.found(whole + b"x") is None
    assert heads.found(b"") is None


# --- one behind the other -------------------------------------------------------------------------


async def test_two_of_a_known_head_in_one_piece_are_answered_in_their_order(keeper):
    async with served(keeper) as url, connected(url) as (reader, writer):
        await known(reader, writer)
        writer.write(asking("/", b"one") + asking("/", b"two") + asking("/", b"three"))
        assert [await told(reader) for _ in range(3)] == [b"3 one", b"3 two", b"5 three"]
        for _ in range(2):
            writer.write(asking("/", b"last"))
            assert await told(reader) == b"4 last"
    assert keeper.came[-1] == "again"


async def test_a_known_head_is_answered_after_one_that_is_under_way(keeper):
    async with served(keeper) as url, connected(url) as (reader, writer):
        await known(reader, writer)
        writer.write(asking("/", b"wait"))
        await soon(keeper.begun)
        for body in (b"second", b"third"):
            writer.write(asking("/", body))
            await writer.drain()
            await asyncio.sleep(0.02)
        keeper.door.set()
        assert [await told(reader) for _ in range(3)] == [b"4 wait", b"6 second", b"5 third"]
        await known(reader, writer)
    assert keeper.came[:3] == ["new", "again", "new"]
    assert keeper.refused[:1] == [b"wait"], "who has others behind answers the usual way"


async def test_a_request_that_is_half_there_is_not_lost_behind_one_that_comes_again(keeper):
    line = Line(keeper)
    await line.say(asking("/", b"first"))
    await line.say(asking("/", b"wait"))
    half = asking("/", b"second")
    await line.say(half[:30])
    keeper.door.set()
    await line.turn()
    await line.say(half[30:])
    await line.say(asking("/", b"third"))
    await line.hang_up()
    places = [line.written.index(told) for told in (b"5 first", b"4 wait", b"6 second", b"5 third")]
    assert places == sorted(places)
    assert keeper.came == ["new", "again", "new", "new"]


# --- to its end -----------------------------------------------------------------------------------


async def test_a_connection_that_is_to_be_closed_is_closed(keeper):
    async with served(keeper) as url, connected(url) as (reader, writer):
        await known(reader, writer)
        writer.write(asking("/", b"bye", "Connection: close"))
        head, body = await answer_in(reader)
        assert b"connection: close" in head
        assert (body, await rest_in(reader)) == (b"3 bye", b"")
    assert keeper.came == ["new", "new"]


async def test_the_next_one_may_be_answered_the_usual_way_and_so_may_the_one_after(keeper):
    async with served(keeper) as url, connected(url) as (reader, writer):
        await known(reader, writer)
        for body in (b"send one", b"send two", b"three", b"four", b"send five", b"six"):
            writer.write(asking("/", body))
            assert await told(reader) == b"%d %b" % (len(body), body)
    assert keeper.came == ["new", "again", "new", "new", "again", "again", "new"]


async def test_a_fault_while_one_is_answered_again_is_told_and_ends_the_connection(keeper):
    async with served(keeper) as url:
        async with connected(url) as (reader, writer):
            await known(reader, writer)
            writer.write(asking("/", b"fail"))
            head, body = await answer_in(reader)
            assert head.startswith(b"HTTP/1.1 500 ")
            assert (body, await rest_in(reader)) == (b"Internal Server Error", b"")
        async with connected(url) as (reader, writer):
            await known(reader, writer)
    assert keeper.came == ["new", "again", "new"]


async def test_who_hangs_up_while_one_is_answered_again_gets_nothing(keeper):
    line = Line(keeper)
    await line.say(asking("/", b"first"))
    before = line.written
    await line.say(asking("/", b"wait"))
    line.connection.connection_lost(ConnectionResetError())
    keeper.door.set()
    await until(lambda: not line.state.tasks)
    assert line.written == before
    assert keeper.refused == [b"wait"]


async def test_a_server_that_ends_answers_what_is_under_way_and_nobody_else(keeper):
    async with (
        running(keeper) as (server, url),
        connected(url) as (reader, writer),
        connected(url) as (quiet, asked_before),
    ):
        await known(quiet, asked_before)
        await known(reader, writer)
        writer.write(asking("/", b"wait"))
        await soon(keeper.begun)
        server.should_exit = True
        assert await rest_in(quiet) == b""
        keeper.door.set()
        head, body = await answer_in(reader)
        assert (b"connection: close" in head, body) == (True, b"4 wait")
        writer.write(asking("/", b"after"))
        assert await rest_in(reader) == b""
    assert keeper.came == ["new", "new", "again"]
