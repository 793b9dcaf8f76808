"""A real API, its real document: imported through the command line, then called over loopback.

FastAPI writes the document from a typed application, uvicorn serves both; the tools reach it
through the same guarded client that any tool gets.
"""

import socket
import threading
from contextlib import aclosing, asynccontextmanager
from datetime import date
from types import SimpleNamespace
from typing import Annotated, Literal

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from counterseal import Context, Grant, Principal, Proposal, Runtime, load_contracts
from counterseal.cli.app import app as command
from counterseal.contract.egress import Egress
from counterseal.contract.lint import lint
from counterseal.contract.tool_context import Secret
from counterseal.errors import EgressError, Severity
from counterseal.execution.http import UnsendableError, http_tool
from counterseal.execution.network import Clients

TOKEN = "tok-for-the-case-desk"
SECRET = "127_0_0_1_httpbearer_12ca17b4"


class Party(BaseModel):
    name: str = Field(max_length=80, description="As on the file.")
    role: Literal["claimant", "respondent"]


class NewCase(BaseModel):
    title: str = Field(description="What it is about.")
    parties: list[Party] = []
    due: date | None = None


class Case(NewCase):
    case_id: int
    tags: list[str] = []
    status: Literal["open", "closed"] = "open"


def known(given: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> None:
    if given.credentials != TOKEN:
        raise HTTPException(403)


cases = APIRouter(prefix="/cases", dependencies=[Depends(known)])


def found(request: Request, case_id: int) -> Case:
    if case_id not in request.app.state.cases:
        raise HTTPException(404)
    return request.app.state.cases[case_id]


@cases.get("")
def list_cases(
    request: Request,
    status: Literal["open", "closed"] | None = None,
    tag: Annotated[list[str] | None, Query(description="Any of these.")] = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
) -> list[Case]:
    """List cases, the oldest first."""
    request.app.state.seen.append((status, tag, limit))
    listed = [one for one in request.app.state.cases.values() if status in (None, one.status)]
    return [one for one in listed if not tag or set(tag) & set(one.tags)][:limit]


@cases.post("", status_code=201)
def open_case(
    new: NewCase, request: Request, idempotency_key: Annotated[str | None, Header()] = None
) -> Case:
    """Open a case."""
    state = request.app.state
    if idempotency_key not in state.keys:
        number = len(state.cases) + 1
        state.cases[number] = Case(case_id=number, **new.model_dump())
        state.keys[idempotency_key] = number
    return state.cases[state.keys[idempotency_key]]


@cases.get("/{case_id}")
def get_case(case_id: int, request: Request) -> Case:
    return found(request, case_id)


@cases.put("/{case_id}/tags/{name}")
def tag_case(case_id: int, name: str, request: Request) -> Case:
    found(request, case_id).tags.append(name)
    return found(request, case_id)


@cases.post("/{case_id}/notice")
def send_notice(
    case_id: int, request: Request, x_language: Annotated[str, Header()] = "en"
) -> dict[str, str]:
    """Send a notice to all parties."""
    found(request, case_id)
    return {"language": x_language}


@cases.delete("/{case_id}", status_code=204)
def remove_case(case_id: int, request: Request) -> None:
    del request.app.state.cases[found(request, case_id).case_id]


def health() -> str:
    return "well"


def desk():
    """The application. Its state keeps what reached it."""
    app = FastAPI(title="Case Desk", generate_unique_id_function=lambda route: route.name)
    app.state.cases, app.state.keys, app.state.seen = {}, {}, []
    app.include_router(cases)
    app.get("/health")(health)
    return app


@pytest.fixture
def served():
    app = desk()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # who asks before the server runs is answered when it does
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            yield SimpleNamespace(url=url, state=app.state)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def contracts(served, tmp_path, monkeypatch):
    """The document as the server gives it, through the command, back from the files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk.json").write_bytes(
        httpx.get(f"{served.url}/openapi.json", trust_env=False, timeout=60).content
    )
    options = ["--base-url", served.url, "--out", "tools"]
    result = CliRunner().invoke(command, ["import", "openapi", "desk.json", *options])
    assert result.exit_code == 0, result.output
    assert "Left out" not in result.output
    loaded = load_contracts(*sorted(tmp_path.glob("tools/*.yaml")))
    return {contract.name: contract for contract in loaded}


@asynccontextmanager
async def _context(contract, key):
    async with (
        aclosing(Clients()) as clients,
        clients.client(Egress.of(contract), seconds=60) as http,
    ):
        yield Context(
            principal=Principal(tenant="acme", agent="desk-agent"),
            run_id="run_1",
            call_id="call_1",
            key=key,
            services=SimpleNamespace(http=http, cancelled=False),
        )


@pytest.fixture
def call(contracts):
    """Call an imported tool as the executor does: bind, inject, await."""

    async def call(called, arguments=None, *, key=None, token=TOKEN):
        contract = contracts[called]
        tool = http_tool(contract)
        bound = tool.binder(arguments or {})
        async with _context(contract, key) as context:
            injected = {
                name: token if isinstance(mark, Secret) else context
                for name, mark in tool.injected.items()
            }
            return await tool.function(**bound, **injected)

    return call


@pytest.mark.slow
def test_each_operation_became_a_contract_that_lint_lets_pass(contracts):
    effects = {name: contract.effect.value for name, contract in contracts.items()}
    assert effects == {
        "health": "retrieve",
        "list_cases": "retrieve",
        "open_case": "external_notification",
        "get_case": "retrieve",
        "tag_case": "external_notification",
        "send_notice": "external_notification",
        "remove_case": "irreversible",
    }
    for contract in contracts.values():
        assert [p for p in lint(contract) if p.severity is Severity.ERROR] == []
        assert contract.secrets == (
            () if contract.name == "health" else ("127_0_0_1_httpbearer_12ca17b4",)
        )
    assert contracts["open_case"].idempotency.key_header == "idempotency-key"


@pytest.mark.slow
async def test_a_case_lives_and_ends_through_the_imported_tools(call, served):
    assert await call("health") == "well"
    new = {
        "title": "Späte Lieferung",
        "parties": [{"name": "A. Example", "role": "claimant"}],
        "due": "2027-01-31",
    }
    opened = await call("open_case", new, key="key-1")
    assert opened["case_id"] == 1
    assert opened.items() >= new.items()
    assert await call("open_case", new, key="key-1") == opened
    assert len(served.state.cases) == 1

    assert (await call("tag_case", {"case_id": 1, "name": "a?b&c=%2F#d"}))["tags"] == [
        "a?b&c=%2F#d"
    ]
    assert await call("send_notice", {"case_id": 1}) == {"language": "en"}
    assert await call("send_notice", {"case_id": 1, "x_language": "de"}) == {"language": "de"}
    assert (await call("get_case", {"case_id": 1}))["title"] == "Späte Lieferung"

    assert await call("remove_case", {"case_id": 1}) == {}
    with pytest.raises(httpx.HTTPStatusError) as gone:
        await call("get_case", {"case_id": 1})
    assert gone.value.response.status_code == 404


@pytest.mark.slow
async def test_lists_are_repeated_and_absent_arguments_left_to_the_server(call, served):
    await call("list_cases", {"tag": ["urgent", "a,b"], "status": "open"})
    await call("list_cases")
    assert served.state.seen == [("open", ["urgent", "a,b"], 20), (None, None, 20)]


@pytest.mark.slow
async def test_what_the_server_refuses_is_raised_with_its_status(call):
    with pytest.raises(httpx.HTTPStatusError) as unproven:
        await call("list_cases", token="another-token")
    assert unproven.value.response.status_code == 403
    with pytest.raises(httpx.HTTPStatusError) as unfit:
        await call("open_case", {"parties": []}, key="key-2")
    assert unfit.value.response.status_code == 422
    assert TOKEN not in str(unfit.value)


async def test_no_argument_leads_to_another_operation(call, served):
    served.state.cases[1] = Case(case_id=1, title="Kept")
    for name in ("../../1", "..", "", "a/b"):
        with pytest.raises(UnsendableError):
            await call("tag_case", {"case_id": 1, "name": name})
    assert served.state.cases[1].tags == []


@pytest.mark.slow
async def test_the_tools_go_the_way_of_every_call(contracts, served):
    agent = "desk-agent"
    principal = Principal(tenant="acme", agent=agent, user="u_1")
    async with Runtime.open("memory:", secrets={SECRET: TOKEN}) as runtime:
        tools = [http_tool(contract) for contract in contracts.values()]
        runtime.register(*tools, grants=[Grant(agent=agent, tool=name) for name in contracts])

        async def submit(tool, **arguments):
            return await runtime.submit(Proposal(tool=tool, arguments=arguments), principal)

        served.state.cases[1] = Case(case_id=1, title="Seen")
        seen = await submit("get_case", case_id=1)
        assert (seen.code, seen.data["title"]) == ("SUCCESS", "Seen")
        listed = await submit("list_cases")
        assert [one["case_id"] for one in listed.data["result"]] == [1]
        missing = await submit("get_case", case_id=2)
        assert missing.code == "STALE_STATE"
        invented = await submit("get_case", case_id=1, verbose=True)
        assert invented.code == "STRUCTURAL_VIOLATION"
        held = await submit("send_notice", case_id=1)
        assert held.code == "CONFIRMATION_MISSING"


@pytest.mark.slow
async def test_a_contract_that_is_turned_elsewhere_stays_where_egress_lets_it(contracts, served):
    moved = contracts["list_cases"].model_copy(update={"egress": ("127.0.0.1:1",)})
    tool = http_tool(moved)
    async with _context(moved, None) as context:
        with pytest.raises(EgressError):
            await tool.function(**tool.binder({}), context=context, secret_0=TOKEN)
    assert served.state.seen == []
