"""A scope is kept by who has answered the last request, and by nobody else."""

import pytest

from counterseal.web.connection import Connection
from tests.gateway.wires import MARK, Line, asking, sent


class Odd:
    """Keeps when it should not: `how` is given the connection, its scope and the one before."""

    def __init__(self, how, *, after=False):
        self.came = []
        self._how = how
        self._after = after
        self._before = None

    async def __call__(self, scope, receive, send):
        connection = Connection.of(scope)
        self.came.append("again" if MARK in scope else "new")
        scope[MARK] = True
        before, self._before = self._before, scope
        if not self._after:
            self._how(connection, scope, before)
        assert connection.answer(scope, b"", connection.body_of(scope) or b"")
        if self._after:
            self._how(connection, scope, before)


async def came(app, *pieces):
    line = Line(app)
    for piece in pieces:
        await line.say(piece)
    await line.hang_up()
    return app.came


def of_itself(connection, scope, before):
    connection.keep(scope)


def of_the_one_before(connection, scope, before):
    connection.keep(before or {})


def of_a_copy(connection, scope, before):
    connection.keep({**scope})


SAME = [asking("/", b"x")] * 3


async def test_who_has_answered_keeps():
    assert await came(Odd(of_itself, after=True), *SAME) == ["new", "again", "again"]


async def test_who_has_not_answered_keeps_nothing():
    assert await came(Odd(of_itself), *SAME) == ["new"] * 3


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("how", [of_the_one_before, of_a_copy])
async def test_what_is_not_the_last_scope_is_not_kept(how, after):
    assert await came(Odd(how, after=after), *SAME) == ["new"] * 3


async def test_who_keeps_after_the_next_has_begun_is_too_late():
    app = Odd(lambda *_: None)
    line = Line(app)
    first = asking("/", b"x", "X-Who: a")
    await line.say(first)
    scope = app._before
    await line.say(asking("/", b"x", "X-Who: b"))
    line.connection.keep(scope)
    await line.say(first)
    await line.say(asking("/", b"x")[:30])
    line.connection.keep(app._before)  # of the next there is half
    await line.say(asking("/", b"x")[30:])
    await line.hang_up()
    assert app.came == ["new"] * 4


async def test_what_came_in_parts_is_not_kept():
    whole = asking("/", b"hello")
    pieces = [whole[:-2], whole[-2:], whole, whole]
    assert await came(Odd(of_itself, after=True), *pieces) == ["new", "new", "again"]


async def test_a_large_request_is_not_held_to_know_its_head_by():
    small, large = asking("/", b"x"), asking("/", b"x" * 100_000)
    app = Odd(of_itself, after=True)
    assert await came(app, large, small, small, large) == ["new", "new", "again", "again"]


@pytest.mark.parametrize(
    "line", ["Expect: 100-continue", "Upgrade: h2c", "Transfer-Encoding: identity"]
)
async def test_what_says_more_of_what_follows_is_not_kept(line):
    assert "again" not in await came(Odd(of_itself, after=True), *[asking("/", b"x", line)] * 3)


async def test_what_ends_its_connection_is_not_kept():
    came = []

    async def ending(scope, receive, send):
        came.append("again" if MARK in scope else "new")
        scope[MARK] = True
        await sent(send, b"", 200, (b"connection", b"close"))
        Connection.of(scope).keep(scope)

    line = Line(ending)
    await line.say(asking("/", b"x"))
    assert line.sink.ended
    line.connection.data_received(asking("/", b"x"))  # were it read all the same
    await line.hang_up()
    assert "again" not in came
