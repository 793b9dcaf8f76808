import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.contract import diff as room
from counterseal.contract.diff import Compatibility, ContractChange, diff
from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.invariants import Invariant
from counterseal.contract.model import Contract

COMPATIBLE = Compatibility.COMPATIBLE
BREAKING = Compatibility.BREAKING
GOVERNANCE = Compatibility.GOVERNANCE_REVIEW
OPERATIONAL = Compatibility.OPERATIONAL_REVIEW

BASE = {
    "effect": "internal_mutation",
    "identity": {"name": "update_case", "version": "1.0.0", "owner": "cases"},
    "affordance": {
        "model_description": "Update a case.",
        "input_schema": {
            "type": "object",
            "properties": {
                "case_id": {"type": "string", "maxLength": 20, "description": "The case."},
                "status": {"enum": ["open", "closed"], "description": "Its new status."},
                "note": {"type": "string", "maxLength": 500, "description": "Why."},
            },
            "required": ["case_id", "status"],
            "additionalProperties": False,
        },
        "output_schema": {
            "type": "object",
            "properties": {"version": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["version"],
            "additionalProperties": False,
        },
        "examples": [
            {"description": "Close it.", "arguments": {"case_id": "1", "status": "closed"}}
        ],
    },
    "usage": "When a case changes.",
    "runtime": {"timeout_ms": 5000},
    "security": {"required_scopes": ["case:write"]},
    "invariants": [
        {"id": "short", "rule": "Notes are short.", "check": "size(call.note) < 100"},
        {"id": "known", "rule": "Cases are known.", "check": "call.case_id != ''"},
    ],
    "config_params": [{"key": "region", "default": "eu"}],
    "state_reads": [{"key": "case"}],
    "state_effects": [{"key": "last_case"}],
}


def changed(**paths):
    """BASE with values at dotted places (written with `__`) replaced; `...` takes a key out."""
    data = copy.deepcopy(BASE)
    for path, value in paths.items():
        place = data
        *way, last = path.split("__")
        for step in way:
            place = place.setdefault(step, {}) if isinstance(place, dict) else place[int(step)]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return data


def between(old, new):
    return diff(Contract.model_validate(old), Contract.model_validate(new))


def kinds(*changes):
    return [change.kind for change in changes]


IN = "affordance__input_schema__properties__"
OUT = "affordance__output_schema__"


@pytest.mark.parametrize(
    ("paths", "expected", "pointer"),
    [
        (
            {f"{IN}reason": {"type": "string", "maxLength": 9, "description": "R."}},
            [COMPATIBLE],
            "/affordance/input_schema/properties/reason",
        ),
        ({f"{IN}note": ...}, [BREAKING], "/affordance/input_schema/properties/note"),
        (
            {f"{IN}note__type": "integer", f"{IN}note__maxLength": 500},
            [BREAKING],
            "/affordance/input_schema/properties/note/type",
        ),
        ({f"{IN}note__maxLength": 400}, [BREAKING], None),
        ({f"{IN}note__maxLength": 600}, [COMPATIBLE], None),
        ({f"{IN}status__enum": ["open"]}, [BREAKING], None),
        ({f"{IN}status__enum": ["open", "closed", "lost"]}, [COMPATIBLE], None),
        ({f"{IN}note__description": "Your reason."}, [COMPATIBLE], None),
        ({f"{IN}note__default": "none"}, [BREAKING], None),
        ({"affordance__input_schema__required": ["case_id"]}, [COMPATIBLE], None),
        ({f"{OUT}properties__note": ...}, [BREAKING], None),
        ({f"{OUT}properties__note__type": "integer"}, [BREAKING], None),
        ({f"{OUT}properties__size": {"type": "integer"}}, [COMPATIBLE], None),
        ({f"{OUT}required": []}, [BREAKING], None),
        ({"affordance__model_description": "Change a case."}, [COMPATIBLE], None),
        ({"affordance__examples": []}, [COMPATIBLE], "/affordance/examples"),
        ({"affordance__forbidden_use_cases": ["Refunds"]}, [COMPATIBLE], None),
        ({"usage": "Whenever a case changes."}, [COMPATIBLE], "/usage"),
        ({"identity__version": "1.0.1"}, [COMPATIBLE], "/identity/version"),
        ({"identity__name": "change_case"}, [BREAKING], "/identity/name"),
        ({"identity__owner": "others"}, [GOVERNANCE], None),
        ({"identity__lifecycle": {"status": "deprecated"}}, [OPERATIONAL], None),
        ({"security__required_scopes": []}, [GOVERNANCE], "/security/required_scopes"),
        ({"security__data_classification": "secret"}, [GOVERNANCE], None),
        ({"security__egress_policy": "allowlisted_domains"}, [GOVERNANCE], None),
        ({"security__secrets_boundary": "execution_sandbox"}, [GOVERNANCE], None),
        ({"secrets": ["key"], "security__secrets_boundary": "none"}, [GOVERNANCE], "/secrets"),
        ({"runtime__timeout_ms": 9000}, [OPERATIONAL], "/runtime/timeout_ms"),
        ({"runtime__max_retries": 3}, [OPERATIONAL], None),
        ({"runtime__rate_limits": {"max_requests": 5}}, [OPERATIONAL], None),
        ({"budget": 3}, [OPERATIONAL], None),
        ({"max_output_bytes": 1000}, [OPERATIONAL], None),
        ({"keep_reads": "all"}, [GOVERNANCE], "/keep_reads"),
        ({"approvers": 1}, [OPERATIONAL] * 3, None),
        ({"transactional__confirmation_required": True}, [OPERATIONAL] * 3, None),
        ({"transactional__post_action_verification_required": False}, [GOVERNANCE], None),
        ({"idempotency__required": False}, [GOVERNANCE], None),
        ({"idempotency__ttl_seconds": 60}, [GOVERNANCE], None),
        ({"idempotency__ttl_seconds": 99_999}, [OPERATIONAL], None),
        ({"observability__audit_required": False}, [GOVERNANCE], None),
        ({"transactional__semantics": "irreversible_pivot"}, [GOVERNANCE, BREAKING], None),
        ({"transactional__semantics": "saga_step"}, [GOVERNANCE], None),
        ({"exposed": False}, [BREAKING], None),
        ({"business_key": ["case_id"]}, [BREAKING], None),
        ({"expected": {"status": "{status}"}}, [GOVERNANCE], "/expected"),
        ({"verify_after": 60}, [OPERATIONAL], "/verify_after"),
        ({"compensation": {"case_id": "{case_id}"}}, [GOVERNANCE], "/compensation"),
        ({"on_unknown": "retry_same_key"}, [OPERATIONAL, GOVERNANCE], None),
        ({"invariants__1__rule": "Known cases only."}, [COMPATIBLE], "/invariants/1/rule"),
        ({"invariants__1__check": "true"}, [BREAKING], "/invariants/1/check"),
        ({"invariants__1__correct": "drop_step"}, [GOVERNANCE], "/invariants/1/correct"),
        (
            {"invariants__1__otherwise": "require_approval"},
            [GOVERNANCE, GOVERNANCE],
            "/invariants/1/otherwise",
        ),
        ({"invariants__1__id": "familiar"}, [GOVERNANCE, BREAKING], "/invariants/1"),
        ({"invariants": BASE["invariants"][:1]}, [GOVERNANCE], "/invariants/1"),
        ({"invariants": BASE["invariants"][::-1]}, [OPERATIONAL], "/invariants"),
        ({"config_params": [{"key": "region", "default": "us"}]}, [OPERATIONAL], None),
        ({"state_effects": []}, [BREAKING], "/state_effects/0"),
        ({"state_reads": [{"key": "case"}, {"key": "user"}]}, [GOVERNANCE], "/state_reads/1"),
    ],
)
def test_change_is_judged_by_what_it_touches(paths, expected, pointer):
    changes = between(BASE, changed(**paths))
    assert kinds(*changes) == expected
    if pointer is not None:
        assert changes[0].pointer == pointer
    assert all(change.message for change in changes)


def test_required_input_breaks_callers():
    data = changed(**{f"{IN}reason": {"type": "string", "description": "R."}})
    data["affordance"]["input_schema"]["required"].append("reason")
    (change,) = between(BASE, data)
    assert change == ContractChange(
        pointer="/affordance/input_schema/properties/reason",
        kind=BREAKING,
        message="input reason was added, and is required",
    )


@given(st.sampled_from(Effect), st.sampled_from(Effect))
def test_rise_of_effect_is_for_governance_and_breaks(before, after):
    changes = [
        change
        for change in between(changed(effect=before), changed(effect=after))
        if change.pointer == "/effect"
    ]
    reading = [Effect.READ_ONLY, Effect.RETRIEVE, Effect.COMPUTE]
    order = [reading, *([effect] for effect in Effect if effect not in reading)]
    rises = next(i for i, group in enumerate(order) if after in group) > next(
        i for i, group in enumerate(order) if before in group
    )
    if before is after:
        assert changes == []
    else:
        assert kinds(*changes) == [GOVERNANCE, *([BREAKING] if rises else [])]


@given(st.sampled_from(RiskClass), st.sampled_from(RiskClass))
def test_rise_of_risk_is_for_governance_and_breaks(before, after):
    place = "transactional__side_effect_class"
    found = between(changed(**{place: before}), changed(**{place: after}))
    changes = [change for change in found if change.pointer.endswith("side_effect_class")]
    if before is after:
        assert changes == []
    else:
        assert kinds(*changes) == [GOVERNANCE, *([BREAKING] if after > before else [])]


def test_undeclared_effect_counts_as_the_worst():
    changes = between(changed(effect=...), changed(effect="draft"))
    assert BREAKING not in [change.kind for change in changes if change.pointer == "/effect"]


def test_code_is_compared_by_its_name():
    def first(call, state, config):
        return True

    def second(call, state, config):
        return True

    def using(check):
        rule = Invariant(id="short", rule="Notes are short.", check=check)
        return Contract.model_validate({**BASE, "invariants": [rule]})

    assert diff(using(first), using(first)) == ()
    assert kinds(*diff(using(first), using(second))) == [BREAKING]


def test_items_that_share_an_id_are_still_compared():
    twice = changed(invariants=[BASE["invariants"][0]] * 2)
    assert BREAKING in kinds(*between(BASE, twice))
    assert between(twice, twice) == ()


# --- nothing changes unseen -----------------------------------------------------------------------


def places(value, path=()):
    """Every place of a record down to where a rule takes over."""
    if isinstance(value, dict) and ".".join(path) not in room._RULES:
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    else:
        yield path


def test_every_field_of_a_contract_has_a_rule():
    record = Contract.model_validate(BASE).record()
    assert {".".join(path) for path in places(record)} == set(room._RULES)


texts = st.sampled_from(["", "a", "b"])
schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(
            texts, st.fixed_dictionaries({"default": st.sampled_from([True, 1, 1.0, "1", None])})
        ),
        "required": st.lists(texts, max_size=2),
        "title": texts,
    },
)
contracts = st.fixed_dictionaries(
    {
        "identity": st.fixed_dictionaries({"name": texts}, optional={"version": texts}),
        "affordance": st.fixed_dictionaries(
            {"model_description": texts, "input_schema": schemas},
            optional={"output_schema": schemas, "allowed_use_cases": st.lists(texts, max_size=2)},
        ),
    },
    optional={
        "effect": st.sampled_from(Effect),
        "usage": texts,
        "exposed": st.booleans(),
        "approvers": st.integers(0, 2),
        "budget": st.integers(0, 2),
        "secrets": st.lists(texts, max_size=2),
        "resource": texts,
        "probe": texts,
        "repeatable": st.booleans(),
        "business_key": st.lists(texts, max_size=2),
        "config_params": st.lists(
            st.fixed_dictionaries(
                {"key": st.sampled_from("ab"), "default": st.sampled_from([True, 1, 1.0, 0, None])}
            ),
            max_size=2,
        ),
        "state_reads": st.lists(st.fixed_dictionaries({"key": st.sampled_from("ab")}), max_size=3),
        "runtime": st.fixed_dictionaries({}, optional={"timeout_ms": st.integers(1, 2)}),
        "transactional": st.fixed_dictionaries(
            {}, optional={"side_effect_class": st.sampled_from(RiskClass)}
        ),
        "idempotency": st.fixed_dictionaries(
            {}, optional={"ttl_seconds": st.sampled_from([1, 2, None])}
        ),
    },
).map(Contract.model_validate)


