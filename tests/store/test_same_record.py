"""The same for the record: what is told, found, chained, and forgotten in the end."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from counterseal.audit import EventType
from counterseal.audit.chain import Checkpoint
from counterseal.ledger.requests import Charge, EventFilter, ExpiryRequest, SettlementRequest
from tests.store.chains import check_chain, log_of
from tests.store.kept import keep
from tests.store.same import (
    DURABLE,
    FOREVER,
    TENANTS,
    Same,
    event,
    kinds,
    objects,
    plain,
    run_machine,
    runs,
    step,
    tenants,
)

ages = st.sampled_from([None, -FOREVER, -FOREVER, FOREVER])
counters = st.sampled_from(["writes", "writes/19000", "money/18999", "money/99999999"])


class SameRecord(Same):
    @initialize()
    def keep_nothing_yet(self):
        self.pointers = []

    @step(tenant=tenants, run_id=runs, kinds=kinds, body=objects)
    def tell(self, tenant, run_id, kinds, body):
        events = [event(kind, tenant, run_id, body) for kind in kinds]
        self.ask("settle", SettlementRequest(tenant, run_id, self.now, None, {}, (), events))

    @step(tenant=tenants, run_id=runs, body=objects)
    def note(self, tenant, run_id, body):
        async def note(store):
            store.note(event(EventType.SUCCEEDED, tenant, run_id, body))

        self.each(note)

    @step(tenant=tenants, counter=counters, of_run=st.booleans())
    def spend(self, tenant, counter, of_run):
        charge = Charge(counter, counter, 1, 9, of_run)
        self.ask("admit", self.request(tenant, "run_1")._replace(charges=[charge], events=()))

    @step(tenant=tenants, raw=st.binary(max_size=3))
    def keep(self, tenant, raw):
        self.pointers.append(
            (tenant, [keep(store, tenant, raw) for store in (self.memory, self.durable)])
        )

    @step(tenant=st.sampled_from([*TENANTS, "sealed"]), number=st.integers(1, 3))
    def seal(self, tenant, number):
        self.ask("seal", Checkpoint(tenant=tenant, number=number, sealed_at=1.5, heads={}))
        self.ask("checkpoints", tenant)

    @step(limit=st.sampled_from([1, 2, 500]), vault=ages, events=ages)
    def expire(self, limit, vault, events):
        self.ask("expire", ExpiryRequest(limit, vault, events))

    @step(
        tenant=tenants,
        run_id=st.none() | runs,
        types=st.none() | st.lists(st.sampled_from(EventType), max_size=9),
        limit=st.none() | st.integers(0, 3),
        newest_first=st.booleans(),
    )
    def search(self, tenant, **narrow):
        said = self.each(lambda store: store.search(tenant, EventFilter(**narrow)))
        told = [plain([one for _, one in some]) for some in said]
        assert told[1] == told[0]

    @step(page=st.sampled_from([1, 3, 100]))
    def look_at_everything(self, page):
        self.ask("tenants")
        for tenant in TENANTS:
            logs = self.each(lambda store, tenant=tenant: log_of(store, tenant, page=page))
            ends = self.each(lambda store, tenant=tenant: store.heads(tenant, 0))
            for rows, heads in zip(logs, ends, strict=True):
                assert check_chain(rows, tenant) == heads
            gone = [[row.columns is None for row in rows] for rows in logs]
            assert gone[1] == gone[0]
            spent = self.each(lambda store, tenant=tenant: store.recall(tenant, "run_1", None))
            assert spent[1][2:] == spent[0][2:]
        for tenant, pointers in self.pointers:
            pointer = iter(pointers)
            raw = self.each(lambda store, who=tenant, at=pointer: store.fetch(who, next(at)))
            assert raw[1] == raw[0]


@pytest.mark.slow
@pytest.mark.parametrize("back_end", DURABLE)
def test_everything_is_recorded_as_in_memory(back_end):
    run_machine(SameRecord, back_end)
