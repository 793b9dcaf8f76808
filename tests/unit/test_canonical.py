"""JSON values: frozen, canonical, hashed."""

import json
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.canonical import canonical, digest, freeze, pointer, thaw

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_freezing_and_thawing_gives_the_value_back(value):
    assert thaw(freeze(value)) == value


@given(JSON)
def test_the_canonical_form_is_the_same_value_and_does_not_depend_on_order(value):
    def turned(item):
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(item)}
        return [turned(part) for part in item] if isinstance(item, list) else item

    # An integral float beyond 2^53 is written without its point, and read back as an int.
    read = json.loads(canonical(value), parse_int=lambda text: int(float(text)))
    assert read == thaw(read) == value
    assert digest(turned(value)) == digest(value) == digest(freeze(value))


CHANGES = {
    "set": lambda frozen: operator.setitem(frozen, "b", 1),
    "del": lambda frozen: operator.delitem(frozen, "b"),
    "pop": lambda frozen: frozen.pop("b"),
    "update": lambda frozen: frozen.update(b=1),
    "clear": lambda frozen: frozen.clear(),
    "or": lambda frozen: operator.ior(frozen, {"b": 1}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_frozen_dict_refuses_every_change(change):
    frozen = freeze({"a": {"b": [1]}})["a"]
    with pytest.raises(TypeError, match="frozen"):
        CHANGES[change](frozen)
    assert frozen == {"b": (1,)}


def test_a_frozen_value_travels_between_processes():
    frozen = freeze({"a": [1, {"b": 2}]})
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert hash(frozen) == hash(freeze({"a": [1, {"b": 2}]}))


def test_a_value_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper"):
        freeze(endless)


def test_pointers_escape_what_has_a_meaning_in_them():
    assert pointer("a/b", "c~d", 0) == "/a~1b/c~0d/0"
    assert pointer() == ""
