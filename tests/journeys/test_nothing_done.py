"""What a tool can say of a call that came to nothing, and rules about the target of a call."""

import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, ClassVar

import pytest
from pydantic import Field

from counterseal import (
    Code,
    ContractError,
    Effect,
    Grant,
    Invariant,
    NotDoneError,
    NotSentError,
    Principal,
    Proposal,
    Registry,
    Runtime,
    tool,
)
from counterseal.contract.declare import wrap_plain_tool
from counterseal.contract.effects import Trust
from counterseal.contract.formats import openai_chat

CaseId = Annotated[str, Field(max_length=20, description="The case.")]
Address = Annotated[str, Field(max_length=60, description="Where to.")]
WHO = Principal(tenant="acme", user="u_1", agent="clerk", scopes={"mail"})
ON_FILE = Invariant(
    id="ADDRESS_ON_FILE",
    rule="Mail goes to the address on the case file.",
    check="call.address == target.address",
)
DOWN = Code.DEPENDENCY_UNAVAILABLE
declared = functools.partial(tool, version="1.0.0", owner="desk", scopes=["mail"])


async def submit(made, *arguments, key=None):
    """The observations of calls with these arguments, one after the other."""
    name = made.contract.name
    async with Runtime.open("memory:") as runtime:
        runtime.register(made, grants=[Grant(agent="clerk", tool=name)])
        asked = [Proposal(tool=name, arguments=a, run_id="run_1", key=key) for a in arguments]
        return [await runtime.submit(proposal, WHO) for proposal in asked]


class Desk:
    """A tool that changes something, and what it is told to do about it."""

    def __init__(self, *raises, **codes):
        self.raises = list(raises)
        self.tries = 0
        known = {"error_taxonomy_mapping": {name: code.value for name, code in codes.items()}}

        @declared(effect=Effect.DRAFT, max_retries=2, observability=known)
        async def note(case_id: CaseId) -> dict[str, str]:
            """Put a note on a case."""
            self.tries += 1
            if self.raises:
                raise self.raises.pop(0)
            return {"case": case_id}

        self.note = note


async def test_a_tool_says_in_words_that_nothing_was_done():
    desk = Desk(NotDoneError("Case c_1 was closed yesterday."))
    (seen,) = await submit(desk.note, {"case_id": "c_1"})
    assert seen.code is Code.SEMANTIC_INVALIDITY
    assert "Case c_1 was closed yesterday." in seen.for_model()
    assert desk.tries == 1


async def test_what_was_not_done_is_not_in_doubt_and_leaves_the_key_for_a_mended_call():
    desk = Desk(NotDoneError("There is no case c_1."))
    first, mended = await submit(desk.note, {"case_id": "c_1"}, {"case_id": "c_2"}, key="note-7")
    assert (first.ok, first.escalate, mended.ok) == (False, False, True)


class DownError(NotDoneError):
    """Nothing was done, for now."""


async def test_what_was_not_done_for_now_is_tried_again_and_can_be_done_later():
    desk = Desk(*[DownError("The archive is down.") for _ in range(4)], DownError=DOWN)
    first, later = await submit(desk.note, {"case_id": "c_1"}, {"case_id": "c_1"})
    assert (first.code, first.retry, later.ok) == (Code.DEPENDENCY_UNAVAILABLE, True, True)
    assert "The archive is down." in first.for_model()
    assert desk.tries == 5


async def test_what_never_left_is_tried_again_as_often_as_the_contract_says():
    desk = Desk(NotSentError("no route"), NotSentError("no route"))
    (seen,) = await submit(desk.note, {"case_id": "c_1"})
    assert seen.ok
    assert (desk.tries, seen.attempt) == (3, 3)


async def test_the_text_of_what_never_left_is_for_operators():
    desk = Desk(*[NotSentError("10.0.0.7 refuses") for _ in range(3)])
    (seen,) = await submit(desk.note, {"case_id": "c_1"})
    assert seen.code is Code.DEPENDENCY_UNAVAILABLE
    assert "10.0.0.7" not in seen.for_model()


@declared(effect=Effect.DRAFT, isolation="process")
def note_elsewhere(case_id: CaseId) -> dict[str, str]:
    """Put a note on a case, from a process of its own."""
    if case_id == "c_down":
        raise NotSentError("no route")
    raise NotDoneError(f"Case {case_id} was closed yesterday.")


