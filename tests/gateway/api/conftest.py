"""The API before a runtime in memory."""

import pytest

from .served import open_api


@pytest.fixture
async def api():
    async with open_api() as served:
        yield served
