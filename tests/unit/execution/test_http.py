"""HTTP tools: what a server on loopback really receives, and what becomes of what it answers."""

import asyncio
import contextlib
import json
import socket
from importlib import import_module
from types import SimpleNamespace
from urllib.parse import parse_qsl, unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Context, Principal
from counterseal.codes import Code
from counterseal.contract.bindings import HttpBinding, Placeholder
from counterseal.contract.model import Contract
from counterseal.contract.tool_context import Secret
from counterseal.errors import SecretUnavailableError
from counterseal.execution.failures import code_of, describe
from counterseal.execution.http import (
    NOT_SENT,
    AnswerError,
    UnsendableError,
    fill_request,
    http_tool,
    never_left,
)

ANY = {"type": "object"}
CASE = {
    "type": "object",
    "properties": {"case_id": {"type": "string"}},
    "required": ["case_id"],
}


class Server:
    """Takes requests one by one, keeps them as they came, and answers as it is told."""

    def __init__(self):
        self.requests = []
        self.answer = (200, {"content-type": "application/json"}, b'{"ok": true}')
        self.silent = False
        self.received = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def take(self, reader, writer):
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                headers.setdefault(name.lower(), []).append(value)
            body = await reader.readexactly(int(headers.get("content-length", ["0"])[0]))
            method, target, _ = first.split(" ")
            self.requests.append(SimpleNamespace(**locals()))
            self.received.set()
            await self.may_answer.wait()
            if self.silent:
                return
            status, given, content = self.answer
            told = {"content-length": str(len(content)), "connection": "close", **given}
            lines = [f"HTTP/1.1 {status} Something", *(f"{k}: {v}" for k, v in told.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            await writer.drain()

    @property
    def last(self):
        return self.requests[-1]


@pytest.fixture
async def server():
    made = Server()
    listening = await asyncio.start_server(made.take, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    made.url = f"http://127.0.0.1:{made.port}"
    async with listening:
        yield made


def contract(url, *, effect="retrieve", output=ANY, **http):
    data = {
        "effect": effect,
        "identity": {"name": "ask"},
        "affordance": {
            "model_description": "Ask.",
            "input_schema": {"type": "object", "additionalProperties": True},
            "output_schema": output,
        },
        "usage": "In tests.",
        "http": {"url": url, **http},
    }
    return Contract.model_validate(data)


async def ask(made, arguments=None, secrets=None, *, key=None, client=None):
    """Call the tool as the executor does: bind, inject, await."""
    tool = http_tool(made)
    bound = tool.binder(arguments or {})
    async with client or httpx.AsyncClient(trust_env=False) as http:
        context = Context(
            principal=Principal(tenant="acme", agent="agent"),
            run_id="run_1",
            call_id="call_1",
            key=key,
            services=SimpleNamespace(http=http, cancelled=False),
        )
        injected = {
            name: (secrets or {})[mark.name] if isinstance(mark, Secret) else context
            for name, mark in tool.injected.items()
        }
        return await tool.function(**bound, **injected)


# --- what is sent ---------------------------------------------------------------------------------


async def test_arguments_go_where_the_binding_says(server):
    made = contract(
        f"{server.url}/cases/{{case_id}}/notes",
        method="POST",
        effect="draft",
        query={"notify": "{notify}", "tag": "{tags}", "v": "2"},
        headers={"X-Language": "{language}", "Authorization": "Bearer {secret:token}"},
        body={"note": {"text": "{text}", "stars": "{stars}"}, "by": "case {case_id}", "fixed": 1},
    )
    arguments = {
        "case_id": "c 7",
        "notify": True,
        "tags": ["a&b", "ü"],
        "language": "en",
        "text": "Hello {x}",
        "stars": 5,
    }
    assert await ask(made, arguments, {"token": "s3cret-token"}, key="k-1") == {"ok": True}
    sent = server.last
    assert sent.method == "POST"
    path, _, query = sent.target.partition("?")
    assert path == "/cases/c%207/notes"
    assert parse_qsl(query) == [("notify", "true"), ("tag", "a&b"), ("tag", "ü"), ("v", "2")]
    assert sent.headers["x-language"] == ["en"]
    assert sent.headers["authorization"] == ["Bearer s3cret-token"]
    assert sent.headers["idempotency-key"] == ["k-1"]
    assert sent.headers["content-type"] == ["application/json"]
    assert json.loads(sent.body) == {
        "note": {"text": "Hello {x}", "stars": 5},
        "by": "case c 7",
        "fixed": 1,
    }


async def test_what_an_absent_argument_would_fill_is_left_out(server):
    made = contract(
        f"{server.url}/cases",
        method="POST",
        effect="draft",
        query={"a": "{a}", "b": "b is {b}", "list": "{list}", "null": "{null}"},
        headers={"X-A": "{a}", "X-Null": "{null}"},
        body={"a": "{a}", "text": "a is {a}", "list": ["{a}", "kept"], "null": "{null}"},
    )
    await ask(made, {"list": [], "null": None})
    assert server.last.target == "/cases"
    assert not {"x-a", "x-null", "idempotency-key"} & set(server.last.headers)
    assert json.loads(server.last.body) == {"list": ["kept"], "null": None}


@pytest.mark.parametrize(
    "value", ["text", "", 0, 1.5, False, None, [1, "a"], {"a": {"b": [None]}}, "ü\u2028"]
)
async def test_a_lone_placeholder_keeps_its_json_type(server, value):
    made = contract(server.url, method="PUT", effect="draft", body="{value}")
    await ask(made, {"value": value})
    assert json.loads(server.last.body) == value


async def test_a_body_of_one_absent_argument_is_no_body(server):
    made = contract(server.url, method="POST", effect="draft", body="{value}")
    await ask(made)
    assert server.last.body == b""
    assert "content-type" not in server.last.headers


async def test_a_form_is_sent_as_pairs(server):
    made = contract(
        server.url, method="POST", effect="draft", form={"to": "{to}", "text": "{text}", "x": "{x}"}
    )
    await ask(made, {"to": ["+1", "+2"], "text": "a=b&c"})
    assert server.last.headers["content-type"] == ["application/x-www-form-urlencoded"]
    pairs = [("to", "+1"), ("to", "+2"), ("text", "a=b&c")]
    assert parse_qsl(server.last.body.decode()) == pairs


async def test_a_header_of_the_binding_replaces_the_usual_one(server):
    made = contract(
        server.url,
        method="PATCH",
        effect="draft",
        headers={"Content-Type": "application/merge-patch+json", "ACCEPT": "text/csv"},
        body={"a": "{a}"},
    )
    await ask(made, {"a": 1})
    assert server.last.headers["content-type"] == ["application/merge-patch+json"]
    assert server.last.headers["accept"] == ["text/csv"]


async def test_the_key_goes_into_the_header_that_the_contract_names(server):
    data = contract(server.url, method="POST", effect="draft").record()
    data["idempotency"] = {"key_header": "X-Request-Key"}
    made = Contract.model_validate(data)
    await ask(made, key="run_1/op 1/Überweisung")
    await ask(made, key="run_1/op 1/Überweisung")
    one, two = (sent.headers["x-request-key"] for sent in server.requests)
    assert one == two
    assert one[0].startswith("sha256-")
    await ask(made, key="plain-key")
    assert server.last.headers["x-request-key"] == ["plain-key"]


async def test_a_read_sends_no_key(server):
    await ask(contract(server.url))
    assert "idempotency-key" not in server.last.headers


async def test_a_read_can_ask_by_the_key_of_the_call(server):
    made = contract(
        f"{server.url}/payments/{{call:key}}",
        query={"key": "{call:key}"},
        headers={"X-Of": "call {call:key}"},
    )
    await ask(made, {"key": "an argument"}, key="k-1")
    assert server.last.target == "/payments/k-1?key=k-1"
    assert server.last.headers["x-of"] == ["call k-1"]


async def test_a_key_is_asked_for_in_the_words_that_it_was_sent_in(server):
    key = "run_1/op 1/Überweisung"
    made = contract(server.url, method="POST", effect="draft", body={"key": "{call:key}"})
    await ask(made, key=key)
    assert json.loads(server.last.body)["key"] == server.last.headers["idempotency-key"][0]
    await ask(contract(f"{server.url}/{{call:key}}"), key=key)
    assert server.last.target == f"/{server.requests[0].headers['idempotency-key'][0]}"


async def test_a_request_that_carries_a_key_is_not_sent_without_one(server):
    with pytest.raises(UnsendableError, match=r"\{call:key\}, and this call has no key") as caught:
        await ask(contract(server.url, query={"key": "{call:key}"}))
    assert caught.value.field is None
    assert server.requests == []
    assert never_left(describe(caught.value))


async def test_no_argument_name_can_take_the_place_of_what_is_injected(server):
    made = contract(server.url, query={"c": "{context}", "s": "{secret_0}", "v": "{values}"})
    await ask(made, {"context": "1", "secret_0": "2", "values": "3", "self": "4"})
    assert server.last.target == "/?c=1&s=2&v=3"


async def test_numbers_are_written_as_a_path_takes_them(server):
    made = contract(f"{server.url}/{{a}}/{{b}}/{{c}}/x{{d}}.json")
    await ask(made, {"a": 5.0, "b": 2.5, "c": 10**15, "d": False})
    assert server.last.target == "/5/2.5/1000000000000000/xfalse.json"


# --- what an argument can't do --------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["a/b", "..", ".", "", "../admin", "a\\b", "a\nb", "\x00", None, {"a": 1}, ["a"]]
)
def test_a_path_argument_that_would_lead_elsewhere_is_refused_before_anything_is_sent(value):
    tool = http_tool(contract("https://api.example.org/users/{user_id}", method="DELETE"))
    with pytest.raises(UnsendableError, match=r"\{user_id\}"):
        tool.binder({"user_id": value})


@pytest.mark.parametrize(
    ("http", "arguments", "field"),
    [
        ({}, {"user_id": "s3cret/value"}, "/user_id"),
        ({"query": {"tag": "{tags}"}}, {"user_id": "7", "tags": ["a", {"s3cret": 1}]}, "/tags/1"),
        ({"headers": {"X-A": "by {a/b}"}}, {"user_id": "7", "a/b": "s3cret\n"}, "/a~1b"),
        ({"query": {"q": "{q}"}}, {"user_id": "7", "q": "s3cret\ud800"}, "/q"),
    ],
)
def test_an_argument_that_can_not_be_sent_is_named_and_not_quoted(http, arguments, field):
    tool = http_tool(contract("https://api.example.org/users/{user_id}", **http))
    with pytest.raises(UnsendableError) as caught:
        tool.binder(arguments)
    assert caught.value.field == field
    assert caught.value.problem
    assert str(caught.value).endswith(caught.value.problem)
    assert "s3cret" not in str(caught.value)


def test_two_arguments_can_not_make_a_parent_segment_together():
    tool = http_tool(contract("https://api.example.org/a/{x}{y}/b"))
    with pytest.raises(UnsendableError):
        tool.binder({"x": ".", "y": "."})


@given(st.text())
def test_a_path_argument_is_one_segment_or_refused(value):
    request = HttpBinding(url="https://api.example.org/a/{x}/b")
    try:
        filled = fill_request(request, {Placeholder("x"): value})
    except UnsendableError:
        return
    url = httpx.URL(filled["url"])
    assert url.host == "api.example.org"
    assert not url.query
    assert not url.fragment
    segments = url.raw_path.decode().split("/")
    assert [unquote(segment) for segment in segments] == ["", "a", value, "b"]
    # Not even a server that decodes first sees more of them.
    assert len(unquote(url.raw_path.decode()).split("/")) == 4


@given(st.text())
def test_a_query_argument_is_one_value_or_refused(value):
    request = HttpBinding(url="https://api.example.org/a", query={"q": "{q}"})
    try:
        filled = fill_request(request, {Placeholder("q"): value})
    except UnsendableError:
        return
    sent = httpx.URL(filled["url"], params=filled["params"]).query.decode()
    assert parse_qsl(sent, keep_blank_values=True) == [("q", value)]


@given(st.text() | st.sampled_from(["a\r\nX-Evil: 1", "a\nb", "a\rb", "\ta", "a ", "ü", "\x00"]))
def test_a_header_argument_is_one_line_of_ascii_or_refused(value):
    request = HttpBinding(url="https://api.example.org/a", headers={"X-Note": "note: {note}"})
    try:
        filled = fill_request(request, {Placeholder("note"): value})
    except UnsendableError:
        return
    line = filled["headers"]["X-Note"]
    assert line == f"note: {value}"
    assert line.isascii()
    assert line.isprintable() or "\t" in line
    assert not {"\r", "\n", "\0"} & set(line)


async def test_a_secret_that_no_header_can_carry_is_named_but_not_shown(server):
    made = contract(server.url, headers={"Authorization": "Bearer {secret:token}"})
    with pytest.raises(SecretUnavailableError, match="the secret token") as caught:
        await ask(made, secrets={"token": "s3cret-token\n"})
    assert "s3cret" not in str(caught.value)
    assert server.requests == []


# --- what comes back ------------------------------------------------------------------------------


def answers(server, content, kind="application/json", status=200):
    content = content if isinstance(content, bytes) else content.encode()
    server.answer = (status, {"content-type": kind} if kind else {}, content)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("", {"data": [{"a/b": 1}, None]}), ("/data/0/a~1b", 1), ("/data/1", None)],
)
async def test_the_output_stands_where_the_pointer_leads(server, pointer, value):
    answers(server, '{"data": [{"a/b": 1}, null]}')
    assert await ask(contract(server.url, response=pointer)) == value


