"""Calls over HTTP past the library: what is read at once, and what is left to the library."""

import asyncio
import contextlib
import json

import httpx2
import pytest

from counterseal.contract.tool_context import client
from counterseal.upstream.exchange import Exchange
from counterseal.upstream.posting import Posting, is_plain

MOST = 100_000
RESULT = {"content": [{"type": "text", "text": "fine"}], "isError": False}
ANSWER = json.dumps({"jsonrpc": "2.0", "id": "n", "result": RESULT}).encode()
EVENT = b"event: message\r\ndata: " + ANSWER + b"\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(body, head=JSON):
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def chunk(part):
    return b"%x\r\n%b\r\n" % (len(part), part)


class Server:
    """Answers each request with the next of its answers, in as many parts as that has."""

    def __init__(self, *answers, then="stay"):
        self.answers = list(answers)
        self.then = then
        self.connections = 0
        self.requests = []
        self.hung_up = asyncio.Event()
        self.tasks = set()

    async def serve(self, reader, writer):
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _serve(self, reader, writer):
        while self.answers:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.requests.append((head, await reader.readexactly(size)))
            answer = self.answers.pop(0)
            for part in [answer] if isinstance(answer, bytes) else answer:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            if self.then == "hang up":
                return
        await reader.read()
        self.hung_up.set()


@contextlib.asynccontextmanager
async def posting(server, headers=None, **options):
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp?a=b"
    async with listening, httpx2.AsyncClient(headers=headers, trust_env=False) as http:
        made = Posting(http, url, MOST, 5.0, **options)
        try:
            yield made
        finally:
            made.close()
            if server.tasks:
                await asyncio.wait(server.tasks)


async def sent(made, headers=None):
    exchange = Exchange(client())
    async with asyncio.timeout(30):
        found = await made.result("n", "tools/call", {"name": "t"}, headers or {}, exchange)
    return found, exchange


PLAIN = {
    "JSON": whole(ANSWER),
    "JSON in parts": [whole(ANSWER)[:100], whole(ANSWER)[100:]],
    "JSON in chunks": JSON
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + chunk(ANSWER[:9])
    + chunk(ANSWER[9:])
    + b"0\r\n\r\n",
    "after a word in between": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + whole(ANSWER),
    "with a type in other letters": whole(
        ANSWER, b"HTTP/1.1 200 OK\r\ncontent-TYPE: Application/JSON; charset=utf-8\r\n"
    ),
    "one event": EVENTS + chunk(EVENT) + b"0\r\n\r\n",
    "one event in two chunks": EVENTS + chunk(EVENT[:30]) + chunk(EVENT[30:]) + b"0\r\n\r\n",
    "one event and its end later": [EVENTS + chunk(EVENT), b"0\r\n\r\n"],
}


@pytest.mark.parametrize("name", PLAIN)
async def test_a_plain_answer_is_read_at_once_and_the_connection_kept(name):
    server = Server(PLAIN[name], whole(ANSWER))
    async with posting(server) as made:
        found, exchange = await sent(made)
        assert found == RESULT
        assert exchange.sent
        assert exchange.came is None
        await asyncio.sleep(0.1)  # the end of an answer may be still to come
        assert (await sent(made))[0] == RESULT
    assert server.connections == 1
    head, body = server.requests[0]
    assert head.startswith(b"POST /mcp?a=b HTTP/1.1\r\n")
    assert json.loads(body) == {
        "jsonrpc": "2.0",
        "id": "n",
        "method": "tools/call",
        "params": {"name": "t"},
    }


async def test_an_answer_that_ends_with_its_connection_is_whole():
    server = Server(JSON + b"\r\n" + ANSWER, whole(ANSWER), then="hang up")
    async with posting(server) as made:
        assert (await sent(made))[0] == RESULT
        assert (await sent(made))[0] == RESULT
    assert server.connections == 2


async def test_a_stream_that_is_not_ended_holds_up_nobody():
    server = Server(EVENTS + chunk(EVENT))
    async with posting(server) as made:
        assert (await sent(made))[0] == RESULT
        async with asyncio.timeout(30):
            await server.hung_up.wait()


