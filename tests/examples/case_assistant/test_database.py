"""The case database by itself: made once, whole, and safe with several processes at work."""

import itertools
import json
import re
import subprocess
import sys

import pytest

from tests.examples.case_assistant.office import EAST, FOLDER, NORTH, PATIENCE, REASON, example

Cases, Office, Notices, By = (
    example.cases.Cases,
    example.casework.Office,
    example.notices.Notices,
    example.rows.By,
)


@pytest.fixture
def cases(tmp_path):
    return Cases.make(tmp_path / "cases.db")


def rows(cases, statement, *values):
    with cases.reading() as db:
        return [dict(row) for row in db.execute(statement, values)]


# --- what is in it --------------------------------------------------------------------------------


def test_there_are_a_few_dozen_cases_of_every_kind_and_status(cases):
    found = rows(cases, "SELECT * FROM cases")
    assert len(found) == 36
    assert {row["status"] for row in found} == set(example.casework.TRANSITIONS)
    assert {row["kind"] for row in found} == {"permit", "inspection", "complaint"}
    assert {row["risk_level"] for row in found} == {"low", "medium", "high"}
    assert {row["tenant"] for row in found} == {NORTH, EAST}


def test_every_case_has_evidence_and_every_company_a_mailbox_in_its_register(cases):
    bare = "SELECT case_id FROM cases WHERE case_id NOT IN (SELECT case_id FROM evidence)"
    assert rows(cases, bare) == []
    for company in rows(cases, "SELECT * FROM companies"):
        assert company["mailbox"].endswith(f"@{example.project.mailboxes(company['tenant'])}")


def test_every_address_is_one_that_can_never_be_reached():
    """Under .example, as RFC 2606 keeps it."""
    stock = json.dumps(example.stock.tables())
    found = re.findall(r"[\w.+-]+@[\w.-]+\w", stock)
    assert len(found) > 24
    assert all(address.endswith(".example") for address in found)


def test_what_marks_one_office_is_nowhere_in_the_rows_of_the_other():
    for mine, theirs in ((NORTH, EAST), (EAST, NORTH)):
        every = itertools.chain.from_iterable(example.stock.tables().values())
        told = json.dumps([row for row in every if row["tenant"] == mine], ensure_ascii=False)
        assert not [mark for mark in example.stock.marks(theirs) if mark in told]


# --- the file -------------------------------------------------------------------------------------


def test_one_that_is_there_is_never_made_anew(cases):
    Office(cases, NORTH).change_status(
        By("clerk", "k"), "case_100001", "under_review", expected_version=1, reason=REASON
    )
    assert Cases.make(cases.path) == cases
    assert Office(cases, NORTH).case("case_100001")["status"] == "under_review"


def test_two_that_make_it_at_once_make_it_once(tmp_path, monkeypatch):
    """The second finds the first one's when it is ready, and leaves it alone."""
    fill = Cases.fill

    def while_another_does(self):
        monkeypatch.setattr(Cases, "fill", fill)
        other = Cases.make(self.path.with_name("cases.db"))
        with other.writing() as db:
            db.execute("UPDATE cases SET subject = 'made by the other'")
        fill(self)

    monkeypatch.setattr(Cases, "fill", while_another_does)
    monkeypatch.setattr("os.getpid", iter([1, 2]).__next__)
    made = Cases.make(tmp_path / "cases.db")
    assert Office(made, NORTH).case("case_100001")["subject"] == "made by the other"
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".new"] == []


def test_one_that_is_not_there_is_not_made_by_opening_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="no case database"):
        Cases.open(tmp_path / "cases.db")
    assert list(tmp_path.iterdir()) == []


def test_it_keeps_a_log_so_that_readers_never_wait_for_writers(cases):
    (mode,) = rows(cases, "PRAGMA journal_mode")
    assert mode["journal_mode"] == "wal"
    with cases.writing() as db:
        db.execute("UPDATE cases SET status = 'closed'")
        assert Office(cases, NORTH).case("case_100001")["status"] == "open"


