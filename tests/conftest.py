"""Fixtures that every test may use; what only one folder needs lives in that folder."""

import contextlib
import os

import pytest
from hypothesis import settings

# Hypothesis loads this one in the middle of a test; rewritten there by pytest, deep in a stack, it
# can trip over a fault of CPython 3.11. Loaded here, it can't.
with contextlib.suppress(ImportError):
    import hypothesis.internal.conjecture.optimiser  # noqa: F401

# No deadline: a test asserts what happens, never how long it takes on a busy machine. In CI the
# same examples are tried each time, so that a change is judged by what it changed; new ones are
# looked for wherever people work.
settings.register_profile("full", deadline=None, max_examples=30)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("same", deadline=None, max_examples=70, derandomize=True)
settings.load_profile("same" if os.environ.get("CI") else "full")


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
