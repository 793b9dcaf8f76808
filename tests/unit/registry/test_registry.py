import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import RegistryError
from counterseal.proposal import Principal
from counterseal.registry import Deprecation, Grant, Reason, Refusal, Registry, RegistryRecord
from counterseal.registry.selection import bucket

START = datetime(2026, 3, 1, tzinfo=UTC)
RUNS = [f"run_{number}" for number in range(400)]
percentages = st.integers(0, 100)


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


def contract(name="read_case", version="1.0.0", effect="read_only", **more):
    return Contract.model_validate(
        {
            "effect": effect,
            "identity": {"name": name, "version": version, "owner": "cases"},
            "affordance": {
                "model_description": f"What {name} does.",
                "input_schema": {"type": "object", "additionalProperties": False},
            },
            "usage": "When a case is to be looked at.",
            **more,
        }
    )


def registry_with(*contracts, clock=None, **settings):
    registry = Registry(clock=clock or Clock())
    registry.register(*contracts, **settings)
    return registry


def resolve(registry, name="read_case", tenant="acme", run_id="run_1", **how):
    return registry.resolve(name, tenant=tenant, run_id=run_id, **how)


def reason(answer):
    assert isinstance(answer, Refusal), answer
    return answer.reason


def two_versions(old=100, new=100, clock=None):
    registry = registry_with(contract(), clock=clock, rollout_percentage=old)
    registry.register(contract(version="2.0.0"), rollout_percentage=new)
    return registry


# --- finding a version ----------------------------------------------------------------------------


def test_newest_version_is_found_by_order_not_by_spelling():
    registry = registry_with(*(contract(version=v) for v in ("1.9.0", "1.10.0", "1.10.0rc1")))
    assert resolve(registry).version == "1.10.0"
    assert [record.version for record in registry.versions("read_case")] == [
        "1.10.0",
        "1.10.0rc1",
        "1.9.0",
    ]


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 3), unique=True, min_size=1, max_size=8))
@settings(max_examples=30)
def test_order_of_registration_does_not_matter(numbers):
    registry = registry_with(*(contract(version=".".join(map(str, number))) for number in numbers))
    assert resolve(registry).version == ".".join(map(str, max(numbers)))


@pytest.mark.parametrize("spelling", ["1.0.0", "1.0", "v1"])
def test_exact_version_wins_over_rollout_and_pin(spelling):
    registry = two_versions()
    pins = {"read_case": "2.0.0"}
    assert resolve(registry, version=spelling, pins=pins).version == "1.0.0"
    assert pins == {"read_case": "2.0.0"}


def test_exact_version_reaches_what_is_not_rolled_out():
    registry = two_versions(new=0)
    assert resolve(registry).version == "1.0.0"
    assert resolve(registry, version="2.0.0").version == "2.0.0"


@pytest.mark.parametrize("version", ["3.0.0", "", "latest", "1" * 5000, "1.0.0; drop", "\ud800"])
def test_version_that_does_not_exist_is_refused(version):
    refusal = resolve(two_versions(), version=version)
    assert refusal.reason is Reason.VERSION_UNKNOWN
    assert len(refusal.message) < 1000
    assert refusal.message.isascii()


def test_tool_of_another_tenant_can_not_be_told_from_no_tool():
    here = registry_with(contract(), allowed_tenants=["beta"])
    nowhere = registry_with(contract("list_cases"))
    for how in ({}, {"version": "1.0.0"}, {"version": "9"}, {"pins": {"read_case": "1.0.0"}}):
        hidden, missing = resolve(here, **how), resolve(nowhere, **how)
        assert (hidden.reason, missing.reason) == (Reason.OTHER_TENANT, Reason.UNKNOWN)
        assert hidden.message == missing.message
    here.kill(reason="test")
    here.disable("read_case", reason="test")
    assert resolve(here).reason is Reason.OTHER_TENANT
    assert resolve(here, tenant="beta").reason is not Reason.OTHER_TENANT


def test_version_of_another_tenant_can_not_be_told_from_no_version():
    registry = registry_with(contract())
    registry.register(contract(version="2.0.0"), allowed_tenants=["beta"])
    assert resolve(registry).version == "1.0.0"
    assert resolve(registry, tenant="beta").version == "2.0.0"
    hidden, missing = resolve(registry, version="2.0.0"), resolve(registry, version="3.0.0")
    assert hidden.reason is missing.reason is Reason.VERSION_UNKNOWN
    assert hidden.message == missing.message.replace("3.0.0", "2.0.0")


# --- rollout --------------------------------------------------------------------------------------


