"""Fixtures and options for every test; those of one folder are in that folder."""

import contextlib
import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Hypothesis imports this module in the middle of a test. Rewritten by pytest deep in a stack, it
# can trigger a bug of CPython 3.11; imported here, it cannot.
with contextlib.suppress(ImportError):
    import hypothesis.internal.conjecture.optimiser  # noqa: F401

# A shell that starts the tests in the background has them ignore SIGINT, and programs started from
# here would inherit that: tests that interrupt a program would wait for it for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests are collected and none is thrown away: `pytest_collection_finish` enables it.
gc.disable()

# Folders of keys that a test makes must not be open to others, whatever the machine's default is.
os.umask(0o022)

# No deadline: tests make no assertions about time. CI tries the same examples each time, so that a
# failure comes from the change; other runs try new ones.
settings.register_profile("full", deadline=None, max_examples=30)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("same", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("same" if os.environ.get("CI") else "full")

# --- quickly --------------------------------------------------------------------------------------

SERVED = [Path(__file__).parent / folder for folder in ("chaos", "console", "examples", "gateway")]
"""Folders in which almost every test starts a server, a program or a browser."""


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help="leave out slow tests, try fewer examples"
    )
    parser.addoption("--adapters", action="store_true", help="test the adapters of all frameworks")


def pytest_configure(config):
    if config.option.quick:
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path, config):
    """Skip files without a quick test; they are not even imported."""
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
    """Exclude the collected tests from garbage collection: they live until the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


# --- for every test -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
