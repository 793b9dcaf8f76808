"""What every back-end must agree on, by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.audit import Link
from counterseal.errors import CountersealError
from counterseal.ledger import Entry, Phase, Status
from counterseal.storage.rules import adrift, micros, place_of, reservable

entries = st.builds(
    Entry,
    tenant=st.just("acme"),
    key=st.just("k"),
    request_hash=st.just(b""),
    status=st.sampled_from(Status),
    phase=st.none() | st.sampled_from(Phase),
    call_id=st.just("call_1"),
    tool=st.just("save"),
    version=st.just("1.0.0"),
    fence=st.integers(1, 3),
    worker=st.none() | st.just("w_1"),
    lapsed=st.booleans(),
)


@given(entry=entries, takes_over=st.none() | st.integers(1, 3))
def test_nothing_is_reserved_again_that_somebody_holds_or_that_is_done(entry, takes_over):
    free = reservable(entry, takes_over)
    if entry.status is Status.FAILED_RETRYABLE:
        assert free == (takes_over is None), "who takes over expects it to be unsettled"
    elif entry.status is not Status.PENDING or entry.phase is Phase.ESCALATED or entry.held:
        assert not free
    else:
        assert free == (adrift(entry) and takes_over == entry.fence)


@given(number=st.integers(0, 2**56 - 1), segment=st.text("0123456789abcdef", max_size=16))
def test_an_events_id_tells_its_place(number, segment):
    event_id = Link(number, segment, 1, None, b"", b"").event_id
    assert place_of(event_id) == (number, segment)


@pytest.mark.parametrize("event_id", ["", "evt_", "evt_x", "call_0123456789abcd", "évt_1"])
def test_what_is_no_events_id_is_refused(event_id):
    with pytest.raises(CountersealError, match="no event's id"):
        place_of(event_id)


@given(moments=st.lists(st.floats(0, 1e11), min_size=2, max_size=2).map(sorted))
def test_later_moments_have_no_smaller_numbers(moments):
    assert micros(moments[0]) <= micros(moments[1])
