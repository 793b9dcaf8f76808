import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.contract import diff as room
from counterseal.contract.diff import Bump, Compatibility, ContractChange, diff
from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.invariants import Invariant
from counterseal.contract.model import Contract
from counterseal.contract.version_steps import bump_made, needed_bump, undecided, version_steps

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


IN = "affordance__input_schema__properties__"
OUT = "affordance__output_schema__"
RULE = {"id": "known", "rule": "Cases are known.", "check": "call.case_id != ''"}
REQUIRED = {
    f"{IN}reason": {"type": "string", "description": "R."},
    "affordance__input_schema__required": ["case_id", "status", "reason"],
}


ONE_CHANGE = [
    ("input-added", {f"{IN}reason": {"type": "string", "maxLength": 9, "description": "R."}}),
    ("input-removed", {f"{IN}note": ...}),
    ("input-type-changed", {f"{IN}note__type": "integer"}),
    ("input-type-widened", {f"{IN}note__type": ["string", "null"]}),
    ("input-bound-narrowed", {f"{IN}note__maxLength": 400}),
    ("input-bound-widened", {f"{IN}note__maxLength": 600}),
    ("input-bound-changed", {f"{IN}note__maxLength": "600"}),
    ("input-enum-narrowed", {f"{IN}status__enum": ["open"]}),
    ("input-enum-widened", {f"{IN}status__enum": ["open", "closed", "lost"]}),
    ("input-enum-changed", {f"{IN}status__enum": ["open", "lost"]}),
    ("input-narrowed", {f"{IN}note__pattern": "^a"}),
    ("input-changed", {f"{IN}note__if": {"minLength": 2}}),
    ("input-reworded", {f"{IN}note__description": "Your reason."}),
    ("input-rewritten", {f"{IN}note__minLength": 0}),
    ("input-default-changed", {f"{IN}note__default": "none"}),
    ("input-default-reworded", {f"{IN}status__default": "open"}),
    ("input-now-optional", {"affordance__input_schema__required": ["case_id"]}),
    ("output-removed", {f"{OUT}properties__note": ...}),
    ("output-added", {f"{OUT}properties__size": {"type": "integer"}}),
    ("output-type-changed", {f"{OUT}properties__note__type": "integer"}),
    ("output-type-widened", {f"{OUT}properties__note__type": ["string", "null"]}),
    ("output-bound-narrowed", {f"{OUT}properties__note__maxLength": 5}),
    ("output-narrowed", {f"{OUT}properties__note__pattern": "^a"}),
    ("output-changed", {f"{OUT}properties__note__if": {"minLength": 2}}),
    ("output-enum-narrowed", {f"{OUT}properties__note__enum": ["a", "b"]}),
    ("output-reworded", {f"{OUT}properties__note__description": "Why."}),
    ("output-default-reworded", {f"{OUT}properties__note__default": ""}),
    ("output-rewritten", {f"{OUT}properties__note__minLength": 0}),
    ("output-now-optional", {f"{OUT}required": []}),
    ("description-changed", {"affordance__model_description": "Change a case."}),
    ("usage-changed", {"usage": "Whenever a case changes."}),
    ("examples-changed", {"affordance__examples": []}),
    ("allowed-uses-changed", {"affordance__allowed_use_cases": ["Cases"]}),
    ("forbidden-uses-changed", {"affordance__forbidden_use_cases": ["Refunds"]}),
    ("version-changed", {"identity__version": "1.0.1"}),
    ("name-changed", {"identity__name": "change_case"}),
    ("owner-changed", {"identity__owner": "others"}),
    ("lifecycle-changed", {"identity__lifecycle": {"status": "deprecated"}}),
    ("scope-added", {"security__required_scopes": ["case:write", "case:close"]}),
    ("tenant-scope-weakened", {"security__tenant_scoped": False}),
    ("data-class-changed", {"security__data_classification": "secret"}),
    ("egress-policy-changed", {"security__egress_policy": "allowlisted_domains"}),
    ("secrets-boundary-changed", {"security__secrets_boundary": "execution_sandbox"}),
    ("secret-added", {"secrets": ["key"], "security__secrets_boundary": "none"}),
    ("egress-added", {"egress": ["api.example.org"], "security__egress_policy": "none"}),
    ("redaction-added", {"redact": ["/note"]}),
    ("timeout-changed", {"runtime__timeout_ms": 9000}),
    ("retries-changed", {"runtime__max_retries": 3}),
    ("rate-limits-changed", {"runtime__rate_limits": {"max_requests": 5}}),
    ("cost-profile-changed", {"runtime__cost_profile": {"cost_per_call": 0.5}}),
    ("budget-lowered", {"budget": 3}),
    ("budget-raised", {"budget": 30}),
    ("output-limit-changed", {"max_output_bytes": 1000}),
    ("memory-changed", {"memory_mb": 64}),
    ("isolation-changed", {"isolation": "process"}),
    ("runs-code-changed", {"runs_code": True}),
    ("keep-reads-changed", {"keep_reads": "all"}),
    ("keep-arguments-changed", {"keep_arguments_days": 3}),
    ("residency-changed", {"residency": ["eu"]}),
    ("verification-weakened", {"transactional__post_action_verification_required": False}),
    ("idempotency-weakened", {"idempotency__supported": False}),
    ("key-required-weakened", {"idempotency__required": False}),
    ("key-lifetime-weakened", {"idempotency__ttl_seconds": 60}),
    ("key-lifetime-strengthened", {"idempotency__ttl_seconds": 99_999}),
    ("key-header-changed", {"idempotency__key_header": "X-Key"}),
    ("payload-hash-weakened", {"idempotency__payload_hash_required": False}),
    ("audit-weakened", {"observability__audit_required": False}),
    ("trace-attributes-changed", {"observability__trace_attributes": ["case"]}),
    ("error-codes-changed", {"observability__error_taxonomy_mapping": {"E1": "TIMEOUT"}}),
    ("error-contract-changed", {"error_contract__retryable_errors": ["TIMEOUT"]}),
    ("semantics-changed", {"transactional__semantics": "saga_step"}),
    ("compensation-changed", {"compensation": {"case_id": "{case_id}"}}),
    ("exposure-removed", {"exposed": False}),
    ("trust-lowered", {"trust": "untrusted"}),
    ("business-key-changed", {"business_key": ["case_id"]}),
    ("consequence-changed", {"consequence": "Case {case_id} changes."}),
    ("risk-justification-changed", {"risk_justification": "Only notes."}),
    ("tenant-argument-changed", {"tenant_argument": "case_id"}),
    ("resource-changed", {"resource": "case:{case_id}"}),
    ("external-ref-changed", {"external_ref": "/note"}),
    ("version-from-changed", {"version_from": "/version"}),
    ("version-argument-changed", {"version_argument": "note"}),
    ("probe-changed", {"probe": "get_case"}),
    ("preview-changed", {"preview": "get_case"}),
    ("on-unknown-changed", {"on_unknown": "read_back"}),
    ("not-done-errors-changed", {"not_done_errors": ["NOT_FOUND"]}),
    ("spends-changed", {"spends": {"amount": "/note", "currency": "EUR"}}),
    ("money-limit-changed", {"money": {"call": {"EUR": 5}}}),
    ("cost-limit-changed", {"cost": {"call": {"USD": 5}}}),
    ("repeatable-changed", {"repeatable": True}),
    ("expected-changed", {"expected": {"status": "{status}"}}),
    ("verify-after-changed", {"verify_after": 60}),
    ("invariant-added", {"invariants": [*BASE["invariants"], {**RULE, "id": "new"}]}),
    ("invariant-removed", {"invariants": BASE["invariants"][:1]}),
    ("invariant-changed", {"invariants__1__check": "true"}),
    ("invariant-reworded", {"invariants__1__rule": "Known cases only."}),
    ("invariant-action-changed", {"invariants__1__correct": "drop_step"}),
    ("invariants-reordered", {"invariants": BASE["invariants"][::-1]}),
    ("config-param-added", {"config_params": [*BASE["config_params"], {"key": "x"}]}),
    ("config-param-removed", {"config_params": []}),
    ("config-param-changed", {"config_params": [{"key": "region", "default": "us"}]}),
    ("state-read-added", {"state_reads": [{"key": "case"}, {"key": "user"}]}),
    ("state-read-changed", {"state_reads": [{"key": "case"}] * 2}),
    ("state-effect-added", {"state_effects": [{"key": "last_case"}, {"key": "x"}]}),
    ("state-effect-removed", {"state_effects": []}),
    ("state-effect-changed", {"state_effects": [{"key": "last_case", "merge": "append"}]}),
    ("http-changed", {"http": {"method": "POST", "url": "https://api.example.org/cases"}}),
    ("upstream-changed", {"mcp": {"server": "cases", "tool": "update"}}),
]
"""An id, and the one edit of `BASE` that it stands for. Most fields are seen from their default."""

