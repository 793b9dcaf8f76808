"""Characters that hide: each is shown to people, and taken out for models."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.lint.names import _CONTROL
from counterseal.contract.sources.foreign_text import is_hidden, plain, visible

HIDDEN = [
    0x00,
    0x07,
    0x08,
    0x0D,
    0x1B,
    0x7F,
    0x85,
    0x9B,
    0xA0,
    0xAD,
    0x34F,
    0x61C,
    0x115F,
    0x180E,
    0x200B,
    0x200C,
    0x200D,
    0x200E,
    0x2028,
    0x202A,
    0x202E,
    0x2060,
    0x2062,
    0x2066,
    0x2069,
    0x2800,
    0x3000,
    0x3164,
    0xE000,
    0xFE0F,
    0xFEFF,
    0xFFA0,
    0xFFF9,
    0xE0041,
    0xE0100,
]
HONEST = st.text(
    st.characters(exclude_categories=["C", "Z"], max_codepoint=0x17F) | st.sampled_from(" \n\t…—→")
).filter(lambda text: "\u017f" not in text)  # a long s poses as an s


@pytest.mark.parametrize("point", HIDDEN, ids=hex)
def test_a_hidden_character_is_written_by_name(point):
    shown = visible(f"a{chr(point)}b")
    assert re.fullmatch(rf"a⟨U\+{point:04X}( [A-Z0-9 -]+)?⟩b", shown)


def test_some_names():
    assert visible("a\u200bb") == "a⟨U+200B ZERO WIDTH SPACE⟩b"
    assert visible("\x1b[31m") == "⟨U+001B ESCAPE⟩[31m"
    assert visible("\u202etxt") == "⟨U+202E RIGHT-TO-LEFT OVERRIDE⟩txt"
    assert visible("\U000e0069") == "⟨U+E0069 TAG LATIN SMALL LETTER I⟩"
    assert visible("\ud800") == "⟨U+D800 SURROGATE⟩"


def test_a_letter_of_another_alphabet_in_a_latin_word_is_shown():
    assert visible("p\u0430y") == "p⟨U+0430 CYRILLIC SMALL LETTER A⟩y"
    assert visible("\u0391dmin") == "⟨U+0391 GREEK CAPITAL LETTER ALPHA⟩dmin"
    assert visible("caf\u00e9_p\u0430y") == "café_p⟨U+0430 CYRILLIC SMALL LETTER A⟩y"
    assert visible("\uff44elete") == "⟨U+FF44 FULLWIDTH LATIN SMALL LETTER D⟩elete"
    assert visible("\U0001d41delete") == "⟨U+1D41D MATHEMATICAL BOLD SMALL D⟩elete"


@pytest.mark.parametrize(
    "text",
    [
        "Привет, мир",
        "Ελληνικά",
        "日本語 テキスト",
        "naïve Straße — “quoted” … 😀",
        "Reads файл.txt",
        "100 µs, 5 Ω",
        "a\n\tb",
        "",
    ],
)
def test_honest_text_of_any_language_stays_as_it_is(text):
    assert visible(text) == text


@given(HONEST)
def test_text_without_such_characters_is_not_changed(text):
    assert visible(text) == text


@given(st.text(st.characters() | st.sampled_from([chr(point) for point in HIDDEN])))
def test_nothing_hidden_is_left(text):
    shown = visible(text)
    assert not any(is_hidden(char) for char in shown)
    assert visible(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(2, 50))
def test_models_get_nothing_hidden_and_no_more_than_the_limit(text, limit):
    shown = plain(text, limit)
    assert len(shown) <= limit
    assert not any(is_hidden(char) for char in shown)
    assert not _CONTROL.search(shown)


def test_models_get_the_lines_and_words_as_they_are():
    assert plain("  One\r\ntwo\u2028three\u00a0four\u200b!\n\tfive ", 99) == (
        "One\ntwo\nthree four!\n\tfive"
    )
    assert plain("abcdef", 5) == "abcd…"
