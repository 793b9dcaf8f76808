"""The example's mail server: accepts and stores messages, and delivers none.

`python -m office.sink HOME [--port 0]` runs it as a program, `Sink` in a thread. Each office has an
account; its password is the secret that Counterseal injects into the tool. The server listens on
loopback only, and can simulate faults (`MailBooks.misbehave`).
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import logging
import signal
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, Final, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from office.mail import FILE, MailBooks

__all__ = ["HOST", "Server", "Sink", "accounts_of", "main"]

HOST: Final = "127.0.0.1"
# The library warns of a deprecated attribute of its own at every login.
logging.getLogger("mail.log").setLevel(logging.ERROR)


def accounts_of(home: Path) -> dict[str, str]:
    """Return the password of each office, from the project's secrets folder."""
    files = (home / "secrets").glob("*/smtp_password")
    return {file.parent.name: file.read_text(encoding="utf-8").strip() for file in files}


class Server:
    """The listening server and its message handler."""

    def __init__(self, folder: Path, accounts: Mapping[str, str]) -> None:
        self.books = MailBooks(folder / FILE)
        self.released = asyncio.Event()
        """Set when answers are no longer delayed."""
        self._accounts = dict(accounts)
        self._listening: asyncio.Server | None = None

    async def listen(self, port: int) -> int:
        """Start listening and return the port; 0 takes a free one."""
        self.books.make()
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._connection, HOST, port)
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._listening is not None:
            self._listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _connection(self) -> SMTP:
        return SMTP(
            self,
            hostname=HOST,
            ident="case office mail",
            authenticator=self._login,
            auth_require_tls=False,  # on loopback; a real server would require TLS
        )

    def _login(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object
    ) -> AuthResult:
        if not isinstance(data, LoginPassword):
            return AuthResult(success=False, handled=False)
        user = data.login.decode(errors="replace")
        known = self._accounts.get(user, "")
        good = bool(known) and hmac.compare_digest(known.encode(), data.password)
        return AuthResult(success=good, handled=False, auth_data=user)

    # aiosmtpd calls these two by name.

    async def handle_MAIL(  # noqa: N802 - its name for it
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if not session.authenticated:
            return "530 5.7.0 Who are you?"
        if address != f"notices@{session.auth_data}.example":
            return "550 5.7.1 That is not your address."
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - as above
        fault = self.books.next_fault()
        if fault == "refuse":
            return "451 4.3.0 Try again later."
        self.books.keep(_mail(session, envelope))
        if fault == "lose_answer":
            if isinstance(server.transport, asyncio.Transport):
                server.transport.abort()
        elif fault == "hold_answer":
            await self.released.wait()
        return "250 OK"


def _mail(session: Session, envelope: Envelope) -> dict[str, Any]:
    parsed = message_from_bytes(envelope.original_content or b"", policy=policy.default)
    body = parsed.get_body()
    return {
        "message_id": str(parsed["Message-ID"]).strip(),
        "account": session.auth_data,
        "sender": envelope.mail_from,
        "recipient": ", ".join(envelope.rcpt_tos),
        "subject": str(parsed["Subject"]),
        "body": "" if body is None else body.get_content().replace("\r\n", "\n"),
        "registered": int("Disposition-Notification-To" in parsed),
        "received_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


class Sink:
    """A server in its own thread: `with Sink(folder, accounts) as sink: sink.port`."""

    def __init__(self, folder: Path, accounts: Mapping[str, str], *, port: int = 0) -> None:
        self.port = port
        self._server = Server(folder, accounts)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mail sink")

    @property
    def books(self) -> MailBooks:
        return self._server.books

    def __enter__(self) -> Self:
        self._thread.start()
        listening = self._server.listen(self.port)
        self.port = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def release(self) -> None:
        """Send the delayed answers."""
        self._loop.call_soon_threadsafe(self._server.released.set)


async def _serve(home: Path, port: int) -> None:
    server, stopped = Server(home, accounts_of(home)), asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stopped.set)
    print(f"listening on {HOST}:{await server.listen(port)}", flush=True)
    await stopped.wait()
    await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("home", type=Path, help="the folder that the project was written to")
    parser.add_argument("--port", type=int, default=0, help="0 takes any that is free")
    options = parser.parse_args()
    asyncio.run(_serve(options.home, options.port))


if __name__ == "__main__":
    main()
