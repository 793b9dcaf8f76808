"""What every back-end must agree on, by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.audit import Link
from counterseal.audit.chain import micros, place_of
from counterseal.errors import CountersealError
from counterseal.ledger.entry import Entry, EntryStatus, Phase, adrift, reservable
from counterseal.ledger.holds import stands, usable
from counterseal.ledger.records import Held, HeldStatus
from counterseal.storage.encoding import log_row

entries = st.builds(
    Entry,
    tenant=st.just("acme"),
    key=st.just("k"),
    request_hash=st.just(b""),
    status=st.sampled_from(EntryStatus),
    phase=st.none() | st.sampled_from(Phase),
    call_id=st.just("call_1"),
    tool=st.just("save"),
    version=st.just("1.0.0"),
    fence=st.integers(1, 3),
    worker=st.none() | st.just("w_1"),
    lapsed=st.booleans(),
    observation=st.none(),
)


@given(entry=entries, takes_over=st.none() | st.integers(1, 3))
def test_an_entry_that_is_leased_or_done_is_not_reserved_again(entry, takes_over):
    free = reservable(entry, takes_over)
    if entry.status is EntryStatus.FAILED_RETRYABLE:
        assert free == (takes_over is None), "who takes over expects it to be unsettled"
    elif entry.status is not EntryStatus.PENDING or entry.phase is Phase.ESCALATED or entry.held:
        assert not free
    else:
        assert free == (adrift(entry) and takes_over == entry.fence)


@given(number=st.integers(0, 2**56 - 1), segment=st.text("0123456789abcdef", max_size=16))
def test_an_events_id_tells_its_place(number, segment):
    event_id = Link(number, segment, 1, None, b"", b"").event_id
    assert place_of(event_id) == (number, segment)


@pytest.mark.parametrize("event_id", ["", "evt_", "evt_x", "call_0123456789abcd", "évt_1"])
def test_what_is_no_events_id_is_refused(event_id):
    with pytest.raises(CountersealError, match="not the id of an event"):
        place_of(event_id)


@given(moments=st.lists(st.floats(0, 1e11), min_size=2, max_size=2).map(sorted))
def test_later_moments_have_no_smaller_numbers(moments):
    assert micros(moments[0]) <= micros(moments[1])


def request(status):
    """One that is open from 0 to 1000, in run_1."""
    return Held(
        approval_id="appr_1",
        tenant="acme",
        key="k",
        approval_hash="a",
        call_id="call_1",
        run_id="run_1",
        tool="save",
        version="1.0.0",
        contract_hash="c",
        agent="agent",
        user=None,
        reason="",
        rule=None,
        approvers=1,
        risk="draft",
        demand={},
        version_seen=None,
        created_at=0.0,
        expires_at=1000.0,
        trace_id="0" * 32,
        sealed=b"",
        status=status,
    )


@given(status=st.sampled_from(HeldStatus), left=st.floats(-10, 10))
def test_only_an_approval_is_usable_and_only_until_it_ends(status, left):
    now = 1000.0 - left
    assert usable(request(status), now) == (status is HeldStatus.APPROVED and now < 1000.0)


@given(
    status=st.sampled_from(HeldStatus),
    now=st.sampled_from([0.0, 999.0, 1000.0, 1999.0, 2000.0, 1e9]),
    run_id=st.sampled_from(["run_1", "run_2"]),
)
def test_a_request_stands_until_it_is_used_or_can_not_be_awaited_any_more(status, now, run_id):
    expected = {
        HeldStatus.SPENT: False,
        HeldStatus.VOID: False,
        HeldStatus.REJECTED: True,
        HeldStatus.EXPIRED: run_id == "run_1" and now < 2000.0,
    }
    in_time = now < 1000.0 or expected[HeldStatus.EXPIRED]
    assert stands(request(status), run_id, now) == expected.get(status, in_time)


@given(
    salt=st.none() | st.just(b"salt"),
    rest=st.lists(st.sampled_from([None, None, "", 0]), min_size=3, max_size=3),
)
def test_an_event_is_gone_when_its_salt_is_and_all_that_it_said(salt, rest):
    columns = (rest[0], "acme", *rest[1:])
    gone = salt is None and rest == [None] * 3
    row = log_row(Link(1, "ab", 1, salt, b"", b""), columns)
    assert row.columns == (None if gone else columns)
