"""Fixtures that every test may use; what only one folder needs lives in that folder."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
