"""Over real sockets: bodies that never come, bodies without end, and lines that don't belong."""

import asyncio
import contextlib
import json

import pytest

from tests.gateway.servers import running

from .served import BOT, PATIENCE, open_api


class Wire:
    def __init__(self, port, keys):
        self.port = port
        self.key = keys[BOT]

    def head(self, line, *more):
        auth = f"Authorization: Bearer {self.key}"
        return "\r\n".join((line, "Host: 127.0.0.1", auth, *more, "", "")).encode("latin-1")

    async def exchange(self, *pieces, end=False):
        """What comes back until the server hangs up, or an answer is whole: status and the rest."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                if end:
                    assert await reader.read() == b""
            return int(head.split()[1]), head.decode("latin-1"), body
        finally:
            writer.close()


@pytest.fixture
async def wire():
    async with open_api(body_seconds=0.3) as api, running(api.api) as port:
        yield Wire(port, api.keys)


JSON = "Content-Type: application/json"


async def test_a_whole_request_is_answered(wire):
    body = json.dumps({"tool": "add", "arguments": {"a": 1, "b": 2}}).encode()
    head = wire.head("POST /v1/calls HTTP/1.1", JSON, f"Content-Length: {len(body)}")
    status, _, answer = await wire.exchange(head, body)
    assert (status, json.loads(answer)["result_payload"]["data"]) == (200, {"total": 3})


async def test_a_body_that_does_not_come_is_not_waited_for(wire):
    head = wire.head("POST /v1/calls HTTP/1.1", JSON, "Content-Length: 100")
    status, told, answer = await wire.exchange(head, b'{"tool"', end=True)
    assert (status, json.loads(answer)["code"]) == (408, "request-timeout")
    assert "connection: close" in told.lower()


async def test_a_body_without_end_is_read_no_further_than_a_mebibyte(wire):
    head = wire.head("POST /v1/calls HTTP/1.1", JSON, "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    status, _, answer = await wire.exchange(head, *[chunk] * 17, end=True)
    assert (status, json.loads(answer)["code"]) == (413, "too-large")


async def test_a_body_that_is_announced_too_large_is_not_read_at_all(wire):
    head = wire.head("POST /v1/calls HTTP/1.1", JSON, f"Content-Length: {10**12}")
    status, _, answer = await wire.exchange(head, end=True)
    assert (status, json.loads(answer)["code"]) == (413, "too-large")


async def test_who_is_not_known_is_refused_before_the_body_comes(wire):
    head = (
        b"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000000\r\n\r\n"
    )
    status, _, answer = await wire.exchange(head)
    assert (status, json.loads(answer)["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/calls/%0d%0aSet-Cookie:%20a=b",
        "/v1/approvals/a%0d%0aX-Evil:%201",
        "/v1/runs/%00%0a",
        "/v1/calls/%ff%fe",
        "/v1/nothing%0d%0aX-Evil:1",
        "/v1/calls?cursor=%0d%0aX-Evil:1",
    ],
)
async def test_no_line_of_a_callers_gets_into_an_answers_head(wire, path):
    status, head, _ = await wire.exchange(wire.head(f"GET {path} HTTP/1.1"))
    assert status in (400, 404)
    assert "evil" not in head.lower()
    assert "set-cookie" not in head.lower()


@pytest.mark.parametrize("given", ["a\rX-Evil: 1", "a\x00b", "a\x7fb"])
async def test_a_request_id_with_control_characters_is_never_given_back(wire, given):
    asked = wire.head("GET /v1/me HTTP/1.1", f"X-Request-Id: {given}")
    status, head, _ = await wire.exchange(asked)
    assert status in (200, 400)
    assert "evil" not in head.lower()
    assert "\x00" not in head
    assert "\x7f" not in head


async def test_who_hangs_up_before_the_body_is_there_leaves_nothing_behind(wire):
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
    writer.write(wire.head("POST /v1/calls HTTP/1.1", JSON, "Content-Length: 100"))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert reader.at_eof() or await reader.read() == b""
    status, *_ = await wire.exchange(wire.head("GET /v1/me HTTP/1.1"))
    assert status == 200