@pytest.mark.slow
async def test_a_tool_in_a_process_of_its_own_says_the_same():
    (closed,) = await submit(note_elsewhere, {"case_id": "c_1"})
    (down,) = await submit(note_elsewhere, {"case_id": "c_down"})
    assert closed.code is Code.SEMANTIC_INVALIDITY
    assert "was closed yesterday" in closed.for_model()
    assert (down.code, down.escalate) == (Code.DEPENDENCY_UNAVAILABLE, False)


# --- rules about the target -----------------------------------------------------------------------


def mail(*rules, probe=lambda case_id: {"version": 1, "address": "a@example.org"}, **more):
    @declared(
        effect=Effect.EXTERNAL_NOTIFICATION,
        invariants=rules,
        probe=probe,
        consequence="Mail about {case_id} goes to {address}.",
        **more,
    )
    def send_mail(case_id: CaseId, address: Address) -> dict[str, str]:
        """Send mail about a case."""
        return {"sent": address}

    return send_mail


async def test_no_approval_is_requested_for_a_call_that_does_not_fit_its_target():
    (seen,) = await submit(mail(ON_FILE), {"case_id": "c_1", "address": "evil@example.net"})
    assert seen.code is Code.SEMANTIC_INVALIDITY
    assert seen.approval_id is None
    assert seen.errors[0].code == "ADDRESS_ON_FILE"
    assert ON_FILE.rule in seen.for_model()
    assert "a@example.org" not in seen.for_model(), "what the probe saw is not told"


async def test_a_call_that_fits_its_target_goes_on_to_a_person():
    (seen,) = await submit(mail(ON_FILE), {"case_id": "c_1", "address": "a@example.org"})
    assert seen.code is Code.CONFIRMATION_MISSING


async def test_a_rule_about_what_the_probe_does_not_tell_refuses():
    blind = mail(ON_FILE, probe=lambda case_id: {"version": 1})
    (seen,) = await submit(blind, {"case_id": "c_1", "address": "a@example.org"})
    assert seen.code is Code.SEMANTIC_INVALIDITY


async def test_the_model_reads_the_rule_beforehand():
    shown = openai_chat(mail(ON_FILE).contract).tool
    assert ON_FILE.rule in shown["function"]["description"]


VERSIONED = {
    "version_argument": "seen",
    "probe": lambda case_id: {"version": 4, "open": True},
    "effect": Effect.DRAFT,
}


@declared(**VERSIONED)
def update_case(case_id: CaseId, seen: Annotated[int, Field(description="The version.")]) -> None:
    """Update a case."""


async def test_an_argument_says_which_version_was_seen():
    stale, fresh = await submit(
        update_case, {"case_id": "c_1", "seen": 3}, {"case_id": "c_1", "seen": 4}
    )
    assert (stale.code, stale.next_action) == (Code.STALE_STATE, "refresh_state_and_replan")
    assert fresh.ok


def test_a_rule_about_the_target_takes_a_probe():
    with pytest.raises(ContractError, match="ADDRESS_ON_FILE checks the target"):
        Registry().register(mail(ON_FILE, probe=None))


def test_a_rule_about_the_target_corrects_nothing():
    fields = {"id": "RULE", "rule": "A rule.", "check": "call.address == target.address"}
    with pytest.raises(ValueError, match="have a corrector"):
        Invariant(**fields, correct={"set": {"address": "a@example.org"}})


# --- a failure that a plain tool reports as its result --------------------------------------------


class Look:
    """A tool of the plain protocol that reports a failure instead of raising."""

    name = "look"
    description = "Look up a case."
    version = "1.0.0"
    input_schema: ClassVar = {
        "type": "object",
        "properties": {"case_id": {"type": "string", "description": "The case."}},
    }

    def __init__(self, **error):
        self.error = error
        self.tries = 0

    async def execute(self, input):
        self.tries += 1
        return SimpleNamespace(success=False, output=None, error=self.error)


async def reported(effect, *, calls=1, mapping=None, not_done=(), **error):
    """The observations of calls of a tool that reports this error, and how often it ran."""
    plain = Look(**error)
    plain.not_done_errors = not_done
    made = wrap_plain_tool(plain, effect=effect)
    own = made.contract.observability.model_copy(update={"error_taxonomy_mapping": mapping or {}})
    made = replace(made, contract=made.contract.model_copy(update={"observability": own}))
    asked = [{"case_id": "c_1"}] * calls
    return await submit(made, *asked, key="look-1"), plain.tries


async def test_a_reported_failure_is_read_by_the_agent_as_data_without_secrets():
    message = "no case c_1 for token ghp_0123456789abcdefghijABCDEFGHIJ012345"
    (seen,), _ = await reported("read_only", message=message, internal="db-7")
    assert seen.code is Code.SEMANTIC_INVALIDITY
    assert seen.data == {"said": "no case c_1 for token [redacted:github-token]"}
    assert seen.trust is Trust.UNTRUSTED
    assert "db-7" not in seen.for_model()
    assert (seen.escalate, seen.response.fail_closed) == (False, False)


