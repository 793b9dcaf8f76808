"""Requests that nobody would think of, made from the API's own document, and held against it.

Made by an agent, and by a person who may everything.
"""

import asyncio
import contextlib
import socket
import threading

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from counterseal.web.api.app import api_document
from counterseal.web.server import GatewayServer

from .served import BOT, PATIENCE, open_api

pytestmark = pytest.mark.slow

ADMIN = ("root", "acme")
FEW = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Server:
    """The API in a thread of its own, over loopback."""

    def __init__(self):
        self.keys = {}
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._bound = socket.socket()
        self._bound.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._bound.getsockname()[1]}"

    def __enter__(self):
        self._thread.start()
        assert self._up.wait(PATIENCE)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        self._bound.close()

    async def _serve(self):
        async with open_api() as api:
            self.keys = api.keys
            api.bench.door.set()  # nobody lingers
            await api.held()
            self.server = GatewayServer(api.api)
            task = asyncio.ensure_future(self.server.serve(sockets=[self._bound]))
            await self.server.up.wait()
            self._up.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def headers(self, who):
        return {"Authorization": f"Bearer {self.keys[who]}"}


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def admins():
    """Another one: an admin may well stop everything."""
    with Server() as running:
        yield running


@pytest.fixture
def fresh():
    with Server() as running:
        yield running


schema = schemathesis.openapi.from_dict(api_document())


BEYOND_SCHEMAS = {
    "invalid-cursor",
    "idempotency-key-required",
    "refused-change",
    "confirmation-required",
    "justification-required",
}
"""Codes for rules that no schema can tell; a valid request may well be refused with them."""
BEYOND = dict.fromkeys(("find_observation", "search_calls", "report_outcome"), "invalid-request")
"""Operations with parameters that exclude one another."""


def validate(case, response):
    """All that schemathesis knows; but for what a schema can't say of a request."""
    case.validate_response(response, excluded_checks=[positive_data_acceptance])
    told = (
        response.json() if "problem+json" in response.headers.get("content-type", [""])[0] else {}
    )
    valid = case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE
    if valid and response.status_code in (400, 422) and not told.get("observation"):
        name = case.operation.definition.raw["operationId"]
        assert told["code"] in {*BEYOND_SCHEMAS, BEYOND.get(name)}, told


def ask(case, server, who):
    response = case.call(base_url=server.url, headers=server.headers(who))
    validate(case, response)


@schema.parametrize()
@FEW
def test_an_agents_requests_are_answered_as_the_document_says(case, server):
    ask(case, server, BOT)


@schema.parametrize()
@FEW
def test_an_admins_requests_are_answered_as_the_document_says(case, admins):
    ask(case, admins, ADMIN)


MADE = [
    ("submit_call", BOT, {"tool": "add", "arguments": {"a": 1, "b": 2}}),
    ("submit_call", BOT, {"tool": "send", "arguments": {"to": "somebody new"}}),
    ("kill", ADMIN, {"tool": "add", "reason": "a test"}),
    ("give_grant", ADMIN, {"agent": "new", "tool": "add", "reason": "a test"}),
]


@pytest.mark.parametrize(("name", "who", "body"), MADE)
def test_what_an_answer_links_to_is_there(fresh, name, who, body):
    """As far as the document has links: each is followed with what it takes from the answer."""
    made = schema.find_operation_by_id(name)
    first = made.Case(body=body, media_type="application/json")
    answer = first.call(base_url=fresh.url, headers=fresh.headers(who))
    validate(first, answer)
    links = made.definition.raw["responses"][str(answer.status_code)]["links"]
    for link in links.values():
        taken = {
            name: resolve(expression, answer.json())
            for name, expression in link["parameters"].items()
        }
        query = {"reason": "a test"} if link["operationId"] in ("restore", "revoke_grant") else {}
        query |= {"seconds": 0} if link["operationId"].startswith("wait") else {}
        case = schema.find_operation_by_id(link["operationId"]).Case(
            path_parameters=taken, query=query
        )
        response = case.call(base_url=fresh.url, headers=fresh.headers(who))
        validate(case, response)
        assert response.status_code == 200, response.text


def resolve(expression, told):
    """What a runtime expression leads to."""
    for step in expression.removeprefix("$response.body#/").split("/"):
        told = told[step]
    return told
