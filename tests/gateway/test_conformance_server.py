"""The official conformance suite against Counterseal itself: a project with the suite's tools."""

from pathlib import Path

import pytest

from tests.gateway.conformance import (
    REVISIONS,
    failed,
    passed,
    required,
    run_suite,
    served,
    unmet,
    warned,
)
from tests.gateway.exceptions import FAILED, NOT_DONE

PROJECT = Path(__file__).with_name("native")


@pytest.fixture(scope="module")
def url():
    with served(PROJECT) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_counterseal_passes_every_required_scenario_and_all_others_that_the_sdk_passes(
    url, revision
):
    outcomes = run_suite(url, revision)
    assert unmet(outcomes) == {}
    assert passed(outcomes) >= required(revision)
    assert failed(outcomes).keys() == FAILED[revision].keys(), failed(outcomes)
    assert warned(outcomes).keys() == NOT_DONE[revision].keys(), warned(outcomes)
