"""The metrics: their formulas, values over a window and over time, and as Prometheus reads.

A metric's number and the list of events behind it come from the same test, so that they cannot
differ. The store adds up events by the facts they count for (`audit.events`); a formula says which
sums a metric divides. `docs/metrics.md` describes every metric in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import Field

from counterseal.audit import Event, EventType
from counterseal.audit.events import COUNTED, CallFact, currency_of, filed, read_tally
from counterseal.ledger.requests import EventFilter, TallyCount
from counterseal.storage.store import Store
from counterseal.views.base import (
    Moment,
    NotFoundError,
    Number,
    RowModel,
    TenantSection,
    utc,
    window_seconds,
)

_MAX_BUCKETS: Final = 500
PARTS: Final = ("numerator", "denominator", "rest")
"""The parts of a metric that can be listed. The rest is the denominator without the numerator."""


class Sum(NamedTuple):
    """Events that count alike, added up. A single event is a sum of one."""

    kind: str
    code: str | None
    facts: int
    times: int
    cost: float
    currency: str = ""

    def has(self, facts: int) -> bool:
        return self.facts & facts == facts


Sums = Sequence[Sum]
Test = Callable[[Sum], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The numerator and the denominator of a metric."""

    title: str
    words: str
    meaning: str
    counted: Test
    """Whether an event is in the numerator."""
    among: Test
    """Whether it is in the denominator."""
    apart: bool = False
    """Whether numerator and denominator count different events, so that there is no rest."""
    unseen: Callable[[Sums], float] | None = None
    """The things that the denominator counts besides events."""
    unit: str = "ratio"

    def numerator(self, sums: Sums) -> float:
        counted = [one for one in sums if self.counted(one)]
        return sum(one.cost if self.unit == "cost" else one.times for one in counted)

    def denominator(self, sums: Sums) -> float:
        events = sum(one.times for one in sums if self.among(one))
        return events if self.unseen is None else events + self.unseen(sums)

    def value(self, sums: Sums) -> float | None:
        """Return the quotient; None if there is nothing to divide by."""
        denominator = self.denominator(sums)
        return self.numerator(sums) / denominator if denominator else None

    def part(self, part: str) -> Test | None:
        """Return a test for the events of a part; None if no list of events is that part."""
        if part == "numerator":
            return self.counted
        if part == "denominator":
            return None if self.unseen else self.among
        if self.apart or self.unseen:
            return None
        return lambda one: self.among(one) and not self.counted(one)


def _all(facts: int, test: Test = lambda _: True) -> Test:
    """Return a test for events that have all of these facts and pass another test."""
    return lambda one: one.has(facts) and test(one)


def _of(*kinds: EventType) -> Test:
    return lambda one: one.kind in kinds


def _answered(*codes: str) -> Test:
    return lambda one: one.code in codes


def _shaped(one: Sum) -> bool:
    return not one.has(CallFact.UNSHAPED)


def _unfinished(sums: Sums) -> float:
    """Return how many more calls have started than have a known end."""
    begun = sum(one.times for one in sums if one.kind == EventType.STARTED)
    ended = sum(one.times for one in sums if one.has(CallFact.COMPLETE | CallFact.ANNOUNCED))
    return max(0.0, begun - ended)


_OK: Final = _answered("SUCCESS", "PARTIAL_SUCCESS")
_PROPOSALS: Final = _all(CallFact.PROPOSAL)
_SHAPED: Final = _all(CallFact.PROPOSAL, _shaped)
_WRITES: Final = _all(CallFact.PROPOSAL | CallFact.MUTATES)
_LOOPS: Final = _all(CallFact.PROPOSAL | CallFact.ASKED_TO_MEND)
_ASKED: Final = _all(CallFact.PROPOSAL, _of(EventType.APPROVAL_REQUIRED))
_RETRIES: Final = _of(EventType.RETRIED)

