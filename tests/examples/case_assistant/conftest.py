"""One office for the tests of a file; each of them uses cases of its own."""

import pytest

from tests.examples.case_assistant.office import Office


@pytest.fixture(scope="module")
async def office(tmp_path_factory, anyio_backend):
    async with Office(tmp_path_factory.mktemp("office")) as opened:
        yield opened


@pytest.fixture
async def own_office(tmp_path):
    """For a test that stops something, or counts everything."""
    async with Office(tmp_path) as opened:
        yield opened