@pytest.mark.slow
@given(contracts, contracts)
@settings(max_examples=200, deadline=None)
def test_contracts_without_a_difference_are_those_of_equal_hash(old, new):
    assert (diff(old, new) == ()) is (old.hash == new.hash)
    assert diff(old, old) == ()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_change_of_any_field_is_seen_at_that_field(data):
    fields = {
        "identity.owner": st.text(max_size=5),
        "usage": st.text(max_size=5),
        "consequence": st.none() | st.text(max_size=5),
        "trust": st.sampled_from(["trusted", "untrusted"]),
        "isolation": st.sampled_from(["auto", "thread", "process"]),
        "runtime.cost_profile.cost_per_call": st.floats(0, 10),
        "runtime.rate_limits.window_sec": st.integers(1, 9),
        "observability.trace_attributes": st.lists(st.text(max_size=3), max_size=2),
        "error_contract.retryable_errors": st.lists(st.text(max_size=3), max_size=2),
    }
    name = data.draw(st.sampled_from(sorted(fields)))
    one, other = data.draw(fields[name]), data.draw(fields[name])
    changes = between(
        changed(**{name.replace(".", "__"): one}), changed(**{name.replace(".", "__"): other})
    )
    assert len(changes) == (one != other)
    assert all(f"/{name.replace('.', '/')}".startswith(change.pointer) for change in changes)


