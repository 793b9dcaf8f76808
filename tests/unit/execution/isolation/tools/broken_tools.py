"""Can be imported once, by the tests, and never again."""

import os

from counterseal import tool

if os.environ.get("COUNTERSEAL_WORKER"):
    raise RuntimeError("not here")


@tool(effect="read_only", version="1.0.0", owner="tests")
def never() -> None:
    """Can't be loaded elsewhere."""
