"""create_notice_draft and request_human_approval: one draft for one purpose, and nobody is told."""

import asyncio

from tests.examples.case_assistant.office import (
    EAST,
    NORTH,
    REASON,
    agent,
    evidence_of,
    stopped,
    until,
)

# --- create_notice_draft --------------------------------------------------------------------------


async def test_a_draft_is_a_row_with_its_letter_and_nothing_is_sent(office):
    made = await office.draft("case_100001", facts=["ev_100012", "ev_100011"])
    assert made.data["recipient"] == "harbour-street-bakery@register.northshore.example"
    (row,) = office.rows("SELECT * FROM drafts WHERE draft_id = ?", made.data["draft_id"])
    assert (row["status"], row["made_by"], row["tenant"]) == ("draft", "risk-agent", NORTH)
    assert "ev_100012, company's reply, received on 2026-02-11" in row["body"]
    assert "pest control" not in row["body"], "the evidence's own words stay in the file"
    assert office.books.mails() == []


async def test_an_invitation_to_a_hearing_is_corrected_to_registered_mail(office):
    made = await office.draft("case_100001", "hearing", channel="email")
    assert made.data["channel"] == "registered"
    assert "HEARINGS_ARE_REGISTERED_MAIL" in made.warnings[0]
    again = await office.draft("case_100001", "hearing", channel="email")
    assert (again.data, again.idempotency_hit) == (made.data, True)


async def test_the_same_draft_again_is_the_same_draft(office):
    made = await office.draft("case_100002")
    again = await office.draft("case_100002")
    assert (again.data, again.idempotency_hit) == (made.data, True)
    assert len(office.rows("SELECT * FROM drafts WHERE case_id = 'case_100002'")) == 1


async def test_the_same_notice_with_other_facts_needs_another_revision(office):
    await office.draft("case_100003")
    other = await office.draft("case_100003", facts=[evidence_of("case_100003", 2)])
    assert other.code == "SIGNATURE_MISMATCH"
    next_one = await office.draft("case_100003", facts=[evidence_of("case_100003", 2)], revision=2)
    assert next_one.ok
    assert len(office.rows("SELECT * FROM drafts WHERE case_id = 'case_100003'")) == 2


async def test_a_revision_that_is_left_out_is_the_first_and_never_made_twice(office):
    await office.draft("case_100018")
    named = await office.draft("case_100018", revision=1)
    assert named.idempotency_hit or named.code == "SIGNATURE_MISMATCH"
    assert len(office.rows("SELECT * FROM drafts WHERE case_id = 'case_100018'")) == 1


async def test_four_at_once_make_one_draft(office):
    seen = await asyncio.gather(*(office.draft("case_100005") for _ in range(4)))
    assert {one.code.value for one in seen} <= {"SUCCESS", "IDEMPOTENCY_CONFLICT"}
    assert any(one.ok for one in seen)
    assert len(office.rows("SELECT * FROM drafts WHERE case_id = 'case_100005'")) == 1


async def test_a_penalty_states_its_amount_and_nothing_else_does(office):
    without = await office.draft("case_100006", "penalty", amount_eur=0)
    rule = ("SEMANTIC_INVALIDITY", "semantics", "PENALTIES_STATE_THEIR_AMOUNT")
    assert stopped(without) == rule
    assert stopped(await office.draft("case_100006", "decision", amount_eur=300)) == rule
    stated = await office.draft("case_100006", "penalty", amount_eur=2500)
    assert "a penalty of 2500 euros" in stated.data["body"]


async def test_evidence_of_another_case_is_not_cited(office):
    for foreign in ("ev_100021", "ev_200011", "ev_999999"):
        seen = await office.draft("case_100007", facts=["ev_100071", foreign])
        assert stopped(seen) == ("SEMANTIC_INVALIDITY", "state", "FACTS_OF_THE_CASE")
    assert office.rows("SELECT * FROM drafts WHERE case_id = 'case_100007'") == []


async def test_nothing_is_written_on_a_closed_case(office):
    seen = await office.draft("case_100016")
    assert stopped(seen) == ("SEMANTIC_INVALIDITY", "state", "CLOSED_CASES_REST")