@pytest.mark.parametrize("pointer", ["/nothing", "/data/2", "/data/-1", "/data/x", "/text/0"])
async def test_a_pointer_that_leads_nowhere_is_an_answer_that_makes_no_sense(server, pointer):
    answers(server, '{"data": [1, 2], "text": "abc"}')
    with pytest.raises(AnswerError, match=pointer):
        await ask(contract(server.url, response=pointer))


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/hal+json", ""])
async def test_json_is_read_whatever_its_type_is_called(server, kind):
    answers(server, b'\xef\xbb\xbf{"a": 1}', kind)
    assert await ask(contract(server.url)) == {"a": 1}


@pytest.mark.parametrize("content", ["{", '{"a": NaN}', "<html>", b"\xff\xfe"])
async def test_what_calls_itself_json_and_is_none_is_an_error(server, content):
    answers(server, content)
    with pytest.raises(AnswerError):
        await ask(contract(server.url))


async def test_an_empty_answer_is_what_the_output_schema_has_for_it(server):
    server.answer = (204, {}, b"")
    assert await ask(contract(server.url)) == {}
    assert await ask(contract(server.url, output=CASE)) is None


async def test_a_head_request_is_answered_by_its_status(server):
    server.answer = (200, {"content-type": "application/json", "content-length": "12"}, b"")
    assert await ask(contract(server.url, method="HEAD")) == {}