@pytest.mark.parametrize(
    ("error", "mapping", "code"),
    [
        ({"message": "late", "type": "TimeoutError"}, {}, Code.TIMEOUT),
        ({"message": "not now", "type": "ConnectionError"}, {}, Code.DEPENDENCY_UNAVAILABLE),
        ({"message": "changed", "code": "STALE_STATE"}, {}, Code.STALE_STATE),
        ({"message": "odd", "code": "E_42"}, {"E_42": "RATE_LIMITED"}, Code.RATE_LIMITED),
        ({"message": "odd", "type": "CaseError"}, {"CaseError": "STALE_STATE"}, Code.STALE_STATE),
        ({"message": "odd", "code": "CONFIRMATION_MISSING"}, {}, Code.SEMANTIC_INVALIDITY),
        ({"message": "odd", "code": "SUCCESS"}, {}, Code.SEMANTIC_INVALIDITY),
        ({}, {}, Code.SEMANTIC_INVALIDITY),
    ],
)
async def test_the_name_of_a_reported_error_leads_to_its_code(error, mapping, code):
    (seen,), _ = await reported("read_only", mapping=mapping, **error)
    assert seen.code is code
    assert ("said" in (seen.data or {})) == ("message" in error)


async def test_a_change_that_reports_a_timeout_is_in_doubt_and_not_made_twice():
    seen, tries = await reported("draft", calls=2, message="no answer", type="TimeoutError")
    assert [one.code for one in seen] == [Code.TIMEOUT, Code.IDEMPOTENCY_CONFLICT]
    assert "not known whether" in seen[0].errors[0].message
    assert tries == 1


@pytest.mark.parametrize("error", [{}, {"message": "No such case."}, {"code": "E_42"}])
async def test_a_read_that_reports_a_failure_neither_fails_closed_nor_escalates(error):
    (seen,), tries = await reported("read_only", **error)
    assert not seen.ok
    assert (seen.response.fail_closed, seen.escalate, tries) == (False, False, 1)
    assert "reported a failure" in seen.for_model()


@pytest.mark.parametrize(
    "error",
    [{}, {"message": "No such case."}, {"message": "No.", "code": "STALE_STATE"}, {"type": "Odd"}],
)
async def test_a_change_that_reports_a_failure_is_in_doubt_and_not_made_twice(error):
    seen, tries = await reported("draft", calls=2, not_done=["E_43", "Nothing *"], **error)
    assert [one.code for one in seen] == [Code.UNKNOWN_ERROR, Code.IDEMPOTENCY_CONFLICT]
    assert "not known whether" in seen[0].errors[0].message
    assert seen[0].next_action == "escalate"
    assert tries == 1


@pytest.mark.parametrize(
    ("not_done", "error", "code"),
    [
        (["E_42"], {"message": "No.", "code": "E_42"}, Code.SEMANTIC_INVALIDITY),
        (["No such *"], {"message": "No such case [c_1]?"}, Code.SEMANTIC_INVALIDITY),
        (["No such case [c_1]?"], {"message": "No such case [c_1]?"}, Code.SEMANTIC_INVALIDITY),
        (["STALE_STATE"], {"message": "Changed.", "code": "STALE_STATE"}, Code.STALE_STATE),
        (["*"], {}, Code.SEMANTIC_INVALIDITY),
    ],
)
async def test_a_contract_names_the_errors_after_which_nothing_was_done(not_done, error, code):
    seen, tries = await reported("draft", calls=2, not_done=not_done, **error)
    assert {one.code for one in seen} == {code}
    assert seen[0].response.fail_closed is False
    assert "nothing was done" in seen[0].for_model()
    assert tries in (1, 2), "a repeat may be answered from the ledger"


def test_the_errors_are_no_part_of_the_seeds_envelope():
    plain = wrap_plain_tool(Look(), effect="draft")
    named = Look()
    named.not_done_errors = ["E_42"]
    made = wrap_plain_tool(named, effect="draft")
    assert made.contract.record()["not_done_errors"] == ["E_42"]
    assert "not_done_errors" not in made.contract.envelope()
    assert set(made.contract.envelope()["error_contract"]) == {
        "repairable_errors",
        "retryable_errors",
        "fail_closed_errors",
        "escalation_errors",
    }
    assert plain.contract.hash != made.contract.hash
