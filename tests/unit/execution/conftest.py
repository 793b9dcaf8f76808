"""A real server on loopback that answers well or badly, as its paths say."""

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import struct
import zlib
from urllib.parse import parse_qs, urlsplit

import pytest

CONTENT = b"The quick brown fox jumps over the lazy dog. " * 100


class Server:
    """A path is answered by the method of that name: `/slow-body` by `slow_body`."""

    def __init__(self):
        self.connections = 0
        self.requests = []
        self.go = asyncio.Event()
        """What `/late` waits for."""
        self.reached = asyncio.Event()
        """A request has arrived."""
        self.left = asyncio.Event()
        """A client went away before it had been told everything."""
        self.ended = asyncio.Event()
        """A connection is over."""
        self._handlers = set()

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None):
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for handler in self._handlers:
                handler.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)

    def url(self, path, host="127.0.0.1", scheme="http"):
        return f"{scheme}://{host}:{self.port}{path}"

    async def _connected(self, reader, writer):
        self.connections += 1
        self._handlers.add(asyncio.current_task())
        try:
            while await self._answer(reader, writer):
                pass
        except ConnectionError:
            self.left.set()
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has no more to ask, or the test is over
        finally:
            self.ended.set()
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.strip().split("\r\n")
        method, target, _ = line.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append({"method": method, "target": target, "headers": headers})
        self.reached.set()
        url = urlsplit(target)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = getattr(self, url.path.strip("/").replace("-", "_"))
        asked |= {"method": method, "headers": headers, "body": body}
        return await path(writer, asked) is not False

    async def _send(self, writer, content, status="200 OK", *, head=False, **headers):
        headers = {"Content-Length": len(content)} | headers
        lines = [f"HTTP/1.1 {status}", *(f"{k.replace('_', '-')}: {headers[k]}" for k in headers)]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if head else content))
        await writer.drain()

    # --- well behaved

    async def ok(self, writer, asked):
        await self._send(writer, b"ok")

    async def echo(self, writer, asked):
        told = asked | {"body": asked["body"].decode()}
        await self._send(writer, json.dumps(told).encode(), Content_Type="application/json")

    async def cookie(self, writer, asked):
        await self._send(writer, b"", Set_Cookie="who=me; Path=/")

    async def size(self, writer, asked):
        content = b"x" * int(asked["bytes"])
        if "packed" in asked:
            await self._send(writer, gzip.compress(content), Content_Encoding="gzip")
        else:
            await self._send(writer, content)

    async def packed(self, writer, asked):
        packed = {
            "gzip": gzip.compress,
            "deflate": zlib.compress,
            "br": lambda content: content,  # nothing looks into it
        }[asked["as"]](CONTENT)
        head = asked["method"] == "HEAD"
        await self._send(writer, packed, head=head, Content_Encoding=asked["as"])

    async def redirect(self, writer, asked):
        await self._send(writer, b"", "302 Found", Location=asked["to"])

    # --- badly behaved

    async def late(self, writer, asked):
        await self.go.wait()
        await self._send(writer, b"late")

    async def hang(self, writer, asked):
        await asyncio.Event().wait()

    async def drop(self, writer, asked):
        return False

    async def drop_body(self, writer, asked):
        await self._send(writer, b"half", Content_Length=8)
        return False

    async def half_packed(self, writer, asked):
        await self._send(writer, gzip.compress(CONTENT)[:-9], Content_Encoding="gzip")

    async def reset(self, writer, asked):
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False

    async def slow_headers(self, writer, asked):
        writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        return await self._drip(writer)

    async def slow_body(self, writer, asked):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        return await self._drip(writer)

    async def _drip(self, writer):
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)
        return False

    async def endless(self, writer, asked):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()

    async def bomb(self, writer, asked):
        """A few kilobytes that become many megabytes."""
        packed = gzip.compress(bytes(32 * 1024 * 1024))
        await self._send(writer, packed, Content_Encoding="gzip")


@pytest.fixture
async def server():
    async with Server().running() as running:
        yield running


@pytest.fixture
def content():
    """What `/packed` means."""
    return CONTENT
