"""send_approved_notice: nothing leaves without people, to nobody but the party, and never twice."""

import asyncio

import pytest

from counterseal import ApprovalError, Grant, Reconciler
from counterseal.config import load_settings, open_runtime
from tests.examples.case_assistant.office import (
    EAST,
    NORTH,
    OFFICER,
    PLANTED,
    SECOND,
    SUPERVISOR,
    agent,
    evidence_of,
    example,
    person,
    stopped,
    until,
)


async def test_an_approved_notice_goes_out_once_to_the_mailbox_on_file(own_office):
    notice = await own_office.approved("case_100001", "hearing")
    assert own_office.books.mails() == [], "approved is not sent"
    assert (await own_office.reconcile())["executed"] == 1
    seen = await own_office.send(notice)
    assert (seen.ok, seen.idempotency_hit) == (True, True)
    (mail,) = own_office.books.mails()
    assert mail["message_id"] == seen.data["message_id"]
    assert mail["recipient"] == "harbour-street-bakery@register.northshore.example"
    assert (mail["account"], mail["registered"]) == (NORTH, 1)
    assert mail["body"].startswith("To Harbour Street Bakery, register number NS-1042")
    (row,) = own_office.rows("SELECT * FROM notices")
    assert (row["message_id"], row["sent_at"]) == (mail["message_id"], seen.data["sent_at"])
    assert (await own_office.reconcile())["verified"] == 1


async def test_the_way_of_a_notice_is_on_record(own_office):
    notice = await own_office.approved("case_100001")
    assert (await own_office.send(notice)).ok
    await own_office.reconcile()
    every = await own_office.events()
    about = [event for event in every if event.caller.tool == "send_approved_notice"]
    assert [event.type.value for event in about] == [
        "approval.required",
        "approval.voted",
        "approval.granted",
        "tool.requested",
        "tool.started",
        "tool.succeeded",
        "tool.verified",
    ]
    told = str(about)
    assert "officer-1" in told
    password = (own_office.home / "secrets" / NORTH / "smtp_password").read_text(encoding="utf-8")
    assert password not in told


# --- people ---------------------------------------------------------------------------------------


async def test_nothing_is_sent_without_an_approval(office):
    notice = await office.in_review("case_100001")
    held = await office.send(notice)
    assert (held.code, held.next_action) == ("CONFIRMATION_MISSING", "await_approval")
    await office.reconcile()
    again = await office.send(notice)
    assert (again.code, again.approval_id) == ("CONFIRMATION_MISSING", held.approval_id)
    assert office.mails(notice) == []


async def test_the_approver_reads_what_would_be_sent_to_whom(office):
    notice = await office.in_review("case_100002")
    held = await office.send(notice)
    packet = await office.runtime.approvals.get(NORTH, held.approval_id)
    assert packet.consequence == (
        f'The decision notice {notice["draft_id"]} goes to "Brightwater Dairy" at '
        f"{notice['recipient']} (email). What is sent can't be taken back."
    )
    assert packet.before["body"].startswith("To Brightwater Dairy")
    assert packet.record()["changes"] == [
        {"pointer": "/status", "before": "in_review", "after": "sent"}
    ]


async def test_who_has_not_the_role_does_not_approve(office):
    held = await office.send(await office.in_review("case_100003"))
    for voter, why in (
        (person("clerk-1"), "role"),
        (person("notice-agent-desk", "case-officer"), "requester"),
        (person("officer-9", "case-officer", tenant=EAST), "unknown"),
    ):
        with pytest.raises(ApprovalError) as refused:
            await office.approve(held, voter)
        assert refused.value.why == why


async def test_a_rejected_notice_is_not_sent_and_the_agent_reads_why(office):
    notice = await office.in_review("case_100004")
    held = await office.send(notice)
    await office.runtime.approvals.decide(
        held.approval_id, OFFICER, "reject", comment="The hearing comes first."
    )
    seen = await office.send(notice)
    assert (seen.code, seen.next_action) == ("CONFIRMATION_MISSING", "replan")
    assert "The hearing comes first." in seen.for_model()
    await office.reconcile()
    assert office.mails(notice) == []
    revised = await office.in_review("case_100004", revision=2)
    assert (await office.send(revised)).next_action == "await_approval"


