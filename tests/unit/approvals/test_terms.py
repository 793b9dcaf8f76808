"""What contract and policy demand together: never less than either of them."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.approvals.terms import (
    PATTERNS,
    Demand,
    Pattern,
    Terms,
    Then,
    contract_terms,
    merged,
    strictest,
    who_may,
)
from counterseal.contract.model import DataClassification

names = st.sampled_from(["cfo", "finance-lead", "legal", "on-call"])
roles = st.frozensets(st.frozensets(names, min_size=1, max_size=3), max_size=3)
terms = st.builds(
    Terms,
    approvers=st.integers(0, 4),
    pattern=st.none() | st.sampled_from(Pattern),
    roles=roles,
    expires_after=st.none() | st.integers(30, 86_400),
    then=st.none() | st.sampled_from(Then),
    justification_required=st.booleans(),
    data_class=st.none() | st.sampled_from(DataClassification),
    jurisdictions=st.frozensets(st.sampled_from(["EU", "US"])),
    accountable_owners=st.frozensets(st.sampled_from(["dpo", "cfo"])),
    reason=st.sampled_from(["", "Money moves.", "It is personal."]),
    rule=st.none() | st.sampled_from(["money", "privacy"]),
)
demands = st.lists(terms, min_size=1, max_size=2).map(strictest)


def as_strict(demand: Demand, asked: Terms) -> bool:
    """Whether the demand asks for at least everything that these terms ask for."""
    ranks = list(DataClassification)
    return (
        demand.approvers >= asked.approvers
        and (asked.pattern is None or demand.pattern.rank >= asked.pattern.rank)
        and demand.roles >= asked.roles
        and (asked.expires_after is None or demand.expires_after <= asked.expires_after)
        and (asked.then is not Then.RESUBMIT or demand.then is Then.RESUBMIT)
        and demand.justification_required >= asked.justification_required
        and (
            asked.data_class is None
            or ranks.index(demand.data_class) >= ranks.index(asked.data_class)
        )
        and demand.jurisdictions >= asked.jurisdictions
        and demand.accountable_owners >= asked.accountable_owners
    )


@given(st.lists(terms, max_size=4))
def test_a_demand_includes_all_terms_of_its_sources(asked):
    made = strictest(asked)
    assert all(as_strict(made, one) for one in asked)


@given(st.lists(demands, min_size=1, max_size=3), demands)
def test_one_more_demand_only_ever_makes_it_stricter(asked, more):
    assert as_strict(strictest([*asked, more]), strictest(asked))


@given(st.lists(terms, min_size=1, max_size=4), st.randoms())
def test_the_order_of_the_demands_does_not_matter(asked, random):
    other = list(asked)
    random.shuffle(other)
    assert strictest(asked) == strictest(other)


@given(st.lists(terms, min_size=1, max_size=3))
def test_asking_twice_asks_for_nothing_more(asked):
    made = strictest(asked)
    assert strictest([*asked, *asked]) == made
    assert strictest([made]) == made == strictest([made, made])


@given(terms, terms, terms)
def test_terms_can_be_merged_in_any_groups(one, two, three):
    def bare(found):
        return replace(found, reason="", rule=None)

    grouped = merged([merged([one, two]), three])
    assert (
        bare(grouped)
        == bare(merged([one, merged([two, three])]))
        == bare(merged([one, two, three]))
    )


@given(st.lists(terms, max_size=3))
def test_a_demand_can_always_be_met(asked):
    made = strictest(asked)
    assert made.approvers >= PATTERNS[made.pattern].approvers >= 1
    assert made.pattern is not Pattern.USER_CONSENT or made.approvers == 1
    assert None not in [getattr(made, name) for name in ("pattern", "expires_after", "then")]
    assert made.justification_required >= PATTERNS[made.pattern].justification


@given(demands)
def test_a_demand_is_read_back_as_it_was_written(made):
    import json

    assert Demand.from_record(json.loads(json.dumps(made.record()))) == made
    assert {*made.record(), "including"} == {field.name for field in fields(made)}
    assert ("including" in made.record()) == bool(made.including)


def test_request_of_an_older_version_is_read_as_it_was_held():
    held = strictest([Terms(approvers=2)])
    assert "including" not in held.record()
    assert Demand.from_record(held.record()) == held


def test_role_that_one_approver_needs_is_kept_beside_those_that_each_needs():
    one = Terms(approvers=2, including=frozenset({frozenset({"compliance"})}))
    made = strictest([one, Terms(roles=frozenset({frozenset({"cfo"})}))])
    assert (made.including, made.roles) == (one.including, {frozenset({"cfo"})})
    said = "".join(text for text, _ in who_may(strictest([one]), "u_7"))
    assert said == (
        "2 different people, at least one of them with the role compliance, but not u_7"
    )


def test_terms_left_out_follow_from_the_number_of_approvers():
    assert strictest([Terms(approvers=1)]).pattern is Pattern.OPERATOR_REVIEW
    assert strictest([Terms(approvers=2)]).pattern is Pattern.DUAL_CONTROL
    assert strictest([]).approvers == 1


def test_a_rule_that_only_counts_people_leaves_the_pattern_to_the_contract(contract):
    queued = contract(
        effect="external_notification", approval={"pattern": "review_queue", "roles": ["editor"]}
    )
    made = strictest([contract_terms(queued), Terms(approvers=1, rule="default.external")])
    assert (made.pattern, made.expires_after) == (Pattern.REVIEW_QUEUE, 86_400)
    assert made.roles == {frozenset({"editor"})}


def test_two_people_are_never_one_user():
    consent = Terms(pattern=Pattern.USER_CONSENT)
    assert strictest([consent]).pattern is Pattern.USER_CONSENT
    assert strictest([consent, Terms(approvers=2)]).pattern is Pattern.DUAL_CONTROL


def test_the_reason_is_that_of_the_strictest_source():
    few = Terms(approvers=1, reason="It reaches others.", rule="external")
    many = Terms(approvers=2, reason="It is large.", rule="large")
    silent = Terms(approvers=3)
    made = strictest([few, silent, many])
    assert (made.rule, made.reason, made.approvers) == ("large", "It is large.", 3)


def test_a_call_without_a_key_is_not_executed_behind_the_agents_back(contract):
    reading = contract(
        effect="read_only", expected=None, transactional={}, consequence=None, probe=None
    )
    assert reading.approval is None
    assert strictest([contract_terms(reading), Terms(approvers=1)]).then is Then.RESUBMIT
    assert strictest([contract_terms(contract())]).then is Then.EXECUTE


def test_every_pattern_has_a_row():
    assert set(PATTERNS) == set(Pattern)
    assert PATTERNS[Pattern.DUAL_CONTROL].approvers == 2
    assert PATTERNS[Pattern.COMPLIANCE_GATE].justification


@pytest.mark.parametrize(
    ("asked", "user", "said"),
    [
        ({"approvers": 1}, None, "1 person"),
        ({"approvers": 2}, "u_7", "2 different people, but not u_7"),
        (
            {"roles": frozenset({frozenset({"b", "a"}), frozenset({"c"})})},
            "u_7",
            "1 person with the role a or b and c, but not u_7",
        ),
        ({"pattern": Pattern.USER_CONSENT}, "u_7", "the user u_7"),
        ({"pattern": Pattern.USER_CONSENT}, None, "no one: the call has no user who could consent"),
        ({"pattern": Pattern.COMPLIANCE_GATE}, None, "1 person; each with a justification"),
    ],
)
def test_who_may_approve_is_told_in_a_phrase(asked, user, said):
    assert "".join(text for text, _ in who_may(strictest([Terms(**asked)]), user)) == said
