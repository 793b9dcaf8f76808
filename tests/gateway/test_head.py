"""A head is known again by every byte of it, and what comes behind it is what the parser reads."""

import httptools
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from counterseal.web.head import Head

LINES = ("POST /v1/calls HTTP/1.1", "Host: x", "Authorization: Bearer a")


def request(body=b"hello", length=None, *, lines=LINES, behind=(), spelled="Content-Length: "):
    """A request; `length` is what it says of its body, whatever is true."""
    told = str(len(body)).encode() if length is None else length
    before = "\r\n".join((*lines, spelled)).encode("latin-1")
    return before + told + "\r\n".join(("", *behind, "", "")).encode("latin-1") + body


class Parsed:
    """What the parser reads in a piece: whole requests, and whether anything is begun or wrong."""

    def __init__(self, piece):
        self.requests = []
        self.between = True
        self.wrong = False
        self._parser = httptools.HttpRequestParser(self)
        # As the server has it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self._parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.wrong = True

    def on_message_begin(self):
        self.between = False
        self._url, self._headers, self._body = b"", [], b""

    def on_url(self, part):
        self._url += part

    def on_header(self, name, value):
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_body(self, part):
        self._body += part

    def on_message_complete(self):
        self.between = True
        line = (self._parser.get_method(), self._url, self._parser.get_http_version())
        self.requests.append((line, self._headers, self._body))

    @property
    def whole(self):
        """The one request that a piece is; None: it is something else."""
        if self.wrong or not self.between or len(self.requests) != 1:
            return None
        return self.requests[0]


# --- the same head --------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [(), ("Accept: */*",)])
@pytest.mark.parametrize("spelled", ["Content-Length: ", "content-length:", "CONTENT-LENGTH:\t  "])
@pytest.mark.parametrize("lines", [LINES, LINES[:1]])
@given(first=st.binary(max_size=120), then=st.binary(max_size=120))
@settings(max_examples=20)
def test_the_same_head_gives_what_comes_behind_it(lines, spelled, behind, first, then):
    shape = {"lines": lines, "spelled": spelled, "behind": behind}
    head = Head.of(request(first, **shape))
    assert head is not None
    assert head.body_in(request(then, **shape)) == then


def test_a_body_that_is_a_request_itself_is_a_body():
    inner = request(b"x" * 10, lines=("POST /evil HTTP/1.1", "Transfer-Encoding: chunked"))
    head = Head.of(request(inner))
    assert head == Head.of(request(b"")), "nothing in a body is taken for a part of the head"
    assert head.body_in(request(inner + inner)) == inner + inner
    assert head.body_in(request(b"") + inner) is None, "but behind its end it is the next one"
    assert Head.of(request(b"") + inner) is None


FULL = request(behind=("Accept: */*",))
END = FULL.index(b"\r\n\r\n") + 4


@given(st.integers(0, END - 1), st.binary(max_size=1), st.integers(0, 1))
@settings(max_examples=200)
def test_a_head_that_differs_in_one_byte_is_another(at, byte, replaced):
    head = Head.of(FULL)
    other = FULL[:at] + byte + FULL[at + replaced :]
    assume(other != FULL)
    assume(at != len(head.before))  # there the length is
    assert head.body_in(other) is None


@pytest.mark.parametrize(
    "other",
    [
        request(lines=(*LINES[:2], "Authorization: Bearer b")),
        request(lines=(*LINES[:2], "Authorization: Bearer aa")),
        request(lines=(LINES[0], "Host: y", LINES[2])),
        request(lines=("PUT /v1/calls HTTP/1.1", *LINES[1:])),
        request(lines=("POST /v1/calls?a=1 HTTP/1.1", *LINES[1:])),
        request(lines=("POST /v1/calls HTTP/1.0", *LINES[1:])),
        request(lines=(LINES[0], LINES[2], LINES[1])),
        request(lines=tuple(line.upper() for line in LINES)),
    ],
)
def test_another_head_is_not_taken_for_it(other):
    assert Head.of(request()).body_in(other) is None


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer b",
        "Content-Length: 7",
        "Transfer-Encoding: chunked",
        "Connection: close",
        "Expect: 100-continue",
        "Idempotency-Key: k",
        " 5",
    ],
)
def test_a_head_that_goes_on_where_the_known_one_ends_is_another(line):
    head = Head.of(request())
    longer = request(behind=(line,))
    assert longer.startswith(head.before)
    assert head.body_in(longer) is None


# --- its length -----------------------------------------------------------------------------------

NO_LENGTHS = [
    b"",
    b"+5",
    b"-1",
    b"-5",
    b" 5",
    b"\t5",
    b"5 ",
    b"5\t",
    b"5 5",
    b"5,5",
    b"5;",
    b"5.0",
    b"5e0",
    b"0x5",
    b"1_0",
    b"5\n",
    b"5\x00",
    b"five",
    "\u0665".encode(),
    "\uff15".encode(),
    b"\xb2",
    b"0000000005",
    b"10000000000000000000005",
    b"18446744073709551621",
]


@pytest.mark.parametrize("length", NO_LENGTHS)
def test_a_length_that_is_not_plainly_one_is_left_to_the_parser(length):
    head = Head.of(request())
    assert head.body_in(request(b"hello", length)) is None
    assert head.body_in(request(b"hello" * 2, length)) is None