UPSTREAM = {"server": "cases", "tool": "update", "definition": "sha256:1"}
ASKED = {"approvers": 2, "transactional__confirmation_required": True}
TERMS = {"pattern": "operator_review", "roles": ["lead"], "expires_seconds": 600}
TEXTS = [f"{OUT}properties__note__{word}" for word in ("enum", "maxLength")]
TWO_CHANGES = [
    # Edits of the list above backwards, then those that need two contracts to show.
    *(
        (name, dict(ONE_CHANGE)[back], {})
        for name, back in {
            "input-now-required": "input-now-optional",
            "input-type-narrowed": "input-type-widened",
            "input-widened": "input-narrowed",
            "output-now-required": "output-now-optional",
            "output-type-narrowed": "output-type-widened",
            "output-bound-widened": "output-bound-narrowed",
            "output-enum-widened": "output-enum-narrowed",
            "output-widened": "output-narrowed",
            "scope-dropped": "scope-added",
            "tenant-scope-strengthened": "tenant-scope-weakened",
            "egress-dropped": "egress-added",
            "secret-dropped": "secret-added",
            "redaction-dropped": "redaction-added",
            "verification-strengthened": "verification-weakened",
            "idempotency-strengthened": "idempotency-weakened",
            "key-required-strengthened": "key-required-weakened",
            "payload-hash-strengthened": "payload-hash-weakened",
            "audit-strengthened": "audit-weakened",
            "exposure-raised": "exposure-removed",
            "trust-raised": "trust-lowered",
            "state-read-removed": "state-read-added",
        }.items()
    ),
    ("output-bound-changed", {TEXTS[1]: 5}, {TEXTS[1]: "5"}),
    ("sandbox-strengthened", {}, {"runtime__sandbox_isolated": True}),
    ("sandbox-weakened", {"runtime__sandbox_isolated": True}, {}),
    ("compensation-tool-changed", {}, {"transactional__compensation_tool": "reopen"}),
    ("read-back-changed", {}, {"read_back": "get_case"}),
    ("executed-by-changed", {}, {"executed_by": "client"}),
    ("output-enum-changed", {TEXTS[0]: ["a"]}, {TEXTS[0]: ["b"]}),
    ("input-required-added", {}, REQUIRED),
    ("effect-raised", {"effect": "draft"}, {}),
    ("effect-lowered", {}, {"effect": "draft"}),
    ("effect-changed", {"effect": "read_only"}, {"effect": "retrieve"}),
    ("risk-raised", {}, {"transactional__side_effect_class": "CRITICAL_MUTATION"}),
    ("risk-lowered", {}, {"transactional__side_effect_class": "READ_ONLY"}),
    ("approvers-strengthened confirmation-strengthened approval-strengthened", {}, ASKED),
    ("approvers-weakened confirmation-weakened approval-dropped", ASKED, {}),
    (
        "approval-changed",
        {**ASKED, "approval": TERMS},
        {**ASKED, "approval": {**TERMS, "roles": ["lead", "clerk"]}},
    ),
    ("definition-changed", {"mcp": UPSTREAM}, {"mcp": {**UPSTREAM, "definition": "sha256:2"}}),
    *(
        (f"{name}-reordered", {field: items}, {field: items[::-1]})
        for name, field, items in (
            ("scopes", "security__required_scopes", ["a", "b"]),
            ("secrets", "secrets", ["a", "b"]),
            ("egress", "egress", ["a.example.org", "b.example.org"]),
            ("redactions", "redact", ["/note", "/version"]),
            ("config-params", "config_params", [{"key": "a"}, {"key": "b"}]),
            ("state-reads", "state_reads", [{"key": "a"}, {"key": "b"}]),
            ("state-effects", "state_effects", [{"key": "a"}, {"key": "b"}]),
        )
    ),
]
EXAMPLES = [*((ids, {}, paths) for ids, paths in ONE_CHANGE), *TWO_CHANGES]


