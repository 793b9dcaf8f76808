"""Bodies: decoded piece by piece, and never more than a limit."""

import gzip
import zlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.errors import ResponseTooLargeError
from counterseal.execution.network import Body


def bare(content):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate, bare": bare,
    "identity": bytes,
    "": bytes,
}


def body_of(coding, limit=10**6):
    return Body(httpx.Headers({"Content-Encoding": coding.removesuffix(", bare")}), limit)


def read(body, *chunks):
    content = b"".join(piece for chunk in chunks for piece in body.feed(chunk))
    body.finish()
    return content


def cut(packed, size):
    return [packed[at : at + size] for at in range(0, len(packed), size)]


@given(
    st.sampled_from([*PACKERS]),
    st.binary(max_size=300) | st.binary(max_size=9).map(lambda some: some * 20_000),
    st.integers(1, 50),
)
def test_content_comes_out_as_it_went_in_however_it_is_cut(coding, content, size):
    assert read(body_of(coding), *cut(PACKERS[coding](content), size)) == content


@given(st.sampled_from([*PACKERS]), st.integers(0, 200_000), st.integers(0, 200_000))
def test_as_much_as_the_limit_is_read_and_no_more(coding, size, limit):
    packed = PACKERS[coding](bytes(size))
    body = body_of(coding, limit)
    if max(size, len(packed)) <= limit:
        assert len(read(body, packed)) == size
    else:
        with pytest.raises(ResponseTooLargeError, match=f"larger than {limit} bytes"):
            read(body, packed)


def test_what_is_given_out_before_the_limit_is_never_more_than_it():
    given_out = []
    with pytest.raises(ResponseTooLargeError):
        given_out.extend(body_of("gzip", 100_000).feed(gzip.compress(bytes(10_000_000))))
    assert 0 < sum(map(len, given_out)) <= 100_000


@pytest.mark.parametrize("coding", ["gzip", "deflate", "deflate, bare"])
def test_nothing_stays_behind_when_the_packed_bytes_are_used_up(coding):
    # A piece that is given out may end in the middle of what the last byte stands for.
    for size in range(65_536, 65_536 + 260):
        assert len(read(body_of(coding), PACKERS[coding](bytes(size)))) == size


def test_members_that_follow_one_another_are_one_content():
    packed = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two")
    assert read(body_of("gzip"), packed) == read(body_of("gzip"), *cut(packed, 1)) == b"one two"


def test_many_empty_members_count_as_they_come():
    with pytest.raises(ResponseTooLargeError):
        read(body_of("gzip", 1000), gzip.compress(b"") * 100)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "deflate, bare"])
@pytest.mark.parametrize("kept", [1, 2, 8, -1])
def test_content_that_ends_in_the_middle_is_no_content(coding, kept):
    packed = PACKERS[coding](b"content " * 9)
    with pytest.raises(httpx.DecodingError, match="in the middle"):
        read(body_of(coding), packed[:kept])


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, br"])
def test_what_is_not_what_it_says_or_was_not_asked_for_is_refused(coding):
    with pytest.raises(httpx.DecodingError, match=r"the response (is|has)"):
        read(body_of(coding), b"\xff\xff\xff\xff no such thing")


@pytest.mark.parametrize("coding", [*PACKERS, "br"])
def test_nothing_needs_no_decoding(coding):
    assert read(body_of(coding)) == b""