@given(percentages, percentages, st.text(max_size=20))
def test_raising_a_rollout_never_takes_the_new_version_from_a_run(one, other, run_id):
    low, high = sorted((one, other))
    registry = two_versions(new=low)
    before = resolve(registry, run_id=run_id).version
    registry.set_rollout("read_case", "2.0.0", high)
    after = resolve(registry, run_id=run_id).version
    assert (before, after) != ("2.0.0", "1.0.0")


@given(percentages)
@settings(max_examples=25)
def test_rollout_reaches_about_the_share_that_it_names(percentage):
    registry = two_versions(new=percentage)
    reached = sum(resolve(registry, run_id=run).version == "2.0.0" for run in RUNS)
    share = 100 * reached / len(RUNS)
    assert abs(share - percentage) <= 12
    assert percentage not in (0, 100) or share == percentage


def test_tools_are_rolled_out_to_different_runs():
    places = Counter((bucket("a", run) < 50, bucket("b", run) < 50) for run in RUNS)
    assert min(places.values()) > len(RUNS) / 8


def test_place_of_a_run_stays_the_same_for_ever():
    # Known values: were they to change, running rollouts would be dealt out anew.
    assert [bucket("read_case", run) for run in ("run_1", "run_2", "run_3")] == [83, 65, 71]
    assert 0 <= bucket("\ud800", "\udfff") < 100


def test_run_that_no_rollout_reaches_is_told_so():
    registry = registry_with(contract(), rollout_percentage=0)
    assert reason(resolve(registry)) is Reason.NOT_ROLLED_OUT


def test_rollout_falls_to_the_next_older_live_version():
    registry = two_versions()
    registry.disable("read_case", "2.0.0", reason="wrong totals")
    assert resolve(registry).version == "1.0.0"
    registry.disable("read_case", "1.0.0", reason="wrong totals")
    assert reason(resolve(registry)) is Reason.DISABLED
    registry.enable("read_case", reason="mended")
    assert resolve(registry).version == "2.0.0"


def test_rollout_passes_over_versions_outside_the_agents_grants():
    registry = two_versions()
    registry.grant(Grant(agent="bot", tool="read_case", version="<2"))
    assert resolve(registry, agent="bot").version == "1.0.0"
    assert resolve(registry, agent="stranger").version == "2.0.0"
    assert resolve(registry).version == "2.0.0"


@pytest.mark.parametrize("percentage", [-1, 101, 5.5, "5", None])
def test_rollout_outside_its_range_changes_nothing(percentage):
    registry = two_versions()
    epoch = registry.epoch
    with pytest.raises(RegistryError, match="rollout_percentage"):
        registry.set_rollout("read_case", "2.0.0", percentage)
    assert registry.epoch == epoch
    assert resolve(registry).version == "2.0.0"


# --- pins -----------------------------------------------------------------------------------------


@given(percentages, percentages, percentages, st.sampled_from(RUNS))
def test_run_keeps_its_version_when_rollout_moves(old, before, after, run_id):
    registry, pins = two_versions(old=old, new=before), {}
    first = resolve(registry, run_id=run_id, pins=pins)
    registry.set_rollout("read_case", "2.0.0", after)
    registry.register(contract(version="3.0.0"))
    second = resolve(registry, run_id=run_id, pins=pins)
    if isinstance(first, Refusal):
        assert first.reason is Reason.NOT_ROLLED_OUT
        assert second.version == "3.0.0"
    else:
        assert second.version == first.version
    assert pins == {"read_case": second.version}


def test_run_that_is_pinned_to_a_superseded_version_is_told_to_begin_anew():
    registry = two_versions()
    registry.supersede("read_case", "1.0.0", by="2.0.0")
    pinned = resolve(registry, pins={"read_case": "1.0.0"})
    assert pinned.reason is Reason.DISABLED
    assert "start a new run" in pinned.message
    assert resolve(registry, pins={}).version == "2.0.0"


def test_exact_version_pins_on_the_first_use_of_every_run():
    registry = two_versions()
    for _ in range(3):
        pins = {}
        resolve(registry, version="1.0.0", pins=pins)
        assert pins == {"read_case": "1.0.0"}
        assert resolve(registry, pins=pins).version == "1.0.0"


