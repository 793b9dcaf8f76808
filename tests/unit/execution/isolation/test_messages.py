"""What is too long is cut, and no half of a secret stands at the edge."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.execution.isolation.child import Lines
from counterseal.execution.isolation.messages import NO_COVER, Cover

TOKEN = "tok-Zq81xWv93LmKp02RtYbN"
COVER = Cover({"token": TOKEN})
HALF = len(TOKEN) // 2
HALVES = (TOKEN[:HALF], TOKEN[HALF:])


def shows_half(text):
    return any(half in text for half in HALVES)


@given(st.integers(1, 400), st.integers(0, 5000), st.integers(0, 5000), st.booleans())
def test_wherever_a_text_is_cut_no_half_of_a_secret_is_left(most, before, after, many):
    text = "y" * before + TOKEN * (300 if many else 1) + "z" * after
    for shown in (COVER.beginning(text, most), COVER.ending(text, most)):
        assert len(shown) <= most
        assert not shows_half(shown)


@given(st.text(max_size=50), st.integers(1, 60))
def test_without_secrets_a_text_is_only_cut(text, most):
    assert NO_COVER.beginning(text, most) == text[:most]
    assert NO_COVER.ending(text, most) == text[-most:]


def test_a_value_too_short_to_be_hidden_hides_nothing_else():
    assert Cover({"pin": "1234", "token": TOKEN}).text(f"1234 {TOKEN}") == "1234 [secret.token]"


def printed(*pieces, cover=COVER):
    heard = []
    lines = Lines()
    lines.begin(heard.append, "fence", cover)
    for piece in pieces:
        lines.data_received(piece.encode())
    return lines, heard


@pytest.mark.parametrize("before", range(1990, 2060, 7))
@pytest.mark.parametrize("letter", ["y", "é"])
def test_a_long_line_is_masked_before_it_is_cut(before, letter):
    _, heard = printed(letter * (before - HALF) + TOKEN + "\n", "\nfence\n")
    assert not shows_half("".join(heard))


def test_a_line_much_too_long_and_full_of_secrets_shows_no_half_of_one():
    for shift in range(30):
        _, heard = printed("y" * shift + TOKEN * 1000 + "\n", "\nfence\n")
        assert not shows_half("".join(heard))


@pytest.mark.parametrize("filler", range(16_300, 16_400, 9))
def test_what_was_printed_last_is_masked_before_it_is_cut(filler):
    lines, _ = printed(TOKEN, "z" * filler)
    assert len(lines.tail()) <= 16 * 1024
    assert not shows_half(lines.tail())


def test_a_secret_that_was_printed_over_several_lines_is_found():
    wrapped = base64.encodebytes(f"user:{'u' * 30}:{TOKEN}:and more of it".encode()).decode()
    lines, heard = printed("at first.\n", f"{TOKEN[:HALF]}\n{TOKEN[HALF:]}\n", wrapped, "\nfence\n")
    assert heard[0] == "at first."
    for text in ("\n".join(heard), lines.tail()):
        assert not shows_half(text)
        assert not any(len(line) > 70 and line in text for line in wrapped.splitlines())


def test_lines_are_held_back_only_as_far_as_a_secret_could_reach():
    _, heard = printed(*(f"line {number:06}\n" for number in range(10_000)))
    assert heard[0] == "line 000000"
    assert 9000 < len(heard) < 10_000
    assert heard == [f"line {number:06}" for number in range(len(heard))]
    lines, heard = printed("a\nb\nc")
    assert heard == []
    lines.finish()
    assert heard == ["a", "b", "c"]
    assert printed("a\nb\nc", cover=NO_COVER)[1] == ["a", "b"]
