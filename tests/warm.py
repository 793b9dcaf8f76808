"""Python programs that start warm: each is a process of its own, forked from one that is ready.

    subprocess.run([*warm("-m", "counterseal"), "check"])
    subprocess.Popen(warm(server_file, "--port", "0"))
    PATH=programs()                     # a folder with `counterseal` and `python` that start warm

Importing the MCP SDK takes a second of processor time, and the tests start hundreds of programs
that do. `warm` returns the command of a small program (`warm_start`), which has the real one forked
from a process that has imported what most need. Each process of the tests has one of these, which
ends with it. Tests of what is imported at a start, and of processes that are stopped (SIGSTOP),
start programs as users do; so do the tests of the wheel.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import os
import pkgutil
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).parents[1]
_START = Path(__file__).with_name("warm_start.py")
_OTHERS = (
    *("mcp.server.lowlevel", "mcp.server.stdio", "mcp.client.streamable_http", "mcp.client.stdio"),
    *("uvicorn.lifespan.on", "uvicorn.protocols.http.h11_impl", "uvloop", "asyncpg"),
    *("httpx", "argon2", "cryptography.x509", "multiprocessing", "sqlite3"),
)
PYTHON = "COUNTERSEAL_TEST_PYTHON"
"""A variable with what `sys.executable` is in a program: `programs() / "python"`, for instance."""
_LEFT_OUT = ("counterseal.adapters.", "counterseal.__main__", "counterseal.cli.templates")
_F_SETSIG = 10


def warm(*words: str | Path) -> list[str]:
    """Return a command that does what `python WORD…` does: `-m MODULE …` or `FILE …`."""
    given = [str(word) for word in words]
    if sys.platform != "linux":
        return [sys.executable, *given]
    return [sys.executable, "-I", "-S", str(_START), str(_folder(os.getpid()) / "socket"), *given]


def programs() -> Path:
    """Return a folder with `counterseal` and `python`, for a PATH."""
    return _folder(os.getpid()) if sys.platform == "linux" else Path(sys.executable).parent


@cache
def _folder(_pid: int) -> Path:
    """Start the process that is forked from, and return the folder in which it listens."""
    folder = Path(tempfile.mkdtemp(prefix="counterseal-warm-"))
    path = folder / "socket"
    start = shlex.join([sys.executable, "-I", "-S", str(_START), str(path)])
    cold = shlex.quote(sys.executable)
    for name, lines in (
        ("counterseal", f'exec {start} -m counterseal "$@"'),
        ("python", f'case "$1" in -m|[!-]*) exec {start} "$@";; esac\nexec {cold} "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    ready = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(path)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert ready.stdin is not None
    assert ready.stdout is not None
    assert ready.stdout.readline() == b"ready\n", "the process that programs are forked from failed"

    def end() -> None:
        ready.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return folder


# --- the process that is forked from --------------------------------------------------------------


class _Job(NamedTuple):
    folder: str
    words: list[str]
    environment: dict[str, str]
    streams: list[int]
    watched: int
    """A pipe whose other end is closed when the process that stands for the program ends."""


def _serve(path: str) -> _Job | None:
    """Fork for everybody who connects. Returns a job in its own process, and None at the end."""
    _import_everything()
    gc.collect()
    gc.freeze()
    told, ended = socket.socketpair()
    told.setblocking(False)
    ended.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended.fileno())
    links: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as events:
        door.bind(path)
        door.listen(64)
        events.register(door, selectors.EVENT_READ)
        events.register(told, selectors.EVENT_READ)
        events.register(0, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            for key, _ in events.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is told:
                    told.recv(4096)
                    _report(links)
                    continue
                link, _ = door.accept()
                with contextlib.suppress(OSError):
                    job = _received(link)
                    pid = os.fork()
                    if pid == 0:
                        for one in (link, told, ended, *links.values()):
                            one.close()
                        return job
                    for number in (*job.streams, job.watched):
                        os.close(number)
                    links[pid] = link
                    link.sendall(b"%d\n" % pid)


def _import_everything() -> None:
    import counterseal

    for found in pkgutil.walk_packages(counterseal.__path__, "counterseal."):
        if not found.name.startswith(_LEFT_OUT):
            importlib.import_module(found.name)
    for name in _OTHERS:
        importlib.import_module(name)
    # What is imported by the first command and the first expression; and the tree of commands.
    import typer.main
    from typer.testing import CliRunner

    from counterseal.cli.app import app
    from counterseal.expressions import Expression

    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app)
    CliRunner().invoke(app, ["explain", "SUCCESS"])
    Expression("true", names=())


def _report(links: dict[int, socket.socket]) -> None:
    """Say how programs ended to the processes that stand for them."""
    for pid in list(links):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with links.pop(pid) as link, contextlib.suppress(OSError):
                link.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _received(link: socket.socket) -> _Job:
    head, numbers, *_ = socket.recv_fds(link, 4, 4)
    with link.makefile("rb") as stream:
        told = os.fsdecode(stream.read(int.from_bytes(head, "big")))
    folder, count, *rest = told.split("\0")
    words, environment = rest[: int(count)], rest[int(count) :]
    pairs = dict(one.split("=", 1) for one in environment)
    return _Job(folder, words, pairs, numbers[:3], numbers[3])


def _run(job: _Job) -> None:
    """Be the program."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    fcntl.fcntl(job.watched, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(job.watched, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(job.watched, fcntl.F_SETFL, os.O_ASYNC)
    for number, stream in enumerate(job.streams):
        os.dup2(stream, number)
        os.close(stream)
    # What Python found out about its streams was true of others.
    at_once = bool(job.environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(number, "w", closefd=False)
        binary = raw if at_once else io.BufferedWriter(raw)
        whole_lines = number == 2 or raw.isatty()
        stream = io.TextIOWrapper(
            binary, "utf-8", line_buffering=whole_lines, write_through=at_once
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.executable = os.environ.get(PYTHON, sys.executable)
    first, *more = job.words
    options: dict[str, Any] = {"run_name": "__main__"}
    if first == "-m":
        module, *more = more
        sys.argv, sys.path[0] = [module, *more], job.folder
        runpy.run_module(module, alter_sys=True, **options)
    else:
        sys.argv, sys.path[0] = [first, *more], str(Path(first).resolve().parent)
        runpy.run_path(first, **options)


class _End:
    """Ends a program after all that it has to do at its end, without taking its modules apart."""

    code: int | None = None

    def __call__(self) -> None:
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


if __name__ == "__main__":
    end = _End()
    atexit.register(end)  # before all others, to be called after them
    given = _serve(sys.argv[1])
    if given:
        try:
            _run(given)
            end.code = 0
        except SystemExit as stop:
            whole = isinstance(stop.code, int)
            end.code = stop.code & 0xFF if whole else int(stop.code is not None)
            raise
        except Exception:
            end.code = 1
            raise
