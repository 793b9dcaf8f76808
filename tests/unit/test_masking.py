"""A secret is replaced by its name wherever and however it is written, and nothing else is."""

import base64
import json
import os
import pickle
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from counterseal.canonical import FrozenDict, freeze
from counterseal.masking import NO_MASK, Mask

KEY = "sk_live_4eC39HqLyjWDarjtT1"
ODD = "pä \"ss/w\\ö+rd\n\t%41'😀"
PEM = (
    "-----BEGIN PRIVATE KEY-----\n"
    + base64.encodebytes(bytes(range(256)) * 3).decode()
    + "-----END PRIVATE KEY-----\n"
)


def lower_percents(text):
    parts = text.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


FORMS = {
    "as it is": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json, not ascii": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "json, slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "repr": lambda value: repr(value)[1:-1],
    "repr of bytes": lambda value: repr(value.encode())[2:-1],
    "quote": lambda value: quote(value, safe=""),
    "quote, slashes": quote,
    "quote_plus": quote_plus,
    "quote, small hex": lambda value: lower_percents(quote(value, safe="")),
    "quote_plus, small hex": lambda value: lower_percents(quote_plus(value)),
    "every byte": lambda value: "".join(f"%{byte:02X}" for byte in value.encode()),
    "every byte, small hex": lambda value: "".join(f"%{byte:02x}" for byte in value.encode()),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64, url-safe": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "base64, no padding": lambda value: base64.b64encode(value.encode()).decode().rstrip("="),
    "hex": lambda value: value.encode().hex(),
    "hex, capitals": lambda value: value.encode().hex().upper(),
}
SECRETS = st.text(min_size=8, max_size=40) | st.sampled_from([KEY, ODD, "8" * 8, "[secret]"])
ENDS = st.sampled_from(["", "\\", "%", "%4", "\\u00", "/", "=", "Aa", "\n", '"', "[secret."])


@st.composite
def surroundings(draw):
    return draw(st.text(max_size=20)) + draw(ENDS)


def written(secret):
    return {name: form(secret) for name, form in FORMS.items()}


# --- forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [KEY, ODD, "correct horse battery"], ids=["key", "odd", "words"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_way_to_the_name(form, value):
    mask = Mask({"token": value})
    text = f"before {FORMS[form](value)} after"
    assert mask.found(text)
    assert mask.found(text.encode())
    assert mask.text(text) == "before [secret.token] after"
    assert mask.raw(text.encode()) == b"before [secret.token] after"


@given(secret=SECRETS, before=surroundings(), after=surroundings(), data=st.data())
def test_no_form_survives_in_any_surroundings(secret, before, after, data):
    forms = written(secret)
    text = before + data.draw(st.sampled_from(list(forms.values()))) + after
    mask = Mask({"token": secret})
    masked = mask.text(text)
    assert [name for name, form in forms.items() if form in masked] == []
    assert not mask.found(masked)
    assert mask.text(masked) == masked
    assert mask.raw(text.encode()) == masked.encode()


@given(secret=SECRETS, text=st.text() | st.from_regex(r"([a-z]+(%2[0-9A-F]|\\[nt\"]|\n)){0,9}"))
def test_text_without_a_secret_is_left_alone(secret, text):
    mask = Mask({"token": secret})
    assume(not mask.found(text))
    assert secret not in text
    assert mask.text(text) is text
    raw = text.encode()
    assert mask.raw(raw) is raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk_live_",
        KEY[:-1],
        KEY[1:],
        "https://example.org/a%20b?c=%C3%A9",
        '{"a": "\\n\\u00e9"}',
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_near_misses_are_left_alone(text):
    mask = Mask({"token": KEY, "odd": ODD, "pem": PEM})
    assert not mask.found(text)
    assert mask.text(text) is text


