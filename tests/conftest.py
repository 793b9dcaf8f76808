"""Fixtures that every test may use; what only one folder needs lives in that folder."""

import contextlib
import gc
import os
from pathlib import Path

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
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("same", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("same" if os.environ.get("CI") else "full")

# --- quickly --------------------------------------------------------------------------------------

SERVED = [Path(__file__).parent / room for room in ("chaos", "console", "examples", "gateway")]
"""Rooms whose tests start servers, programs and browsers, as good as all of them."""


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="without what is slow; few examples")


def pytest_configure(config):
    if config.option.quick:
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path, config):
    """A file of which no test is run is not even loaded."""
    if not config.option.quick:
        return None
    return True if collection_path in SERVED or _is_slow(collection_path) else None


def _is_slow(file):
    if file.suffix != ".py":
        return False
    return "\npytestmark = pytest.mark.slow" in file.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items, config):
    if not config.option.quick:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    items[:] = [item for item in items if not item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)


def pytest_collection_finish():
    """Thousands of tests stay to the end: nobody needs to look again whether they are rubbish."""
    gc.collect()
    gc.freeze()


# --- for every test -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
