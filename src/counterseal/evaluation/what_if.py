"""Replay of many calls, with the same rules or with others, and a report of what differs.

`replay` reads the record in batches and keeps counts, not calls. With `sequential`, counters, run
state and requests for approval are those that the new rules would have left behind: a call that
they refuse spends nothing and changes nothing.
"""

from __future__ import annotations

from asyncio import sleep
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from counterseal.call.capture import Capture
from counterseal.contract.model import Contract
from counterseal.evaluation.recorded_facts import MissingFactError
from counterseal.evaluation.recording import BATCH, CallVerdict, RecordedCall, read_calls
from counterseal.evaluation.replay import Judged, Rules, judge
from counterseal.gates.base import GateContext
from counterseal.ledger.requests import EventFilter
from counterseal.storage.store import Store
from counterseal.vault import Vault

MOST_CALLS: Final = 20
"""Calls that are named for each change."""
_DAY: Final = 86_400
_KINDS: Final = {"deny": "refused", "ask": "asked", "allow": "allowed", "repeat": "repeated"}
_RUN_BEFORE: Final = "its run began before the calls that were read"
_STATE: Final = "it depends on the outcome of a call that the rules change"


@dataclass(slots=True)
class ChangedCalls:
    """Calls that are decided otherwise, by one rule about one tool."""

    kind: str
    """`refused`, `asked`, `allowed` or `repeated`; `other`: refused for another reason."""
    tool: str
    rule: str
    """The gate and the rule that decide now; of a newly allowed call, the recorded ones."""
    count: int = 0
    unchecked: int = 0
    """How many of these calls may exceed a budget that could not be checked."""
    calls: list[str] = field(default_factory=list)
    """Ids of the first calls."""
    example: tuple[str, str, str] | None = None
    """Of the first call: the gate that differs, what it decided then, and now."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        fields = ("kind", "tool", "rule", "count", "unchecked", "calls")
        gate, then, now = self.example or ("", "", "")
        return {name: getattr(self, name) for name in fields} | {
            "gate": gate,
            "then": then,
            "now": now,
        }


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay."""

    same_rules: bool = True
    """True if every gate is compared; False: only another verdict or refusal is a change."""
    calls: int = 0
    same: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    """Calls that could not be judged, by the reason."""
    changes: dict[tuple[str, str, str], ChangedCalls] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        return sum(change.count for change in self.changes.values())

    def count(self, kind: str) -> int:
        """Return how many calls have changed in this way."""
        return sum(change.count for change in self.changes.values() if change.kind == kind)

    def add(self, judged: Judged) -> None:
        """Count one call."""
        self.calls += 1
        if judged.now is None:
            self.not_judged[judged.why] += 1
        elif judged.differs is None or not (self.same_rules or _changed(judged)):
            self.same += 1
        else:
            self._add_change(judged, judged.now, judged.differs)

    def _add_change(self, judged: Judged, now: CallVerdict, differs: tuple[str, str, str]) -> None:
        then = judged.call.outcome
        kind = _KINDS[now.verdict] if then.verdict != now.verdict else "other"
        by = now if now.gate is not None else then
        rule = " ".join(filter(None, (by.gate, by.rule))) or differs[0]
        place = (kind, judged.call.tool, rule)
        change = self.changes.setdefault(place, ChangedCalls(*place))
        change.count += 1
        change.unchecked += judged.unchecked
        change.example = change.example or differs
        if len(change.calls) < MOST_CALLS:
            change.calls.append(judged.call.call_id)

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        kinds = ("refused", "allowed", "asked", "repeated", "other")
        return {
            "calls": self.calls,
            "same": self.same,
            **{kind: self.count(kind) for kind in kinds},
            "not_judged": dict(self.not_judged.most_common()),
            "changes": [change.record() for change in self.ordered()],
        }

    def ordered(self) -> list[ChangedCalls]:
        """Return the changes, those of the most calls first."""
        return sorted(self.changes.values(), key=lambda one: (-one.count, one.kind, one.tool))

    def sentence(self) -> str:
        """Return the result in one sentence."""
        parts = [
            f"{self.count('refused'):,} would now be refused",
            f"{self.count('allowed'):,} newly allowed",
            f"{self.count('asked'):,} newly asked",
        ]
        if self.count("other"):
            parts.append(f"{self.count('other'):,} refused for another reason")
        if self.count("repeated"):
            parts.append(f"{self.count('repeated'):,} answered from the ledger")
        calls = "1 call" if self.calls == 1 else f"{self.calls:,} calls"
        return f"Of {calls}, {', '.join(parts)}."


def _changed(judged: Judged) -> bool:
    then, now = judged.call.outcome, judged.now
    if now is None or then.verdict != now.verdict:
        return now is not None
    return then.verdict == "deny" and then != now


