"""Rollouts: which version new runs get, what a change would do to that, and the step back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from counterseal.registry import RegistryRecord

__all__ = ["Share", "StepBack", "previewed", "steps_back"]


class Share(NamedTuple):
    """Of a hundred new runs, how many get a version."""

    version: str
    """Empty: those that get none."""
    now: int
    then: int


class StepBack(NamedTuple):
    """The last rollout of a version, and what it was before."""

    version: str
    now: int
    before: int
    by: str
    reason: str


def previewed(live: Sequence[RegistryRecord], version: str, percentage: int) -> list[Share]:
    """What new runs get now, and then. `live` is what they can get at all, newest first."""
    now = dict(_shares((one.version, one.rollout_percentage) for one in live))
    then = dict(
        _shares(
            (one.version, percentage if one.version == version else one.rollout_percentage)
            for one in live
        )
    )
    return [Share(name, now[name], then[name]) for name in now if name or now[name] or then[name]]


def _shares(live: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """A run that one version does not reach goes on to the next, from the same place."""
    taken = 0
    for version, percentage in live:
        yield version, max(0, percentage - taken)
        taken = max(taken, percentage)
    yield "", 100 - taken


def steps_back(
    versions: Sequence[Mapping[str, Any]], changes: Iterable[Mapping[str, Any]]
) -> list[StepBack]:
    """Of every version that was rolled out by an operator; `changes` are newest first."""
    made: dict[str, list[Mapping[str, Any]]] = {}
    for change in changes:
        if change["op"] == "rollout":
            made.setdefault(change["version"], []).append(change)
    found = []
    for one in versions:
        mine = made.get(one["version"], [])
        now, before = one["rollout_percentage"], _before(one, mine[1:])
        if mine and before != now:
            found.append(StepBack(one["version"], now, before, mine[0]["by"], mine[0]["reason"]))
    return found


def _before(version: Mapping[str, Any], earlier: Sequence[Any]) -> int:
    """What the change before said, or else what code declares."""
    if earlier:
        return int(earlier[0]["percentage"])
    left = [one for one in version["drift"] if one["field"] == "rollout_percentage"]
    return int(left[0]["declared"] if left else version["rollout_percentage"])