@given(secret=SECRETS, data=st.data())
def test_escaping_more_than_needed_hides_nothing(secret, data):
    few = {"/": "\\/", '"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}

    def percent(char):
        return "".join(f"%{byte:{data.draw(st.sampled_from(['02x', '02X']))}}" for byte in char)

    def unicode(char):
        units = char.encode("utf-16-be").hex()
        return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))

    url = "".join(
        percent(char.encode()) if quote(char) != char or data.draw(st.booleans()) else char
        for char in secret
    )
    text = "".join(
        unicode(char) if not char.isprintable() or data.draw(st.booleans()) else few.get(char, char)
        for char in secret
    )
    mask = Mask({"token": secret})
    assert not mask.found(mask.text(f" {url} "))
    assert mask.found(url)
    assert json.loads(f'"{text}"') == secret
    assert mask.found(text)


@pytest.mark.parametrize("value", [KEY, ODD], ids=["key", "odd"])
def test_encoded_twice_is_found(value):
    twice = [
        json.dumps(json.dumps({"a": value})),
        quote(json.dumps({"a": value})),
        quote(quote(value, safe=""), safe=""),
        json.dumps(quote(base64.b64encode(value.encode()).decode(), safe="")),
        json.dumps(json.dumps(json.dumps(value))),
        base64.b64encode(json.dumps({"a": value}).encode()).decode(),
        repr(json.dumps(value).encode()),
    ]
    mask = Mask({"token": value})
    for text in twice:
        assert mask.found(text)
        assert "[secret.token]" in mask.text(text)
        assert not mask.found(mask.text(text))


# --- base64 of something longer -------------------------------------------------------------------


