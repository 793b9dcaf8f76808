"""What is behind a number: found where it lies, without a look at everything else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.audit import CallFields, Event, EventType
from counterseal.audit.chain import micros, place_of
from counterseal.storage.memory import MemoryStore
from counterseal.testing import FakeClock
from counterseal.views.calls import CallSearch
from counterseal.views.metrics import METRICS, Span, counted_events

DAY = 86_400
SATURATION = METRICS["repair_saturation_rate"].part("numerator")


class Counting(MemoryStore):
    """Says how many events were read."""

    read = changed = 0

    async def put(self, *events):
        self.changed += 1
        assert await self.change(self.changed, {}, events)

    async def search(self, tenant, search):
        found = await super().search(tenant, search)
        self.read += len(found)
        return found


def event(number, moment, kind=EventType.SUCCEEDED, decision="SUCCESS", **body):
    who = ("acme", "run_1", f"call_{number}", "look", "1.0.0", "agent", None, "t")
    return Event(kind, CallFields(*who), moment, decision, body=body)


def given_up(number, moment):
    return event(number, moment, EventType.ESCALATED, "escalate", exhausted=True)


async def planted(rare, usual=6000):
    """A day of plain calls, and a few that were given up, at these parts of it."""
    clock = FakeClock()
    store, begin = Counting(clock=clock), clock.now
    rest = sorted(rare)
    for number in range(usual):
        clock.now = begin + DAY * number / usual
        while rest and begin + DAY * rest[0] <= clock.now:
            await store.put(given_up(f"up_{len(rest)}", begin + DAY * rest.pop(0)))
        await store.put(event(number, clock.now))
    return store, Span(micros(begin), micros(begin + DAY))


async def found(store, span, after=None):
    return [one async for one in counted_events(store, "acme", SATURATION, span, after)]


async def test_a_few_among_many_are_found_without_reading_the_many():
    store, span = await planted([0.1, 0.100001, 0.5, 0.9])
    names = [event.caller.call_id for _, event in await found(store, span)]
    assert names == ["call_up_1", "call_up_2", "call_up_3", "call_up_4"], "newest first"
    assert store.read < 2000, "of six thousand"


async def test_it_goes_on_behind_any_of_them():
    store, span = await planted([0.2, 0.4, 0.6], usual=1200)
    whole = await found(store, span)
    for place, (event_id, _) in enumerate(whole, 1):
        assert await found(store, span, event_id) == whole[place:]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=30), st.integers(0, 200), st.integers(200, 401))
async def test_whatever_lies_where_exactly_what_is_in_the_span_is_found(ticks, first, last):
    clock = FakeClock()
    store, begin = Counting(clock=clock), micros(clock.now)
    for number, tick in enumerate(sorted(ticks)):
        clock.now = (begin + tick + 0.5) / 1e6
        await store.put(event(number, clock.now), given_up(number, clock.now))
    span = Span(begin + first, begin + last)
    expected = [
        event_id
        for event_id, one in await store.events("acme")
        if one.type == EventType.ESCALATED and span.begin <= place_of(event_id)[0] < span.end
    ]
    assert [event_id for event_id, _ in await found(store, span)] == expected[::-1]


@pytest.mark.parametrize(
    ("search", "named"),
    [
        ({"metric": "no_such"}, "metric"),
        ({"metric": "repair_saturation_rate", "part": "rest"}, "part"),
        ({"metric": "trace_completeness_rate", "part": "denominator"}, "part"),
        ({"metric": "trace_completeness_rate", "part": "half"}, "part"),
        ({"part": "numerator"}, "part"),
        ({"metric": "retry_success_rate", "cursor": "WyJ4Il0"}, "cursor"),
    ],
)
async def test_what_no_list_can_be_made_of_is_named(office, search, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        await office.view().calls.search(CallSearch(**search))