async def test_text_is_taken_where_the_output_schema_has_a_place_for_it(server):
    answers(server, "grüezi".encode("latin-1"), "text/plain; charset=latin-1")
    told = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    assert await ask(contract(server.url, output=told)) == {"text": "grüezi"}
    assert await ask(contract(server.url)) == {"text": "grüezi"}


async def test_a_page_of_html_is_no_object_with_other_fields(server):
    answers(server, "<html>Please log in</html>", "text/html")
    declared = {"type": "object", "properties": {"total": {"type": "integer"}}}
    with pytest.raises(AnswerError):
        await ask(contract(server.url, output=declared))


async def test_json_that_is_sent_as_text_is_read_where_json_is_declared(server):
    answers(server, '{"case_id": "7"}', "text/plain")
    assert await ask(contract(server.url, output=CASE)) == {"case_id": "7"}


async def test_bytes_that_are_no_text_are_an_error(server):
    answers(server, b"\x89PNG\xff", "image/png")
    with pytest.raises(AnswerError):
        await ask(contract(server.url))


@pytest.mark.parametrize("status", [301, 304, 400, 404, 429, 500])
async def test_any_other_status_is_raised_with_its_response(server, status):
    server.answer = (status, {"location": f"{server.url}/elsewhere", "retry-after": "3"}, b"")
    with pytest.raises(httpx.HTTPStatusError) as caught:
        await ask(contract(f"{server.url}/at", query={"key": "{secret:k}"}), secrets={"k": "hush"})
    assert caught.value.response.status_code == status
    assert caught.value.response.headers["retry-after"] == "3"
    assert "hush" not in str(caught.value)
    assert len(server.requests) == 1
    assert not never_left(describe(caught.value))


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
@pytest.mark.parametrize("asks", [{"method": "POST"}, {"method": "GET"}])
async def test_a_redirect_after_a_change_is_an_answer_that_can_not_be_read(server, status, asks):
    server.answer = (status, {"location": f"{server.url}/elsewhere"}, b"")
    made = contract(server.url, effect="draft", **asks)
    with pytest.raises(AnswerError, match=str(status)) as caught:
        await ask(made)
    assert len(server.requests) == 1
    assert not never_left(describe(caught.value))
    assert code_of(describe(caught.value), made) is Code.OBSERVATION_NORMALIZATION_FAIL


