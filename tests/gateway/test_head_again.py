"""A request in the place of another is served as any: in its order, and to its end."""

import asyncio

import pytest

from counterseal.gateway.connection import Connection
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
    assert came.count(True) == 5


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