TERMS = {"pattern": "operator_review", "roles": ["lead"], "expires_seconds": 600}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"pattern": "dual_control"}, OPERATIONAL),
        ({"pattern": "review_queue"}, GOVERNANCE),
        ({"expires_seconds": 60}, OPERATIONAL),
        ({"expires_seconds": 6000}, GOVERNANCE),
        ({"then": "resubmit"}, OPERATIONAL),
        ({"justification_required": True}, OPERATIONAL),
        ({"roles": ["lead", "clerk"]}, GOVERNANCE),
        ({"accountable_owner": "dpo"}, GOVERNANCE),
    ],
)
def test_stricter_terms_of_approval_slow_down_and_others_are_reviewed(change, kind):
    stated = {"approvers": 2, "transactional__confirmation_required": True}
    old = changed(**stated, approval=TERMS)
    (found,) = between(old, changed(**stated, approval={**TERMS, **change}))
    assert (found.kind, found.pointer) == (kind, f"/approval/{next(iter(change))}")
    if kind is OPERATIONAL:
        (back,) = between(changed(**stated, approval={**TERMS, **change}), old)
        assert back.kind is GOVERNANCE


def test_terms_of_approval_that_are_taken_away_are_reviewed():
    (*_, found) = [
        change
        for change in between(changed(approvers=1), changed(approvers=0))
        if change.pointer == "/approval"
    ]
    assert found.kind is GOVERNANCE