def test_pinned_version_that_is_gone_is_refused_not_moved():
    clock = Clock()
    registry, pins = two_versions(clock=clock), {"read_case": "1.0.0"}
    registry.disable("read_case", "1.0.0", reason="wrong totals")
    assert reason(resolve(registry, pins=pins)) is Reason.DISABLED
    registry.enable("read_case", "1.0.0", reason="mended")
    kill = registry.kill(tool="read_case", reason="leak")
    assert reason(resolve(registry, pins=pins)) is Reason.KILLED
    registry.restore(kill)
    registry.deprecate("read_case", "1.0.0", Deprecation(removal_at=START + timedelta(days=1)))
    assert resolve(registry, pins=pins).version == "1.0.0"
    clock.now += timedelta(days=1)
    assert reason(resolve(registry, pins=pins)) is Reason.SUNSET
    assert reason(resolve(registry, pins={"read_case": "0.1"})) is Reason.VERSION_UNKNOWN
    assert pins == {"read_case": "1.0.0"}


def test_what_was_found_before_is_forgotten_with_every_change():
    registry = two_versions()
    pins, grant = {"read_case": "1.0.0"}, Grant(agent="bot", tool="read_case")
    registry.grant(grant)

    def state():
        record = resolve(registry, pins=pins)
        if isinstance(record, Refusal):
            return record.reason
        found = registry.authorize(record, BOT)
        return found.reason if isinstance(found, Refusal) else "used"

    assert [state(), state()] == ["used", "used"]
    kill = registry.kill(effect="read_only", reason="leak")
    assert state() is Reason.KILLED
    registry.restore(kill)
    assert state() == "used"
    registry.disable("read_case", "1.0.0", reason="wrong totals")
    assert state() is Reason.DISABLED
    registry.enable("read_case", "1.0.0", reason="mended")
    registry.revoke(grant)
    assert state() is Reason.NO_GRANT
    registry.grant(grant)
    registry.deprecate("read_case", "1.0.0", Deprecation(removal_at=START))
    assert state() is Reason.SUNSET


def test_use_is_counted_from_the_moment_of_deprecation_on():
    registry = two_versions()
    resolve(registry, version="1.0.0")
    registry.deprecate("read_case", "1.0.0", Deprecation())
    resolve(registry, version="1.0.0")
    resolve(registry, version="1.0.0")
    assert registry.deprecated_use == {("read_case", "1.0.0"): 2}


def test_refusal_pins_nothing():
    pins = {}
    resolve(registry_with(contract(), enabled=False), pins=pins)
    resolve(registry_with(contract()), name="nothing", pins=pins)
    assert pins == {}


# --- deprecation ----------------------------------------------------------------------------------


def test_use_of_a_deprecated_version_is_counted():
    clock = Clock()
    registry = two_versions(clock=clock)
    registry.deprecate("read_case", "1.0.0", Deprecation(deprecated_at=START + timedelta(days=1)))
    resolve(registry, version="1.0.0")
    assert not registry.deprecated_use
    clock.now += timedelta(days=1)
    resolve(registry, version="1.0.0")
    resolve(registry, version="1.0")
    resolve(registry)
    assert registry.deprecated_use == {("read_case", "1.0.0"): 2}


def test_sunset_refuses_from_its_first_moment_and_names_the_replacement():
    clock = Clock()
    registry = registry_with(contract(), clock=clock)
    registry.deprecate(
        "read_case",
        "1.0.0",
        Deprecation(removal_at=START + timedelta(hours=1), replacement_tool="read_file"),
    )
    assert isinstance(resolve(registry), RegistryRecord)
    clock.now += timedelta(hours=1)
    refusal = resolve(registry)
    assert refusal.reason is Reason.SUNSET
    assert "Use read_file." in refusal.message
    registry.deprecate("read_case", "1.0.0", None)
    assert isinstance(resolve(registry), RegistryRecord)


# --- kill switch ----------------------------------------------------------------------------------


def many():
    return registry_with(
        contract(),
        contract(version="2.0.0"),
        contract("draft_notice", effect="draft"),
        contract("send_notice", effect="external_notification"),
        # A tool may be called like an effect; a kill of one is not a kill of the other.
        contract("draft", effect="compute"),
    )


NAMES = ("read_case", "draft_notice", "send_notice", "draft")


def running(registry):
    return {name for name in NAMES if isinstance(resolve(registry, name), RegistryRecord)}


@pytest.mark.parametrize(
    ("aim", "stopped"),
    [
        ({"tool": "read_case"}, {"read_case"}),
        ({"tool": "draft"}, {"draft"}),
        ({"effect": "draft"}, {"draft_notice"}),
        ({"effect": Effect.EXTERNAL_NOTIFICATION}, {"send_notice"}),
        ({"effect": Effect.META}, set()),
        ({}, set(NAMES)),
    ],
)
def test_kill_stops_what_its_preview_showed_and_is_undone_in_one_step(aim, stopped):
    registry = many()
    previewed = registry.preview_kill(**aim)
    kill = registry.kill(**aim, reason="leak")
    assert {record.name for record in previewed} == stopped
    assert running(registry) == set(NAMES) - stopped
    assert registry.kills == (kill,)
    registry.restore(kill)
    assert running(registry) == set(NAMES)
    assert registry.kills == ()


