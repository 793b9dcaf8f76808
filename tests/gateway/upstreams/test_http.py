"""Upstreams over HTTP: which requests were sent, and which answers were lost."""

import asyncio
import contextlib
import json

import pytest

from counterseal.codes import Code
from counterseal.errors import AnswerLostError, NotSentError, ResponseTooLargeError
from counterseal.execution.failures import code_of, describe
from counterseal.upstream import UpstreamSettings
from tests.waiting import until

from .conftest import LONG, ClientInFront, call_context, connected, in_front, text_of

MIB = 1024 * 1024
ERAS = [(), ("--legacy",)]


async def echo(upstream, text="still here"):
    return await upstream.call("echo", {"text": text}, context=call_context())


@contextlib.asynccontextmanager
async def listening(answer):
    """A server that answers every connection with these bytes once it was sent a request."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


@pytest.mark.slow
@pytest.mark.parametrize("options", ERAS)
async def test_a_server_that_goes_away_loses_what_was_sent_and_is_not_sent_more(
    website, tmp_path, options
):
    site = website(*options)
    async with connected(site.settings()) as upstream:
        waiting = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(tmp_path / "flag")}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)
        site.kill()
        with pytest.raises(AnswerLostError):
            await waiting
        await until(lambda: not upstream.ready)
        with pytest.raises(NotSentError):
            await echo(upstream)

        site.start()
        await until(lambda: upstream.ready)
        assert text_of(await echo(upstream)) == "still here"


async def test_a_server_that_is_not_there_is_down_and_says_why():
    async with connected(UpstreamSettings(name="up", url="http://127.0.0.1:1/mcp")) as upstream:
        assert not upstream.ready
        assert "no connection" in upstream.trouble
        with pytest.raises(NotSentError):
            await echo(upstream)


async def test_a_session_that_the_server_has_forgotten_is_opened_anew(website, tmp_path):
    forget = tmp_path / "forget"
    site = website("--legacy", "--forget", str(forget))
    async with connected(site.settings()) as upstream:
        first = upstream._pools["*"].main.connection
        assert text_of(await echo(upstream)) == "still here"
        forget.touch()
        with pytest.raises(NotSentError, match="session has expired"):
            await echo(upstream)
        assert text_of(await echo(upstream)) == "still here"
        assert upstream._pools["*"].main.connection is not first


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, NotSentError, Code.DEPENDENCY_UNAVAILABLE),
        (403, NotSentError, Code.DEPENDENCY_UNAVAILABLE),
        (404, NotSentError, Code.DEPENDENCY_UNAVAILABLE),
        (429, NotSentError, Code.RATE_LIMITED),
        (500, AnswerLostError, Code.DEPENDENCY_UNAVAILABLE),
        (503, AnswerLostError, Code.DEPENDENCY_UNAVAILABLE),
        (202, AnswerLostError, Code.DEPENDENCY_UNAVAILABLE),
        (307, NotSentError, Code.DEPENDENCY_UNAVAILABLE),
    ],
)
async def test_a_status_tells_whether_the_upstream_can_have_done_anything(
    standing, status, kind, code
):
    async with connected(standing().settings()) as upstream:
        with pytest.raises(kind) as raised:
            await upstream.call(f"status_{status}", {}, context=call_context())
        fault = describe(raised.value)
        assert code_of(fault) is code
        assert fault.retry_after == (7 if status == 429 else None)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: hi\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_or_is_invalid_is_lost_and_reaches_no_other_caller(
    standing, tmp_path, answer
):
    async with connected(standing().settings()) as upstream, listening(answer) as url:
        # The next requests of this connection go to a server that does not speak MCP.
        way = upstream._pools["*"].main.connection
        assert way.up
        held = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(tmp_path / "flag")}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)
        with redirected(way, url), pytest.raises(AnswerLostError):
            await echo(upstream)
        assert not held.done()
        held.cancel()
        assert text_of(await echo(upstream)) == "still here"


@contextlib.contextmanager
def redirected(connection, url):
    """Send what the connection sends to another server."""
    transport = connection.transport._recording._inner
    send = transport.handle_async_request

    async def elsewhere(request):
        request.url = type(request.url)(url)
        return await send(request)

    transport.handle_async_request = elsewhere
    try:
        yield
    finally:
        transport.handle_async_request = send


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def whole(body):
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def chunk(part):
    return b"%x\r\n%b\r\n" % (len(part), part)


def event(body):
    return b"event: message\r\ndata: " + body + b"\r\n\r\n"


FORMS = {
    "JSON": lambda body: JSON + whole(body),
    "JSON in chunks": lambda body: JSON + CHUNKED + chunk(body[:9]) + chunk(body[9:]) + LAST,
    "JSON after early hints": lambda body: (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + JSON + whole(body)
    ),
    "an event": lambda body: EVENTS + chunk(event(body)) + LAST,
    "an event in two chunks": lambda body: (
        EVENTS + chunk(event(body)[:30]) + chunk(event(body)[30:]) + LAST
    ),
    "an event after a comment": lambda body: (
        EVENTS + chunk(b": ping\r\n\r\n") + chunk(event(body)) + LAST
    ),
}


class Answering:
    """Answers every tools/call with one text, in one form of HTTP, and counts its connections."""

    def __init__(self, form):
        self._form = form
        self.connections = 0

    async def serve(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                request = json.loads(await reader.readexactly(size))
                result = {"content": [{"type": "text", "text": "fine"}], "resultType": "complete"}
                answer = {"jsonrpc": "2.0", "id": request["id"], "result": result}
                writer.write(self._form(json.dumps(answer).encode()))
                await writer.drain()
        writer.close()


@pytest.mark.parametrize("form", FORMS)
async def test_a_result_is_read_in_each_form_and_its_connection_is_used_again(standing, form):
    answering = Answering(FORMS[form])
    server = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with connected(standing().settings()) as upstream:
        await echo(upstream)
        with redirected(upstream._pools["*"].main.connection, url):
            for _ in range(3):
                assert text_of(await echo(upstream)) == "fine"
    server.close()
    assert answering.connections == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--legacy",), ("--json",)])
async def test_a_long_answer_is_read_up_to_its_limit(standing, options):
    site = standing(*options)
    async with connected(site.settings()) as upstream:
        result = await upstream.call("big", {"bytes": 10_000_000}, context=call_context())
        assert len(text_of(result)) == 10_000_000
    async with connected(site.settings(max_bytes=MIB)) as upstream:
        with pytest.raises(ResponseTooLargeError):
            await upstream.call("big", {"bytes": 2 * MIB}, context=call_context())
        assert text_of(await echo(upstream)) == "still here"


@pytest.mark.parametrize("options", ERAS)
async def test_cancelling_a_call_reaches_the_server(standing, tmp_path, options):
    async with connected(standing(*options).settings()) as upstream:
        call = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(tmp_path / "flag")}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until((tmp_path / "flag.cancelled").exists)
        assert text_of(await echo(upstream)) == "still here"


async def test_the_gateways_credentials_are_sent_and_nothing_of_the_caller(website):
    site = website("--token", "t0ken-of-acme")
    settings = site.settings(headers={"Authorization": "Bearer {secret:token}"}, tenants=("acme",))
    secrets = {"acme": {"token": "t0ken-of-acme"}, "other": {"token": "t0ken-of-other"}}
    async with connected(settings, secrets=secrets) as upstream:
        with in_front(ClientInFront()):
            result = await upstream.call("headers", {}, context=call_context("acme"))
        # The server takes no other; and what it knows of it goes no further.
        assert '"authorization": "Bearer [secret.token]"' in text_of(result)
        with pytest.raises(NotSentError):
            await upstream.call("echo", {}, context=call_context("other"))


async def test_a_tool_whose_wish_for_headers_was_not_known_is_called_anew_with_them(standing):
    async with connected(standing().settings()) as upstream:
        result = await upstream.call("headers", {"region": "eu"}, context=call_context())
        assert '"mcp-param-region": "eu"' in text_of(result)


async def test_a_server_that_refuses_our_credentials_is_down_and_says_with_what_status(website):
    site = website("--token", "t0ken-of-acme")
    async with connected(site.settings()) as upstream:
        assert not upstream.ready
        assert "401" in upstream.trouble


async def test_closing_does_not_wait_for_a_call(standing, tmp_path):
    async with connected(standing().settings()) as upstream:
        call = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(tmp_path / "flag")}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)
    async with asyncio.timeout(LONG):
        with pytest.raises(AnswerLostError):
            await call