async def test_a_redirect_after_a_change_is_what_the_contract_calls_it(server):
    server.answer = (303, {"location": f"{server.url}/elsewhere"}, b"")
    own = contract(server.url, method="POST", effect="draft", statuses={"3xx": "STALE_STATE"})
    data = contract(server.url, method="POST", effect="draft").record()
    data["observability"]["error_taxonomy_mapping"] = {"303": "STALE_STATE"}
    for made in (own, Contract.model_validate(data)):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await ask(made)
        assert code_of(describe(caught.value), made) is Code.STALE_STATE


async def test_what_is_not_there_is_null(server):
    server.answer = (404, {"content-type": "application/json"}, b'{"error": "no such case"}')
    assert await ask(contract(server.url, absent=[404, 410])) is None
    assert await ask(contract(server.url, absent=[404], statuses={"4xx": "TIMEOUT"})) is None
    with pytest.raises(httpx.HTTPStatusError):
        await ask(contract(server.url, absent=[410]))


async def test_a_success_that_the_binding_calls_a_failure_is_one(server):
    server.answer = (202, {}, b"")
    with pytest.raises(httpx.HTTPStatusError):
        await ask(contract(server.url, statuses={"202": "DEPENDENCY_UNAVAILABLE"}))


# --- whether it was sent --------------------------------------------------------------------------