OTHER = {
    "an error": whole(json.dumps({"jsonrpc": "2.0", "id": "n", "error": {"code": 1}}).encode()),
    "somebody else's result": whole(ANSWER.replace(b'"n"', b'"m"')),
    "what is no JSON": whole(b"hello"),
    "what is no answer": whole(b"[]"),
    "another status": b"HTTP/1.1 503 No\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno",
    "another type": whole(ANSWER, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"),
    "another coding": whole(ANSWER, JSON + b"Content-Encoding: gzip\r\n"),
    "a redirect": b"HTTP/1.1 307 Go\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
    "accepted": b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    "events before the result": EVENTS
    + chunk(b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\r\n\r\n')
    + chunk(EVENT)
    + b"0\r\n\r\n",
    "an event with an id": EVENTS + chunk(b"id: 1\r\n" + EVENT) + b"0\r\n\r\n",
    "a sign of life": EVENTS + chunk(b": ping\r\n\r\n") + chunk(EVENT) + b"0\r\n\r\n",
}


@pytest.mark.parametrize("name", OTHER)
async def test_what_is_not_plainly_a_result_is_there_for_the_library_as_it_came(name):
    answer = OTHER[name]
    server = Server(answer)
    async with posting(server) as made:
        found, exchange = await sent(made)
        assert found is None
        assert exchange.sent
        came = exchange.came
        status = int(answer[9:12])
        assert came.status_code == status
        async with asyncio.timeout(30):
            body = b"".join([part async for part in came.stream])
        await came.stream.aclose()
        # All of it, from its beginning; only the framing of chunks is gone.
        assert body.replace(b"\r\n", b"").strip()[-20:] in answer.replace(b"\r\n", b"")
        if status == 503:
            assert came.headers["retry-after"] == "3"
        if "event" in name or "sign" in name:
            assert body.endswith(EVENT)
    assert len(server.requests) == 1


async def test_a_long_answer_is_not_waited_for_and_not_lost():
    body = b'{"padding": "' + b"x" * (3 * MOST) + b'"}'
    server = Server(whole(body))
    async with posting(server) as made:
        found, exchange = await sent(made)
        assert found is None
        assert b"".join([part async for part in exchange.came.stream]) == body
        await exchange.let_go()


BROKEN = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "no HTTP": b"nonsense\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_without_a_head_is_an_error_of_what_was_sent(name):
    async with posting(Server(BROKEN[name], then="hang up")) as made:
        found, exchange = await sent(made)
        assert found is None
        assert exchange.sent
        assert isinstance(exchange.came, httpx2.TransportError)
        assert not isinstance(exchange.came, httpx2.ConnectError)


@pytest.mark.parametrize("head", [JSON, EVENTS.replace(b"Transfer-Encoding: chunked\r\n\r\n", b"")])
async def test_an_answer_that_breaks_off_is_an_error_where_it_is_read(head):
    broken = head + b"Content-Length: 900\r\n\r\n" + EVENT[:40]
    async with posting(Server(broken, then="hang up")) as made:
        found, exchange = await sent(made)
        assert found is None
        with pytest.raises(httpx2.TransportError):
            _ = [part async for part in exchange.came.stream]
        await exchange.let_go()


async def test_where_nobody_answers_nothing_was_sent():
    server = Server()
    async with posting(server) as made:
        made._wires._url = httpx2.URL("http://127.0.0.1:1/mcp")
        found, exchange = await sent(made)
        assert found is None
        assert not exchange.sent
        assert isinstance(exchange.came, httpx2.ConnectError)


async def test_a_connection_that_was_hung_up_meanwhile_is_not_used_again():
    server = Server(whole(ANSWER), whole(ANSWER), then="hang up")
    async with posting(server) as made:
        assert (await sent(made))[0] == RESULT
        await asyncio.sleep(0.1)
        assert (await sent(made))[0] == RESULT
    assert server.connections == 2


async def test_who_does_not_wait_hangs_up_and_the_next_has_another_connection():
    server = Server(b"", whole(ANSWER))
    async with posting(server) as made:
        waiting = asyncio.ensure_future(sent(made))
        async with asyncio.timeout(30):
            while not server.requests:  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert (await sent(made))[0] == RESULT
    assert server.connections == 2


async def test_closing_tells_who_waits_that_the_answer_is_lost():
    server = Server(b"")
    async with posting(server) as made:
        waiting = asyncio.ensure_future(sent(made))
        async with asyncio.timeout(30):
            while not server.requests:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        made.close()
        found, exchange = await waiting
        assert found is None
        assert isinstance(exchange.came, httpx2.ReadError)
        assert (await sent(made))[0] is None, "nothing is sent after that"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("own", "more"),
    [
        ({"x-key": "two\r\nX-Other: lines"}, {}),
        ({"x-key": "ends "}, {}),
        ({}, {"mcp-name": "two\r\nX-Other: lines"}),
        ({}, {"mcp-name": "grün"}),
        ({"mcp-name": "set"}, {"Mcp-Name": "twice"}),
    ],
)
async def test_headers_that_can_not_be_written_plainly_are_left_to_the_library(own, more):
    server = Server(whole(ANSWER))
    async with posting(server, own) as made:
        found, exchange = await sent(made, more)
        assert found is None
        assert not exchange.sent
        assert exchange.came is None
    assert not server.requests


async def test_our_headers_go_with_every_request():
    server = Server(whole(ANSWER))
    async with posting(server, {"authorization": "Bearer s3cret"}) as made:
        await sent(made, {"mcp-method": "tools/call"})
    lines = server.requests[0][0].lower().split(b"\r\n")
    assert b"authorization: bearer s3cret" in lines
    assert b"mcp-method: tools/call" in lines
    assert b"accept: application/json, text/event-stream" in lines
    assert len([line for line in lines if line.startswith(b"content-length:")]) == 1


@pytest.mark.parametrize(
    ("result", "modern", "plain"),
    [
        (RESULT, False, True),
        ({**RESULT, "resultType": "complete"}, True, True),
        ({**RESULT, "resultType": "complete"}, False, False),
        (RESULT, True, False),
        ({**RESULT, "structuredContent": {"a": 1}, "_meta": {}}, False, True),
        ({**RESULT, "structuredContent": [1]}, False, False),
        ({**RESULT, "isError": "no"}, False, False),
        ({**RESULT, "content": "fine"}, False, False),
        ({**RESULT, "content": [{"type": "image", "data": "", "mimeType": "x"}]}, False, False),
        ({**RESULT, "content": [{"type": "text", "text": 3}]}, False, False),
        ({**RESULT, "content": [{"type": "text", "text": "", "annotations": 3}]}, False, False),
        ({**RESULT, "more": 1}, False, False),
        ({}, False, False),
    ],
)
def test_only_texts_and_an_object_need_no_second_look(result, modern, plain):
    assert is_plain(result, modern=modern) is plain