async def test_a_penalty_takes_two_people(office):
    notice = await office.in_review("case_100009", "penalty")
    held = await office.send(notice)
    await office.approve(held, OFFICER)
    with pytest.raises(ApprovalError) as twice:
        await office.approve(held, OFFICER)
    assert twice.value.why == "voted"
    await office.reconcile()
    assert (await office.send(notice)).code == "CONFIRMATION_MISSING"
    assert office.mails(notice) == []
    await office.approve(held, SECOND)
    assert (await office.send(notice)).ok
    assert len(office.mails(notice)) == 1


# --- to whom --------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", sorted(example.planted.ATTACKERS))
async def test_an_address_outside_of_the_register_is_against_policy(office, address):
    notice = await office.in_review("case_100005", revision=len(address) % 19 + 1)
    seen = await office.send({**notice, "recipient": address})
    assert stopped(seen) == ("POLICY_VIOLATION", "policy", "office.registered-mailboxes")
    assert (seen.path, seen.next_action) == (None, "stop")
    assert address not in {mail["recipient"] for mail in office.books.mails()}


async def test_the_mailbox_of_another_company_is_refused_without_a_request(office):
    (planted,) = [one for one in PLANTED if one.kind == "invisible characters"]
    notice = await office.in_review(planted.case_id)
    seen = await office.send({**notice, "recipient": planted.address})
    assert stopped(seen) == ("SEMANTIC_INVALIDITY", "state", "RECIPIENT_ON_FILE")
    assert seen.approval_id is None
    assert f"state: {stopped(seen)[2]}" == planted.stopped_by


async def test_the_office_itself_would_not_send_it_either(office):
    """The last line, should every gate before it be gone."""
    notice = await office.in_review("case_100006")
    rows = example.notices.Notices(office.database, NORTH)
    with pytest.raises(example.notices.NotAllowedError) as refused:
        rows.begin(example.rows.By("x", "k_1"), notice["draft_id"], "a@b.example", "<k_1@x>")
    assert refused.value.words == "A notice goes to the mailbox on the case file."
    assert office.rows("SELECT * FROM notices WHERE call_key = 'k_1'") == []


async def test_a_draft_that_people_have_not_seen_is_not_sent(office):
    made = await office.draft("case_100007")
    notice = {"draft_id": made.data["draft_id"], "recipient": made.data["recipient"]}
    seen = await office.send(notice)
    assert stopped(seen) == ("SEMANTIC_INVALIDITY", "state", "ONLY_IN_REVIEW")


async def test_a_draft_that_does_not_exist_is_not_sent(office):
    east = agent("risk-agent", EAST)
    made = await office.draft("case_200002", who=east, facts=[evidence_of("case_200002")])
    for draft_id in ("drf_decision_0123456789ab", made.data["draft_id"]):
        seen = await office.send(
            {"draft_id": draft_id, "recipient": "x@register.northshore.example"}
        )
        assert stopped(seen) == ("STALE_STATE", "state", None)


async def test_an_agent_that_was_granted_it_by_mistake_is_stopped_by_policy(own_office):
    notice = await own_office.in_review("case_100001")
    own_office.runtime.registry.grant(Grant(agent="risk-agent", tool="send_approved_notice"))
    risk = agent("risk-agent", scopes={"notice:send"})
    seen = await own_office.send(notice, who=risk)
    assert stopped(seen) == ("POLICY_VIOLATION", "policy", "office.one-tool-one-purpose")


# --- once -----------------------------------------------------------------------------------------


async def test_asked_for_often_it_goes_out_once(office):
    notice = await office.approved("case_100010")
    seen = await asyncio.gather(*(office.send(notice) for _ in range(5)), office.reconcile())
    assert {one.code.value for one in seen[:5]} <= {"SUCCESS", "IDEMPOTENCY_CONFLICT"}
    assert (await until(lambda seen: seen.ok, lambda: office.send(notice))).idempotency_hit
    assert len(office.mails(notice)) == 1