@pytest.mark.parametrize(("name", "paths"), ONE_CHANGE)
def test_edit_of_one_field_is_one_change_with_its_id_and_both_values(name, paths):
    (change,) = between(BASE, changed(**paths))
    assert change.id == name
    assert change.message
    assert change.before != change.after or name.endswith("-rewritten")


@pytest.mark.parametrize(("ids", "old", "new"), TWO_CHANGES)
def test_edit_between_two_contracts_has_its_ids(ids, old, new):
    found = [change.id for change in between(changed(**old), changed(**new))]
    assert set(ids.split()) <= set(found)


def test_every_id_of_the_table_has_an_example_and_every_example_an_id():
    shown = {one for ids, _, _ in EXAMPLES for one in ids.split()}
    of_sets = {"tool-added", "tool-removed", "version-bump-missing"}
    assert shown | of_sets == set(room.MEANINGS)


@pytest.mark.parametrize(
    ("change", "name", "kinds"),
    [
        ("add optional input", "input-added", [COMPATIBLE]),
        ("add required input", "input-required-added", [BREAKING]),
        ("remove input", "input-removed", [BREAKING]),
        ("change effect type: more", "effect-raised", [BREAKING, GOVERNANCE]),
        ("change effect type: less", "effect-lowered", [GOVERNANCE]),
        ("change output field: removed", "output-removed", [BREAKING]),
        ("change output field: added", "output-added", [COMPATIBLE]),
        ("change output field: other type", "output-type-changed", [BREAKING]),
        ("change output field: fewer values", "output-enum-narrowed", [COMPATIBLE]),
        ("change side-effect behavior: semantics", "semantics-changed", [BREAKING, GOVERNANCE]),
        ("change side-effect behavior: request", "http-changed", [BREAKING, GOVERNANCE]),
        ("change side-effect behavior: upstream", "upstream-changed", [BREAKING, GOVERNANCE]),
        ("change auth scope: more", "scope-added", [BREAKING, GOVERNANCE]),
        ("change auth scope: less", "scope-dropped", [GOVERNANCE]),
        ("change timeout", "timeout-changed", [OPERATIONAL]),
        ("change retry", "retries-changed", [OPERATIONAL]),
        # A silent change of one of these can break active workflows.
        ("field names", "input-removed", [BREAKING]),
        ("defaults", "input-default-changed", [BREAKING]),
        ("enum values", "input-enum-narrowed", [BREAKING]),
        ("authentication requirements", "scope-added", [BREAKING, GOVERNANCE]),
        ("output shape", "output-now-optional", [BREAKING]),
        ("side-effect semantics", "semantics-changed", [BREAKING, GOVERNANCE]),
    ],
)
def test_documented_change_has_the_documented_compatibility(change, name, kinds):
    (old, new) = next((old, new) for ids, old, new in EXAMPLES if name in ids.split())
    found = next(one for one in between(changed(**old), changed(**new)) if one.id == name)
    assert list(found.kinds) == kinds, change


