"""The plant in the bank's place, so that all browsers and clients go there."""

import pytest

from tests.console.conftest import client_of
from tests.console.plant import plant


@pytest.fixture
async def bank(tmp_path):
    async with plant(tmp_path) as opened:
        yield opened


@pytest.fixture
def works(bank):
    return bank


@pytest.fixture
async def root(works):
    async with client_of(works, "root") as client:
        yield client


@pytest.fixture
async def vic(works):
    async with client_of(works, "vic") as client:
        yield client