@given(secret=SECRETS, before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_base64_of_something_longer_is_swallowed(secret, before, after):
    mask = Mask({"token": secret})
    whole = before + secret.encode() + after
    for encoded in (base64.b64encode(whole), base64.urlsafe_b64encode(whole)):
        for token in (encoded, encoded.rstrip(b"=")):
            masked = mask.raw(b"Basic " + token + b".")
            assert not mask.found(masked)
            if b"/" not in token:
                assert masked in {b"Basic [secret.token].", b"Basic [secret].", b"Basic ***."}


@pytest.mark.parametrize(
    ("before", "after", "masked"),
    [
        (b"", b"\xffa", "[secret.token]"),  # P2NvcnJlY3QtaG9yc2U/P + /9h
        (b"\xff", b"\xff", "/[secret.token]/"),  # /z + 9jb3JyZWN0LWhvcnNlPz + //
        (b"a\xff", b"\xffaa", "[secret.token]/2Fh"),  # Yf8 + /Y29ycmVjdC1ob3JzZT8/ + /2Fh
    ],
)
def test_neighbours_in_base64_go_with_the_bits_that_they_hold(before, after, masked):
    secret = "?correct-horse??"
    token = base64.b64encode(before + secret.encode() + after).decode()
    assert Mask({"token": secret}).text(token) == masked


def test_base64_in_a_path_leaves_the_url_in_place():
    token = base64.urlsafe_b64encode(KEY.encode()).decode()
    masked = Mask({"token": KEY}).text(f"GET https://example.org/hook/v1/{token}/go 200")
    assert masked == "GET https://example.org/hook/v1/[secret.token]/go 200"


def test_wrapped_base64_is_found():
    wrapped = base64.encodebytes(f"{'x' * 45}{KEY}{'y' * 45}".encode()).decode()
    assert "\n" in wrapped.strip()
    masked = Mask({"token": KEY}).text(json.dumps({"attachment": wrapped}))
    assert masked == '{"attachment": "[secret.token]\\n"}'


# --- several secrets, long secrets ----------------------------------------------------------------


def test_the_longest_of_several_gives_its_name():
    mask = Mask({"short": "password", "long": "password-123"})
    assert mask.text("a password-123 b") == "a [secret.long] b"
    assert mask.text("a password-12 b") == "a [secret.short]-12 b"
    encoded = base64.b64encode(b"user:password-123").decode()
    assert mask.text(encoded) == "[secret.long]"


def test_overlapping_secrets_leave_nothing_behind():
    mask = Mask({"left": "abcdefgh", "right": "efghijklmn"})
    assert mask.text("<abcdefghijklmn>") == "<[secret.right]>"
    assert mask.text("<abcdefghefghijklmn>") == "<[secret.left][secret.right]>"


def test_a_secret_that_is_the_base64_of_another_is_masked():
    inner = KEY[:24]
    outer = base64.b64encode(inner.encode()).decode()
    mask = Mask({"both": f"{inner}\n{outer}", "outer": outer})
    assert mask.text(f"a {outer} b") in {"a [secret.outer] b", "a [secret.both] b"}
    assert mask.text(f"a {inner} b") == "a [secret.both] b"


@given(st.lists(SECRETS, min_size=2, max_size=4), st.data())
def test_none_of_several_secrets_survives(values, data):
    mask = Mask({f"s{i}": value for i, value in enumerate(values)})
    pieces = st.sampled_from(values) | st.text(max_size=9)
    masked = mask.text("".join(data.draw(st.lists(pieces, max_size=8))))
    for value in values:
        assert [name for name, form in written(value).items() if form in masked] == []


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n"], ids=["lf", "crlf", "backslash n"])
def test_lines_of_a_key_file_are_secrets_of_their_own(newline):
    lines = PEM.splitlines()
    mask = Mask({"key": newline.join(lines)})
    for line in lines[1:-1]:
        assert mask.text(f"2030-01-01 {line} |") == "2030-01-01 [secret.key] |"
        assert mask.found(base64.b64encode(line.encode()))
    wrapped = base64.encodebytes(PEM.encode()).decode()
    masked = mask.text(wrapped)
    assert not mask.found(masked)
    assert all(part not in masked for part in wrapped.splitlines()[2:-2])
    assert mask.text(lines[0]) == lines[0]


def test_what_is_left_of_a_secret_that_is_read_through_is_not_hidden_when_it_is_little():
    mask = Mask({"token": "%20" * 8 + "abc"})
    assert mask.text("a" + " " * 9 + "abc") == "a" + " " * 9 + "abc"


def test_blanks_around_a_secret_are_no_part_of_it():
    mask = Mask({"token": f" {KEY}\n"})
    assert mask.text(f"Bearer {KEY}!") == "Bearer [secret.token]!"


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("api key\n\"'", KEY, "[secret.api_key___]"),
        ("password1", "password1", "[secret]"),
        ("secret", "[secret]", "[secret.secret]"),
        ("secret", "[secret.", "[secret]"),
        ("x", "secret.x", "[secret]"),
        ("a]", "[secret.a_", "[secret]"),
    ],
)
def test_a_name_never_gives_the_value_away(name, value, masked):
    assert Mask({name: value}).text(f"<{value}>") == f"<{masked}>"


def test_a_name_that_completes_a_secret_is_hidden_with_it():
    mask = Mask({"a": KEY, "b": "]suffix-of-it"})
    masked = mask.text(f"{KEY}suffix-of-it")
    assert not mask.found(masked)
    assert "suffix" not in masked


@pytest.mark.parametrize("value", ["", "hunter2", "x" * 7])
def test_what_is_too_short_to_be_told_from_text_is_refused(value):
    with pytest.raises(ValueError, match="the secret pin has fewer than 8 characters") as raised:
        Mask({"pin": value})
    assert not value or value not in str(raised.value)


def test_a_mask_does_not_reveal_what_it_hides():
    mask = Mask({"token": KEY})
    assert KEY not in repr(mask)
    assert not NO_MASK
    assert mask
    assert pickle.loads(pickle.dumps(mask)).text(KEY) == "[secret.token]"


def test_an_empty_mask_finds_nothing():
    assert not NO_MASK.found(KEY)
    assert NO_MASK.text(KEY) is KEY
    assert NO_MASK.data([KEY]) == [KEY]


