"""The stateless path and the SDK give the same answers to every request."""

import json
from typing import Any

from counterseal import Blocks, tool
from counterseal.contract.outputs import image, text
from tests.gateway.served import Desk, Number
from tests.gateway.stateless.both import MODERN, answers, both, modern

READS = {"effect": "read_only", "version": "1.0.0", "owner": "desk"}
ADD = {"a": 1, "b": 2}


def tools():
    @tool(**READS)
    async def greet(n: Number) -> str:
        """Say something that is not ASCII."""
        return f"Grüße, {n}\u2028\U0001f600"

    @tool(**READS)
    async def gaps(n: Number) -> dict[str, Any]:
        """Give back an object with nothing in it."""
        return {"there": n, "not": None, "inside": {"neither": None}, "list": [None, 1.5, True]}

    @tool(**READS)
    async def broken(n: Number) -> dict[str, int]:
        """Fail."""
        raise RuntimeError("the disk is full of secrets")

    @tool(**READS)
    async def draw(n: Number) -> Blocks:
        """Draw something."""
        return Blocks(content=[text(f"no. {n}"), image(b"png", "image/png")])

    @tool(**READS)
    async def words(n: Number) -> Blocks:
        """Write something."""
        return Blocks(content=[text("one"), text("two")])

    return [*Desk().tools, greet, gaps, broken, draw, words]


CALLS = {
    "a result": ("add", ADD),
    "no arguments": ("add", None),
    "wrong arguments": ("add", {"a": "one", "b": []}),
    "arguments that are no object": ("add", ["a", "b"]),
    "an argument too many": ("add", {**ADD, "c": 3}),
    "a tool that is not there": ("subtract", ADD),
    "a name that is none": (3, ADD),
    "not ASCII": ("greet", {"n": 1}),
    "a number with a fraction": ("greet", {"n": 1.5}),
    "a very long number": ("greet", {"n": 10**40}),
    "nothing within": ("gaps", {"n": 1}),
    "a tool that fails": ("broken", {"n": 1}),
    "a picture": ("draw", {"n": 1}),
    "several texts": ("words", {"n": 1}),
    "something that changes": ("note", {"text": "a"}),
    "something to approve": ("send", {"to": "Ann"}),
}


async def test_calls_are_answered_the_same_on_both_ways(monkeypatch):
    async with both(monkeypatch, tools, wait=0.05) as pair:
        for name, (tool_name, arguments) in CALLS.items():
            short, long = await answers(pair, modern(tool_name, arguments))
            assert short == long, name
        assert pair.taken >= 10, "most of them take the stateless path"