METRICS: Final[Mapping[str, Formula]] = {
    "first_pass_schema_valid_rate": Formula(
        title="First-pass schema valid rate",
        words="schema_valid_first_try / total_tool_proposals",
        meaning="How often a proposal is well-formed without a repair.",
        counted=_all(CallFact.PROPOSAL, lambda one: _shaped(one) and not one.has(CallFact.AGAIN)),
        among=_PROPOSALS,
    ),
    "schema_valid_call_rate": Formula(
        title="Schema-valid call rate",
        words="schema_valid_calls / total_tool_proposals",
        meaning="How often a proposal is well-formed, repairs included.",
        counted=_SHAPED,
        among=_PROPOSALS,
    ),
    "semantic_valid_rate": Formula(
        title="Semantic-valid rate",
        words="semantic_valid_calls / schema_valid_calls",
        meaning="How often a well-formed proposal also satisfies the business rules.",
        counted=_all(
            CallFact.PROPOSAL, lambda one: _shaped(one) and one.code != "SEMANTIC_INVALIDITY"
        ),
        among=_SHAPED,
    ),
    "validation_failure_rate": Formula(
        title="Validation failure rate",
        words="rejected_execution_attempts / total_tool_proposals",
        meaning="How often a proposal is refused before it is executed.",
        counted=_all(CallFact.PROPOSAL, _of(EventType.DENIED)),
        among=_PROPOSALS,
    ),
    "repair_success_rate": Formula(
        title="Repair success rate",
        words="successfully_repaired_calls / triggered_repair_loops",
        meaning="How often agents correct a proposal that was refused as repairable.",
        counted=_all(CallFact.PROPOSAL | CallFact.MENDED),
        among=_LOOPS,
        apart=True,
    ),
    "repair_saturation_rate": Formula(
        title="Repair saturation rate",
        words="repair_loops_exhausted / triggered_repair_loops",
        meaning="How often agents use up their repair attempts.",
        counted=_all(CallFact.EXHAUSTED),
        among=_LOOPS,
        apart=True,
    ),
    "unauthorized_proposal_rate": Formula(
        title="Unauthorized proposal rate",
        words="permission_denied_proposals / total_tool_proposals",
        meaning="How often agents call tools without permission.",
        counted=_all(
            CallFact.PROPOSAL,
            lambda one: one.kind == EventType.DENIED and one.code == "PERMISSION_DENIED",
        ),
        among=_PROPOSALS,
    ),
    "policy_violation_rate": Formula(
        title="Policy violation rate",
        words="policy_violations / total_tool_proposals",
        meaning="How often a policy or a tool's own limits refuse a call.",
        counted=_all(CallFact.PROPOSAL, _answered("POLICY_VIOLATION")),
        among=_PROPOSALS,
    ),
    "confirmation_required_rate": Formula(
        title="Confirmation required rate",
        words="confirmation_required_calls / mutating_tool_proposals",
        meaning="How often a change needs approval.",
        counted=_all(CallFact.PROPOSAL | CallFact.MUTATES, _of(EventType.APPROVAL_REQUIRED)),
        among=_all(
            CallFact.PROPOSAL | CallFact.MUTATES, lambda one: not one.has(CallFact.APPROVED)
        ),
    ),
    "confirmation_rejection_rate": Formula(
        title="Confirmation rejection rate",
        words="rejected_confirmations / confirmation_requests",
        meaning="How often approvers reject a request.",
        counted=_of(EventType.APPROVAL_REJECTED),
        among=_ASKED,
        apart=True,
    ),
    "confirmation_bypass_attempt_rate": Formula(
        title="Confirmation bypass attempt rate",
        words="missing_or_invalid_approval_tokens / confirmation_required_calls",
        meaning="How often an approval is forged or not proven.",
        counted=_all(CallFact.UNAPPROVED),
        among=_ASKED,
        apart=True,
    ),
    "idempotency_replay_rate": Formula(
        title="Idempotency replay rate",
        words="idempotency_hits / mutating_requests",
        meaning="How often a change repeats an earlier one.",
        counted=_all(CallFact.PROPOSAL | CallFact.MUTATES | CallFact.REPLAYED),
        among=_WRITES,
    ),
    "idempotency_conflict_rate": Formula(
        title="Idempotency conflict rate",
        words="signature_mismatches / idempotency_key_matches",
        meaning="How often a key is reused with another payload.",
        counted=_all(CallFact.PROPOSAL | CallFact.KEY_MATCHED, _answered("SIGNATURE_MISMATCH")),
        among=_all(CallFact.PROPOSAL | CallFact.KEY_MATCHED),
    ),
    "retry_success_rate": Formula(
        title="Retry success rate",
        words="successful_retries / retry_attempts",
        meaning="How often a retry succeeds.",
        counted=_all(CallFact.RETRIED, _OK),
        among=_RETRIES,
        apart=True,
    ),
    "unsafe_retry_block_rate": Formula(
        title="Unsafe retry block rate",
        words="blocked_non_idempotent_retries / retry_attempts",
        meaning="How many retries are blocked for each that is made: they could act twice.",
        counted=_all(CallFact.RETRY_BLOCKED),
        among=_RETRIES,
        apart=True,
    ),
    "observation_normalization_failure_rate": Formula(
        title="Observation normalization failure rate",
        words="normalization_failures / tool_executions",
        meaning="How often a tool's answer does not match its contract.",
        counted=_all(CallFact.EXECUTED, _answered("OBSERVATION_NORMALIZATION_FAIL")),
        among=_all(CallFact.EXECUTED),
    ),
    "post_action_verification_required_rate": Formula(
        title="Post-action verification required rate",
        words="verification_required_observations / mutating_observations",
        meaning="How often a change has to be verified afterwards.",
        counted=_all(CallFact.EXECUTED | CallFact.MUTATES | CallFact.TO_VERIFY),
        among=_all(CallFact.EXECUTED | CallFact.MUTATES),
    ),
    "compensation_success_rate": Formula(
        title="Compensation success rate",
        words="successful_compensations / compensation_attempts",
        meaning="How often a compensation succeeds.",
        counted=_of(EventType.COMPENSATED),
        among=_of(EventType.COMPENSATED, EventType.COMPENSATION_FAILED),
    ),
    "tool_cost_per_successful_action": Formula(
        title="Tool cost per successful action",
        words="tool_cost / successful_tool_executions",
        meaning="The cost of a success, failures included.",
        counted=lambda one: one.cost > 0,
        among=_all(CallFact.EXECUTED, _OK),
        unit="cost",
        apart=True,
    ),
    "trace_completeness_rate": Formula(
        title="Trace completeness rate",
        words="complete_tool_traces / total_tool_calls",
        meaning="The share of calls whose outcome is known, and that can be replayed.",
        counted=_all(CallFact.COMPLETE, lambda one: not one.has(CallFact.GAPS)),
        among=_all(CallFact.COMPLETE),
        unseen=_unfinished,
    ),
}
"""By name, in display order."""


