"""Rollouts: what a change would do is what it does, and the step back leads to what was."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.errors import RegistryError
from counterseal.registry import RegistryRecord
from counterseal.registry.selection import newest_for
from counterseal.testing import fake_tool
from counterseal.views.tools import rollout_shares

WHY = "A test."
PERCENT = st.integers(0, 100)


def record(version, percentage):
    identity = {"name": "look", "version": version, "owner": "tests"}
    return RegistryRecord(
        contract=fake_tool("look", identity=identity).contract, rollout_percentage=percentage
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(PERCENT, min_size=1, max_size=4), PERCENT)
def test_new_runs_get_what_was_foretold(percentages, then):
    live = [record(f"{9 - place}.0.0", one) for place, one in enumerate(percentages)]
    shares = {one.version: one.then for one in rollout_shares(live, "9.0.0", then)}
    assert sum(shares.values()) == 100
    live[0] = record("9.0.0", then)
    got = Counter(
        found.version if (found := newest_for(f"run_{number}", live)) else ""
        for number in range(2000)
    )
    for version in {*shares, *got}:
        assert got[version] / 20 == pytest.approx(shares.get(version, 0), abs=5)
        assert (got[version] == 0) == (shares.get(version, 0) == 0)


async def test_a_rollout_is_foretold_made_and_taken_back(office):
    newer = fake_tool("look", identity={"name": "look", "version": "2.0.0", "owner": "tests"})
    office.runtime.register(newer.tool)
    view = office.view(everywhere=["operator"])
    assert view.tools.page("look").steps_back == []
    told = await view.tools.preview_rollout("look", "2.0.0", 30)
    assert [(one.version, one.now, one.then) for one in told] == [
        ("2.0.0", 100, 30),
        ("1.0.0", 0, 70),
    ]
    await view.tools.set_rollout("look", "2.0.0", 30, reason=WHY)
    (step,) = view.tools.page("look").steps_back
    assert (step.version, step.now, step.before, step.by) == ("2.0.0", 30, 100, "ann")
    await view.tools.set_rollout("look", "2.0.0", 60, reason=WHY)
    assert view.tools.page("look").steps_back[0].before == 30
    await view.tools.set_rollout("look", "2.0.0", 30, reason=WHY)
    assert view.tools.page("look").steps_back[0].before == 60


async def test_a_share_without_a_version_is_shown_and_a_wrong_share_refused(office):
    view = office.view(everywhere=["operator"])
    told = await view.tools.preview_rollout("look", "1.0.0", 40)
    assert [(one.version, one.now, one.then) for one in told] == [("1.0.0", 100, 40), ("", 0, 60)]
    for wrong in (-1, 101, True):
        with pytest.raises(RegistryError, match="percentage"):
            await view.tools.preview_rollout("look", "1.0.0", wrong)
