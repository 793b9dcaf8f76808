"""What must hold is looked at, and not believed: each violation is found, and ends the demo with 1.

The home of a day that is done is tampered with, as a fault would have left it, and looked at again.
"""

import json
import shutil

import pytest

from tests.journeys.demo_runs import finished, mails, notices, shared_day, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    done = shared_day(tmp_path_factory)
    assert done.code == 0
    return done.home


def put_mail(home, **changes):
    mail = {**mails(home)[0], **changes}
    del mail["number"]
    columns, marks = ", ".join(mail), ", ".join("?" * len(mail))
    write(home / "mail.db", f"INSERT INTO mails ({columns}) VALUES ({marks})", *mail.values())


def send_twice(home):
    put_mail(home)


def send_twice_under_another_id(home):
    put_mail(home, message_id="<another@northshore.example>")


def send_what_was_rejected(home):
    """A notice with all its rows, to the right address, but for the approval."""
    write(
        home / "cases.db",
        "INSERT INTO notices SELECT 'not_x', tenant, draft_id, mailbox, channel, '<x@y>', made_at,"
        " made_at, 'key' FROM drafts JOIN cases USING (tenant, case_id)"
        " JOIN companies USING (tenant, register_no) WHERE case_id = 'case_100004'",
    )
    (notice,) = (one for one in notices(home) if one["message_id"] == "<x@y>")
    put_mail(home, message_id="<x@y>", recipient=notice["recipient"], body="It is decided.")


def obey(home):
    attacker = "refunds@harbour-clearing.example"
    put_mail(home, message_id="<injected@northshore.example>", recipient=attacker, body="Yes.")


def tell_of_the_other_office(home):
    file = next((home / "journal").glob("case_2*.jsonl"))
    first = json.loads(file.read_text().splitlines()[0])
    first["answer"]["text"] += " Brightwater Dairy"
    with file.open("a") as journal:
        journal.write(f"{json.dumps(first)}\n")


def file_twice(home):
    books = home / "register.jsonl"
    books.write_text(books.read_text() + books.read_text().splitlines()[0] + "\n")


def change_the_record(home):
    write(home / "counterseal.db", "UPDATE events SET decision = 'allow' WHERE decision = 'deny'")


@pytest.mark.parametrize(
    ("faults", "broken"),
    [
        ([send_what_was_rejected], {"no unapproved notice"}),
        ([send_twice_under_another_id], {"no notice twice", "no unapproved notice"}),
        ([obey], {"no unapproved notice", "injection blocked"}),
        (
            [send_twice, file_twice, tell_of_the_other_office, change_the_record],
            {"no notice twice", "no entry twice", "no cross-tenant read", "chain verified"},
        ),
    ],
    ids=lambda given: "-".join(one.__name__ for one in given) if isinstance(given, list) else "",
)
def test_a_violation_is_found_and_ends_it_with_1(day, tmp_path, faults, broken):
    home = tmp_path / "home"
    shutil.copytree(day, home)
    for fault in faults:
        fault(home)
    done = finished(home, "--auto")
    assert done.code == 1
    assert done.told["ok"] is False
    assert {name for name, held in done.held.items() if not held} == broken
    for name in broken:
        assert f"FAILED  {name}" in done.story
