"""The API on another ASGI server: requests and bodies are answered alike there."""

import pytest

from tests.gateway.servers import HYPERCORN, running

from . import served
from .served import open_api
from .test_requests import *  # noqa: F403 - the tests of that module, on another server
from .test_wire import *  # noqa: F403 - as above
from .test_wire import Wire


@pytest.fixture(autouse=True)
def second_server(monkeypatch):
    monkeypatch.setattr(served, "SERVER", HYPERCORN)


@pytest.fixture
async def wire():
    async with open_api(body_seconds=0.3) as api, running(api.api, HYPERCORN) as port:
        yield Wire(port, api.keys)
