"""Contract names as providers take them, and back."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.formats import (
    MCP_CHARACTERS,
    MCP_LIMIT,
    NameMap,
    UnknownNameError,
)

CONTRACT_NAMES = st.text(alphabet="abcXYZ0189_.-", min_size=1, max_size=128) | st.sampled_from(
    ["a.b", "a_b", "a-b", "A.b", "x" * 64, "x" * 65, "x" * 128, ".", "..", "-"]
)


def short_hash(name, size=8):
    return hashlib.sha256(name.encode()).hexdigest()[:size]


@given(st.sets(CONTRACT_NAMES, max_size=30))
def test_every_name_has_its_own_provider_name_and_comes_back(names):
    mapped = NameMap(names)
    provided = [mapped.to_provider(name) for name in names]
    assert len(set(provided)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in provided)
    assert {mapped.to_contract(name) for name in provided} == names


@given(st.sets(st.text(min_size=1, max_size=200), max_size=20), st.integers(10, 40))
def test_names_that_no_contract_should_have_still_map_one_to_one(names, limit):
    mapped = NameMap(names, limit=limit)
    provided = {mapped.to_provider(name) for name in names}
    assert len(provided) == len(names)
    assert all(re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{limit}}}", name) for name in provided)


@given(st.lists(CONTRACT_NAMES, unique=True, max_size=10), st.randoms(use_true_random=False))
def test_the_order_of_registration_changes_nothing(names, random):
    shuffled = random.sample(names, len(names))
    first, second = NameMap(names), NameMap(shuffled)
    assert [first.to_provider(n) for n in names] == [second.to_provider(n) for n in names]


def test_a_name_that_fits_stays_as_it_is():
    assert NameMap(["send_notice-2"]).to_provider("send_notice-2") == "send_notice-2"


def test_a_name_that_does_not_fit_keeps_a_readable_prefix():
    assert NameMap(["case.open"]).to_provider("case.open") == f"case_open_{short_hash('case.open')}"
    long = "b" * 100
    assert NameMap([long]).to_provider(long) == f"{'b' * 55}_{short_hash(long)}"


def test_a_mapped_name_does_not_depend_on_the_catalogue():
    alone = NameMap(["case.open"])
    among = NameMap(["case.open", "case_open", "case-open", "case.close"])
    assert alone.to_provider("case.open") == among.to_provider("case.open")


def test_a_real_name_is_never_shadowed_by_a_mapped_one():
    squatter = f"case_open_{short_hash('case.open')}"
    mapped = NameMap(["case.open", squatter])
    assert mapped.to_provider(squatter) == squatter
    assert mapped.to_provider("case.open") == f"case_open_{short_hash('case.open', 9)}"


def test_squatting_on_every_length_of_the_hash_does_not_exhaust_the_names():
    squatters = [f"{'case_open'[: 64 - n - 1]}_{short_hash('case.open', n)}" for n in range(8, 65)]
    mapped = NameMap(["case.open", *squatters])
    assert mapped.to_contract(mapped.to_provider("case.open")) == "case.open"
    assert all(mapped.to_provider(name) == name for name in squatters if len(name) <= 64)


def test_mcp_takes_every_contract_name_as_it_is():
    name = "case.open-2_x" * 9
    mapped = NameMap([name], characters=MCP_CHARACTERS, limit=MCP_LIMIT)
    assert mapped.to_provider(name) == name


def test_an_unknown_name_is_a_clear_error():
    mapped = NameMap(["known"])
    with pytest.raises(UnknownNameError, match="no contract 'other'"):
        mapped.to_provider("other")
    with pytest.raises(LookupError, match="no tool has the provider name 'made_up'"):
        mapped.to_contract("made_up")


def test_a_limit_without_room_for_a_hash_is_refused():
    with pytest.raises(ValueError, match="room for a hash"):
        NameMap([], limit=9)
