"""Scores of many trials: shares, intervals and pass^k."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.evaluation.scores import MEASURES, Score, pass_power, summarise, wilson

COUNTS = st.integers(1, 40).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))


@given(COUNTS)
def test_interval_is_around_its_share_and_never_empty(counts):
    estimate = wilson(*counts)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high


def test_interval_is_wilsons():
    assert wilson(8, 10) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)


@given(st.dictionaries(st.text(max_size=3), COUNTS, min_size=1, max_size=4))
def test_more_tries_in_a_row_pass_less_often(passes):
    powers = [pass_power(passes, k) for k in range(1, min(of for _, of in passes.values()) + 1)]
    values = [power.value for power in powers]
    assert values == sorted(values, reverse=True)
    assert all(power.low <= power.value <= power.high for power in powers)
    assert values[0] == pytest.approx(sum(many / of for many, of in passes.values()) / len(passes))


def test_power_is_the_share_of_ways_to_choose_passes():
    assert pass_power({"a": (3, 5)}, 2).value == comb(3, 2) / comb(5, 2)
    assert pass_power({"a": (3, 5), "b": (5, 5)}, 2).value == pytest.approx((0.3 + 1) / 2)
    assert pass_power({"a": (3, 5)}, 6) is None
    assert pass_power({}, 1) is None
    assert pass_power({"a": (3, 5)}, 2) == pass_power({"a": (3, 5)}, 2)


def test_interval_of_power_stays_open_when_every_trial_passed():
    few, many = pass_power({"a": (3, 3)}, 3), pass_power({"a": (60, 60)}, 3)
    assert few.low < many.low < 1.0 == few.high


def test_shares_are_added_up_before_they_are_divided():
    busy = Score(passed=True, shares={"selection": (9, 10)}, latency_ms=(1, 2, 9), tokens=5)
    quiet = Score(passed=False, shares={"selection": (0, 1)}, cost={"EUR": 0.5}, prevented=1)
    summary = summarise([("a", busy), ("a", quiet)])
    assert summary.measures["selection"].value == 9 / 11
    assert (summary.trials, summary.passed, summary.scenarios) == (2, 1, {"a": (1, 2)})
    assert (summary.tokens, summary.cost, summary.prevented) == (5, {"EUR": 0.5}, 1)
    assert summary.latency_ms == (2, 2)
    assert set(summary.powers) == {1, 2}


def test_summary_of_nothing_has_no_measures():
    summary = summarise([])
    assert (summary.trials, summary.measures, summary.latency_ms) == (0, {}, None)


def test_every_measure_has_a_title_and_a_question():
    assert all(one.title and one.question.endswith("?") for one in MEASURES.values())
