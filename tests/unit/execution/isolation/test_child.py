"""What a child says is cut into messages and lines, whatever it writes and however it arrives."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.execution.isolation.child import Lines, Messages
from counterseal.execution.isolation.messages import LONGEST_MESSAGE, framed

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)

cuts_anywhere = st.lists(st.integers(min_value=0), max_size=8)


def pieces(data, cuts):
    """The same bytes in pieces, as pipes hand them over."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


class Heard:
    def __init__(self):
        self.messages = []
        self.lost = 0

    def feed(self, *data):
        protocol = Messages(self.messages.append, self._count)
        for piece in data:
            protocol.data_received(piece)

    def _count(self):
        self.lost += 1


@given(st.lists(st.lists(values, max_size=3), max_size=5), cuts_anywhere)
def test_messages_arrive_whole_wherever_they_are_cut(said, cuts):
    heard = Heard()
    heard.feed(*pieces(b"".join(framed(json.dumps(value).encode()) for value in said), cuts))
    assert heard.messages == said
    assert not heard.lost


@given(st.binary(max_size=200), cuts_anywhere)
def test_no_bytes_do_more_than_end_the_conversation(data, cuts):
    heard = Heard()
    heard.feed(*pieces(data, cuts))
    assert heard.lost <= 1


@pytest.mark.parametrize(
    "data",
    [
        (LONGEST_MESSAGE + 1).to_bytes(4, "big"),
        b"\xff" * 64,
        framed(b"abc"),
        framed(b"\xff\xff"),
        framed(b"[" * 100_000),
        framed(b"[%b]" % (b"9" * 5_000)),
        framed(b"null"),
        framed(b"[" + b"[]," * 1_000_001 + b"0]"),
    ],
    ids=[
        "too long",
        "no length",
        "no JSON",
        "no text",
        "too deep",
        "too large",
        "nothing",
        "too many",
    ],
)
def test_what_is_no_message_ends_the_conversation(data):
    heard = Heard()
    heard.feed(data, framed(b"[1]"))
    assert heard.messages == []
    assert heard.lost == 1


@pytest.fixture
def lines():
    heard = []
    made = Lines()
    made.begin(heard.append, "fence")
    return made, heard


@given(st.text(), cuts_anywhere)
def test_lines_arrive_whole_wherever_they_are_cut(text, cuts):
    heard = []
    lines = Lines()
    lines.begin(heard.append, "")
    for piece in pieces(text.encode(errors="replace"), cuts):
        lines.data_received(piece)
    lines.connection_lost(None)
    expected = text.encode(errors="replace").decode().split("\n")
    assert heard == [line for line in expected if line]


def test_a_line_without_end_is_bounded_and_its_end_is_kept(lines):
    lines, heard = lines
    for _ in range(100):
        lines.data_received(b"x" * 1024)
    lines.data_received(b"the end\nnext")
    assert [len(line) for line in heard] == [2048]
    assert lines.tail().endswith("the end\nnext")
    assert len(lines.tail()) == 16 * 1024


def test_output_after_the_fence_is_dropped(lines):
    lines, heard = lines
    lines.data_received(b"mine\nhalf\nfen")
    assert not lines.ended.is_set()
    lines.data_received(b"ce\nlate\nand")
    assert lines.ended.is_set()
    other = []
    lines.begin(other.append, "other fence")
    lines.data_received(b"yours\n")
    assert (heard, other) == (["mine", "half"], ["yours"])
    assert "late" not in lines.tail()
