"""A runtime in memory with people in it, clocks to move, and hashes that cost next to nothing."""

import pytest

from counterseal.accounts import Accounts, Directory
from counterseal.accounts.users import Passwords
from counterseal.runtime import Runtime
from counterseal.testing import FakeClock

PASSWORD = "correct horse battery"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def steady():
    return FakeClock(0.0)


@pytest.fixture
def passwords():
    return Passwords(time_cost=1, memory_kib=8)


@pytest.fixture
async def runtime(clock):
    async with Runtime.open("memory:", clock=clock) as runtime:
        yield runtime


@pytest.fixture
def accounts(runtime, passwords, clock):
    return Accounts(runtime.operator("root"), passwords, clock=clock)


@pytest.fixture
def directory(runtime, steady):
    return Directory(runtime, steady=steady)


@pytest.fixture
async def ada(accounts):
    return await accounts.add("ada", PASSWORD, {"acme": ["approver"]}, reason="the desk")


@pytest.fixture
def password():
    return PASSWORD
