"""Sending notices by SMTP, and the mail server's records of received messages.

Sending returns if the server has accepted the message, raises `MailDownError` if it certainly has
not, and raises the connection's own error if the outcome is unknown; the records then tell. The
server is `sink`.
"""

from __future__ import annotations

import smtplib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Final, Literal

from counterseal import NotDoneError

__all__ = ["FILE", "Account", "Fault", "MailBooks", "MailDownError", "deliver", "letter"]

FILE: Final = "mail.db"
Fault = Literal["lose_answer", "hold_answer", "refuse"]
_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS mails (
        number      INTEGER PRIMARY KEY,
        message_id  TEXT NOT NULL,          -- not unique: what comes twice is there twice
        account     TEXT NOT NULL,
        sender      TEXT NOT NULL,
        recipient   TEXT NOT NULL,
        subject     TEXT NOT NULL,
        body        TEXT NOT NULL,
        registered  INTEGER NOT NULL,
        received_at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS mails_by_message_id ON mails (message_id);
    CREATE TABLE IF NOT EXISTS faults (number INTEGER PRIMARY KEY, kind TEXT NOT NULL) STRICT;
"""


class MailDownError(NotDoneError):
    """The message was certainly not sent."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why} Nothing was sent.")


@dataclass(frozen=True, slots=True)
class Account:
    """Address and credentials of an office at the mail server."""

    host: str
    port: int
    user: str
    password: str

    @property
    def sender(self) -> str:
        return f"notices@{self.user}.example"


def letter(
    account: Account, to: str, subject: str, body: str, *, message_id: str, registered: bool
) -> EmailMessage:
    """Return a notice as a message. The same call gives the same Message-ID."""
    message = EmailMessage(policy=policy.SMTP)  # line endings of the protocol
    message["From"] = account.sender
    message["To"] = to
    message["Subject"] = subject
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = message_id
    if registered:
        message["Disposition-Notification-To"] = account.sender
    message.set_content(body)
    return message


def deliver(account: Account, message: EmailMessage, *, timeout: float) -> None:
    """Send a message; the server has accepted it when this returns."""
    try:
        server = smtplib.SMTP(account.host, account.port, timeout=timeout)
    except (OSError, smtplib.SMTPException):
        raise MailDownError("The mail server can't be reached.") from None
    try:
        _address(server, account, message)
        code, _ = server.data(message.as_bytes())
        if code != 250:
            raise MailDownError("The mail server does not take the message.")
    except smtplib.SMTPDataError:
        raise MailDownError("The mail server does not take the message.") from None
    finally:
        with suppress(OSError, smtplib.SMTPException):
            server.quit()
        server.close()


def _address(server: smtplib.SMTP, account: Account, message: EmailMessage) -> None:
    """Connect and sign in. If this fails, no message was sent."""
    try:
        server.login(account.user, account.password)
        for code, _ in (server.mail(account.sender), server.rcpt(message["To"])):
            if code != 250:
                raise MailDownError("The mail server does not take mail for this address.")
    except (OSError, smtplib.SMTPException):
        raise MailDownError("The mail server does not let us in.") from None


@dataclass(frozen=True, slots=True)
class MailBooks:
    """Messages that the mail server has received, in `mail.db`."""

    path: Path

    def find(self, message_id: str) -> dict[str, Any] | None:
        """Return the first message with this id, or None."""
        return next((mail for mail in self.mails() if mail["message_id"] == message_id), None)

    def mails(self) -> list[dict[str, Any]]:
        """Return all messages in the order of their arrival."""
        if not self.path.exists():
            return []
        with self._connected() as db:
            return [dict(row) for row in db.execute("SELECT * FROM mails ORDER BY number")]

    # For the sink ---------------------------------------------------------------------------------

    def make(self) -> None:
        with self._connected() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)

    def keep(self, mail: Mapping[str, Any]) -> None:
        columns, values = ", ".join(mail), ", ".join(f":{name}" for name in mail)
        with self._connected() as db:
            db.execute(f"INSERT INTO mails ({columns}) VALUES ({values})", dict(mail))  # noqa: S608 - the sink's own names

    def misbehave(self, fault: Fault) -> None:
        """Schedule a fault for the next message; any process may call this."""
        with self._connected() as db:
            db.execute("INSERT INTO faults (kind) VALUES (?)", (fault,))

    def next_fault(self) -> str | None:
        """Return the scheduled fault, and remove it from the list."""
        first = "SELECT min(number) FROM faults"
        with self._connected() as db:
            taken = db.execute(f"DELETE FROM faults WHERE number = ({first}) RETURNING kind")  # noqa: S608 - no values
            row = taken.fetchone()
        return None if row is None else row["kind"]

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=5, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            yield connection
        finally:
            connection.close()
