"""Tools that break, leak, loop and multiply. Each has a hard limit of its own."""

import _thread
import asyncio
import base64
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Annotated, Any

from counterseal import Context, Secret, tool

READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}
HARD_LIMIT = 60
"""Seconds after which nothing of this file is still running, whatever happens."""

KEPT: list[bytearray] = []


@tool(**READS)
def segfault() -> None:
    """Read what is not there."""
    print("about to break")  # noqa: T201 - this is what it is for
    ctypes.string_at(0)


@tool(**READS)
def leave(code: int) -> None:
    """End the process."""
    os._exit(code)


@tool(**READS)
def loop(ctx: Context) -> None:
    """Never end, and never look whether anybody waits."""
    ctx.progress(os.getpid())
    until = time.monotonic() + HARD_LIMIT
    while time.monotonic() < until:
        pass


@tool(**READS)
async def stubborn(ctx: Context) -> None:
    """Never end, whatever is asked."""
    ctx.progress(os.getpid())
    until = time.monotonic() + HARD_LIMIT
    while time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


@tool(**READS)
def allocate(megabytes: int) -> int:
    """Take memory."""
    return len(bytearray(megabytes * 1024 * 1024))


@tool(**READS)
def leak(megabytes: int) -> int:
    """Take memory, and keep it."""
    KEPT.append(bytearray(megabytes * 1024 * 1024))
    return os.getpid()


SLEEPER = f"import time; time.sleep({HARD_LIMIT})"


def sleeper(**options: Any) -> int:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEPER], **options).pid


def orphan(**options: Any) -> int:
    """A sleeper whose parent has left."""
    code = (
        "import subprocess, sys;"
        f"print(subprocess.Popen([sys.executable, '-I', '-S', '-c', {SLEEPER!r}],"
        "stdout=-3, stderr=-3).pid)"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    return int(subprocess.run(command, check=True, capture_output=True, **options).stdout)


@tool(**READS)
def multiply(ctx: Context, how: str) -> None:
    """Start processes that stay, and report them; then go on, break, or wait."""
    pids = [
        sleeper(),
        sleeper(start_new_session=True),
        orphan(start_new_session=True),
    ]
    ctx.progress(0, None, " ".join(map(str, pids)))
    if how == "break":
        ctypes.string_at(0)
    if how == "wait":
        time.sleep(HARD_LIMIT)


@tool(**READS)
def swarm(ctx: Context, count: int) -> int:
    """Start processes without end, up to a number."""
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.alarm(HARD_LIMIT)
            while True:
                time.sleep(1)
        ctx.progress(pid)
    time.sleep(HARD_LIMIT)
    return count


@tool(**READS)
def split() -> int:
    """Fork, and return twice."""
    os.fork()
    return os.getpid()


@tool(**READS)
def shut() -> str:
    """Close what one prints to."""
    sys.stdout.close()
    os.close(1)
    os.close(2)
    return "still here"


@tool(**READS)
def babble() -> str:
    """Write nonsense into everything that is open."""
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            os.write(number, b"\xff" * 64)
    return "said it"


@tool(**READS)
def forge(answer: str) -> str:
    """Answer before the worker does, whatever the number of the call is."""
    for number in range(1, 200):
        body = f'["answer",{number},{answer}]'.encode()
        for file in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(file, len(body).to_bytes(4, "big") + body)
    return "the real one"


@tool(**READS)
def unplug() -> str:
    """Close everything that is open."""
    os.closerange(3, 256)
    return "said it"


@tool(**READS)
def spill(how: str, token: Annotated[str, Secret("token")], ctx: Context) -> None:
    """Say a secret just where a long text is cut."""
    if how == "line":
        print("y" * 1988 + token)  # noqa: T201 - this is what it is for
    elif how == "record":
        ctx.log.info("%s%s", "y" * 8180, token)
    elif how == "tail":
        print(token + "z" * 16_370)  # noqa: T201 - this is what it is for
        os._exit(3)
    elif how == "trace":
        raise RuntimeError(token + "q" * 65_520)
    elif how == "wrapped":
        print(base64.encodebytes(f"{'u' * 50}{token}".encode()).decode())  # noqa: T201 - as above
    elif how == "killed":
        print(token[:12])  # noqa: T201 - as above
        print(token[12:], end="")  # noqa: T201 - as above
        sys.stdout.flush()
        ctx.progress(1)
        time.sleep(HARD_LIMIT)


HEARD: list[str] = []


@tool(**READS)
def linger(how: str) -> int:
    """Leave a thread running, or one that is about to end."""
    if how == "thread":
        threading.Thread(target=time.sleep, args=(HARD_LIMIT,), daemon=True).start()
    elif how == "hidden":
        begun = threading.Event()
        _thread.start_new_thread(lambda: begun.set() or time.sleep(HARD_LIMIT), ())
        begun.wait(HARD_LIMIT)
    elif how == "ended":
        threading.Thread(target=HEARD.append, args=("done",)).start()
    return os.getpid()
