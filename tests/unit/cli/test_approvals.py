"""`counterseal approvals`: what waits is listed and shown, and people decide on it."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from typer.testing import CliRunner

from counterseal.cli.app import app

TOOLS = '''
from pathlib import Path
from typing import Annotated
from pydantic import Field
from counterseal import tool

BOOKS = Path(__file__).parent / "books.txt"
Id = Annotated[str, Field(max_length=40, description="Which one.")]


def write_down(text):
    with BOOKS.open("a") as books:
        books.write(text + "\\n")


@tool(effect="external_notification", version="1.0.0", owner="cases",
      consequence="Notice {draft_id} is e-mailed to {recipient}.")
def send_notice(draft_id: Id, recipient: Id) -> dict[str, str]:
    """Send a notice."""
    write_down(f"sent {draft_id}")
    return {"notice_id": "not_1"}


@tool(effect="irreversible", version="2.1.0", owner="billing",
      consequence="Invoice {invoice_id} is charged to the card of its customer, and the customer"
      " gets a receipt by mail.",
      approval={"roles": ["cfo", "finance-lead"], "then": "resubmit"})
def charge_card(invoice_id: Id) -> dict[str, str]:
    """Charge a card."""
    write_down(f"charged {invoice_id}")
    return {"charge_id": "ch_1"}


@tool(effect="external_notification", version="1.0.0", owner="legal",
      consequence="The case is handed over to {court}.",
      approval={"pattern": "compliance_gate", "accountable_owner": "head of legal"})
def hand_over(court: Id) -> dict[str, str]:
    """Hand a case over."""
    return {"done": "yes"}
'''
GRANT = '[[grants]]\nagent = "clerk"\ntool = "{}"\nmax_calls_per_run = 9\n'
SETTINGS = (
    '[tools]\npaths = ["tools.py"]\n[store]\nurl = "sqlite:///calls.db"\n'
    + "".join(map(GRANT.format, ("send_notice", "charge_card", "hand_over")))
    + '[approvers.ada]\nroles = ["cfo"]\n'
    + '[approvers.ben]\nroles = ["finance-lead", "compliance"]\ntenants = ["acme"]\n'
    + '[approvers.cy]\ntenants = ["globex"]\n'
    + "[approvers.u_7]\n[approvers.clerk]\n"
)
NOTICE = {"draft_id": "drf_1", "recipient": "a@example.org"}
INVOICE = {"invoice_id": "inv_1007"}


@pytest.fixture
def project(write, folder):
    write("tools.py", TOOLS)
    write("counterseal.toml", SETTINGS)
    return folder


@pytest.fixture
def ask(project):
    """Make a call as an agent does. `ago` seconds ago, if that is given."""

    def ask(tool, arguments, *, ago=0.0, tenant="acme"):
        from counterseal import Principal, Proposal
        from counterseal.config import load_settings, open_runtime

        async def call():
            async with open_runtime(load_settings(project / "counterseal.toml")) as runtime:
                runtime.clock = lambda: time.time() - ago
                proposal = Proposal(tool=tool, arguments=arguments, run_id="run_1")
                who = Principal(tenant=tenant, agent="clerk", user="u_7")
                return await runtime.submit(proposal, who)

        return asyncio.run(call())

    return ask


@pytest.fixture
def held(ask):
    def held(tool="send_notice", arguments=NOTICE, **more):
        seen = ask(tool, arguments, **more)
        assert seen.code == "CONFIRMATION_MISSING"
        return seen.approval_id

    return held


@pytest.fixture
def say(project):
    """The command, with what somebody types."""

    def say(typed, *arguments):
        return CliRunner().invoke(app, ["approvals", *arguments], input=typed)

    return say


@pytest.fixture
def approvals(run):
    return lambda *arguments: run("approvals", *arguments)


def done(project):
    books = project / "books.txt"
    return books.read_text().splitlines() if books.exists() else []


def status(approvals, approval_id):
    return json.loads(approvals("show", approval_id, "--json").stdout)["status"]


# Looking -----------------------------------------------------------------------------------------


def test_list_says_what_waits_and_who_asks(approvals, held):
    first, second = held("charge_card", INVOICE), held()
    result = approvals("list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{first}  0 of 2 approved, 9 minutes ")
    assert lines[0].endswith(" left")
    assert " ".join(line.strip() for line in lines[1:3]) == (
        "Invoice inv_1007 is charged to the card of its customer, and the customer gets a receipt"
        " by mail."
    )
    assert lines[3].strip() == (
        "charge_card 2.1.0, CRITICAL_MUTATION, by clerk for u_7, tenant acme"
    )
    assert lines[4].strip() == "An approver with the role compliance is still needed."
    assert lines[5].startswith(f"{second}  0 of 1 approved, ")
    assert max(map(len, lines)) <= 80


def test_list_and_show_say_that_no_known_approver_has_the_role(approvals, held, write):
    approval_id = held("charge_card", INVOICE)
    nobody = "No known person who can approve it has that role."
    shown = ("show", approval_id, "--json")
    assert nobody not in " ".join(approvals("list").stdout.split())
    assert nobody not in approvals(*shown).stdout
    write("counterseal.toml", SETTINGS.replace('"finance-lead", "compliance"', '"compliance"'))
    assert nobody in " ".join(approvals("list").stdout.split()), "the contract asks for its own"
    assert json.loads(approvals(*shown).stdout)["needed"].endswith(nobody)


def test_list_puts_what_ends_first_at_the_top_and_leaves_out_what_is_over(approvals, held, run):
    later, sooner = held(), held("charge_card", INVOICE, ago=300)
    over = held("send_notice", {**NOTICE, "draft_id": "drf_2"}, ago=3600)
    rows = json.loads(approvals("list", "--json").stdout)
    assert [row["approval_id"] for row in rows] == [sooner, later]
    assert over not in approvals("list").stdout
    assert approvals("list", "--status", "expired", "--json").stdout == "[]\n"  # nobody wrote it
    assert run("reconcile").exit_code == 0
    (ended,) = json.loads(approvals("list", "--status", "expired", "--json").stdout)
    assert ended["approval_id"] == over
    (one,) = json.loads(approvals("list", "--json", "--limit", "1").stdout)
    assert one["approval_id"] == sooner
    assert (one["approved"], one["approvers"], one["risk_class"]) == (0, 2, "CRITICAL_MUTATION")
    assert one["consequence"].startswith("Invoice inv_1007 is charged")


def test_list_of_a_tenant_and_of_a_status(approvals, held):
    acme, globex = held(), held(tenant="globex")
    rows = json.loads(approvals("list", "--tenant", "globex", "--json").stdout)
    assert [row["approval_id"] for row in rows] == [globex]
    approvals("approve", acme, "--as", "ada", "--yes")
    assert (
        f"{acme}  1 of 1 approved, approved\n" in approvals("list", "--status", "approved").stdout
    )
    assert approvals("list", "--status", "void").stdout == "No request is void.\n"
    wrong = approvals("list", "--status", "open")
    assert (wrong.exit_code, "Allowed: waiting, approved" in wrong.stderr) == (2, True)


def test_list_with_nothing_on_it(approvals, held):
    approvals("reject", held(), "--as", "ada", "--reason", "No.", "--yes")
    result = approvals("list")
    assert (result.exit_code, result.stdout) == (0, "No request is waiting for approval.\n")
    assert json.loads(approvals("list", "--json").stdout) == []


def test_show_is_the_card_at_eighty_columns(approvals, held):
    approval_id = held("charge_card", INVOICE)
    lines = approvals("show", approval_id).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("┌─ APPROVAL NEEDED ──")
    assert lines[2].startswith("│  If approved  Invoice inv_1007 is charged")
    assert any("Dual control: 2 different people with the role cfo or" in line for line in lines)
    assert any(line.startswith("│  Expires      in 9 minutes") for line in lines)
    assert lines[-1].startswith("└──")


def test_show_has_the_same_in_other_forms(approvals, held):
    approval_id = held()
    assert approvals("show", approval_id, "--format", "markdown").stdout.startswith("### Approval")
    assert approvals("show", approval_id, "--format", "html").stdout.startswith("<article ")
    for form in (("--format", "json"), ("--json",)):
        told = json.loads(approvals("show", approval_id, *form).stdout)
        assert told["consequence"] == "Notice drf_1 is e-mailed to a@example.org."


def test_show_of_what_is_over_says_so(approvals, held):
    approval_id = held(ago=3600)
    assert approvals("show", approval_id).stdout.startswith("┌─ APPROVAL EXPIRED ─")
    assert status(approvals, approval_id) == "expired"


def test_show_of_what_is_not_there(approvals, held):
    acme = held()
    for arguments in (("appr_0",), (acme, "--tenant", "globex")):
        result = approvals("show", *arguments)
        assert result.exit_code == 2
        assert "There is no request appr_" in result.stderr
        assert json.loads(approvals("show", *arguments, "--json").stdout)["why"] == "unknown"


@pytest.mark.slow
def test_card_is_drawn_in_ascii_where_the_stream_has_nothing_else(project, held):
    result = subprocess.run(
        [sys.executable, "-m", "counterseal", "approvals", "show", held()],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=project,
        capture_output=True,
        check=True,
    )
    assert result.stdout.decode("ascii").startswith("+- APPROVAL NEEDED -")


# Approving ---------------------------------------------------------------------------------------


def test_approve_shows_the_card_and_asks(project, approvals, held, say, run):
    approval_id = held()
    result = say("y\n", "approve", approval_id, "--as", "ada", "--comment", "Read it.")
    assert result.exit_code == 0
    assert "If approved  Notice drf_1 is e-mailed to a@example.org." in result.stderr
    assert "Approve? [y/N]" in result.stderr
    assert result.stdout.endswith(
        "Approved. The next pass of `counterseal reconcile` executes the call.\n"
    )
    (vote,) = json.loads(approvals("show", approval_id, "--json").stdout)["votes"]["cast"]
    assert (vote["approver"], vote["comment"]) == ("ada", "Read it.")
    assert done(project) == []
    assert run("reconcile").stdout == "1 executed after approval\n"
    assert done(project) == ["sent drf_1"]
    assert run("reconcile").stdout == "Nothing was due.\n"


@pytest.mark.parametrize("typed", ["n\n", "\n", ""])
def test_approve_that_is_not_meant_decides_nothing(approvals, held, say, typed):
    approval_id = held()
    assert say(typed, "approve", approval_id, "--as", "ada").exit_code == 1
    assert say(typed, "reject", approval_id, "--as", "ada", "--reason", "x").exit_code == 1
    assert status(approvals, approval_id) == "waiting"


def test_approve_takes_two_people_where_two_are_asked(project, ask, approvals, held):
    approval_id = held("charge_card", INVOICE)
    first = approvals("approve", approval_id, "--as", "ada", "--confirm", "charge_card")
    assert first.exit_code == 0
    assert first.stdout == (
        "Your approval is on record: 1 of 2. 1 more needed."
        " An approver with the role compliance is still needed.\n"
    )
    words = ("approve", approval_id, "--as", "ben", "--confirm", "charge_card", "--json")
    second = approvals(*words)
    assert second.exit_code == 0
    assert json.loads(second.stdout) == {
        "decision": "approve",
        "approver": "ben",
        "approval_id": approval_id,
        "status": "approved",
        "votes": "2 of 2",
        "missing": 0,
        "then": "resubmit",
    }
    assert "APPROVAL" not in second.stderr, "programs don't read cards"
    assert ask("charge_card", INVOICE).ok
    assert done(project) == ["charged inv_1007"]


@pytest.mark.slow
def test_critical_mutation_takes_a_typed_name(approvals, held, say):
    approval_id = held("charge_card", INVOICE)
    alone = approvals("approve", approval_id, "--as", "ada", "--yes")
    assert alone.exit_code == 2
    assert "--confirm charge_card" in alone.stderr
    for typed in ("y\n", "\n", "charge\n"):
        wrong = say(typed, "approve", approval_id, "--as", "ada")
        assert (wrong.exit_code, "Nothing was decided." in wrong.stderr) == (1, True)
    given = approvals("approve", approval_id, "--as", "ada", "--confirm", "charge", "--yes")
    assert (given.exit_code, "--confirm must be charge_card" in given.stderr) == (2, True)
    assert json.loads(approvals("show", approval_id, "--json").stdout)["votes"]["cast"] == []
    right = say("charge_card\n", "approve", approval_id, "--as", "ada")
    assert (right.exit_code, "Type charge_card to approve it" in right.stderr) == (0, True)
    end = approval_id.removeprefix("appr_")
    assert say(f"{end}\n", "approve", approval_id, "--as", "ben").exit_code == 0
    assert status(approvals, approval_id) == "approved"


def test_rejecting_a_critical_mutation_takes_no_more_than_a_reason(approvals, held):
    approval_id = held("charge_card", INVOICE)
    words = ("reject", approval_id, "--as", "ada", "--reason", "No.", "--yes")
    assert approvals(*words).exit_code == 0
    assert status(approvals, approval_id) == "rejected"


def test_resubmitting_is_named_where_it_is_the_way_on(approvals, held):
    approval_id = held("charge_card", INVOICE)
    for who in ("ada", "ben"):
        words = ("approve", approval_id, "--as", who, "--confirm", "charge_card")
        result = approvals(*words)
    assert result.stdout.startswith("Approved. The agent can send the call again until 20")


@pytest.mark.parametrize(
    ("who", "tool", "arguments", "why", "said"),
    [
        ("u_7", "send_notice", NOTICE, "requester", "can't approve your own"),
        ("clerk", "send_notice", NOTICE, "requester", "can't approve your own"),
        ("cy", "charge_card", INVOICE, "unknown", "There is no request"),
        ("u_7", "charge_card", INVOICE, "requester", "can't approve your own"),
        ("ada", "hand_over", {"court": "c"}, "justification", "Give --justification TEXT."),
    ],
)
def test_vote_that_can_not_be_taken_says_why(approvals, held, who, tool, arguments, why, said):
    approval_id = held(tool, arguments)
    words = ("approve", approval_id, "--as", who, "--yes")
    code = 2 if why == "unknown" else 1
    plain, told = approvals(*words), approvals(*words, "--json")
    assert (plain.exit_code, told.exit_code) == (code, code)
    assert said in plain.stderr
    assert "--yes alone" not in plain.stderr, "nobody is asked for what would be refused"
    assert json.loads(told.stdout)["why"] == why
    assert status(approvals, approval_id) == "waiting"


def test_role_is_what_the_file_says(approvals, held, write):
    approval_id = held("charge_card", INVOICE)
    words = ("approve", approval_id, "--as", "ada", "--confirm", "charge_card", "--json")
    write("counterseal.toml", SETTINGS.replace('roles = ["cfo"]', 'roles = ["clerk"]'))
    result = approvals(*words)
    assert (result.exit_code, json.loads(result.stdout)["why"]) == (1, "role")
    write("counterseal.toml", SETTINGS)
    assert approvals(*words).exit_code == 0
    again = approvals(*words)
    assert (again.exit_code, json.loads(again.stdout)["why"]) == (1, "voted")


def test_justification_is_taken_where_it_is_asked(approvals, held):
    approval_id = held("hand_over", {"court": "c"})
    words = ("approve", approval_id, "--as", "ada", "--yes", "--justification", "Section 12.")
    assert approvals(*words).exit_code == 0
    (vote,) = json.loads(approvals("show", approval_id, "--json").stdout)["votes"]["cast"]
    assert vote["justification"] == "Section 12."


@pytest.mark.slow
def test_too_late_has_an_exit_code_of_its_own(approvals, held):
    over = held(ago=3600)
    decided = held("send_notice", {**NOTICE, "draft_id": "drf_2"})
    approvals("reject", decided, "--as", "ben", "--reason", "No.", "--yes")
    for approval_id, why in ((over, "expired"), (decided, "decided")):
        for words in (("approve", approval_id), ("reject", approval_id, "--reason", "x")):
            result = approvals(*words, "--as", "ada", "--yes", "--json")
            assert (result.exit_code, json.loads(result.stdout)["why"]) == (4, why)
            assert approvals(*words, "--as", "ada").exit_code == 4, "there is nothing to ask"


def test_reject_tells_the_agent_why(project, ask, approvals, held, say):
    approval_id = held()
    words = ("reject", approval_id, "--as", "ada", "--reason", "Wrong address.")
    result = say("y\n", *words)
    assert (result.exit_code, "Reject? [y/N]" in result.stderr) == (0, True)
    assert result.stdout.endswith("Rejected. The agent gets your reason.\n")
    seen = ask("send_notice", NOTICE)
    assert (seen.code, seen.next_action) == ("CONFIRMATION_MISSING", "replan")
    assert "Wrong address." in seen.for_model()
    assert done(project) == []


def test_reject_takes_a_reason(approvals, held):
    approval_id = held()
    for words in ((), ("--reason", " ")):
        result = approvals("reject", approval_id, "--as", "ada", "--yes", *words)
        assert (result.exit_code, "--reason" in result.stderr) == (2, True)


# Who ---------------------------------------------------------------------------------------------


def test_your_user_name_counts_if_the_file_declares_it(approvals, held, monkeypatch):
    approval_id = held()
    monkeypatch.setenv("LOGNAME", "zoe")
    result = approvals("approve", approval_id, "--yes")
    assert result.exit_code == 2
    assert "Your user name 'zoe' is not an approver in counterseal.toml." in result.stderr
    assert "Write [approvers.zoe]" in result.stderr
    assert "Declared approvers: ada, ben" in result.stderr
    monkeypatch.setenv("LOGNAME", "ben")
    assert approvals("approve", approval_id, "--yes").exit_code == 0


def test_a_person_who_is_not_declared_decides_nothing(approvals, held, write):
    approval_id = held()
    result = approvals("approve", approval_id, "--as", "a.b", "--yes")
    assert (result.exit_code, 'Write [approvers."a.b"]' in result.stderr) == (2, True)
    write("counterseal.toml", SETTINGS[: SETTINGS.index("[approvers")])
    result = approvals("approve", approval_id, "--as", "ada", "--yes")
    assert (result.exit_code, "Declared" in result.stderr) == (2, False)


@pytest.mark.parametrize("spelt", ["U_7", "\uff55_7", "u\u200b_7", "Clerk"])
def test_requester_approves_under_no_other_spelling(approvals, held, spelt):
    approval_id = held()
    result = approvals("approve", approval_id, "--as", spelt, "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["why"]) == (1, "requester")
    assert status(approvals, approval_id) == "waiting"


@pytest.mark.slow
def test_an_approver_decides_for_their_tenants_only(approvals, held):
    acme, globex = held(), held(tenant="globex")
    for approval_id, who in ((acme, "cy"), (globex, "ben")):
        for more in ((), ("--tenant", "acme"), ("--tenant", "globex")):
            result = approvals("approve", approval_id, "--as", who, "--yes", *more)
            assert (result.exit_code, "There is no request" in result.stderr) == (2, True)
    assert approvals("approve", globex, "--as", "cy", "--yes").exit_code == 0


# Keys, contracts, stores -------------------------------------------------------------------------


def test_unsigned_approvals_are_said_to_be_so(ask, approvals, held, run, write):
    note = "This approval will not be signed"
    assert note in approvals("approve", held(), "--as", "ada", "--yes").stderr
    write("counterseal.toml", f'{SETTINGS}[keys]\npath = "keys"\n')
    assert run("keys", "new", "approval").exit_code == 0
    signed = held("charge_card", INVOICE)
    for who in ("ada", "ben"):
        words = ("approve", signed, "--as", who, "--confirm", "charge_card")
        assert note not in approvals(*words).stderr
    assert ask("charge_card", INVOICE).ok


def test_the_public_half_of_a_key_approves_nothing(project, approvals, held, run, write):
    approval_id = held()
    run("keys", "new", "approval", "--keys", "elsewhere")
    (public,) = project.glob("elsewhere/approval-*.pem")
    pem = run("keys", "export", "approval", "--keys", "elsewhere").stdout
    write(f"keys/{public.name}", pem)
    write("counterseal.toml", f'{SETTINGS}[keys]\npath = "keys"\n')
    result = approvals("approve", approval_id, "--as", "ada", "--yes")
    assert (result.exit_code, "`counterseal keys new approval`" in result.stderr) == (1, True)
    assert status(approvals, approval_id) == "waiting"


def test_a_request_that_can_not_be_shown_can_not_be_approved(approvals, held, write):
    approval_id = held()
    write("tools.py", TOOLS.replace("is e-mailed to", "is posted to"))
    result = approvals("approve", approval_id, "--as", "ada", "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["why"]) == (1, "contract")
    assert "(can't be shown here: send_notice 1.0.0" in approvals("list").stdout
    (row,) = json.loads(approvals("list", "--json").stdout)
    assert row["consequence"] is None


def test_a_request_that_can_not_be_shown_can_be_rejected(approvals, held, write, ask, say):
    first, second = held(), held("charge_card", INVOICE)
    write("tools.py", TOOLS.replace("is e-mailed to", "is posted to").replace("2.1.0", "3.0.0"))
    result = say("n\n", "reject", first, "--reason", "Not that.", "--as", "ada")
    assert (result.exit_code, status_in_list(approvals, "waiting")) == (1, {first, second})
    result = approvals("reject", first, "--reason", "Not that.", "--as", "ada", "--yes")
    assert (result.exit_code, result.stdout.split(".")[0]) == (0, "Rejected")
    assert "The request can't be shown here: send_notice 1.0.0" in result.stderr
    result = approvals("reject", second, "--reason", "No.", "--as", "ada", "--yes", "--json")
    assert json.loads(result.stdout)["status"] == "rejected"
    assert status_in_list(approvals, "rejected") == {first, second}
    result = approvals("reject", first, "--reason", "No.", "--as", "ben", "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["why"]) == (4, "decided")


def status_in_list(approvals, status):
    rows = json.loads(approvals("list", "--status", status, "--json").stdout)
    return {row["approval_id"] for row in rows}


def test_one_damaged_request_does_not_blind_the_desk(project, approvals, held):
    damaged, sound = held(), held("charge_card", INVOICE)
    with closing(sqlite3.connect(project / "calls.db")) as db, db:
        where = "where approval_id = ?"
        db.execute(f"update held set sealed = x'00ff', votes = '[7]' {where}", (damaged,))
    listed = approvals("list")
    assert listed.exit_code == 0
    assert "Invoice inv_1007 is charged" in listed.stdout
    assert "(can't be shown here: The stored request" in listed.stdout
    watched = approvals("watch", "--once", "--json").stdout.splitlines()
    told = {row["approval_id"]: row["consequence"] for row in map(json.loads, watched)}
    assert (told[damaged], told[sound] is None) == (None, False)
    result = approvals("approve", damaged, "--as", "ada", "--yes", "--json")
    assert (result.exit_code, json.loads(result.stdout)["why"]) == (1, "unreadable")


def test_looking_writes_nothing(project, approvals, held):
    over = held(ago=3600)
    for _ in range(2):
        assert "No request is waiting" in approvals("list").stdout
    with closing(sqlite3.connect(project / "calls.db")) as db:
        found = db.execute("select status from held where approval_id = ?", (over,)).fetchall()
    assert found == [("waiting",)]


NOT_TEXT = b"\xff\xfe".decode(errors="surrogateescape")


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        ("show", NOT_TEXT),
        ("show", "{}", "--tenant", NOT_TEXT),
        ("list", "--tenant", NOT_TEXT),
        ("list", "--status", NOT_TEXT),
        ("approve", "{}", "--as", NOT_TEXT),
        ("approve", "{}", "--as", "ada", "--yes", "--comment", NOT_TEXT),
        ("reject", "{}", "--as", "ada", "--yes", "--reason", NOT_TEXT),
    ],
)
def test_arguments_that_are_no_text_end_no_command_with_a_traceback(project, held, given):
    it = held()
    given = [it if one == "{}" else one for one in given]
    command = [sys.executable, "-m", "counterseal", "approvals", *given]
    ended = subprocess.run(command, cwd=project, capture_output=True, timeout=120, check=False)
    assert b"Traceback" not in ended.stderr
    assert ended.returncode in (0, 2)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("", 'Write [store] url = "sqlite:///counterseal.db"'),
        ('[store]\nurl = "memory:"\n', "Keep it in a file"),
        ('[store]\nurl = "sqlite:///gone.db"\n', "There is no store at"),
    ],
)
def test_without_a_store_there_is_nothing_to_decide(project, approvals, write, store, said):
    write("counterseal.toml", SETTINGS.replace('[store]\nurl = "sqlite:///calls.db"\n', store))
    result = approvals("list")
    assert (result.exit_code, said in result.stderr) == (2, True)
    assert not (project / "gone.db").exists()


def test_store_comes_from_the_environment_too(project, approvals, held, write, monkeypatch):
    approval_id = held()
    write("counterseal.toml", SETTINGS.replace("calls.db", "other.db"))
    assert approvals("list").exit_code == 2
    monkeypatch.setenv("COUNTERSEAL_STORE", f"sqlite:///{project}/calls.db")
    assert approval_id in approvals("list").stdout
    monkeypatch.delenv("COUNTERSEAL_STORE")
    given = approvals("list", "--store", f"sqlite:///{project}/calls.db")
    assert approval_id in given.stdout


def test_deciding_does_not_need_the_secret_of_the_webhook(approvals, held, write):
    approval_id = held()
    hook = '[notifications]\nwebhook = "http://127.0.0.1:9/"\nsecret = "hook"\n'
    write("counterseal.toml", SETTINGS + hook)
    assert approvals("approve", approval_id, "--as", "ada", "--yes").exit_code == 0


# Watching ----------------------------------------------------------------------------------------


def test_watch_once_ends_with_what_waits(approvals, held):
    approval_id = held()
    assert approvals("watch", "--once").stdout.startswith(f"{approval_id}  0 of 1 approved, ")
    (line,) = approvals("watch", "--once", "--json").stdout.splitlines()
    assert json.loads(line)["approval_id"] == approval_id


@pytest.mark.slow
def test_watch_prints_requests_as_they_come_until_ctrl_c(project, held):
    first = held()
    command = [
        sys.executable,
        "-m",
        "counterseal",
        "approvals",
        "watch",
        "--json",
        "--every",
        "0.1",
    ]
    with subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        try:
            assert json.loads(watching.stdout.readline())["approval_id"] == first
            second = held("charge_card", INVOICE)
            assert json.loads(watching.stdout.readline())["approval_id"] == second
            watching.send_signal(signal.SIGINT)
            rest, errors = watching.communicate(timeout=60)
        finally:
            watching.kill()
    assert (watching.returncode, rest, errors) == (130, "", "")


# Help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "show", "approve", "reject", "watch"])
def test_help_fits_into_eighty_columns(approvals, command):
    told = approvals(command, "--help").stdout
    assert max(map(len, told.splitlines())) <= 80
    if command in ("approve", "reject"):
        assert "4  too late: the request is decided already, or has expired" in told