@pytest.mark.parametrize("length", [one for one in NO_LENGTHS if one[:1] not in (b" ", b"\t")])
def test_nor_is_a_head_known_that_has_such_a_one(length):
    assert Head.of(request(b"hello", length)) is None


@given(st.binary(max_size=30), st.integers(0, 40))
def test_what_is_not_one_whole_request_is_left_to_the_parser(body, length):
    head = Head.of(request(b""))
    given = request(body, str(length).encode())
    assert head.body_in(given) == (body if length == len(body) else None)
    assert (Head.of(given) is None) is (length != len(body))


def test_a_piece_of_a_request_is_left_to_the_parser():
    whole = request(b"hello")
    head = Head.of(whole)
    for cut in range(1, len(whole)):
        assert head.body_in(whole[:cut]) is None
        assert head.body_in(whole[cut:]) is None
        assert Head.of(whole[:cut]) is None


# --- heads that are parsed every time -------------------------------------------------------------


@pytest.mark.parametrize("line", ["{0}: x", "{0}:x", "{0}:"])
@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.title])
@pytest.mark.parametrize("name", ["transfer-encoding", "upgrade", "expect", "content-length"])
@pytest.mark.parametrize("behind", [True, False])
def test_heads_that_say_more_of_what_follows_are_not_known(name, spelled, line, behind):
    more = line.format(spelled(name))
    if behind:
        assert Head.of(request(behind=("Accept: */*", more))) is None
    else:
        assert Head.of(request(lines=(LINES[0], more, *LINES[1:]))) is None


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b"\r\n",
        b"\r\n\r\n",
        b"hello",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" + request(),
        b"\r\n\r\n" + request(),
        request() + request(),
        request() + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nX-Content-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nX: Content-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + request(),
    ],
)
def test_what_is_no_request_with_a_length_is_no_head(piece):
    assert Head.of(piece) is None


# --- as the parser has it -------------------------------------------------------------------------

NAMES = st.sampled_from(["Host", "Accept", "X-Content-Length", "X-A", "Cookie", "content-type"])
VALUES = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=12
)
HEADERS = st.lists(st.tuples(NAMES, VALUES).map(": ".join), max_size=4)
BLANK = st.text(st.sampled_from(" \t"), max_size=2)
LENGTH_LINES = st.tuples(st.sampled_from(["Content-Length:", "content-length:"]), BLANK).map(
    "".join
)


@given(HEADERS, HEADERS, LENGTH_LINES, st.binary(max_size=20))
@settings(max_examples=200)
def test_its_place_is_where_the_parser_puts_the_length(before, behind, spelled, body):
    given = request(body, lines=(LINES[0], *before), behind=behind, spelled=spelled)
    parsed, head = Parsed(given).whole, Head.of(given)
    assert parsed is not None
    assert parsed[1][head.place] == (b"content-length", b"%d" % len(body))


@pytest.mark.parametrize("blank", [b"\n", b"\r", b"\n\n", b"\n\r\n", b"\r\r\n", b"\n\r\n\r\n"])
def test_blank_lines_before_a_request_do_not_move_the_place(blank):
    given = blank + request(behind=("Accept: */*", "X-A: b", "X-B: c"))
    parsed, head = Parsed(given).whole, Head.of(given)
    assert parsed is not None
    assert head is None or parsed[1][head.place] == (b"content-length", b"5")


STARTS = st.sampled_from(
    ["POST / HTTP/1.1", "PUT /a?b HTTP/1.1", "POST / HTTP/1.0", "GET / HTTP/1.1"]
)
ODD = st.sampled_from(
    [
        "Transfer-Encoding: chunked",
        "Content-Length: 3",
        "Connection: close",
        "X: y\r\n z",
        "X: y\nZ: z",
    ]
)
LENGTHS = st.from_regex(rb"\A[ \t]?[+-]?[0-9xX_]{0,4}[ \t]?\Z")
TAILS = st.binary(max_size=12) | st.just(request()) | st.just(b"0\r\n\r\n")
SHAPES = st.fixed_dictionaries(
    {
        "lines": st.tuples(STARTS, st.just("Host: x"))
        | st.tuples(STARTS, NAMES.map("{}: 1".format)),
        "behind": st.lists(ODD | NAMES.map("{}: 2".format), max_size=2),
        "spelled": LENGTH_LINES,
    }
)


@given(
    SHAPES,
    SHAPES,
    st.booleans(),
    st.none() | LENGTHS,
    st.none() | LENGTHS,
    st.binary(max_size=12),
    TAILS,
)
@settings(max_examples=200)
def test_what_is_taken_again_the_parser_reads_alike(
    shape, changed, same, said, said_then, first, then
):
    known = request(first, said, **shape)
    before, head = Parsed(known).whole, Head.of(known)
    if before is None or head is None:
        return
    assert head.body_in(known) == before[2]
    again = request(then, said_then, **(shape if same else changed))
    body = head.body_in(again)
    if body is None:
        return
    line, headers, read = Parsed(again).whole
    assert (line, read) == (before[0], body)
    expected = list(before[1])
    name, value = headers[head.place]
    assert (name, int(value)) == (b"content-length", len(body))
    expected[head.place] = (name, value)
    assert headers == expected