# --- the events behind a number -------------------------------------------------------------------

_PARTS: Final = 24
"""Into how many parts a span of time is divided at once."""
_FEW: Final = 500
"""Parts with at most this many events are read as a whole."""
_SPARSE: Final = 20
"""So are parts where at least one in this many events is wanted."""
_BATCH: Final = 200
_MICRO: Final = 1e-6


def _sums_by_part(tallies: Iterable[TallyCount]) -> defaultdict[int, list[Sum]]:
    """Return what the store has added up, by the part of the span of time."""
    parts: defaultdict[int, list[Sum]] = defaultdict(list)
    for row in tallies:
        counted = (*read_tally(row.tally), row.times, row.cost, currency_of(row.tally))
        parts[row.part].append(Sum(*counted))
    return parts


class Span(NamedTuple):
    """Event numbers from `begin` to `end`, which is excluded: microseconds since the epoch."""

    begin: int
    end: int

    @property
    def since(self) -> float:
        """The begin in seconds, half a microsecond later, so that it rounds back to `begin`."""
        return (self.begin + 0.5) * _MICRO

    @property
    def until(self) -> float:
        return (self.end + 0.5) * _MICRO

    def part(self, number: int) -> Span:
        """Return one of its parts, divided as a store divides them."""
        length = self.end - self.begin
        edges = (self.begin + length * edge // _PARTS for edge in (number, number + 1))
        return Span(*edges)


async def counted_events(
    store: Store, tenant: str, wanted: Test, span: Span, after: str | None = None
) -> AsyncGenerator[tuple[str, Event]]:
    """Yield the events of a span that pass a test, with their ids, newest first.

    The store's index of sums says where they are: a part with few wanted events among many is
    divided further, so that the number of events read stays small however long the record is.
    `after` is the id of the event to continue behind.
    """
    sums = _sums_by_part(await store.tallies(tenant, span.since, span.until, _PARTS))
    for number in sorted(sums, reverse=True):
        part = span.part(number)
        matching = sum(one.times for one in sums[number] if wanted(one))
        total = sum(one.times for one in sums[number])
        if not matching:
            continue
        dense = total <= max(_FEW, matching * _SPARSE) or part.end - part.begin <= _PARTS
        events = _read if dense else counted_events
        async for event_id, event in events(store, tenant, wanted, part, after):
            yield event_id, event


async def _read(
    store: Store, tenant: str, wanted: Test, span: Span, after: str | None
) -> AsyncGenerator[tuple[str, Event]]:
    full, since, until = True, span.since, span.until
    query = EventFilter(types=COUNTED, since=since, until=until, limit=_BATCH, newest_first=True)
    while full:
        batch = await store.search(tenant, query._replace(after=after))
        full = len(batch) == _BATCH
        for event_id, event in batch:
            after = event_id
            _, tally, cost = filed(event.type, event.decision, event.body)
            if tally is not None and wanted(Sum(*read_tally(tally), 1, cost or 0.0)):
                yield event_id, event


# --- rows -----------------------------------------------------------------------------------------


class MetricLinks(RowModel):
    """The events behind the numbers, as parameters of `/v1/calls`; null where there is no list."""

    numerator: dict[str, str]
    denominator: dict[str, str] | None
    rest: dict[str, str] | None = Field(description="The denominator without the numerator.")


class MetricRow(RowModel):
    """One metric over a window."""

    name: str
    title: str
    formula: str
    meaning: str
    unit: str
    currency: str | None = Field(description="Of a cost. Each currency has a row of its own.")
    window: str
    since: Moment
    until: Moment
    numerator: Number
    denominator: Number
    value: float | None
    link: MetricLinks


class MetricSeries(RowModel):
    """One metric over time, oldest first."""

    metric: str
    window: str
    values: list[float | None]


# --- the section ----------------------------------------------------------------------------------


class MetricViews(TenantSection):
    """Metrics of a tenant, for every viewer."""

    async def rows(self, window: str = "24h") -> list[MetricRow]:
        """Return all metrics over a window that ends now. Raises ValueError for another window."""
        return await metric_rows(self.runtime.store, self.tenant, window, self.runtime.clock())

    async def series(self, metric: str, window: str = "24h", buckets: int = 24) -> MetricSeries:
        """Return one metric in equal parts of a window that ends now.

        Raises NotFoundError for an unknown metric, ValueError for an invalid window or number of
        parts.
        """
        formula = METRICS.get(metric)
        if formula is None:
            raise NotFoundError("metric")
        if not 0 < buckets <= _MAX_BUCKETS:
            raise ValueError(f"buckets: expected 1 to {_MAX_BUCKETS}, got {buckets}")
        until = self.runtime.clock()
        since = until - window_seconds(window)
        sums = _sums_by_part(await self.runtime.store.tallies(self.tenant, since, until, buckets))
        values = [formula.value(sums[part]) for part in range(buckets)]
        every = [one for part in sums.values() for one in part]
        if len(_currencies(formula, every)) > 1:
            values = [None] * buckets  # two currencies have no common scale
        return MetricSeries(metric=metric, window=window, values=values)


async def metric_rows(store: Store, tenant: str, window: str, until: float) -> list[MetricRow]:
    """Return all metrics of a tenant over a window that ends at `until`."""
    since = until - window_seconds(window)
    sums = _sums_by_part(await store.tallies(tenant, since, until))[0]
    times: dict[str, Any] = {"since": utc(since), "until": utc(until)}
    return [
        _row(name, formula, sums, currency, {"window": window, **times})
        for name, formula in METRICS.items()
        for currency in _currencies(formula, sums)
    ]


def _currencies(formula: Formula, sums: Sums) -> Sequence[str | None]:
    """Return the currencies of a cost, each of which has a row of its own; else None alone."""
    if formula.unit != "cost":
        return (None,)
    return sorted({one.currency for one in sums if formula.counted(one)}) or (None,)


def _row(
    name: str, formula: Formula, sums: Sums, currency: str | None, window: Mapping[str, Any]
) -> MetricRow:
    if currency is not None:
        sums = [one for one in sums if not one.cost or one.currency == currency] + [
            one._replace(cost=0.0) for one in sums if one.cost and one.currency != currency
        ]
    search = {"since": window["since"].isoformat(), "until": window["until"].isoformat()}
    links = {part: {"metric": name, "part": part, **search} for part in PARTS if formula.part(part)}
    return MetricRow(
        name=name,
        title=f"{formula.title}, {currency}" if currency else formula.title,
        formula=formula.words,
        meaning=formula.meaning,
        unit=formula.unit,
        currency=currency or None,
        **window,
        numerator=formula.numerator(sums),
        denominator=formula.denominator(sums),
        value=formula.value(sums),
        link=MetricLinks(
            numerator={"metric": name, **search},
            denominator=links.get("denominator"),
            rest=links.get("rest"),
        ),
    )


# --- Prometheus -----------------------------------------------------------------------------------

_ESCAPES: Final = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def prometheus(metrics: Sequence[tuple[str, Sequence[MetricRow]]]) -> str:
    """Return metrics of several tenants in Prometheus' text format.

    `metrics` are pairs of a tenant and its rows. A metric without a value has lines for its
    numerator and denominator only.
    """
    lines: list[str] = []
    for name, formula in METRICS.items():
        samples = []
        for tenant, rows in metrics:
            for row in rows:
                currency = {"currency": row.currency} if row.currency else {}
                if row.name == name:
                    samples.append(({"tenant": tenant, "window": row.window, **currency}, row))
        for suffix, part, help_text in (
            ("", "value", f"{formula.words}: {formula.meaning}"),
            ("_numerator", "numerator", f"The numerator of {name}."),
            ("_denominator", "denominator", f"The denominator of {name}."),
        ):
            values = [(labels, getattr(row, part)) for labels, row in samples]
            lines += gauge(f"{name}{suffix}", help_text, values)
    return "".join(f"{line}\n" for line in lines)


def gauge(
    name: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], float | None]]
) -> list[str]:
    """Return the lines of one gauge. A sample without a value has none."""
    lines = []
    for labels, value in samples:
        if value is not None:
            shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            lines.append(f"counterseal_{name}{{{shown}}} {value:.17g}")
    head = [f"# HELP counterseal_{name} {help_text}", f"# TYPE counterseal_{name} gauge"]
    return [*head, *lines] if lines else []


def _label(text: str) -> str:
    """Escape a label's value, so that a tenant's name cannot end the label or the line."""
    shown = "".join(_ESCAPES.get(char, char if char.isprintable() else "\ufffd") for char in text)
    return shown.encode(errors="replace").decode()
