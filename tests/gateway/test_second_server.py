"""MCP clients on another ASGI server: both revisions of the protocol work there."""

import pytest

import tests.gateway.served as gateway_served
from tests.gateway.servers import HYPERCORN

from .test_server_calls import *  # noqa: F403 - the tests of that module, on another server
from .test_server_cancelling import *  # noqa: F403 - as above


@pytest.fixture(scope="module", autouse=True)
def second_server():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_served, "SERVER", HYPERCORN)
        yield