async def test_a_refused_connection_sent_nothing():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        with pytest.raises(httpx.ConnectError) as caught:
            await ask(contract(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert never_left(describe(caught.value))


async def test_a_connection_that_is_not_accepted_is_given_up_before_anything_is_sent():
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # fill the queue of those that wait to be accepted
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        client = httpx.AsyncClient(trust_env=False, timeout=0.4)
        with pytest.raises(httpx.ConnectTimeout) as caught:
            await ask(contract(f"http://127.0.0.1:{full.getsockname()[1]}"), client=client)
    assert never_left(describe(caught.value))


async def test_a_full_pool_sent_nothing(server):
    server.may_answer.clear()
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=0.4) as client:
        first = asyncio.create_task(client.get(server.url, timeout=60))
        await server.received.wait()
        with pytest.raises(httpx.PoolTimeout) as caught:
            await ask(contract(server.url), client=contextlib.nullcontext(client))
        server.may_answer.set()
        await first
    assert never_left(describe(caught.value))
    assert len(server.requests) == 1


async def test_a_connection_that_breaks_before_the_answer_may_have_done_everything(server):
    server.silent = True
    with pytest.raises(httpx.RemoteProtocolError) as caught:
        await ask(contract(server.url, method="POST", effect="draft"))
    assert len(server.requests) == 1
    assert not never_left(describe(caught.value))


def test_every_name_of_what_was_not_sent_is_the_name_of_an_exception():
    for name in NOT_SENT:
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind)
        assert f"{found.__module__}.{found.__qualname__}" == name
        assert issubclass(found, Exception)


def test_a_contract_without_a_request_makes_no_tool():
    data = contract("https://api.example.org").record()
    del data["http"]
    with pytest.raises(ValueError, match="no http section"):
        http_tool(Contract.model_validate(data))