# --- bytes and data -------------------------------------------------------------------------------


@given(before=st.binary(), after=st.binary(), secret=SECRETS)
def test_bytes_need_not_be_text(before, after, secret):
    mask = Mask({"token": secret})
    masked = mask.raw(before + secret.encode() + after)
    assert secret.encode() not in masked
    assert mask.raw(masked) is masked


def test_half_a_character_of_utf16_does_no_harm():
    assert Mask({"token": KEY}).text(f"\ud800 {KEY} \udfff") == "\ud800 [secret.token] \udfff"
    assert Mask({"token": f"\ud800{KEY}"}).text(f"\ud800{KEY}") == "[secret.token]"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)


def trees(leaves):
    keys = st.text(max_size=9)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    )


@given(secret=SECRETS, data=st.data())
def test_no_form_survives_in_data(secret, data):
    forms = written(secret)
    planted = st.sampled_from(list(forms.values()))
    value = {data.draw(planted): [data.draw(trees(LEAVES | planted))], "a": data.draw(planted)}
    mask = Mask({"token": secret})
    masked = mask.data(value)
    assert not mask.found(str(masked))
    assert mask.data(masked) is masked
    assert len(masked) == len(value)


@given(trees(LEAVES))
def test_data_without_a_secret_is_the_same_object(value):
    assert Mask({"token": KEY}).data(value) is value


def test_what_holds_no_secret_beside_one_that_does_is_the_same_object():
    innocent = {"a": ["b"]}
    masked = Mask({"token": KEY}).data([innocent, KEY])
    assert masked == [{"a": ["b"]}, "[secret.token]"]
    assert masked[0] is innocent


def test_numbers_are_secrets_too():
    mask = Mask({"pin": "12345678"})
    given_data = {"a": 12345678, "b": [12345678.5, 123456789, 1234567, True], 12345678: None}
    assert mask.data(given_data) == {
        "a": "[secret.pin]",
        "b": ["[secret.pin].5", "[secret.pin]9", 1234567, True],
        "[secret.pin]": None,
    }


def test_a_number_too_long_to_print_is_passed_on():
    value = [10**5000, KEY]
    assert Mask({"token": KEY}).data(value) == [10**5000, "[secret.token]"]


def test_frozen_data_stays_frozen():
    masked = Mask({"token": KEY}).data(freeze({"a": [KEY], "b": {"c": KEY.encode().hex()}}))
    assert masked == {"a": ("[secret.token]",), "b": {"c": "[secret.token]"}}
    assert isinstance(masked, FrozenDict)
    assert isinstance(masked["b"], FrozenDict)


def test_keys_that_look_alike_once_they_are_masked_are_numbered():
    mask = Mask({"a": KEY})
    assert mask.data({KEY: 1, KEY.encode().hex(): 2}) == {"[secret.a]": 1, "[secret.a] (2)": 2}


def test_bytes_in_data_are_masked():
    assert Mask({"token": KEY}).data({"body": KEY.encode()}) == {"body": b"[secret.token]"}


@pytest.mark.parametrize(
    "text",
    [
        KEY * 5_000,
        base64.b64encode(KEY.encode() * 5_000).decode(),
        "%41" * 50_000 + KEY,
        "\\" * 100_000 + KEY,
        "a\n" * 50_000 + KEY,
        "\n" + " " * 100_000 + KEY,
        "[secret." * 20_000 + KEY,
    ],
    ids=["many", "base64", "percent", "backslashes", "lines", "blanks", "names"],
)
def test_long_text_is_masked_in_one_go(text):
    """Would take minutes if the time were more than proportional to the length."""
    mask = Mask({"token": KEY, "run": "a" * 64})
    assert not mask.found(mask.text(text))


def test_a_large_secret_is_masked():
    value = os.urandom(32_768).hex()
    assert Mask({"blob": value}).text(json.dumps([value])) == '["[secret.blob]"]'