READ = """
description-changed examples-changed input-enum-widened input-default-changed
input-default-reworded input-reworded usage-changed tool-added
"""


@pytest.mark.parametrize("name", READ.split())
def test_what_a_model_reads_may_move_its_behaviour(name):
    assert room.MEANINGS[name].models is Compatibility.BEHAVIOUR_MAY_MOVE


GUARDED = """
effect-raised risk-raised scope-dropped approvers-weakened approval-dropped
verification-weakened compensation-changed compensation-tool-changed egress-added
egress-policy-changed trust-raised budget-raised data-class-changed invariant-removed
invariant-changed idempotency-weakened key-required-weakened owner-changed
"""


@pytest.mark.parametrize("name", GUARDED.split())
def test_guardians_review_more_authority_and_less_protection(name):
    assert room.MEANINGS[name].guardians is GOVERNANCE


def test_meanings_keep_to_the_words_of_their_audience():
    callers = {COMPATIBLE, BREAKING, OPERATIONAL}
    for name, meaning in room.MEANINGS.items():
        assert meaning.callers in callers, name
        assert meaning.models in (COMPATIBLE, Compatibility.BEHAVIOUR_MAY_MOVE), name
        assert meaning.guardians in (COMPATIBLE, GOVERNANCE), name


def test_required_input_breaks_callers():
    (change,) = between(BASE, changed(**REQUIRED))
    assert change == ContractChange(
        id="input-required-added",
        pointer="/affordance/input_schema/properties/reason",
        message="input reason was added, and is required",
        after={"type": "string", "description": "R."},
    )
    assert change.record()["callers"] == "breaking"


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
        (change,) = changes
        assert change.kinds == ((BREAKING, GOVERNANCE) if rises else (GOVERNANCE,))


