"""Who may vote, and what the votes come to."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.approvals.terms import (
    Choice,
    Objection,
    Pattern,
    PendingApproval,
    Tally,
    Terms,
    Vote,
    Voter,
    cast,
    may_vote,
    strictest,
    tally,
)

EXPIRES = 1000.0
APPROVE, REJECT = Choice.APPROVE, Choice.REJECT


def voter(user="u_8", tenant="acme", roles=()):
    return Voter(user=user, tenant=tenant, roles=roles)


def request(*votes, **more):
    given = {"tenant": "acme", "agent": "billing-agent", "user": "u_7", "expires_at": EXPIRES}
    return PendingApproval(**{**given, "votes": votes, **more})


def vote(approver="u_8", decision=APPROVE, at=10.0, **more):
    return Vote(approver=approver, decision=decision, voted_at=at, **more)


# Who may -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "asked", "now", "objection"),
    [
        (voter(), request(), 10, None),
        (voter(tenant="other"), request(), 10, Objection.TENANT),
        (voter(user="u_7"), request(), 10, Objection.REQUESTER),
        (voter(user="billing-agent"), request(user=None), 10, Objection.REQUESTER),
        (voter(), request(vote("u_8")), 10, Objection.VOTED),
        (voter(), request(vote("u_9")), 10, None),
        (voter(), request(vote("u_8"), vote("u_9")), 10, Objection.DECIDED),
        (voter(), request(vote("u_9", REJECT)), 10, Objection.DECIDED),
        (voter(), request(decided=True), 10, Objection.DECIDED),
        (voter(), request(), EXPIRES - 0.001, None),
        (voter(), request(), EXPIRES, Objection.EXPIRED),
        (voter(), request(), math.nan, Objection.EXPIRED),
        # Somebody of another tenant learns nothing about the request.
        (voter(tenant="other"), request(decided=True), EXPIRES, Objection.TENANT),
    ],
)
def test_who_may_vote(demand, who, asked, now, objection):
    assert may_vote(demand(approvers=2), asked, who, now=now) is objection
    assert objection is None or objection.text


def test_requester_and_approver_are_never_the_same_person(demand):
    for pattern in set(Pattern) - {Pattern.USER_CONSENT}:
        asked = demand(approvers=1, pattern=pattern)
        assert may_vote(asked, request(), voter("u_7"), now=1) is Objection.REQUESTER
        assert may_vote(asked, request(), voter("u_8"), now=1) is None


@pytest.mark.parametrize("asks", ["U_7", " u_7", "\uff55_7", "u_7\u200b"])
def test_one_person_under_two_spellings_is_still_the_requester(demand, asks):
    for asked in (request(user=asks), request(agent=asks, user=None)):
        for name in ("u_7", "U_7"):
            assert may_vote(demand(), asked, voter(name), now=1) is Objection.REQUESTER
    consent = demand(approvers=1, pattern=Pattern.USER_CONSENT)
    assert may_vote(consent, request(user=asks), voter("u_7"), now=1) is None


def test_one_person_under_two_spellings_has_one_vote(demand):
    two = demand(approvers=2)
    assert may_vote(two, request(vote("Ann")), voter("ann"), now=1) is Objection.VOTED
    assert counted(two, vote("Ann"), vote("ann")) is Tally.WAITING
    assert counted(two, vote("Ann"), vote("bob")) is Tally.APPROVED


def test_consent_can_be_given_only_by_the_user(demand):
    consent = demand(approvers=1, pattern=Pattern.USER_CONSENT)
    assert may_vote(consent, request(), voter("u_7"), now=1) is None
    assert may_vote(consent, request(), voter("u_8"), now=1) is Objection.NOT_THE_USER
    for name in ("u_7", "billing-agent"):
        nobody = request(user=None)
        assert may_vote(consent, nobody, voter(name), now=1) is Objection.NOT_THE_USER


@pytest.mark.parametrize(
    ("roles", "fits"),
    [([], False), (["a"], False), (["c"], False), (["a", "c"], True), (["b", "c", "x"], True)],
)
def test_an_approver_has_one_role_of_every_set(demand, roles, fits):
    asked = demand(roles=frozenset({frozenset({"a", "b"}), frozenset({"c"})}))
    objection = may_vote(asked, request(), voter(roles=roles), now=1)
    assert objection is (None if fits else Objection.ROLE)


def test_one_of_two_approvers_has_the_role_that_one_of_them_needs(demand):
    two = demand(approvers=2, including=frozenset({frozenset({"compliance"})}))
    carl = {"roles": frozenset({"compliance"})}
    assert may_vote(two, request(), voter("u_8"), now=1) is None
    assert may_vote(two, request(vote("u_8")), voter("u_9"), now=1) is Objection.ROLE
    assert may_vote(two, request(vote("u_8")), voter("u_9", **carl), now=1) is None
    assert may_vote(two, request(vote("u_8", **carl)), voter("u_9"), now=1) is None
    assert counted(two, vote("u_8"), vote("u_9")) is Tally.WAITING
    assert counted(two, vote("u_8"), vote("u_9", **carl)) is Tally.APPROVED
    assert counted(two, vote("u_8"), vote("u_9", REJECT)) is Tally.REJECTED


def test_whoever_is_refused_the_last_place_can_still_reject(demand):
    two = demand(approvers=2, including=frozenset({frozenset({"compliance"})}))
    asked = request(vote("u_8"))
    assert cast(two, asked, voter("u_9"), APPROVE, now=1) is Objection.ROLE
    assert cast(two, asked, voter("u_9"), REJECT, now=1).decision is REJECT
    for who, objection in ((voter("u_8"), Objection.VOTED), (voter("u_7"), Objection.REQUESTER)):
        assert cast(two, asked, who, REJECT, now=1) is objection
    strangers = demand(approvers=2, roles=frozenset({frozenset({"cfo"})}))
    assert cast(strangers, request(), voter("u_9"), REJECT, now=1) is Objection.ROLE


def test_a_voter_needs_a_name():
    for broken in ({"user": " "}, {"tenant": ""}, {"roles": [""]}):
        with pytest.raises(ValueError, match=next(iter(broken))):
            voter(**broken)
    with pytest.raises(TypeError, match="roles"):
        voter(roles="admin")


# Casting -----------------------------------------------------------------------------------------


def test_a_vote_keeps_the_roles_that_its_voter_had(demand):
    who = voter(roles=["cfo"])
    made = cast(demand(), request(), who, APPROVE, now=7.0, comment=" Fine. ", justification="")
    assert made == vote(at=7.0, roles=frozenset({"cfo"}), comment="Fine.")
    assert Vote.from_record(json.loads(json.dumps(made.record()))) == made


def test_who_may_not_vote_casts_none(demand):
    assert cast(demand(), request(), voter("u_7"), APPROVE, now=1) is Objection.REQUESTER


def test_compliance_says_why_it_approves_and_may_reject_without(demand):
    gate = demand(pattern=Pattern.COMPLIANCE_GATE)
    for empty in ("", "  "):
        found = cast(gate, request(), voter(), APPROVE, now=1, justification=empty)
        assert found is Objection.JUSTIFICATION
    said = cast(gate, request(), voter(), APPROVE, now=1, justification="Article 49.")
    assert said.justification == "Article 49."
    assert cast(gate, request(), voter(), REJECT, now=1).decision is REJECT


# Counting ----------------------------------------------------------------------------------------


def counted(demand, *votes, now=20.0):
    return tally(demand, votes, now=now, expires_at=EXPIRES)


def test_as_many_different_people_as_are_asked_approve(demand):
    two = demand(approvers=2)
    assert counted(two) is Tally.WAITING
    assert counted(two, vote("u_8"), vote("u_8")) is Tally.WAITING
    assert counted(two, vote("u_8"), vote("u_9")) is Tally.APPROVED


def test_one_rejection_ends_it(demand):
    two = demand(approvers=2)
    assert counted(two, vote("u_8", REJECT)) is Tally.REJECTED
    assert counted(two, vote("u_8"), vote("u_9"), vote("u_10", REJECT)) is Tally.REJECTED


def test_at_the_moment_of_expiry_it_is_expired(demand):
    one = demand(approvers=1)
    assert counted(one, now=EXPIRES - 0.001) is Tally.WAITING
    assert counted(one, now=EXPIRES) is Tally.EXPIRED
    assert counted(one, vote(at=EXPIRES), now=EXPIRES) is Tally.EXPIRED
    assert counted(one, vote(decision=REJECT, at=EXPIRES), now=EXPIRES) is Tally.EXPIRED


def test_what_was_approved_in_time_stays_approved(demand):
    assert counted(demand(approvers=1), vote(at=EXPIRES - 1), now=EXPIRES + 1) is Tally.APPROVED


def test_a_vote_that_may_not_count_does_not(demand):
    asked = demand(approvers=1, roles=frozenset({frozenset({"cfo"})}))
    assert counted(asked, vote()) is Tally.WAITING
    assert counted(asked, vote(roles=frozenset({"cfo"}))) is Tally.APPROVED
    gate = demand(approvers=1, pattern=Pattern.COMPLIANCE_GATE)
    assert counted(gate, vote()) is Tally.WAITING
    assert counted(gate, vote(justification="Article 49.")) is Tally.APPROVED


people = st.sampled_from(["u_1", "u_2", "u_3", "u_4"])
cast_votes = st.lists(
    st.builds(
        Vote,
        approver=people,
        decision=st.sampled_from([APPROVE, APPROVE, APPROVE, REJECT]),
        voted_at=st.integers(0, 12).map(float),
        roles=st.frozensets(st.sampled_from(["a", "b"])),
    ),
    max_size=6,
)


@given(cast_votes, st.integers(1, 4), st.integers(0, 12), st.booleans(), st.randoms())
def test_the_tally_is_what_its_rules_say(votes, approvers, now, by_role, random):
    roles = frozenset({frozenset({"a"})}) if by_role else frozenset()
    asked = strictest([Terms(approvers=approvers, roles=roles)])
    found = tally(asked, votes, now=now, expires_at=10.0)
    timely = [v for v in votes if v.voted_at < 10]
    yes = {v.approver for v in timely if v.decision is APPROVE and (not by_role or "a" in v.roles)}
    if any(v.decision is REJECT for v in timely):
        assert found is Tally.REJECTED
    elif len(yes) >= approvers:
        assert found is Tally.APPROVED
    else:
        assert found is (Tally.EXPIRED if now >= 10 else Tally.WAITING)
    other = list(votes)
    random.shuffle(other)
    assert tally(asked, other, now=now, expires_at=10.0) is found


@given(st.lists(st.tuples(people, st.sampled_from(Choice), st.integers(0, 3)), max_size=10))
def test_votes_cast_one_after_the_other_end_once(steps):
    """However people vote, the first end is the only one, and nobody votes after it or twice."""
    asked = strictest([Terms(approvers=2)])
    now, votes, ended = 0.0, (), None
    for user, choice, passed in steps:
        now += passed
        made = cast(asked, request(*votes, expires_at=10.0), voter(user), choice, now=now)
        if isinstance(made, Objection):
            assert ended or now >= 10 or any(v.approver == user for v in votes)
            continue
        assert ended is None
        votes = (*votes, made)
        outcome = tally(asked, votes, now=now, expires_at=10.0)
        ended = outcome if outcome is not Tally.WAITING else None
    assert len({v.approver for v in votes}) == len(votes)


@pytest.mark.parametrize(
    "user", ["", " ", " u_8", "u_8\n", "u\u200b_8", "u\x00_8", "\ud800", "\u202eu"]
)
def test_a_name_that_looks_like_another_can_not_vote(user):
    with pytest.raises(ValueError, match=r"^user"):
        voter(user=user)


@pytest.mark.parametrize("user", ["u_8", "Ann Lee", "zoë", "李", "ann@example.org"])
def test_every_readable_text_is_a_name(user):
    assert voter(user=user).user == user
