"""A request in the place of another counts as any: against limits, and for a connection's time."""

import asyncio

import pytest

from counterseal.web.patience import Patience
from tests.gateway.served import until
from tests.gateway.wires import Keeper, Line, asking, connected, known, rest_in, running, served


@pytest.fixture
def keeper():
    return Keeper()


async def test_a_server_that_has_too_many_connections_tells_known_heads_too(keeper):
    async with (
        running(keeper, limit_concurrency=3) as (server, url),
        connected(url) as (reader, writer),
        connected(url),
    ):
        for _ in range(2):
            await known(reader, writer)
        async with connected(url):
            await until(lambda: len(server.server_state.connections) == 3)
            writer.write(asking("/", b"too many"))
            assert (await rest_in(reader)).startswith(b"HTTP/1.1 503 ")
    assert keeper.came == ["new", "again"]


async def test_a_server_that_has_too_much_to_do_tells_known_heads_too(keeper):
    line = Line(keeper, limit_concurrency=2)
    await line.say(asking("/", b"first"))
    others = {asyncio.ensure_future(asyncio.Event().wait()) for _ in range(2)}
    line.state.tasks |= others
    await line.say(asking("/", b"too much"))
    assert line.written.count(b"HTTP/1.1 503 ") == 1
    assert b"too much" not in line.written
    for one in others:
        one.cancel()
    line.state.tasks -= others
    await line.hang_up()
    assert keeper.came == ["new"]


async def test_each_is_counted(keeper):
    line = Line(keeper)
    for _ in range(3):
        await line.say(asking("/", b"x"))
    await line.hang_up()
    assert (line.state.total_requests, keeper.came) == (3, ["new", "again", "again"])


async def test_what_is_told_in_all_answers_is_told_as_it_is_now(keeper):
    line = Line(keeper)
    for now in (b"one", b"two", b"three"):
        line.state.default_headers = [(b"x-now", now)]
        await line.say(asking("/", b"at once"))
        await line.say(asking("/", b"send"))
        assert line.written.count(b"x-now: %b\r\n" % now) == 2
        await line.say(asking("/", b"at once"))
    await line.hang_up()
    assert keeper.came.count("again") > 3


async def test_a_client_that_reads_nothing_is_waited_for(keeper):
    line = Line(keeper)
    await line.say(asking("/", b"first"))
    before = line.written
    line.connection.pause_writing()
    await line.say(asking("/", b"second"))
    assert line.written == before
    line.connection.resume_writing()
    await line.hang_up()
    assert line.written.endswith(b"6 second")
    assert keeper.refused == [b"second"]


# --- in time --------------------------------------------------------------------------------------


async def test_a_connection_that_is_quiet_after_known_heads_is_ended(keeper):
    async with served(keeper, timeout_keep_alive=1) as url, connected(url) as (reader, writer):
        for _ in range(3):
            await known(reader, writer)
        assert await rest_in(reader) == b""
    assert keeper.came[1:] == ["again", "again"]


def time_is_up(line):
    """What happens when a connection was kept alive for as long as it may be quiet."""
    line.connection.timeout_keep_alive = 0
    line.connection.timeout_keep_alive_handler()


async def test_no_time_is_up_while_one_is_answered_again(keeper):
    line = Line(keeper, timeout_keep_alive=3600)
    await line.say(asking("/", b"first"))
    await line.say(asking("/", b"wait"))
    time_is_up(line)
    assert not line.sink.ended
    keeper.door.set()
    await until(lambda: line.written.endswith(b"4 wait"))
    time_is_up(line)
    assert line.sink.ended, "but afterwards it is"
    await line.hang_up()
    assert keeper.came == ["new", "again"]


async def test_no_time_is_up_while_one_is_answered_that_waited_for_its_turn(keeper):
    line = Line(keeper, timeout_keep_alive=3600)
    await line.say(asking("/", b"first"))
    await line.say(asking("/", b"second") + asking("/", b"wait"))
    assert line.written.endswith(b"6 second")
    time_is_up(line)
    assert not line.sink.ended
    keeper.door.set()
    await line.hang_up()
    assert line.written.endswith(b"4 wait")


async def test_who_asks_again_and_again_is_not_taken_for_one_that_sends_nothing(keeper):
    now = 0.0
    patience = Patience(10.0, steady=lambda: now)
    line = Line(keeper)
    for now in range(0, 60, 5):  # noqa: B007 - the clock's
        await line.say(asking("/", b"x"))
        patience.hang_up(line.state.connections)
        assert not line.sink.ended
    await line.hang_up()
    assert keeper.came == ["new"] + ["again"] * 11


async def test_who_sends_nothing_after_known_heads_is_given_up(keeper):
    now = 0.0
    patience = Patience(10.0, steady=lambda: now)
    line = Line(keeper)
    await line.say(asking("/", b"x"))
    await line.say(asking("/", b"x"))
    await line.say(asking("/", b"x")[:20])
    for now in (0.0, 9.0):  # noqa: B007 - the clock's
        patience.hang_up(line.state.connections)
        assert not line.sink.ended
    now = 10.0
    patience.hang_up(line.state.connections)
    assert line.sink.ended
    await line.hang_up()
