"""However requests are cut into pieces, who keeps a scope is asked the same as who does not.

Nothing in a body becomes a request, and no request is taken for another.
"""

import asyncio
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.web.connection import Connection
from tests.gateway.wires import MARK, Line, asking, received, sent

TURNS = 20
"""Of the event loop, after which whatever was asked is answered."""


class Piece(NamedTuple):
    data: bytes
    turns: int = TURNS


class Plan(NamedTuple):
    """Pieces, and the requests that are in them: method, path and body."""

    pieces: list[Piece]
    asked: list[tuple[str, str, bytes]]


class Answering:
    """An application that answers as its path says, and knows what it was asked.

    `early`: before it has the body, `late`: after a while, `usual`: by messages; it `receives` the
    body by messages too, and `leaves` without keeping the scope.
    """

    def __init__(self, *, keeps: bool) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.again = 0
        self._keeps = keeps

    async def __call__(self, scope, receive, send):
        connection, path = Connection.of(scope), scope["path"]
        self.again += MARK in scope
        scope[MARK] = True
        self.asked.append((scope["method"], path, list(scope["headers"]), None))
        body = None
        if "early" not in path:
            body = None if "receives" in path else connection.body_of(scope)
            body = await received(receive) if body is None else body
            self.asked[-1] = (*self.asked[-1][:3], body)
        for _ in range(3 if "late" in path else 0):
            await asyncio.sleep(0)
        told, status = b"%d %b" % (len(self.asked), body or b""), 413 if "early" in path else 200
        usual = status != 200 or "usual" in path
        if usual or not connection.answer(scope, b"x-own: yes\r\n", told):
            await sent(send, told, status)
        if self._keeps and "leaves" not in path:
            connection.keep(scope)


async def driven(plan, *, keeps):
    app = Answering(keeps=keeps)
    line = Line(app)
    for piece in plan.pieces:
        await line.say(piece.data, piece.turns)
    await line.hang_up()
    return app, line.written


def alike(plan):
    """Both are asked the same, which is what was sent, and answer the same. The one who keeps."""
    keeping, answers = asyncio.run(driven(plan, keeps=True))
    other, others_answers = asyncio.run(driven(plan, keeps=False))
    assert keeping.asked == other.asked
    assert answers == others_answers
    assert other.again == 0
    told = [(method, path, body) for method, path, _, body in keeping.asked]
    assert told == [(method, path, _read(path, body)) for method, path, body in plan.asked]
    return keeping


def _read(path, body):
    return None if "early" in path else body


# --- any requests ---------------------------------------------------------------------------------


class Shape(NamedTuple):
    """Of a request: all but its body."""

    method: str
    path: str
    blank: bytes
    before: tuple[str, ...]
    behind: tuple[str, ...]
    chunked: bool

    def around(self, body: bytes) -> bytes:
        length = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {len(body)}"
        start = f"{self.method} {self.path} HTTP/1.1"
        head = "\r\n".join((start, *self.before, length, *self.behind, "", "")).encode()
        if self.chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        return self.blank + head + body


PATHS = ["/late", "/receives", "/usual", "/early", "/leaves", "/late/leaves", "/early/leaves"]
MORE = st.sampled_from([(), (), ("X-Who: a",), ("X-Who: b",), ("X-A: 1", "X-B: 2")])
SHAPES = st.builds(
    Shape,
    method=st.sampled_from(["POST", "POST", "PUT"]),
    path=st.sampled_from(["/now", "/now", *PATHS]),
    blank=st.sampled_from([b"", b"", b"", b"\r\n", b"\n", b"\n\r\n"]),
    before=MORE,
    behind=MORE | st.sampled_from([("Expect: 100-continue",), ("Connection: close",)]),
    chunked=st.sampled_from([False, False, False, True]),
)


@st.composite
def plans(draw):
    """A few heads, requests with them, and how these are cut."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=3))
    shape = st.sampled_from(shapes)
    inner = st.builds(Shape.around, shape, st.binary(max_size=5))
    bodies = st.binary(max_size=12) | inner | st.lists(inner, max_size=3).map(b"".join)
    pieces, asked, ended = [], [], False
    for one, body in draw(st.lists(st.tuples(shape, bodies), min_size=1, max_size=7)):
        if not ended:
            asked.append((one.method, one.path, body))
        ended |= "Connection: close" in one.behind
        whole = one.around(body)
        begin = len(whole) - len(body)
        places = st.integers(1, len(whole)) | st.just(begin) | st.integers(begin, len(whole))
        cuts = draw(st.just([]) | st.lists(places, max_size=3))
        edges = sorted({0, *cuts, len(whole)})
        parts = [whole[a:b] for a, b in pairwise(edges)]
        if pieces and draw(st.sampled_from([False, False, True])):
            parts[0] = pieces.pop().data + parts[0]
        pieces += [Piece(part, draw(st.sampled_from([0, 1, 3, TURNS, TURNS]))) for part in parts]
    return Plan(pieces, asked)


@given(plans())
@settings(max_examples=200)
def test_who_keeps_is_asked_the_same_and_answers_the_same(plan):
    alike(plan)


# --- some that matter -----------------------------------------------------------------------------


def asked_for(path, body=b"", who="a"):
    """A request of somebody's."""
    return asking(path, body, f"X-Who: {who}")


