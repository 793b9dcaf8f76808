"""The mail server of the example, and how a notice is handed to it."""

import asyncio
import contextlib
import signal
import smtplib
import socket
import subprocess
import sys

import pytest

from tests.examples.case_assistant.office import FOLDER, PATIENCE, example

mail, sink = example.mail, example.sink
ACCOUNTS = {"northshore": "a-long-password", "eastvale": "another-password"}
TO = "harbour-street-bakery@register.northshore.example"


@pytest.fixture
def server(tmp_path):
    with sink.Sink(tmp_path, ACCOUNTS) as running:
        yield running


def account(server, user="northshore", password="a-long-password"):
    return mail.Account("127.0.0.1", server.port, user, password)


def deliver(sender, message_id="<k_1@northshore.example>", *, to=TO, seconds=PATIENCE):
    message = mail.letter(
        sender, to, "Decision", "Grüße\n.\n..end", message_id=message_id, registered=True
    )
    mail.deliver(sender, message, timeout=seconds)


def test_what_is_sent_is_kept_word_for_word(server):
    deliver(account(server))
    (kept,) = server.books.mails()
    assert kept["body"] == "Grüße\n.\n..end\n"
    assert (kept["sender"], kept["recipient"]) == ("notices@northshore.example", TO)
    assert (kept["account"], kept["registered"]) == ("northshore", 1)
    assert server.books.find("<k_1@northshore.example>") == kept
    assert server.books.find("<k_2@northshore.example>") is None


def test_what_is_sent_twice_is_there_twice(server):
    deliver(account(server))
    deliver(account(server))
    assert [kept["message_id"] for kept in server.books.mails()] == ["<k_1@northshore.example>"] * 2


@pytest.mark.parametrize(
    ("user", "password"),
    [("northshore", "wrong-password"), ("northshore", ""), ("nobody", "a-long-password")],
)
def test_without_the_password_nothing_is_taken(server, user, password):
    with pytest.raises(mail.MailDownError) as refused:
        deliver(account(server, user, password))
    assert refused.value.words == "The mail server does not let us in. Nothing was sent."
    assert server.books.mails() == []


def test_without_any_login_nothing_is_taken(server):
    with smtplib.SMTP("127.0.0.1", server.port, timeout=PATIENCE) as client:
        client.ehlo()
        code, _ = client.mail("notices@northshore.example")
    assert code == 530


def test_an_office_sends_under_its_own_name_only(server):
    with smtplib.SMTP("127.0.0.1", server.port, timeout=PATIENCE) as client:
        client.login("eastvale", "another-password")
        code, _ = client.mail("notices@northshore.example")
    assert code == 550


def test_no_header_can_be_smuggled_in(server):
    with pytest.raises(ValueError, match="linefeed"):
        deliver(account(server), to="a@b.example\nBcc: c@d.example")
    assert server.books.mails() == []


def test_a_server_that_is_not_there_has_taken_nothing():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(mail.MailDownError):
        deliver(mail.Account("127.0.0.1", port, "northshore", "a-long-password"))


def test_a_server_that_says_no_has_taken_nothing(server):
    server.books.misbehave("refuse")
    with pytest.raises(mail.MailDownError):
        deliver(account(server))
    assert server.books.mails() == []
    deliver(account(server))
    assert len(server.books.mails()) == 1, "a fault happens once"


def test_a_lost_answer_is_no_certainty(server):
    """It has the message, and we were not told: that must not look like "nothing was sent"."""
    server.books.misbehave("lose_answer")
    with pytest.raises((smtplib.SMTPServerDisconnected, ConnectionError)):
        deliver(account(server))
    assert len(server.books.mails()) == 1


def test_an_answer_that_is_held_back_is_no_certainty_either(server):
    server.books.misbehave("hold_answer")
    with pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"):
        deliver(account(server), seconds=0.5)
    assert len(server.books.mails()) == 1


async def test_many_at_once_are_all_kept(server):
    sends = [
        asyncio.to_thread(deliver, account(server), f"<k_{number}@northshore.example>")
        for number in range(12)
    ]
    await asyncio.gather(*sends)
    assert len({kept["message_id"] for kept in server.books.mails()}) == 12


def test_as_a_program_it_says_where_it_listens_keeps_mail_and_ends_when_told(tmp_path):
    example.project.write_project(tmp_path)
    command = [sys.executable, "-m", "office.sink", tmp_path]
    with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True) as program:
        try:
            port = int(program.stdout.readline().rpartition(":")[2])
            password = sink.accounts_of(tmp_path)["eastvale"]
            deliver(mail.Account("127.0.0.1", port, "eastvale", password))
            program.send_signal(signal.SIGTERM)
            assert program.wait(PATIENCE) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                program.kill()
    assert len(mail.MailBooks(tmp_path / "mail.db").mails()) == 1
