"""The same for the whole life of an entry, and for the work that follows from it."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import DueKind
from counterseal.ledger.requests import Claim, ExpiryRequest, FinishRequest, SettlementRequest
from tests.store.same import (
    DURABLE,
    FOREVER,
    SLOTS,
    Same,
    event,
    mostly,
    numbers,
    objects,
    one_of,
    run_machine,
    seconds,
    step,
    tools,
)

slots = st.sampled_from(SLOTS)
due_kinds = st.sampled_from(DueKind)
soon = st.sampled_from([0.0, 0.0, FOREVER])
outcomes = st.fixed_dictionaries(
    {
        "status": st.sampled_from(
            [*EntryStatus, *[EntryStatus.PENDING] * 4, *[EntryStatus.COMPLETED] * 2]
        ),
        "phase": st.sampled_from([None, *Phase, Phase.UNKNOWN, Phase.ESCALATED]),
        "observation": st.none() | objects,
        "looks": st.integers(0, 2),
        "unknown_since": st.sampled_from([None, 5.0, 6.0]),
    }
)
claims = st.builds(
    Claim,
    worker=st.sampled_from(["w_2", "w_3"]),
    lease=soon,
    limit=st.sampled_from([1, 32, 32, 32]),
    tools=st.sampled_from([None, None, frozenset({"save"})]),
    lapsed_for=st.sampled_from([0.0, 0.0, 0.0, FOREVER]),
)
ends = st.sampled_from([{}, {"again_after": 0.0}, {"again_after": FOREVER}, {"failed": "no"}])


class SameLives(Same):
    @initialize()
    def nothing_is_due(self):
        self.claimed = []

    @property
    def pending(self):
        there = [self.entry_now(*slot) for slot in SLOTS]
        return [one for one in there if one is not None and one.status is EntryStatus.PENDING]

    # --- the life of an entry ---------------------------------------------------------------------

    @step(
        4,
        slot=slots,
        lease=soon,
        tool=tools,
        wrong=mostly,
        resume=st.none() | st.binary(max_size=3),
    )
    def reserve(self, slot, lease, tool, wrong, resume):
        there = self.entry_now(*slot)
        request = self.request(slot[0], "run_1", key=slot[1], tool=tool)
        pending = there is not None and there.status is EntryStatus.PENDING
        takes_over = there.fence + wrong if pending else None
        self.ask("admit", request._replace(lease=lease, resume=resume, takes_over=takes_over))

    @step(
        5,
        number=numbers,
        late=mostly,
        outcome=outcomes,
        keep=st.none() | soon,
        again=st.none() | soon,
        due=st.lists(st.tuples(seconds, due_kinds), max_size=2),
    )
    def settle(self, number, late, outcome, keep, again, due):
        there = one_of(self.pending, number)
        if there is None:
            return
        request = SettlementRequest(
            tenant=there.tenant,
            run_id="run_1",
            now=self.now,
            entry=there._replace(fence=there.fence - late, **outcome),
            seen={},
            state=(),
            events=[event(EventType.SUCCEEDED, there.tenant, "run_1")],
            keep_for=keep,
            again_after=again,
            due=[(after, self.due(there.tenant, kind, there.key)) for after, kind in due],
        )
        self.ask("settle", request)

    @step(late=mostly, lease=soon)
    def renew(self, late, lease):
        entries = [one._replace(fence=one.fence - late) for one in self.pending]
        self.ask("renew", entries, lease)

    @step(2, claim=claims)
    def claim_orphans(self, claim):
        self.ask("claim_orphans", claim)

    @step(limit=st.sampled_from([1, 2, 500]))
    def expire(self, limit):
        self.ask("expire", ExpiryRequest(limit))

    # --- due work ---------------------------------------------------------------------------------

    @step(slot=slots, kind=due_kinds, tool=tools, after=soon, body=objects)
    def schedule(self, slot, kind, tool, after, body):
        told = [event(EventType.COMPENSATION_REQUIRED, slot[0], "run_1")]
        self.ask("schedule", after, self.due(slot[0], kind, slot[1], tool, body), told)

    @step(2, claim=claims)
    def claim_due(self, claim):
        self.claimed += self.ask("claim_due", claim)

    @step(
        3,
        number=st.sampled_from([0, 0, 0, 1, 2, 9]),
        late=mostly,
        end=ends,
        compensated=st.none() | objects,
        follows=st.lists(st.tuples(seconds, due_kinds), max_size=1),
    )
    def finish(self, number, late, end, compensated, follows):
        work = one_of(self.claimed, -1 - number)
        if work is None:
            return
        request = FinishRequest(
            work._replace(fence=work.fence - late),
            **end,
            compensated=compensated,
            due=[(after, self.due(work.tenant, kind, work.key)) for after, kind in follows],
            events=[event(EventType.VERIFIED, work.tenant, "run_1")],
        )
        self.ask("finish", request)

    # --- what is seen of it -----------------------------------------------------------------------

    @invariant()
    def show_the_same(self):
        if not hasattr(self, "claimed"):
            return
        self.ask("concerns")
        for tenant, key in SLOTS:
            self.ask("look_up", tenant, key)

    @step(slot=slots, limit=st.sampled_from([1, 100]))
    def look_closely(self, slot, limit):
        self.ask("concerns", slot[0], limit)
        self.ask("wait", *slot, 0)
        for kind in DueKind:
            self.ask("find_due", slot[0], kind, slot[1])


@pytest.mark.slow
@pytest.mark.parametrize("back_end", DURABLE)
def test_every_entry_lives_as_in_memory(back_end):
    run_machine(SameLives, back_end)
