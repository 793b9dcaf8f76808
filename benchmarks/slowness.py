"""How much slower others are served while a disk, fifty tools or a client is slow.

One server of `counterseal serve` on SQLite is asked twice in each round: while nothing else
happens, and while something slow goes on beside it. A ratio says how many times as long the others
wait: callers of a read over `/v1`, and readers of a page of the console.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _served_parties as parties
from benchmarks import _slow_disk_server
from benchmarks._house.house import House
from benchmarks._house.rows import Row, Turn
from benchmarks._servers import Served
from counterseal import Runtime
from counterseal.accounts import People

TOOLS, WRITERS, READERS = 50, 4, 20
QUIET = "undisturbed"
CALL, PAGE = "a read over /v1", "a page of the console"
PASSWORD = "correct horse battery"  # noqa: S105 - of a user of the benchmark
SLOW_TOOLS = '''

@tool(effect="read_only", version="1.0.0", owner="bench", budget=10**9, runtime=RATES)
async def wait_awaiting(text: Text) -> Echo:
    """Return the text, later."""
    await asyncio.sleep(2)
    return Echo(text=text)


@tool(effect="read_only", version="1.0.0", owner="bench", budget=10**9, runtime=RATES)
def wait_plain(text: Text) -> Echo:
    """Return the text, later."""
    time.sleep(2)
    return Echo(text=text)


@tool(
    effect="read_only",
    version="1.0.0",
    owner="bench",
    budget=10**9,
    runtime=RATES,
    max_output_bytes=4_000_000,
)
async def large(text: Text) -> Echo:
    """Return the text many times."""
    return Echo(text=text * 100_000)
'''


class Target(NamedTuple):
    """A server, and what its clients carry."""

    base: str
    key: dict[str, str]
    cookie: dict[str, str]


Disturbance = Callable[[Target], AbstractAsyncContextManager[None]]


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        async with AsyncExitStack() as stack:
            usual = await opened(house, stack, Path(name, "usual"))
            on_slow_disk = await opened(house, stack, Path(name, "slow"), slow_disk=True)
            for target, disturbance, begin in (
                (usual, "50 awaiting tools", partial(slow_tools, name="wait_awaiting")),
                (usual, "50 plain tools", partial(slow_tools, name="wait_plain")),
                (usual, "20 clients that read a byte a second", slow_readers),
                (on_slow_disk, "changes on a disk of 10 ms", writers),
            ):
                for what, ask in ((CALL, call), (PAGE, page)):
                    measured = {
                        QUIET: partial(times, ask, target, house.pick(60, 20)),
                        disturbance: partial(disturbed, begin, ask, target, house.pick(60, 20)),
                    }
                    row = Row(
                        key=f"slowness/{disturbance}-{what}".replace(" ", "-").replace("/v1", "v1"),
                        what=f"{what} beside {disturbance}",
                        ours=disturbance,
                        theirs=QUIET,
                        better="lower",
                        reach=2.0,
                    )
                    await house.compare(
                        f"{what}, {disturbance}", measured, [row], rounds=house.pick(7, 3)
                    )


async def opened(
    house: House, stack: AsyncExitStack, folder: Path, *, slow_disk: bool = False
) -> Target:
    house.doing("starting a server")
    served = await asyncio.to_thread(
        lambda: stack.enter_context(server(folder, slow_disk=slow_disk))
    )
    async with Runtime.open(f"sqlite:///{folder}/bench.db") as runtime:
        people = People(runtime)
        accounts = people.accounts("bench")
        await accounts.add("vera", PASSWORD, {"acme": ["viewer"]}, reason="a benchmark")
        signed_in = await people.sign_in("vera", PASSWORD, source="127.0.0.1")
    if not isinstance(signed_in, tuple):
        raise TypeError(f"not signed in: {signed_in}")
    base = served.url.removesuffix("/v1/calls")
    return Target(base, dict(served.headers), {"Cookie": f"counterseal={signed_in[0]}"})


@contextmanager
def server(folder: Path, *, slow_disk: bool) -> Iterator[Served]:
    source = parties.OWN_TOOLS.replace("import asyncio\n", "import asyncio\nimport time\n")
    names = ("echo", "note", "wait_awaiting", "wait_plain", "large")
    program = [sys.executable, "-P", _slow_disk_server.__file__] if slow_disk else parties.PROGRAM
    with parties.api(folder, tools=source + SLOW_TOOLS, names=names, program=program) as served:
        yield served


# --- others ---------------------------------------------------------------------------------------


async def call(http: httpx.AsyncClient, target: Target, number: int) -> None:
    await submit(http, target, "echo", f"n{number}")


async def page(http: httpx.AsyncClient, target: Target, _: int) -> None:
    (await http.get("/", headers=target.cookie)).raise_for_status()


async def submit(http: httpx.AsyncClient, target: Target, tool: str, text: str) -> None:
    body = {"tool": tool, "arguments": {"text": text}}
    (await http.post("/v1/calls", json=body, headers=target.key)).raise_for_status()


def client(target: Target) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=target.base, trust_env=False, timeout=60)


async def times(ask: Callable[..., object], target: Target, count: int) -> Turn:
    samples = []
    async with client(target) as http:
        for number in range(count):
            begun = time.perf_counter()
            await ask(http, target, number)  # type: ignore[misc]
            samples.append(time.perf_counter() - begun)
    return Turn(sorted(samples)[count // 2], samples, count)


async def disturbed(
    begin: Disturbance, ask: Callable[..., object], target: Target, count: int
) -> Turn:
    async with begin(target):
        await asyncio.sleep(0.5)
        return await times(ask, target, count)


# --- what is slow ---------------------------------------------------------------------------------


@asynccontextmanager
async def slow_tools(target: Target, *, name: str) -> AsyncIterator[None]:
    limits = httpx.Limits(max_connections=TOOLS)
    async with httpx.AsyncClient(
        base_url=target.base, trust_env=False, timeout=60, limits=limits
    ) as http:
        calls = [asyncio.ensure_future(submit(http, target, name, f"t{i}")) for i in range(TOOLS)]
        yield
        await asyncio.gather(*calls)


@asynccontextmanager
async def writers(target: Target) -> AsyncIterator[None]:
    over = asyncio.Event()

    async def write(http: httpx.AsyncClient, who: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            await submit(http, target, "note", f"w{who}-{number}-{time.time_ns()}")

    async with client(target) as http:
        writing = [asyncio.ensure_future(write(http, who)) for who in range(WRITERS)]
        yield
        over.set()
        await asyncio.gather(*writing)


@asynccontextmanager
async def slow_readers(target: Target) -> AsyncIterator[None]:
    """Half of them read a large answer, half an event stream, a byte a second."""
    reading = [
        asyncio.ensure_future(read_slowly(target, events=i % 2 == 0)) for i in range(READERS)
    ]
    yield
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def read_slowly(target: Target, *, events: bool) -> None:
    host, port = target.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=64)
    body = b"" if events else b'{"tool": "large", "arguments": {"text": "slowly"}}'
    line = "GET /events?tenant=acme" if events else "POST /v1/calls"
    headers = target.cookie if events else {**target.key, "Content-Length": str(len(body))}
    lines = [f"{line} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        byte = await reader.read(1)
        while byte:
            await asyncio.sleep(1)
            byte = await reader.read(1)
    finally:
        writer.close()


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("slowness", bench)
