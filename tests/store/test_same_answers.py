"""Whatever is asked, and in whatever order, every durable store answers as the one in memory.

Here: calls, the runs that they are in, and the people who are asked about them.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from counterseal.audit import EventType
from counterseal.ledger.changes import IDLE_SECONDS
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import Budgets, DueKind, Held, HeldStatus, RunRecord
from counterseal.ledger.requests import Ballot, Charge, ExpiryRequest, RateLimit, SettlementRequest
from tests.store.same import (
    DURABLE,
    FOREVER,
    KEYS,
    RUNS,
    TENANTS,
    Same,
    event,
    json,
    keys,
    kinds,
    mostly,
    numbers,
    objects,
    one_of,
    plain,
    run_machine,
    runs,
    step,
    tenants,
    tools,
    who,
)

versions = st.sampled_from(["1.0.0", "1.0.0", "2.0.0"])
charges = st.lists(
    st.builds(
        lambda counter, amount, limit, of_run: Charge(counter, counter, amount, limit, of_run),
        st.sampled_from(["writes", "money"]),
        st.sampled_from([0, 1, 2, 250_000, 2**60]),
        st.sampled_from([0, 2, 5, 300_000, 2**62, float("inf")]),
        st.booleans(),
    ),
    max_size=3,
)
rates = st.lists(
    st.builds(RateLimit, tools, st.sampled_from([0.5, 1.0, 60.0]), st.integers(1, 3)), max_size=2
)
state_keys = st.sampled_from(["a", "b", "*"])
effects = st.lists(
    st.tuples(state_keys, st.sampled_from(["append", "replace"]), json)
    | st.tuples(state_keys, st.just("merge_dict"), objects),
    max_size=3,
)
reads = st.dictionaries(state_keys, st.integers(0, 2), max_size=1)
seen = st.dictionaries(st.sampled_from(["case:1", "case:2"]), numbers | st.text(max_size=2))
follows = st.lists(st.sampled_from([DueKind.NOTIFY, DueKind.EXECUTE]), max_size=2)
"""Kinds of work that come with a request."""
fingerprints = st.lists(st.sampled_from(["tool", "payload/1", "run/repairs"]), max_size=4)


class SameAnswers(Same):
    @initialize()
    def ask_nobody_yet(self):
        self.approvals = []

    # --- runs -------------------------------------------------------------------------------------

    @step(passed=st.sampled_from([0.0, 0.25, 5.0, 100.0, IDLE_SECONDS, IDLE_SECONDS + 1]))
    def time_passes(self, passed):
        self.now += passed

    @step(
        tenant=tenants,
        run_id=runs,
        state=st.dictionaries(st.sampled_from("ab"), json),
        allowed=st.none() | st.frozensets(tools),
        writes=st.none() | numbers,
        config=objects,
    )
    def open_run(self, tenant, run_id, state, allowed, writes, config):
        run = RunRecord(
            tenant=tenant,
            run_id=run_id,
            started_at=self.now,
            deadline=self.now + 0.1,
            allowed_tools=allowed,
            budgets=Budgets(writes=writes, money={"run": {"EUR": 0.3}}, by_effect={"draft": 1}),
            config=config,
            state=state,
        )
        self.ask("open_run", run)

    @step(tenant=tenants, who=who)
    def implicit_run(self, tenant, who):
        self.ask("find_implicit_run", tenant, *who, self.now)
        self.ask("implicit_run", tenant, *who, self.now)

    @step(tenant=tenants, run_id=runs, keep=st.sets(st.sampled_from("ab")))
    def new_turn(self, tenant, run_id, keep):
        self.ask("new_turn", tenant, run_id, keep)

    # --- calls ------------------------------------------------------------------------------------

    @step(
        4,
        tenant=tenants,
        run_id=runs,
        tool=tools,
        version=versions,
        charges=charges,
        rates=rates,
        key=st.none() | keys,
        approval=st.none() | numbers,
        outdated=mostly,
        reads=reads,
        kinds=kinds,
    )
    def admit(self, tenant, run_id, key, approval, outdated, kinds, **more):
        request = self.request(tenant, run_id, key=key)._replace(
            approval_id=None if approval is None else one_of(self.approvals, approval),
            epoch=self.epoch + outdated,
            events=[event(kind, tenant, run_id) for kind in kinds],
            **more,
        )
        self.ask("admit", request)

    @step(
        3,
        tenant=tenants,
        run_id=runs,
        key=st.none() | keys,
        status=st.sampled_from(EntryStatus),
        phase=st.none() | st.sampled_from(Phase),
        observation=st.none() | objects,
        seen=seen,
        state=effects,
        mended=st.none() | tools,
        untrusted=st.booleans(),
        gives_back=st.none() | numbers,
    )
    def settle(self, tenant, run_id, key, seen, state, mended, untrusted, gives_back, **outcome):
        entry = None
        if key is not None:
            entry = (self.entry_now(tenant, key) or self.entry(tenant, key))._replace(**outcome)
        request = SettlementRequest(
            tenant=tenant,
            run_id=run_id,
            now=self.now,
            entry=entry,
            seen=seen,
            state=state,
            events=[event(EventType.SUCCEEDED, tenant, run_id, {"n": self.serial})],
            mended=mended,
            untrusted=untrusted,
            gives_back=None if gives_back is None else one_of(self.approvals, gives_back),
        )
        self.ask("settle", request)

    @step(tenant=tenants, run_id=runs, tool=tools, fingerprints=fingerprints, kinds=kinds)
    def refuse(self, tenant, run_id, tool, fingerprints, kinds):
        events = [event(kind, tenant, run_id) for kind in kinds]
        self.ask("record_and_count", tenant, run_id, tool, fingerprints, events)

    @step(off=mostly, what=objects)
    def change_the_registry(self, off, what):
        told = [event(EventType.REGISTRY_CHANGED, "acme", "run_1")]
        self.epoch += self.ask("change", self.epoch + 1 - off, what, told)
        self.ask("changes", max(self.epoch - 2, 0))

    # --- approvals --------------------------------------------------------------------------------

    @step(
        2,
        tenant=tenants,
        key=keys,
        run_id=runs,
        who=who,
        asked=st.sampled_from("xy"),
        demand=objects,
        open_for=st.sampled_from([0.0, 5.0, 5000.0]),
        sealed=st.binary(max_size=3),
        due=follows,
    )
    def hold(self, tenant, key, run_id, who, asked, open_for, due, **more):
        self.serial += 1
        seen = self.serial
        held = Held(
            approval_id=f"appr_{self.serial}",
            tenant=tenant,
            key=key,
            approval_hash=asked,
            call_id="call_1",
            run_id=run_id,
            tool="save",
            version="1.0.0",
            contract_hash="c",
            agent=who[0],
            user=who[1],
            reason="because",
            rule=None,
            approvers=2,
            risk="draft",
            version_seen=[None, seen, str(seen)][seen % 3],
            created_at=self.now,
            expires_at=self.now + open_for,
            trace_id="0" * 32,
            **more,
        )
        told = [event(EventType.APPROVAL_REQUIRED, tenant, "run_1")]
        later = [(0.0, self.due(tenant, kind, held.approval_id)) for kind in due]
        self.approvals.append(self.ask("hold", held, told, later).approval_id)

    @step(
        4,
        tenant=tenants,
        number=numbers,
        off=mostly,
        said=objects,
        status=st.sampled_from([*HeldStatus, *[HeldStatus.WAITING] * 4, HeldStatus.APPROVED]),
        token=st.none() | st.text(max_size=3).filter(lambda text: "\0" not in text),
        due=follows,
    )
    def vote(self, tenant, number, off, said, due, **more):
        approval_id = one_of(self.approvals, number) or "appr_none"
        held = self.runner.run(self.memory.find_held(tenant, approval_id))
        before = () if held is None else held.votes
        ballot = Ballot(
            tenant=tenant,
            approval_id=approval_id,
            seen=len(before) - off,
            votes=[*before, said],
            due=[(0.0, self.due(tenant, kind, approval_id)) for kind in due],
            events=[event(EventType.APPROVAL_GRANTED, tenant, "run_1")],
            **more,
        )
        self.ask("vote", ballot)

    @step(
        2,
        tenant=tenants,
        number=numbers,
        status=st.sampled_from([*HeldStatus, *[HeldStatus.APPROVED] * 4]),
    )
    def decide(self, tenant, number, status):
        told = [event(EventType.APPROVAL_GRANTED, tenant, "run_1")]
        approval_id = one_of(self.approvals, number) or "appr_none"
        self.ask("decide", tenant, approval_id, status, told)

    @step(
        tenant=tenants,
        number=numbers,
        of=st.none() | tenants,
        status=st.sampled_from(HeldStatus),
        limit=st.sampled_from([0, 1, 100]),
        ends_in=st.none() | st.sampled_from([0.0, 5.0]),
        newest_first=st.booleans(),
        who=who,
        key=keys,
    )
    def look_at_requests(self, tenant, number, of, status, limit, ends_in, newest_first, who, key):
        after = None if ends_in is None else self.now + ends_in
        self.ask("list_held", of, status, limit, after=after, newest_first=newest_first)
        own = self.each(lambda store: store.recall(tenant, RUNS[0], key, who))
        assert own[1].held == own[0].held
        approval_id = one_of(self.approvals, number) or "appr_none"
        self.ask("find_held", tenant, approval_id)
        self.ask("wait_held", tenant, approval_id, 0)
        for kind in DueKind:
            self.ask("find_due", tenant, kind, approval_id)

    @step(limit=st.sampled_from([1, 100]))
    def forget_requests(self, limit):
        self.ask("expire", ExpiryRequest(limit, vault_after=-FOREVER * FOREVER))

    # --- what is seen of it -----------------------------------------------------------------------

    @invariant()
    def show_the_same(self):
        if not hasattr(self, "approvals"):
            return
        for tenant in TENANTS:
            for run_id in RUNS:
                self.ask("find_run", tenant, run_id)
            for key in KEYS:
                said = self.each(lambda store, who=tenant, key=key: store.recall(who, RUNS[0], key))
                recalled = [[plain(one.entry), one.held, *map(_spent, one[2:])] for one in said]
                assert recalled[1] == recalled[0]


def _spent(counters):
    """A counter at zero is none."""
    return {name: spent for name, spent in counters.items() if spent}


@pytest.mark.slow
@pytest.mark.parametrize("back_end", DURABLE)
def test_every_call_is_answered_as_in_memory(back_end):
    run_machine(SameAnswers, back_end)