aims = st.sampled_from(
    [{}, *({"tool": name} for name in NAMES), {"effect": "draft"}, {"effect": "read_only"}]
)


@pytest.mark.slow
@given(st.lists(aims, max_size=6), st.data())
@settings(max_examples=60)
def test_tool_is_stopped_while_any_kill_covers_it(wanted, data):
    registry = many()
    standing = [registry.kill(**aim, reason="leak") for aim in wanted]
    effects = {record.name: record.contract.effect for record in registry.records}
    while True:
        expected = {
            name
            for name in NAMES
            if not any(
                (kill.tool is None and kill.effect is None)
                or kill.tool == name
                or kill.effect is effects[name]
                for kill in standing
            )
        }
        assert running(registry) == expected
        if not standing:
            return
        kill = standing.pop(data.draw(st.integers(0, len(standing) - 1)))
        registry.restore(kill)


def test_preview_leaves_out_what_is_stopped_already():
    registry = many()
    registry.disable("read_case", "2.0.0", reason="wrong totals")
    registry.kill(tool="send_notice", reason="leak")
    shown = [(record.name, record.version) for record in registry.preview_kill()]
    assert shown == [("draft", "1.0.0"), ("draft_notice", "1.0.0"), ("read_case", "1.0.0")]


def test_killed_version_stops_its_runs_instead_of_sending_them_elsewhere():
    registry = registry_with(contract("note", effect="draft"))
    registry.register(contract("note", "2.0.0", effect="internal_mutation"))
    registry.kill(effect="internal_mutation", reason="leak")
    assert reason(resolve(registry, "note")) is Reason.KILLED
    assert resolve(registry, "note", version="1.0.0").version == "1.0.0"


def test_kill_reaches_what_is_registered_later():
    registry = many()
    registry.kill(effect="retrieve", reason="leak")
    registry.register(contract("search_cases", effect="retrieve"))
    assert reason(resolve(registry, "search_cases")) is Reason.KILLED


def test_kill_does_not_tell_callers_why():
    registry = many()
    registry.kill(tool="read_case", reason="credentials stolen")
    assert "stolen" not in resolve(registry).message


@pytest.mark.parametrize(
    ("aim", "message"),
    [
        ({"reason": " "}, "reason"),
        ({"reason": None}, "reason"),
        ({"reason": "leak", "tool": "read_cases"}, "did you mean read_case"),
        ({"reason": "leak", "effect": "drafts"}, "effect: 'drafts' is not one of"),
        ({"reason": "leak", "effect": "draft", "tool": "read_case"}, "not both"),
    ],
)
def test_kill_that_makes_no_sense_is_refused(aim, message):
    registry = many()
    epoch = registry.epoch
    with pytest.raises(RegistryError, match=message):
        registry.kill(**aim)
    assert (registry.kills, registry.epoch) == ((), epoch)


def test_kill_can_be_undone_once():
    registry = many()
    kill = registry.kill(reason="leak")
    registry.restore(kill)
    with pytest.raises(RegistryError, match="not in force"):
        registry.restore(kill)


# --- changes --------------------------------------------------------------------------------------


def test_every_change_raises_the_epoch_by_one():
    registry = Registry(clock=Clock())
    grant = Grant(agent="bot", tool="read_case")
    kills = []
    changes = [
        lambda: registry.register(contract(), contract(version="1.1.0"), grants=[grant]),
        lambda: registry.disable("read_case", reason="wrong totals"),
        lambda: registry.enable("read_case", "1.1.0", reason="mended"),
        lambda: registry.set_rollout("read_case", "1.1.0", 10),
        lambda: registry.deprecate("read_case", "1.0.0", Deprecation()),
        lambda: registry.revoke(grant),
        lambda: registry.grant(grant),
        lambda: kills.append(registry.kill(reason="leak")),
        lambda: registry.restore(kills[0]),
    ]
    for number, change in enumerate(changes, 1):
        change()
        assert registry.epoch == number


def test_change_of_nothing_does_not_raise_the_epoch():
    registry = two_versions()
    epoch = registry.epoch
    registry.set_rollout("read_case", "2.0.0", 100)
    registry.deprecate("read_case", "2.0.0", None)
    registry.revoke()
    resolve(registry, pins={})
    registry.catalogue(Principal(tenant="acme", agent="bot"), "run_1")
    assert registry.epoch == epoch