@given(st.sampled_from(RiskClass), st.sampled_from(RiskClass))
def test_rise_of_risk_is_for_governance_and_breaks(before, after):
    place = "transactional__side_effect_class"
    found = between(changed(**{place: before}), changed(**{place: after}))
    changes = [change for change in found if change.pointer.endswith("side_effect_class")]
    if before is after:
        assert changes == []
    else:
        (change,) = changes
        assert change.kinds == ((BREAKING, GOVERNANCE) if after > before else (GOVERNANCE,))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ({"supported": False, "ttl_seconds": None}, {"ttl_seconds": 60}, "strengthened"),
        ({"ttl_seconds": None}, {"ttl_seconds": 60}, "weakened"),
        ({"ttl_seconds": 60}, {"ttl_seconds": None}, "strengthened"),
    ],
)
def test_keys_that_live_shorter_are_a_weaker_protection(old, new, name):
    ids = [one.id for one in between(changed(idempotency=old), changed(idempotency=new))]
    assert f"key-lifetime-{name}" in ids


def test_undeclared_effect_counts_as_the_worst():
    ids = {change.id for change in between(changed(effect=...), changed(effect="draft"))}
    assert "effect-lowered" in ids


def test_code_is_compared_by_its_name():
    def first(call, state, config):
        return True

    def second(call, state, config):
        return True

    def using(check):
        rule = Invariant(id="short", rule="Notes are short.", check=check)
        return Contract.model_validate({**BASE, "invariants": [rule]})

    assert diff(using(first), using(first)) == ()
    (change,) = diff(using(first), using(second))
    assert change.id == "invariant-changed"


def test_items_that_share_an_id_are_still_compared():
    twice = changed(invariants=[BASE["invariants"][0]] * 2)
    assert [change.id for change in between(BASE, twice)] == ["invariant-changed"]
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
@settings(max_examples=70, deadline=None)
def test_contracts_without_a_difference_are_those_of_equal_hash(old, new):
    changes = diff(old, new)
    assert (changes == ()) is (old.hash == new.hash)
    assert {change.id for change in changes} <= set(room.MEANINGS)
    assert diff(old, old) == ()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=50, deadline=None)
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
    assert (found.kinds, found.pointer) == ((kind,), f"/approval/{next(iter(change))}")
    if kind is OPERATIONAL:
        (back,) = between(changed(**stated, approval={**TERMS, **change}), old)
        assert back.kinds == (GOVERNANCE,)


