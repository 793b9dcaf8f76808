"""Tools that behave, for processes of their own."""

import asyncio
import os
import resource
import sys
import time
from typing import Annotated, Any

from beside import GREETING

from counterseal import Config, Context, Partial, Secret, State, tool
from counterseal.errors import ToolFailedError

READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}


@tool(**READS)
def echo(text: str) -> dict[str, str]:
    """Say it again."""
    return {"text": text}


@tool(**READS)
def where() -> int:
    """Say which process this is."""
    return os.getpid()


@tool(**READS)
async def where_later() -> int:
    """Say which process this is, after a while."""
    await asyncio.sleep(0.05)
    return os.getpid()


@tool(**READS)
def greet() -> str:
    """Use a module that stands beside this one."""
    return GREETING


@tool(**READS)
def tell_all(ctx: Context) -> dict[str, Any]:
    """Repeat what the context says."""
    return {
        "tenant": ctx.tenant,
        "user": ctx.user,
        "agent": ctx.agent,
        "roles": sorted(ctx.principal.roles),
        "scopes": sorted(ctx.principal.scopes),
        "run_id": ctx.run_id,
        "call_id": ctx.call_id,
        "key": ctx.key,
        "attempt": ctx.attempt,
        "year": ctx.deadline.year,
        "expected_version": ctx.expected_version,
        "config": ctx.config,
        "state": ctx.state,
        "cancelled": ctx.cancelled,
    }


@tool(**READS)
def injected(
    password: Annotated[str, Secret("smtp_password")],
    region: Annotated[str, Config("region")],
    seen: Annotated[list[int], State("seen")],
) -> list[Any]:
    """Repeat what was injected."""
    return [password, region, seen]


@tool(**READS)
def report(ctx: Context) -> str:
    """Report, log and print."""
    ctx.progress(1, 2, "half")
    ctx.log.warning("careful with %s", "that")
    print("printed")  # noqa: T201 - this is what it is for
    print("complained", file=sys.stderr)  # noqa: T201 - this is what it is for
    os.write(1, b"written\n")
    return "done"


@tool(**READS)
def chatter() -> str:
    """Print more than a pipe holds."""
    for number in range(20_000):
        print(f"line {number:06}")  # noqa: T201 - this is what it is for
    return "done"


@tool(**READS)
def keep(ctx: Context, text: str) -> str:
    """Write a file and read it again."""
    ctx.files.write_text("note.txt", text)
    return ctx.files.read_text("note.txt")


@tool(**READS)
def fetch(ctx: Context, url: str) -> str:
    """Get a page."""
    return ctx.sync_http.get(url).text


@tool(**READS)
async def fetch_later(ctx: Context, url: str) -> str:
    """Get a page."""
    return (await ctx.http.get(url)).text


@tool(**READS)
def some() -> Partial:
    """Do a part of the work."""
    return Partial(completed=["a"], failed=[ValueError("secret"), "b"], data={"n": 1})


RAISES = {
    "value": lambda: ValueError("broken"),
    "failed": lambda: ToolFailedError("fail", "why"),
    "memory": MemoryError,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "group": lambda: ExceptionGroup("several", [ConnectionRefusedError("no")]),
    "refused": lambda: OSError(111, "refused"),
}


@tool(**READS)
def fail(how: str) -> None:
    """Raise something."""
    error = RAISES[how]()
    raise error


@tool(**READS)
async def fail_later(how: str) -> None:
    """Raise something in an event loop."""
    error = RAISES[how]()
    raise error


@tool(**READS)
def odd(what: str) -> Any:
    """Return what is hard to write as JSON."""
    return {
        "object": object,
        "stream": lambda: iter([1]),
        "bytes": lambda: {"raw": b"\xff\xfe"},
        "half": lambda: {"text": "\ud800"},
        "infinite": lambda: float("inf"),
        "huge": lambda: "x" * (17 * 1024 * 1024),
        "hidden": lambda: asyncio.sleep(0, "awaited"),
    }[what]()


@tool(**READS)
def environment() -> dict[str, str]:
    """Show the environment."""
    return dict(os.environ)


@tool(**READS)
def limits() -> dict[str, int]:
    """Show what this call may use."""
    kinds = {"data": resource.RLIMIT_DATA, "cpu": resource.RLIMIT_CPU, "core": resource.RLIMIT_CORE}
    return {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}


@tool(**READS)
def polite(ctx: Context) -> str:
    """Work until nobody waits any more."""
    ctx.progress(0)
    while not ctx.cancelled:
        time.sleep(0.01)
    return "stopped"


@tool(**READS)
async def patient(ctx: Context) -> int:
    """Wait for very long."""
    ctx.progress(os.getpid())
    await asyncio.sleep(3600)
    return 0


def plain(count: int, ctx: Context) -> dict[str, Any]:
    """Count, as a function that is no tool of its own."""
    return {"count": count + 1, "tenant": ctx.tenant}
