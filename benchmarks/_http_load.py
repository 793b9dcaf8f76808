"""A client that takes next to nothing: as many connections as callers, each with one request.

Each answer is looked at: refusals are fast, too.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count, cycle, repeat
from typing import cast

HOST = "127.0.0.1"
TEXT = "a line of text that is given back, "
A_WHILE = 100
"""Calls that somebody makes one after the other with the same key."""
_LENGTH = b"content-length: "
_numbers = count()

Write = Callable[[str], bytes]
"""A whole request that has this text given back."""
Writers = Callable[[int, Sequence[str], str], Iterator[Write]]


class _Caller(asyncio.Protocol):
    def __init__(self, write: Write, until: float, done: asyncio.Future[int]) -> None:
        self._write = write
        self._until = until
        self._done = done
        self._seen = b""
        self._made = 0
        self._text = ""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, blank, body = self._seen.partition(b"\r\n\r\n")
        if not blank:
            return
        length = head.partition(_LENGTH)[2].partition(b"\r\n")[0]
        if len(body) < int(length or 0):
            return
        if not head.startswith(b"HTTP/1.1 200") or self._text.encode() not in body:
            sys.exit(f"A call was refused: {self._seen.decode()}")
        self._seen = b""
        self._made += 1
        self._ask()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(self._made)

    def _ask(self) -> None:
        if self._transport is None:
            return
        if time.perf_counter() >= self._until:
            self._transport.close()
            return
        self._text = f"{TEXT}{next(_numbers)}"  # never the same: each is an operation of its own
        self._transport.write(self._write(self._text))


async def spend(
    port: int, writes: Iterator[Write], callers: int, seconds: float
) -> tuple[int, float]:
    """Ask for so long, everybody at once: how many answers that made, and the seconds in truth."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    ends: list[asyncio.Future[int]] = [loop.create_future() for _ in range(callers)]
    for end in ends:
        caller = partial(_Caller, next(writes), began + seconds, end)
        await loop.create_connection(caller, HOST, port)
    made = sum(await asyncio.gather(*ends))
    return made, time.perf_counter() - began


def writers(port: int, keys: Sequence[str], tool: str) -> Iterator[Write]:
    """For each caller requests for calls of one tool, with a key of its own for a while.

    Nobody may make as many calls with one key as a caller who is alone makes here.
    """
    heads = [_head(port, key) for key in keys]
    for first in cycle(range(len(heads))):
        own = cycle([*heads[first:], *heads[:first]])
        yield partial(_request, chain.from_iterable(repeat(head, A_WHILE) for head in own), tool)


def mixed_writers(port: int, keys: Sequence[str], tool: str) -> Iterator[Write]:
    """As a proxy writes them: over each connection, requests of all the keys' holders in turn."""
    heads = cycle(_head(port, key) for key in keys)
    while True:
        yield partial(_request, heads, tool)


def _head(port: int, key: str) -> str:
    return (
        f"POST /v1/calls HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {key}\r\n"
        "Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: "
    )


def _request(heads: Iterator[str], tool: str, text: str) -> bytes:
    body = f'{{"tool":"{tool}","arguments":{{"text":"{text}"}}}}'
    return f"{next(heads)}{len(body)}\r\n\r\n{body}".encode()
