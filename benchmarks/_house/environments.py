"""An environment of its own for every peer, with the versions that `peers.toml` names.

They are kept in `.bench/`, and made anew when the wanted versions or the Python change; a stamp in
each says what it was made of. Whatever cannot be had is told, never left out in silence.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".bench"
PEERS = ROOT / "benchmarks" / "peers.toml"
STAMP = "bench-stamp"


class Unavailable(Exception):  # noqa: N818 - a state of affairs that is told, not a mistake
    """A party that cannot take part, and why."""


def wanted(peer: str, peers: Path = PEERS) -> list[str]:
    """What has to be installed for it."""
    listed = tomllib.loads(peers.read_text(encoding="utf-8"))
    if peer not in listed:
        raise Unavailable(f"{peer} is not in {peers.name}")
    return [str(line) for line in listed[peer]["requires"]]


def stamp(requires: list[str]) -> str:
    """Names everything that decides what an environment holds."""
    return hashlib.sha256("\n".join([sys.version, *requires]).encode()).hexdigest()


def python_of(peer: str, *, folder: Path = FOLDER, peers: Path = PEERS) -> Path:
    """Its interpreter, in an environment that is complete. Unavailable when it can't be made."""
    requires = wanted(peer, peers)
    home = folder / peer
    python = home / "bin" / "python" if os.name != "nt" else home / "Scripts" / "python.exe"
    sign, now = home / STAMP, stamp(requires)
    if python.exists() and sign.exists() and sign.read_text(encoding="utf-8") == now:
        return python
    made(folder)
    sign.unlink(missing_ok=True)  # first away, last back: what breaks off is made anew
    for command in _commands(home, python, requires):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable(" ".join(said)[:300] or f"{command[0]} failed")
    sign.write_text(now, encoding="utf-8")
    return python


def _commands(home: Path, python: Path, requires: list[str]) -> list[list[str]]:
    base = str(getattr(sys, "_base_executable", sys.executable))
    uv = shutil.which("uv")
    if uv:
        return [
            [uv, "venv", "--quiet", "--clear", "--python", base, str(home)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *requires],
        ]
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise Unavailable("this Python has no venv module, and uv is not installed")
    return [
        [base, "-m", "venv", "--clear", str(home)],
        [str(python), "-m", "pip", "install", "--quiet", *requires],
    ]


@contextmanager
def alone(folder: Path = FOLDER) -> Iterator[None]:
    """One run at a time: two would disturb each other's figures, and make environments at once."""
    made(folder)
    with (folder / "lock").open("w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                sys.exit("Another run of the benchmarks is under way here; wait for its end.")
        yield


def made(folder: Path) -> None:
    """The folder, which git does not see."""
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def version_of(peer: str, package: str) -> dict[str, str]:
    """Which one its environment has."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    said = subprocess.run([python_of(peer), "-c", ask], capture_output=True, text=True, check=True)
    return {package: said.stdout.strip()}
