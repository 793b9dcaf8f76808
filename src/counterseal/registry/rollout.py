"""Which of several live versions a run gets.

Every run stands at a fixed place of each tool's rollout. Raising a percentage therefore only ever
brings runs to a version, and takes none away from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from counterseal.registry.records import RegistryRecord

__all__ = ["bucket", "newest_for"]


def bucket(name: str, run_id: str) -> int:
    """Where a run stands in a tool's rollout, 0 to 99. The same on every machine and for ever."""
    text = f"{name}\0{run_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % 100


def newest_for(run_id: str, live: Iterable[RegistryRecord]) -> RegistryRecord | None:
    """The first of `live`, newest first, whose rollout has reached the run."""
    place = -1
    for record in live:
        if record.rollout_percentage == 100:
            return record
        if place < 0:  # worked out only when a rollout is under way
            place = bucket(record.name, run_id)
        if record.rollout_percentage > place:
            return record
    return None