def test_a_change_and_its_history_are_one(cases):
    """What fails after the first statement leaves nothing of it."""

    class Broken(Office):
        def _insert(self, *_):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        Broken(cases, NORTH).change_status(
            By("clerk", "k"), "case_100001", "under_review", expected_version=1, reason=REASON
        )
    assert Office(cases, NORTH).case("case_100001")["version"] == 1
    assert rows(cases, "SELECT * FROM status_history") == []


def test_the_same_key_finds_what_it_did(cases):
    office = Office(cases, NORTH)
    change = {"expected_version": 1, "reason": REASON}
    first = office.change_status(By("clerk", "k"), "case_100001", "under_review", **change)
    again = office.change_status(By("clerk", "k"), "case_100001", "under_review", **change)
    assert again.items() >= first.items()
    assert len(rows(cases, "SELECT * FROM status_history")) == 1


def test_a_draft_of_a_revision_exists_once_whatever_the_key(cases):
    notices = Notices(cases, NORTH)
    wanted = {"revision": 1, "channel": "email", "facts": ["ev_100011"], "amount_eur": 0}
    notices.make_draft(By("a", "k_1"), "case_100001", "decision", **wanted)
    with pytest.raises(example.rows.NotAllowedError):
        notices.make_draft(By("b", "k_2"), "case_100001", "decision", **wanted)
    assert len(rows(cases, "SELECT * FROM drafts")) == 1


def test_a_notice_is_begun_once_whatever_the_key(cases):
    notices = Notices(cases, NORTH)
    wanted = {"revision": 1, "channel": "email", "facts": ["ev_100011"], "amount_eur": 0}
    draft = notices.make_draft(By("a", "k_1"), "case_100001", "decision", **wanted)
    notices.put_in_review(By("a", "k_2"), draft["draft_id"], REASON)
    begun = (draft["draft_id"], draft["mailbox"])
    notices.begin(By("a", "k_3"), *begun, "<k_3@x>")
    notices.begin(By("a", "k_3"), *begun, "<k_3@x>")
    with pytest.raises(Exception, match="UNIQUE"):
        notices.begin(By("a", "k_4"), *begun, "<k_4@x>")
    notices.settle("k_3", "2026-01-01T00:00:00+00:00")
    notices.call_off("k_3")
    (row,) = rows(cases, "SELECT * FROM notices")
    assert row["sent_at"] == "2026-01-01T00:00:00+00:00", "what was sent can't be called off"


WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from office.cases import Cases
from office.casework import Office
from office.rows import By, StaleError

office, done = Office(Cases.open(sys.argv[2]), "northshore"), 0
ways = {"under_review": "awaiting_reply", "awaiting_reply": "under_review"}
print("ready", flush=True)
sys.stdin.readline()
for turn in range(25):
    case = office.case("case_100003")
    try:
        office.change_status(
            By("clerk", f"{sys.argv[3]} {turn}"), "case_100003", ways[case["status"]],
            expected_version=case["version"], reason="by turns",
        )
        done += 1
    except StaleError:
        pass
print(done)
"""


def test_processes_that_change_one_case_at_once_lose_nothing(cases):
    command = [sys.executable, "-c", WORKER, str(FOLDER), str(cases.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, name], **pipes) for name in ("a", "b", "c")]
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        done = sum(int(worker.communicate(timeout=PATIENCE)[0]) for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    history = rows(cases, "SELECT * FROM status_history ORDER BY version")
    assert len(history) == done >= 25
    assert [row["version"] for row in history] == list(range(2, done + 2))
    statuses = ["under_review", *(row["status"] for row in history)]
    assert [row["previous"] for row in history] == statuses[:-1]
    assert Office(cases, NORTH).case("case_100003")["version"] == done + 1