def test_terms_of_approval_that_are_taken_away_are_reviewed():
    (*_, found) = [
        change
        for change in between(changed(approvers=1), changed(approvers=0))
        if change.pointer == "/approval"
    ]
    assert found.kinds == (GOVERNANCE,)


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "bump"),
    [
        ("1.4.0", "2.0.0", Bump.MAJOR),
        ("1.4.0", "1!1.0.0", Bump.MAJOR),
        ("1.4.0", "1.5.0", Bump.MINOR),
        ("1.4.0", "1.4.1", Bump.PATCH),
        ("1.4.0rc1", "1.4.0", Bump.PATCH),
        ("1.4.0", "1.4", Bump.NONE),
        ("1.4.0", "1.3.9", Bump.NONE),
        ("1.4.0", "next", Bump.NONE),
    ],
)
def test_part_of_a_version_that_rose(old, new, bump):
    assert bump_made(old, new) is bump


@pytest.mark.parametrize(
    ("name", "bump"),
    [
        ("input-removed", Bump.MAJOR),
        ("effect-raised", Bump.MAJOR),
        ("scope-dropped", Bump.MINOR),
        ("timeout-changed", Bump.MINOR),
        ("input-added", Bump.MINOR),
        ("description-changed", Bump.PATCH),
        ("version-changed", Bump.NONE),
    ],
)
def test_part_of_a_version_that_has_to_rise(name, bump):
    assert needed_bump([ContractChange(id=name, message="")]) is bump


def of_version(version, **paths):
    return Contract.model_validate(changed(identity__version=version, **paths))


def test_versions_are_compared_with_the_one_before_them():
    one, two = of_version("1.0.0"), of_version("2.0.0", usage="Always.")
    three = of_version("2.1.0", usage="Never.")
    (step,) = version_steps([two, one], [three, two, one])
    assert (step.old, step.new) == (two, three)
    assert [change.id for change in step.changes] == ["version-changed", "usage-changed"]
    assert (needed_bump(step.changes), step.made) == (Bump.PATCH, Bump.MINOR)


def test_tools_that_came_or_went_are_steps_of_their_own():
    one, other = of_version("1.0.0"), of_version("1.0.0", identity__name="close_case")
    came, went = version_steps([one], [other])
    assert [change.id for change in came.changes] == ["tool-added"]
    assert (came.tool, came.old) == ("close_case", None)
    assert [change.id for change in went.changes] == ["tool-removed"]
    assert (went.tool, went.version, went.new) == ("update_case", "1.0.0", None)


def test_contract_that_changed_under_its_version_has_no_bump():
    (step,) = version_steps([of_version("1.0.0")], [of_version("1.0.0", budget=1)])
    assert (needed_bump(step.changes), step.made) == (Bump.MINOR, Bump.NONE)


def undecided_ids(old, new, *allowed):
    (step,) = version_steps(old, new)
    return [change.id for change in undecided(step, allowed)]


def test_break_that_its_version_announces_needs_no_decision():
    old, gone = of_version("1.0.0"), {f"{IN}note": ...}
    assert undecided_ids([old], [of_version("2.0.0", **gone)]) == []
    (step,) = version_steps([old], [of_version("1.1.0", **gone)])
    (change,) = undecided(step)
    assert change.message == "needs a new major version, 2.0.0"
    assert undecided(step, {"input-removed"}) == ()
    assert undecided(step, {"version-bump-missing"}) == ()


def test_change_for_guardians_needs_a_decision_whatever_its_version():
    old, new = of_version("1.0.0"), of_version("2.0.0", security__required_scopes=[])
    assert undecided_ids([old], [new]) == ["scope-dropped"]
    assert undecided_ids([old], [new], "scope-dropped") == []


def test_new_tool_asks_nobody_and_a_removed_one_does():
    assert undecided_ids([], [of_version("1.0.0")]) == []
    assert undecided_ids([of_version("1.0.0")], []) == ["tool-removed"]
