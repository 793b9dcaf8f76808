"""Fixtures that every test may use; what only one folder needs lives in that folder."""

import pytest
from hypothesis import settings

# No deadline: a test asserts what happens, never how long it takes on a busy machine.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("full")


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