def test_unknown_names_are_refused_with_a_hint():
    registry = two_versions()
    with pytest.raises(RegistryError, match="did you mean read_case"):
        registry.disable("raed_case", reason="wrong totals")
    with pytest.raises(
        RegistryError, match=r"read_case has no version '3.0'; registered: 2.0.0, 1.0.0"
    ):
        registry.set_rollout("read_case", "3.0", 5)
    with pytest.raises(RegistryError, match="reason"):
        registry.disable("read_case", reason="")


def test_clock_must_know_its_time_zone():
    with pytest.raises(RegistryError, match="time zone"):
        Registry(clock=lambda: datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


# --- looking around -------------------------------------------------------------------------------

BOT = Principal(tenant="acme", agent="bot")


def test_catalogue_shows_what_may_be_used_and_nothing_else():
    registry = many()
    registry.register(contract("secret_case"), allowed_tenants=["beta"])
    registry.register(contract("audit_case"), allowed_agent_roles=["auditor"])
    for name in ("send_notice", "read_case", "draft", "secret_case", "audit_case"):
        registry.grant(Grant(agent="bot", tool=name))
    registry.grant(Grant(agent="bot", tool="draft_notice", mode="read"))
    registry.kill(tool="draft", reason="leak")
    shown = [(record.name, record.version) for record in registry.catalogue(BOT, "run_1")]
    assert shown == [("read_case", "2.0.0"), ("send_notice", "1.0.0")]
    assert registry.catalogue(Principal(tenant="acme", agent="stranger"), "run_1") == ()


def test_catalogue_follows_pins_and_grants_without_writing_or_counting():
    registry = two_versions()
    registry.grant(Grant(agent="bot", tool="read_case"))
    registry.deprecate("read_case", "1.0.0", Deprecation())
    pins = {"read_case": "1.0.0"}
    assert [one.version for one in registry.catalogue(BOT, "run_1", pins)] == ["1.0.0"]
    empty = {}
    assert [one.version for one in registry.catalogue(BOT, "run_1", empty)] == ["2.0.0"]
    assert (empty, registry.deprecated_use) == ({}, Counter())


@given(st.sampled_from(RUNS), percentages)
@settings(max_examples=40)
def test_catalogue_shows_the_version_that_resolve_gives(run_id, percentage):
    registry = two_versions(new=percentage)
    registry.grant(Grant(agent="bot", tool="read_case"))
    (shown,) = registry.catalogue(BOT, run_id)
    assert shown is resolve(registry, run_id=run_id, agent="bot")


def test_export_is_plain_json_and_says_how_each_record_stands():
    registry = many()
    registry.grant(Grant(agent="bot", tool="read_case", expires_at=START, scopes={"b", "a"}))
    registry.kill(tool="send_notice", reason="leak")
    registry.disable("draft", reason="wrong totals")
    registry.deprecate("read_case", "1.0.0", Deprecation(removal_at=START + timedelta(days=9)))
    resolve(registry, version="1.0.0")
    exported = registry.export()
    assert json.loads(json.dumps(exported)) == exported
    status = {(row["tool"], row["version"]): row["status"] for row in exported["records"]}
    assert status == {
        ("draft", "1.0.0"): "disabled",
        ("draft_notice", "1.0.0"): "active",
        ("read_case", "2.0.0"): "active",
        ("read_case", "1.0.0"): "deprecated",
        ("send_notice", "1.0.0"): "killed",
    }
    assert exported["grants"][0]["scopes"] == ["a", "b"]
    assert exported["kills"][0]["reason"] == "leak"
    assert exported["deprecated_use"] == [{"tool": "read_case", "version": "1.0.0", "count": 1}]


def test_a_new_grant_does_not_reach_back_to_a_version_that_was_deprecated_before():
    from counterseal.testing import fake_tool

    registry = Registry()
    registry.register(fake_tool("look", version="1.0.0").tool)
    registry.register(fake_tool("look", version="2.0.0").tool, rollout_percentage=0)
    old = Grant(agent="old", tool="look")
    registry.grant(old)
    registry.deprecate("look", "1.0.0", Deprecation(reason="slow"))
    registry.grant(Grant(agent="new", tool="look"))
    first = registry.get("look", "1.0.0")
    assert registry.authorize(first, Principal(tenant="acme", agent="old")) == old
    refused = registry.authorize(first, Principal(tenant="acme", agent="new"))
    assert isinstance(refused, Refusal)
    newer = registry.get("look", "2.0.0")
    assert registry.authorize(newer, Principal(tenant="acme", agent="new")).agent == "new"
