"""What is not passed of the official conformance suite, and why. Nothing of it is required.

`FAILED` is what the SDK alone fails, too: whatever it passes has to pass when Counterseal serves
it, or stands in front of it. `NOT_DONE` fails nowhere, but the suite recommends more than is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FAILED", "NOT_DONE"]

_NO_TASKS = "an extension, io.modelcontextprotocol/tasks, that the SDK does not have"

FAILED: Final[Mapping[str, Mapping[str, str]]] = {
    "2025-11-25": {},
    "2026-07-28": {
        "tasks-capability-negotiation": _NO_TASKS,
        "tasks-dispatch-and-envelope": _NO_TASKS,
        "tasks-lifecycle": _NO_TASKS,
        "tasks-mrtr-composition": _NO_TASKS,
        "tasks-mrtr-input": _NO_TASKS,
        "tasks-request-headers": _NO_TASKS,
        "tasks-request-state-removal": _NO_TASKS,
        "tasks-required-task-error": _NO_TASKS,
        "tasks-wire-fields": _NO_TASKS,
    },
}
"""By revision: the scenarios that fail."""

NOT_DONE: Final[Mapping[str, Mapping[str, str]]] = {
    "2025-11-25": {
        "server-sse-polling": "broken streams are not resumed: the SDK hands the events of all "
        "sessions to one store without saying whose they are, and 2026-07-28 has dropped it; a "
        "client that lost an answer makes the same call again, which is carried out once"
    },
    "2026-07-28": {},
}
"""By revision: the scenarios in which Counterseal does not do something that is recommended."""