async def replay(
    store: Store,
    vault: Vault,
    tenant: str,
    rules: Rules,
    search: EventFilter,
    *,
    sequential: bool = False,
    batch: int = BATCH,
    most: int | None = None,
    progress: Callable[[int], None] | None = None,
    into: ReplayReport | None = None,
) -> ReplayReport:
    """Decide the recorded calls of a tenant again, and count what differs.

    Other tasks run after each batch. Stops after the batch in which `most` calls are reached.
    """
    report = ReplayReport(rules.same) if into is None else into
    course = None
    if sequential:
        if search.since is not None:  # counters of a tenant begin anew at midnight
            search = search._replace(since=search.since // _DAY * _DAY)
        course = Course(rules, search.since or 0.0)
    batches = read_calls(store, vault, tenant, search, batch=batch)
    async with aclosing(batches):
        async for calls in batches:
            for call in calls:
                report.add(judge(call, rules) if course is None else course.judge(call))
            if progress is not None:
                progress(report.calls)
            if most is not None and report.calls >= most:
                break
            await sleep(0)
    return report


# --- as if the rules had been in force all along --------------------------------------------------


class Course:
    """Counters, run state and approvals of a tenant, as its calls leave them under other rules."""

    def __init__(self, rules: Rules, since: float) -> None:
        self._rules = rules
        self._since = since
        self._counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By run; the tenant's own counters are under an empty name."""
        self._rates: dict[str, float] = {}
        self._not_run: set[str] = set()
        """Calls that were executed or held, and that the new rules would not execute or hold."""
        self._writes: defaultdict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
        """By run and key of its state: how many writes still happen (True) or no longer do."""

    def judge(self, call: RecordedCall) -> Judged:
        """Decide a call with what the calls before it would have left behind."""
        capture = call.capture
        if capture is None or call.lacks or not capture.run:
            return judge(call, self._rules)
        if capture.run[4] < self._since:
            return Judged(call, None, _RUN_BEFORE)
        try:
            now = self._as_left(call, capture)
        except MissingFactError as error:
            return Judged(call, None, str(error))
        judged = judge(call._replace(capture=now), self._rules)
        self._follow(judged, capture)
        return judged

    def _as_left(self, call: RecordedCall, capture: Capture) -> Capture:
        """Return the capture with the memory and the state that the call would have found."""
        known, gone = dict(capture.memory or {}), self._not_run
        entry, held = known.get("entry"), call.held
        tokens = known.get("charge", {}).get("budget") == "run.tokens"
        memory = {
            "entry": None if entry is None or entry[0] in gone else entry,
            "approval": None if held is None or held.call_id in gone else known["approval"],
            "run_counters": self._counters[capture.run[0]],
            "tenant_counters": self._counters[""],
            "rates": self._rates,
            **({"charge": known["charge"]} if tokens else {}),
            **({"takes_over": True} if "takes_over" in known else {}),
        }
        return self._with_state(capture)._replace(memory=memory)

    def _with_state(self, capture: Capture) -> Capture:
        """Return the capture with the state that the run would have had."""
        run_id, turn, pin, read, *settings = capture.run
        state = {}
        for key, values in read.items():
            wrote = self._writes.get((run_id, key), Counter())
            if wrote[False] and wrote[True]:
                raise MissingFactError(_STATE)
            state[key] = [0] if wrote[False] and key != "*" else values
            if wrote[False] and key == "*":
                raise MissingFactError(_STATE)
        return capture._replace(run=(run_id, turn, pin, state, *settings))

    def _follow(self, judged: Judged, capture: Capture) -> None:
        """Note what the call leaves behind, and what it would no longer leave."""
        then, now = judged.call.outcome.verdict, judged.now
        runs = now is not None and now.verdict == "allow"
        ran = then == "allow"
        if runs and judged.made is not None:
            self._spend(judged.made.ctx)
        if (ran and not runs) or (then == "ask" and (now is None or now.verdict != "ask")):
            self._not_run.add(judged.call.call_id)
        recorded = self._rules.recorded(capture)
        if ran and recorded is not None:
            self._write(capture.run[0], recorded[0].contract, happens=runs)

    def _spend(self, ctx: GateContext) -> None:
        for charge in ctx.charges:
            self._counters[ctx.run.run_id if charge.of_run else ""][charge.counter] += charge.amount
        for rate in ctx.rates:
            arrival = self._rates.get(rate.counter, 0.0)
            self._rates[rate.counter] = rate.next(arrival, ctx.now)

    def _write(self, run_id: str, contract: Contract, *, happens: bool) -> None:
        keys = [effect.key for effect in contract.state_effects]
        for key in (*keys, "*") if keys else ():
            self._writes[run_id, key][happens] += 1
