"""What is kept of a state for a packet: all of it, or as much as somebody could read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.call.hold import bounded_copy as bounded
from counterseal.canonical import freeze

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
scalars = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | texts
states = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(states)
def test_what_fits_is_kept_as_it_is(state):
    assert bounded(state) == state


def test_what_is_nested_too_deep_is_said_to_be_there():
    deep = "bottom"
    for _ in range(500):
        deep = {"a": deep}
    kept = json.dumps(bounded({"status": "open", "inner": deep}))
    assert '"status": "open"' in kept
    assert "nested deeper than 32 levels, not shown" in kept
    freeze(json.loads(kept))  # what a packet is made of


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"rows": list(range(100_000))}, "more, not shown"),
        ({f"key_{i}": i for i in range(100_000)}, "more, not shown"),
        ({"rows": [{"a": [i]} for i in range(100_000)]}, "more, not shown"),
        ({"text": "x" * 3_000_000}, "more characters, not shown"),
        ({"x" * 3_000_000: 1}, "more characters, not shown"),
    ],
    ids=["rows", "keys", "nested", "text", "key"],
)
def test_what_is_too_much_is_cut_and_says_so(state, said):
    kept = json.dumps(bounded(state))
    assert len(kept) < 400_000
    assert said in kept


@pytest.mark.parametrize(
    "odd",
    [float("nan"), float("inf"), 2**53, 10**5000, "\ud800", b"x", {"\ud800": 1}],
    ids=["nan", "inf", "unsafe", "huge", "surrogate", "bytes", "key"],
)
def test_whatever_json_can_not_carry_becomes_text(odd):
    freeze(json.loads(json.dumps(bounded({"odd": odd}), allow_nan=False)))


def test_keys_that_become_alike_do_not_hide_each_other():
    assert bounded({"\ud800": 1, "?": 2, 3: 3, "3": 4}) == {"?": 1, "? (2)": 2, "3": 3, "3 (2)": 4}