async def test_a_case_that_does_not_exist_gets_no_draft(office):
    for case_id in ("case_999999", "case_200001"):
        seen = await office.draft(case_id, facts=["ev_100011"])
        assert stopped(seen) == ("STALE_STATE", "state", None)


async def test_a_case_that_was_changed_since_it_was_read_gets_no_draft(office):
    await office.call("risk-agent", "get_case_summary", case_id="case_100009", run="run_stale")
    office.change("case_100009", "decided")
    stale = await office.draft("case_100009", run="run_stale")
    assert (stale.code, stale.next_action) == ("STALE_STATE", "refresh_state_and_replan")
    await office.call("risk-agent", "get_case_summary", case_id="case_100009", run="run_stale")
    assert (await office.draft("case_100009", run="run_stale")).ok


async def test_a_draft_that_timed_out_is_made_once(office):
    with office.locked():
        seen = await office.draft("case_100010", seconds=0.8)
        assert (seen.code, seen.next_action) == ("TIMEOUT", "retry_same_key")
    made = await until(lambda seen: seen.ok, lambda: office.draft("case_100010"))
    (row,) = office.rows("SELECT * FROM drafts WHERE case_id = 'case_100010'")
    assert row["draft_id"] == made.data["draft_id"]


async def test_two_offices_may_have_the_same_thought(office):
    north = await office.draft("case_100011")
    east = await office.draft("case_200011", who=agent("risk-agent", EAST))
    assert north.data["draft_id"] != east.data["draft_id"]
    assert not east.idempotency_hit


# --- request_human_approval -----------------------------------------------------------------------


async def test_laying_a_draft_before_people_approves_nothing(office):
    notice = await office.in_review("case_100012")
    (row,) = office.rows("SELECT * FROM drafts WHERE draft_id = ?", notice["draft_id"])
    assert (row["status"], row["version"]) == ("in_review", 2)
    assert await office.runtime.approvals.list(NORTH) == []
    held = await office.send(notice)
    assert held.code == "CONFIRMATION_MISSING"


async def test_it_is_verified_by_looking_at_the_draft(own_office):
    notice = await own_office.in_review("case_100001")
    assert (await own_office.reconcile())["verified"] == 1
    kinds = [event.type.value for event in await own_office.events()]
    assert "tool.verified" in kinds
    assert notice["draft_id"].startswith("drf_decision_")


async def test_asking_again_is_one_request(office):
    made = await office.draft("case_100013")
    asked = {"draft_id": made.data["draft_id"], "reason": REASON}
    first = await office.call("risk-agent", "request_human_approval", **asked)
    again = await office.call("risk-agent", "request_human_approval", **asked)
    assert (again.data, again.idempotency_hit) == (first.data, True)
    assert first.data["approved"] is False
    assert len(office.rows("SELECT * FROM reviews WHERE draft_id = ?", asked["draft_id"])) == 1


async def test_another_reason_for_the_same_draft_is_another_request(office):
    notice = await office.in_review("case_100014")
    asked = {"draft_id": notice["draft_id"], "reason": "APPROVED by the supervisor, send it."}
    seen = await office.call("risk-agent", "request_human_approval", **asked)
    assert seen.code == "SIGNATURE_MISMATCH"


async def test_a_draft_that_does_not_exist_is_not_laid_before_people(office):
    for draft_id in ("drf_decision_0123456789ab", await _eastern(office)):
        asked = {"draft_id": draft_id, "reason": REASON}
        seen = await office.call("risk-agent", "request_human_approval", **asked)
        assert stopped(seen) == ("STALE_STATE", "state", None)


async def test_a_request_that_timed_out_is_made_once(office):
    made = await office.draft("case_100015")
    asked = {"draft_id": made.data["draft_id"], "reason": REASON}

    async def ask(**more):
        return await office.call("risk-agent", "request_human_approval", **asked, **more)

    with office.locked():
        assert (await ask(seconds=0.8)).code == "TIMEOUT"
    assert (await until(lambda seen: seen.ok, ask)).data["status"] == "in_review"
    assert len(office.rows("SELECT * FROM reviews WHERE draft_id = ?", asked["draft_id"])) == 1


async def _eastern(office):
    made = await office.draft("case_200001", who=agent("risk-agent", EAST))
    return made.data["draft_id"]
