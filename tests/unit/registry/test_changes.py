"""Stored changes: replayed alike whenever a worker starts, and whatever it registers."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.errors import GrantError, RegistryError, StoreError
from counterseal.proposal import Principal
from counterseal.registry import Deprecation, Grant, Reason, Refusal, Registry
from counterseal.testing import fake_tool

START = datetime(2026, 3, 1, tzinfo=UTC)
BOT = Principal(tenant="acme", agent="bot")
LOOK = Grant(agent="bot", tool="look")
NARROW = Grant(agent="bot", tool="look", max_calls_per_run=1)
OTHER = Grant(agent="bot", tool="other")


def change(op, by="u_1", reason="leak", **what):
    return {"op": op, **what, "reason": reason, "by": by, "at": START.isoformat()}


def kill(tool=None, effect=None):
    return change("kill", tool=tool, effect=effect)


def enable(tool="look", version=None, versions=("1.0.0",)):
    known = {} if version else {"versions": list(versions)}
    return change("enable", tool=tool, version=version, **known)


def disable(tool="look", version=None):
    return change("disable", tool=tool, version=version)


def give(grant=LOOK, without=()):
    return change("grant", grant=grant.export(), without=list(without))


def take(grant=LOOK):
    return change("revoke", grant=grant.export())


def rollout(percentage, tool="look", version="1.0.0"):
    return change("rollout", tool=tool, version=version, percentage=percentage)


def deprecate(deprecation, tool="look", version="1.0.0"):
    given = None if deprecation is None else deprecation.export()
    return change("deprecate", tool=tool, version=version, deprecation=given)


def new_registry():
    return Registry(clock=lambda: START)


def register(registry, name="look", version="1.0.0", *, grants=(), **how):
    registry.register(fake_tool(name, version=version).tool, grants=grants, **how)


def replay(registry, *changes):
    for what in changes:
        registry.apply(registry.stored + 1, what)


def reason(registry, name="look", **how):
    found = registry.resolve(name, tenant="acme", run_id="run_1", **how)
    return found.reason if isinstance(found, Refusal) else None


# --- replaying ------------------------------------------------------------------------------------


def test_kill_has_the_same_id_wherever_it_is_replayed():
    here, there = new_registry(), new_registry()
    register(here)
    here.kill(reason="only here")
    for registry in (here, there):
        replay(registry, disable(), kill("look"), kill(effect="draft"))
    stored = [one.id for one in here.kills if one.by]
    assert stored == [one.id for one in there.kills] == ["kill_2", "kill_3"]
    assert here.kills[1] == there.kills[0]


def test_replayed_kill_stops_and_a_replayed_restore_undoes_that_kill_only():
    registry = new_registry()
    register(registry)
    replay(registry, kill("look"), kill())
    assert reason(registry) is Reason.KILLED
    replay(registry, change("restore", kill="kill_1"))
    assert reason(registry) is Reason.KILLED, "the other one covers it"
    replay(registry, change("restore", kill="kill_2"))
    assert reason(registry) is None
    replay(registry, change("restore", kill="kill_2"), change("restore", kill="kill_99"))
    assert registry.stored == 6


def test_change_waits_for_its_tool_and_its_version():
    registry = new_registry()
    replay(registry, disable("look", "2.0"), rollout(0, version="1.0.0"), give())
    register(registry)
    assert reason(registry) is Reason.NOT_ROLLED_OUT
    register(registry, version="2.0.0")
    assert not registry.get("look", "2.0.0").enabled, "2.0 and 2.0.0 are one version"
    register(registry, version="3.0.0")
    found = registry.resolve("look", tenant="acme", run_id="run_1")
    assert found.version == "3.0.0"
    assert registry.authorize(found, BOT) == LOOK


def test_number_that_was_replayed_changes_nothing_and_a_gap_is_refused():
    registry = new_registry()
    register(registry)
    replay(registry, disable())
    epoch = registry.epoch
    registry.apply(1, enable())
    assert (registry.stored, registry.epoch, reason(registry)) == (1, epoch, Reason.DISABLED)
    with pytest.raises(RegistryError, match="change 3 arrived before change 2"):
        registry.apply(3, enable())
    assert registry.stored == 1


def test_every_stored_change_raises_the_epoch():
    registry = new_registry()
    for number, what in enumerate((kill(), disable("nowhere"), take()), 1):
        replay(registry, what)
        assert (registry.epoch, registry.stored) == (number, number)


@pytest.mark.parametrize(
    "what",
    [
        change("quarantine", tool="look"),
        {"op": "kill"},
        {},
        kill(effect="drafts"),
        kill("look", "draft"),
        rollout(101),
        rollout("5"),
        rollout(5, version=None),
        deprecate(None, version=None),
        {**disable(), "at": "yesterday"},
        {**give(), "grant": {"agent": "bot"}},
        change("deprecate", tool="look", version="1", deprecation={"removal_at": "2026-01-01"}),
    ],
)
def test_change_that_can_not_be_understood_stops_the_worker_where_it_is(what):
    registry = new_registry()
    register(registry)
    before = registry.export()
    with pytest.raises(StoreError, match="change 1 of the registry is not valid"):
        registry.apply(1, what)
    assert registry.export() == before


def test_registry_does_not_share_what_it_was_given():
    registry, what = new_registry(), disable()
    replay(registry, what)
    what["tool"] = "other"
    register(registry)
    assert reason(registry) is Reason.DISABLED
    assert registry.changes[0].export() == {"number": 1, **disable()}


TOOLS = [("look", "1.0.0"), ("look", "2.0.0"), ("other", "1.0.0"), ("nowhere", "1.0.0")]
DEPRECATIONS = [None, Deprecation(removal_at=START), Deprecation(replacement_tool="other")]
names = st.sampled_from(["look", "other", "nowhere"])
one = st.sampled_from(TOOLS)
grants = st.sampled_from([LOOK, NARROW, OTHER, Grant(agent="bot", tool="nowhere")])
changes = st.one_of(
    st.builds(kill, names),
    st.builds(kill, effect=st.sampled_from(["read_only", "draft"])),
    st.builds(lambda number: change("restore", kill=f"kill_{number}"), st.integers(1, 8)),
    st.builds(lambda at: enable(*at), one),
    st.builds(lambda at: disable(*at), one),
    st.builds(enable, names, versions=st.sampled_from([(), ("1.0.0",), ("1.0.0", "2.0.0")])),
    st.builds(disable, names),
    st.builds(give, grants, st.sampled_from([(), ("1.0.0",)])),
    st.builds(take, grants),
    st.builds(lambda share, at: rollout(share, *at), st.integers(0, 100), one),
    st.builds(lambda end, at: deprecate(end, *at), st.sampled_from(DEPRECATIONS), one),
)
# What code declares: each step registers one more tool, some with grants, some disabled.
DECLARED = [
    {"grants": [LOOK, NARROW]},
    {"version": "2.0.0", "enabled": False},
    {"name": "other", "grants": [OTHER, LOOK], "rollout_percentage": 30},
]


def shape(registry):
    """Everything that a caller could notice."""
    exported = registry.export()
    exported["grants"].sort(key=lambda grant: (grant["agent"], grant["tool"]))
    del exported["epoch"]
    records = registry.records
    allowed = [registry.authorize(record, BOT) for record in records]
    return exported, allowed, [reason(registry, name) for name in ("look", "other")]


@pytest.mark.slow
@given(st.lists(changes, max_size=8), st.lists(st.integers(0, 8), min_size=3, max_size=3))
@settings(max_examples=50)
def test_it_does_not_matter_when_a_worker_registers_its_tools(stored, moments):
    first, between = new_registry(), new_registry()
    for how in DECLARED:
        register(first, **how)
    replay(first, *stored)
    waiting = sorted(zip(sorted(moments), range(3), strict=True))
    for number, what in enumerate(stored, 1):
        while waiting and waiting[0][0] < number:
            register(between, **DECLARED[waiting.pop(0)[1]])
        between.apply(number, what)
        between.apply(number, kill())  # the number counts, not what comes with it
    for _, index in waiting:
        register(between, **DECLARED[index])
    assert shape(between) == shape(first)


# --- what an operator changed wins ----------------------------------------------------------------


def test_disabling_a_tool_reaches_later_versions_and_enabling_leaves_them_to_code():
    registry = new_registry()
    register(registry)
    replay(registry, disable())
    register(registry, version="2.0.0")
    assert reason(registry) is Reason.DISABLED
    replay(registry, enable(versions=["1.0.0"]))
    assert [one.enabled for one in registry.versions("look")] == [True, True]
    register(registry, version="3.0.0", enabled=False)
    assert [one.enabled for one in registry.versions("look")] == [False, True, True]


def test_grant_that_was_taken_back_stays_so_when_code_declares_it_again():
    registry = new_registry()
    replay(registry, take())
    register(registry, grants=[LOOK])
    assert registry.grants == ()
    replay(registry, give())
    assert registry.grants == (LOOK,)


def test_operators_grant_is_weighed_before_those_that_code_declares():
    registry = new_registry()
    register(registry, grants=[LOOK])
    replay(registry, give(NARROW))
    assert registry.grants_of("bot", "look") == (NARROW, LOOK)
    assert registry.authorize(registry.get("look", "1.0.0"), BOT) == NARROW


def test_replayed_grant_leaves_out_what_was_deprecated_when_it_was_given():
    registry = new_registry()
    register(registry)
    register(registry, version="2.0.0")
    replay(registry, give(without=["1.0.0"]))
    allowed = [registry.authorize(record, BOT) for record in registry.versions("look")]
    assert allowed[0] == LOOK
    assert allowed[1].reason is Reason.NO_GRANT


def test_deprecation_is_replayed_as_it_was_given():
    registry = new_registry()
    register(registry)
    end = Deprecation(
        deprecated_at=START,
        removal_at=START + timedelta(days=1),
        replacement_tool="other",
        reason="slow",
    )
    replay(registry, deprecate(end))
    assert registry.get("look", "1.0.0").deprecation == end
    replay(registry, deprecate(None))
    assert registry.get("look", "1.0.0").deprecation is None


# --- what makes no sense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (kill("loook"), RegistryError, "did you mean look"),
        (kill(effect="drafts"), RegistryError, "effect: 'drafts' is not one of"),
        (change("restore", kill="kill_1"), RegistryError, "kill_1 is not in force; in force: none"),
        (disable("look", "9"), RegistryError, "look has no version '9'; registered: 1.0.0"),
        (rollout(101), RegistryError, "rollout_percentage: must be 0 to 100"),
        (rollout(5, "loook"), RegistryError, "did you mean look"),
        (give(LOOK), GrantError, "already has this grant"),
        (give(Grant(agent="bot", tool="loook")), GrantError, "the tool is not registered"),
        (take(NARROW), GrantError, "has no such grant"),
    ],
)
def test_change_that_makes_no_sense_here_is_found_before_it_is_stored(what, error, message):
    registry = new_registry()
    register(registry, grants=[LOOK])
    with pytest.raises(error, match=message):
        registry.check(what)


def test_kill_that_was_never_stored_is_not_undone_in_the_store():
    registry = new_registry()
    here = registry.kill(reason="only here")
    with pytest.raises(RegistryError, match="holds in this process only"):
        registry.check(change("restore", kill=here.id))


# --- drift ----------------------------------------------------------------------------------------


def drift(registry, version="1.0.0"):
    rows = registry.export()["records"]
    (found,) = (row["drift"] for row in rows if row["version"] == version)
    assert json.loads(json.dumps(found)) == found
    return {row["field"]: row for row in found}


def test_drift_shows_what_differs_from_code_who_changed_it_and_why():
    registry = new_registry()
    register(registry, grants=[LOOK], rollout_percentage=20)
    assert drift(registry) == {}
    replay(registry, disable(), rollout(50), rollout(70), take(), deprecate(Deprecation()))
    found = drift(registry)
    assert found["enabled"] == {
        "field": "enabled",
        "declared": True,
        "stored": False,
        "by": "u_1",
        "reason": "leak",
        "number": 1,
    }
    changed = found["rollout_percentage"]
    assert (changed["declared"], changed["stored"], changed["number"]) == (20, 70, 3)
    assert (found["grants"]["declared"], found["grants"]["stored"]) == (LOOK.export(), None)
    assert found["deprecation"]["declared"] is None
    assert found["deprecation"]["stored"]["removal_at"] is None
    assert set(found) == {"enabled", "rollout_percentage", "grants", "deprecation"}


def test_what_agrees_with_code_again_is_no_drift():
    registry = new_registry()
    register(registry, grants=[LOOK])
    replay(registry, disable(), enable(), rollout(10), rollout(100), take(), give())
    assert drift(registry) == {}


def test_drift_of_one_version_is_not_that_of_another():
    registry = new_registry()
    register(registry)
    register(registry, version="2.0.0")
    replay(registry, disable("look", "1.0.0"), give(Grant(agent="bot", tool="look", version="<2")))
    assert set(drift(registry)) == {"enabled", "grants"}
    assert drift(registry, "2.0.0") == {}
