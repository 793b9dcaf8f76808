"""Runs: opened, found, begun anew, and what is left in their state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from counterseal.ledger.rules import implicit, merged
from counterseal.storage.base import IDLE_SECONDS, Admit, Refused, RunRecord, Settle

__all__ = ["Runs"]

_Run = tuple[str, str]


class Runs:
    """By tenant and id."""

    def __init__(self) -> None:
        self.runs: dict[_Run, RunRecord] = {}
        self._implicit: dict[tuple[str, str, str | None], tuple[str, float]] = {}
        """Who names no run: the run they are in, and when they used it last."""
        self._refusals: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)

    def open(self, run: RunRecord) -> RunRecord:
        return self.runs.setdefault((run.tenant, run.run_id), run)

    def find_implicit(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        run_id, used = self._implicit.get((tenant, agent, user), ("", now))
        return None if now - used > IDLE_SECONDS else self.runs.get((tenant, run_id))

    def use_implicit(self, tenant: str, agent: str, user: str | None, now: float) -> RunRecord:
        who = (tenant, agent, user)
        run_id, used = self._implicit.get(who, ("", now))
        known = None if now - used > IDLE_SECONDS else self.runs.get((tenant, run_id))
        if known is None:
            known = self.open(implicit(tenant, agent, user, now))
            run_id = known.run_id
        self._implicit[who] = (run_id, now)
        return known

    def new_turn(self, where: _Run, keep: Collection[str]) -> RunRecord | None:
        run = self.runs.get(where)
        if run is None:
            return None
        gone = [key for key in run.state if key not in keep]
        turned = replace(
            run,
            turn=run.turn + 1,
            state={key: value for key, value in run.state.items() if key in keep},
            untrusted=run.untrusted.difference(gone),
            state_versions=_moved(run.state_versions, gone),
        )
        self.runs[where] = turned
        return turned

    def obstacle(self, request: Admit) -> Refused | None:
        """What the run has become since the decision, if that forbids it now."""
        run = self.runs.get((request.tenant, request.run_id))
        if run is None:
            return None
        if run.pins.get(request.tool, request.version) != request.version:
            return Refused.PIN
        if request.reads:
            now = run.state_versions
            for key, version in request.reads.items():
                if now.get(key, 0) != version:
                    return Refused.STATE
        return None

    def pin(self, request: Admit) -> None:
        where = (request.tenant, request.run_id)
        run = self.runs.get(where)
        if run is not None and request.tool not in run.pins:
            pins = {**run.pins, request.tool: request.version}
            self.runs[where] = replace(run, pins=pins)

    def advance(self, request: Settle) -> None:
        """What the run has seen now, what was left in its state, which refusals are over."""
        if not (request.seen or request.state or request.mended):
            return
        where = (request.tenant, request.run_id)
        run = self.runs.get(where)
        if request.mended is not None:
            self._refusals.pop((*where, request.mended), None)
        if run is None:
            return
        state, untrusted = dict(run.state), set(run.untrusted)
        for name, merge, value in request.state:
            state[name] = merged(state.get(name), merge, value)
            if request.untrusted:
                untrusted.add(name)
            elif merge == "replace":
                untrusted.discard(name)
        self.runs[where] = replace(
            run,
            seen={**run.seen, **request.seen},
            refused=run.refused - {request.mended},
            state=state,
            state_versions=_moved(run.state_versions, [name for name, _, _ in request.state]),
            untrusted=frozenset(untrusted),
        )

    def refuse(self, where: _Run, tool: str, fingerprints: Sequence[str]) -> Sequence[int]:
        whose = ["" if one.startswith("run/") else tool for one in fingerprints]
        counters = [self._refusals[(*where, name)] for name in whose]
        for counter, one in zip(counters, fingerprints, strict=True):
            counter[one] += 1
        run = self.runs.get(where)
        if run is not None and tool in whose:
            self.runs[where] = replace(run, refused=run.refused | {tool})
        return [counter[one] for counter, one in zip(counters, fingerprints, strict=True)]


def _moved(versions: Mapping[str, int], keys: Sequence[str]) -> Mapping[str, int]:
    """The versions of a state in which these keys were changed."""
    if not keys:
        return versions
    return {**versions, **{key: versions.get(key, 0) + 1 for key in (*keys, "*")}}