def planned(*requests):
    """Of requests in pieces of their own."""
    pieces = [Piece(asked_for(*one)) for one in requests]
    return Plan(pieces, [("POST", *one[:2]) for one in requests])


KNOWN = asked_for("/now", b"known")
WAYS = ["/other", "/receives", "/late", "/early", "/leaves", "/early/leaves"]


def test_the_same_head_is_begun_again_with_every_piece_that_is_one_request():
    bodies = [b"one", b"", b"three" * 100, KNOWN, b"\r\n\r\n"]
    assert alike(planned(*[("/now", body) for body in bodies])).again == len(bodies) - 1


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("body", [KNOWN, KNOWN * 3, b"x" * 9 + KNOWN], ids=["one", "three", "more"])
def test_a_piece_of_a_body_that_looks_like_a_known_request_is_none(path, body):
    whole = asked_for(path, body, "b")
    begin = len(whole) - len(body)
    for cut in (begin, len(whole) - len(KNOWN), begin + 3):
        parts = [Piece(whole[:cut]), Piece(whole[cut:])]
        pieces = [Piece(KNOWN), Piece(KNOWN), *parts, Piece(KNOWN), Piece(KNOWN)]
        known = [("POST", "/now", b"known")] * 2
        keeping = alike(Plan(pieces, [*known, ("POST", path, body), *known]))
        assert keeping.again == 2, "once before it, and once after"


@pytest.mark.parametrize("path", WAYS)
def test_a_body_of_known_requests_that_come_one_by_one_is_a_body(path):
    """Even if it was answered before any of them came, by somebody who keeps."""
    whole = asked_for(path, KNOWN * 3, "b")
    head = whole[: -3 * len(KNOWN)]
    pieces = [Piece(KNOWN), Piece(KNOWN), Piece(head), *[Piece(KNOWN)] * 4]
    known = ("POST", "/now", b"known")
    assert alike(Plan(pieces, [known, known, ("POST", path, KNOWN * 3), known])).again == 1


@pytest.mark.parametrize("path", WAYS)
def test_between_two_of_one_caller_comes_another_who_is_nobody_else(path):
    first, other = ("/now", b"mine"), (path, b"not yours", "b")
    alike(planned(first, first, other, first, other, other, first, first))


@pytest.mark.parametrize("place", ["before", "behind"])
def test_callers_differ_wherever_in_the_head_they_say_who_they_are(place):
    pieces, asked = [], []
    for who in "aabbabbba":
        told = (f"X-Who: {who}",)
        around = (
            {"before": told, "behind": ()} if place == "before" else {"before": (), "behind": told}
        )
        shape = Shape("POST", "/now", b"", chunked=False, **around)
        asked.append(("POST", "/now", who.encode()))
        pieces.append(Piece(shape.around(who.encode())))
    keeping = alike(Plan(pieces, asked))
    assert keeping.again == 7, "all but the first of each"
    assert [dict(headers)[b"x-who"] for _, _, headers, _ in keeping.asked] == [
        body for *_, body in keeping.asked
    ]


@pytest.mark.parametrize("turns", [0, 1, 2, TURNS])
def test_a_known_head_waits_for_its_turn_behind_one_that_is_under_way(turns):
    order = ["/late", "/late", "/now", "/late", "/late", "/late"]
    plan = planned(*[(path, b"%d" % number) for number, path in enumerate(order)])
    alike(plan._replace(pieces=[Piece(one.data, turns) for one in plan.pieces]))


def test_two_requests_in_a_piece_are_two():
    asked = [("POST", "/now", body) for body in (b"0", b"1", b"2", b"3", b"4")]
    one, first, second, *rest = [asked_for(path, body) for _, path, body in asked]
    pieces = [Piece(one), Piece(first + second), *map(Piece, rest)]
    assert alike(Plan(pieces, asked)).again == 1, "only the last came alone after one that did"


@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"\n\r\n", b"\r\r\n"])
def test_blank_lines_before_requests_change_nothing(blank):
    plan = planned(*[("/now", b"x" * number) for number in range(4)])
    alike(plan._replace(pieces=[Piece(blank + one.data) for one in plan.pieces]))
    apart = [piece for one in plan.pieces for piece in (Piece(blank), one)]
    alike(plan._replace(pieces=apart))


def test_who_keeps_after_the_usual_answer_can_answer_the_next_the_usual_way():
    alike(planned(*[("/usual", b"x" * number) for number in range(4)]))


async def test_a_length_with_zeros_before_it_is_the_same_length():
    app = Answering(keeps=True)
    line = Line(app)
    for length in (b"5", b"05", b"00005"):
        await line.say(asking("/now", b"hello").replace(b": 5", b": " + length))
    await line.hang_up()
    lengths = [int(dict(headers)[b"content-length"]) for _, _, headers, _ in app.asked]
    assert (lengths, app.again) == ([5, 5, 5], 2)
    assert [body for *_, body in app.asked] == [b"hello"] * 3