SAID = [
    ({"counterseal/run_id": "run_a"}, True),
    ({"counterseal/run_id": 3}, True),
    ({"counterseal/idempotency_key": "k", "counterseal/operation_id": "o"}, True),
    ({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, True),
    ({"traceparent": 3}, True),
    ({"progressToken": "p"}, False),
    ({"io.modelcontextprotocol/logLevel": "info"}, False),
    ({"com.example/more": {"of": "it"}}, False),
]


async def test_what_is_said_of_a_call_is_understood_on_both_ways(monkeypatch):
    async with both(monkeypatch, tools) as pair:
        for meta, goes_short in SAID:
            before = pair.taken
            short, long = await answers(pair, modern("add", ADD, **meta))
            assert short == long, meta
            assert pair.taken - before == goes_short, meta


def changed(request: dict[str, Any], **changes: Any) -> dict[str, Any]:
    message = {**request["message"], **changes.pop("message", {})}
    message = {key: value for key, value in message.items() if value is not ...}
    headers = {**request["headers"], **changes.pop("headers", {})}
    headers = {key: value for key, value in headers.items() if value is not None}
    return {"headers": headers, "message": message, **changes}


def params(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"params": {**request["message"]["params"], **more}}


CALL = modern("add", ADD)
ODD = {
    "no JSON": changed(CALL, content=b"{"),
    "a list": changed(CALL, content=json.dumps([CALL["message"]]).encode()),
    "no text": changed(CALL, content=b"\xff\xfe"),
    "with a mark in front": changed(
        CALL, content=b"\xef\xbb\xbf" + json.dumps(CALL["message"]).encode()
    ),
    "half a character": changed(CALL, message=params(CALL, arguments={"a": "\ud800"})),
    "no version of JSON-RPC": changed(CALL, message={"jsonrpc": ...}),
    "another version of JSON-RPC": changed(CALL, message={"jsonrpc": "1.0"}),
    "an id of text": changed(CALL, message={"id": "seven"}),
    "an id that is none": changed(CALL, message={"id": None}),
    "an id that is true": changed(CALL, message={"id": True}),
    "no id": changed(CALL, message={"id": ...}),
    "another method": changed(CALL, message={"method": "tools/list"}),
    "a method that is not there": changed(
        CALL, message={"method": "tools/steal"}, headers={"Mcp-Method": "tools/steal"}
    ),
    "no params": changed(CALL, message={"params": ...}),
    "more than a call": changed(CALL, message=params(CALL, cursor="c")),
    "a task": changed(CALL, message=params(CALL, task={"ttl": 5})),
    "state of nobody's": changed(CALL, message=params(CALL, requestState="v1.none")),
    "answers to nothing": changed(
        CALL, message=params(CALL, inputResponses={"x": {"action": "accept"}})
    ),
    "no envelope": changed(CALL, message={"params": {"name": "add", "arguments": ADD}}),
    "an envelope that is none": changed(CALL, message=params(CALL, _meta=[])),
    "a client that is none": changed(
        modern("add", ADD, **{"io.modelcontextprotocol/clientInfo": 3})
    ),
    "capabilities that are none": modern("add", ADD, can=[]),
    "no method in the headers": changed(CALL, headers={"Mcp-Method": None}),
    "another method in the headers": changed(CALL, headers={"Mcp-Method": "tools/list"}),
    "no name in the headers": changed(CALL, headers={"Mcp-Name": None}),
    "another name in the headers": changed(CALL, headers={"Mcp-Name": "send"}),
    "a name in another spelling": changed(CALL, headers={"Mcp-Name": "=?base64?YWRk?="}),
    "a name twice": changed(CALL, twice=[("Mcp-Name", "add")]),
    "a version twice": changed(CALL, twice=[("MCP-Protocol-Version", MODERN)]),
    "a version from elsewhere": changed(CALL, headers={"MCP-Protocol-Version": "2030-01-01"}),
    "no version": changed(CALL, headers={"MCP-Protocol-Version": None}),
    "a page from elsewhere": changed(CALL, headers={"Origin": "https://evil.test"}),
    "another host": changed(CALL, headers={"Host": "evil.test"}),
    "our host without a port": changed(CALL, headers={"Host": "127.0.0.1"}),
    "not JSON, it says": changed(CALL, headers={"Content-Type": "text/plain"}),
    "JSON in so many words": changed(
        CALL, headers={"Content-Type": "Application/JSON; charset=utf-8"}
    ),
    "who takes no events": changed(CALL, headers={"Accept": "application/json"}),
    "who takes no JSON": changed(CALL, headers={"Accept": "text/event-stream"}),
    "who takes everything": changed(CALL, headers={"Accept": "*/*"}),
    "a version of the other kind": changed(CALL, headers={"MCP-Protocol-Version": "2025-11-25"}),
}


async def test_what_is_odd_about_a_request_is_answered_the_same(monkeypatch):
    async with both(monkeypatch, tools) as pair:
        for name, request in ODD.items():
            short, long = await answers(pair, request)
            if isinstance(short["told"], list):
                _without_words_of_the_parser(short, long)
            assert short == long, name


def _without_words_of_the_parser(*both_told):
    """Their models may be told apart by where they lie in memory, and name that in an error."""
    for one in both_told:
        for message in one["told"]:
            if isinstance(message, dict) and "error" in message:
                message["error"]["message"] = message["error"]["message"].partition("\n")[0]


async def test_who_can_be_pointed_to_an_approval_is_on_both_ways(monkeypatch):
    async with both(monkeypatch, tools, wait=0.05) as pair:
        for can, mode in (
            ({}, None),
            ({"elicitation": {"form": {}, "url": {}}}, "url"),
            ({"elicitation": {}}, "form"),
        ):
            short, long = await answers(pair, modern("send", {"to": "Ann"}, can=can))
            assert short == long
            (message,) = short["told"]
            asked = message["result"].get("inputRequests", {}).get("approval", {})
            assert asked.get("params", {}).get("mode") == mode
        assert pair.taken == 3