async def test_a_second_worker_finds_what_the_first_has_done(own_office):
    notice = await own_office.approved("case_100001")
    async with open_runtime(load_settings(own_office.file)) as other:
        done = await asyncio.gather(Reconciler(other).once(), own_office.reconcile())
    assert sum(one["executed"] for one in done) == 1
    assert len(own_office.mails(notice)) == 1


async def test_an_answer_that_was_lost_is_found_in_the_books_of_the_mail_server(own_office):
    notice = await own_office.approved("case_100001")
    own_office.books.misbehave("lose_answer")
    seen = await own_office.send(notice)
    (mail,) = own_office.books.mails()
    assert (seen.ok, seen.data["message_id"]) == (True, mail["message_id"])
    assert seen.data["sent_at"] == mail["received_at"]
    (row,) = own_office.rows("SELECT * FROM notices")
    assert row["sent_at"] == mail["received_at"], "our books follow the server's"
    kinds = [event.type.value for event in await own_office.events(call_id=seen.call_id)]
    assert "tool.reconciled" in kinds
    assert (await own_office.send(notice)).idempotency_hit
    assert len(own_office.books.mails()) == 1


async def test_a_timeout_is_unknown_until_the_books_are_asked(own_office):
    notice = await own_office.approved("case_100001")
    own_office.books.misbehave("hold_answer")
    lost = await own_office.send(notice, seconds=2)
    assert (lost.ok, lost.next_action) == (False, "retry_later")
    assert "It is not known whether the call took effect." in lost.for_model()
    own_office.sink.release()
    seen = await until(lambda seen: seen.ok, lambda: own_office.send(notice))
    assert seen.data["message_id"] == own_office.books.mails()[0]["message_id"]
    assert len(own_office.books.mails()) == 1


# --- mail that does not go ------------------------------------------------------------------------


async def test_a_mail_server_that_refuses_has_sent_nothing_and_the_approval_counts(own_office):
    notice = await own_office.approved("case_100001")
    own_office.books.misbehave("refuse")
    seen = await own_office.send(notice)
    assert (seen.code, seen.path) == ("DEPENDENCY_UNAVAILABLE", "retry")
    assert seen.data == {"said": "The mail server does not take the message. Nothing was sent."}
    assert own_office.books.mails() == own_office.rows("SELECT * FROM notices") == []
    assert (await own_office.send(notice)).ok
    assert len(own_office.books.mails()) == 1
    asked = [event.type.value for event in await own_office.events()].count("approval.required")
    assert asked == 1, "nobody was asked twice"


async def test_a_mail_server_that_is_down_has_sent_nothing_and_says_so(own_office):
    notice = await own_office.approved("case_100001")
    where = (own_office.home / "smtp.txt").read_text(encoding="utf-8")
    (own_office.home / "smtp.txt").write_text("127.0.0.1:1", encoding="utf-8")
    seen = await own_office.send(notice)
    assert (seen.code, seen.path) == ("DEPENDENCY_UNAVAILABLE", "retry")
    assert seen.data == {"said": "The mail server can't be reached. Nothing was sent."}
    assert own_office.rows("SELECT * FROM notices") == []
    (own_office.home / "smtp.txt").write_text(where, encoding="utf-8")
    assert (await own_office.send(notice)).ok
    assert len(own_office.books.mails()) == 1


async def test_a_wrong_password_sends_nothing_and_is_not_shown(own_office):
    (own_office.home / "secrets" / NORTH / "smtp_password").write_text("not-the-password")
    notice = await own_office.approved("case_100001")
    seen = await own_office.send(notice)
    assert seen.data == {"said": "The mail server does not let us in. Nothing was sent."}
    assert "not-the-password" not in str(seen.record())
    assert own_office.books.mails() == []


async def test_a_kill_between_approval_and_sending_holds(own_office):
    notice = await own_office.approved("case_100001", "decision", SUPERVISOR)
    operator = own_office.runtime.operator("duty-desk")
    kill = await operator.kill(effect="external_notification", reason="letters were wrong")
    await own_office.reconcile()
    assert own_office.books.mails() == []
    await operator.restore(kill, reason="mended")
    assert (await own_office.send(notice)).ok
    assert len(own_office.books.mails()) == 1
