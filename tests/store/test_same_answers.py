"""Whatever is asked, and in whatever order, the SQLite store answers as the one in memory does."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from counterseal.audit import Caller, Event, EventType
from counterseal.ledger import Entry, Phase, Status
from counterseal.storage.base import (
    IDLE_SECONDS,
    Admit,
    Budgets,
    Charge,
    Held,
    HeldStatus,
    Rate,
    RunRecord,
    Settle,
)
from counterseal.storage.memory import MemoryStore
from counterseal.storage.sqlite import SqliteStore

TENANTS = ("acme", "other")
RUNS = ("run_1", "run_2")
KEYS = ("k1", "k2")
TOOLS = ("save", "send")

tenants = st.sampled_from(TENANTS)
runs = st.sampled_from(RUNS)
keys = st.sampled_from(KEYS)
tools = st.sampled_from(TOOLS)
versions = st.sampled_from(["1.0.0", "2.0.0"])
numbers = st.integers(0, 9)
kinds = st.lists(st.sampled_from(EventType), max_size=2)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
objects = st.dictionaries(st.text(max_size=3), json, max_size=2)
amounts = st.sampled_from([0, 1, 2, 0.1, 0.25])
charges = st.lists(
    st.builds(
        lambda counter, amount, limit, of_run: Charge(counter, counter, amount, limit, of_run),
        st.sampled_from(["writes", "money"]),
        amounts,
        st.sampled_from([0, 0.3, 2, 5, float("inf")]),
        st.booleans(),
    ),
    max_size=3,
)
rates = st.lists(
    st.builds(Rate, tools, st.sampled_from([0.5, 1.0, 60.0]), st.integers(1, 3)), max_size=2
)
state_keys = st.sampled_from(["a", "b", "*"])
effects = st.lists(
    st.tuples(state_keys, st.sampled_from(["append", "replace"]), json)
    | st.tuples(state_keys, st.just("merge_dict"), objects),
    max_size=3,
)
reads = st.dictionaries(state_keys, st.integers(0, 2), max_size=2)
seen = st.dictionaries(st.sampled_from(["case:1", "case:2"]), numbers | st.text(max_size=2))
fingerprints = st.lists(st.sampled_from(["tool", "payload/1", "run/repairs"]), max_size=4)
who = st.tuples(st.sampled_from(["agent", "other"]), st.sampled_from(["u_1", None]))
fences = st.none() | st.integers(0, 3)


def event(kind, tenant, run_id, body=None):
    caller = Caller(tenant, run_id, "call_1", "save", "1.0.0", "agent", None, "0" * 32)
    return Event(kind, caller, 1.5, "allow", "p1", "ref", body or {})


class SameAnswers(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.stores = [MemoryStore(), SqliteStore(self.path)]
        self.now = 1_767_225_600.0
        self.serial = 0

    def teardown(self):
        if hasattr(self, "runner"):
            self.runner.run(self.stores[1].close())
            self.runner.close()
            self.folder.cleanup()

    def ask(self, method, *arguments):
        """Ask both, see that they agree, and say what they said."""
        said = [self.runner.run(getattr(store, method)(*arguments)) for store in self.stores]
        assert said[1] == said[0]
        return said[0]

    # --- runs -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.25, 5.0, 100.0, IDLE_SECONDS, IDLE_SECONDS + 1]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def restart(self):
        self.runner.run(self.stores[1].close())
        self.stores[1] = SqliteStore(self.path)

    @rule(
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
            budgets=Budgets(writes=writes, money=0.3, by_effect={"draft": 1}),
            config=config,
            state=state,
        )
        self.ask("open_run", run)

    @rule(tenant=tenants, who=who)
    def implicit_run(self, tenant, who):
        self.serial += 1
        run_id = f"run_implicit_{self.serial}"
        run = RunRecord(tenant=tenant, run_id=run_id, started_at=self.now)
        self.ask("implicit_run", run, *who)

    @rule(tenant=tenants, who=who)
    def find_implicit_run(self, tenant, who):
        self.ask("find_implicit_run", tenant, *who, self.now)

    @rule(tenant=tenants, run_id=runs, keep=st.sets(st.sampled_from("ab")))
    def new_turn(self, tenant, run_id, keep):
        self.ask("new_turn", tenant, run_id, keep)

    # --- calls ------------------------------------------------------------------------------------

    @rule(
        tenant=tenants,
        run_id=runs,
        tool=tools,
        version=versions,
        charges=charges,
        rates=rates,
        key=st.none() | keys,
        approval=st.none() | st.integers(1, 4),
        reads=reads,
        takes_over=fences,
        kinds=kinds,
    )
    def admit(
        self,
        tenant,
        run_id,
        tool,
        version,
        charges,
        rates,
        key,
        approval,
        reads,
        takes_over,
        kinds,
    ):
        entry = None
        if key is not None:
            entry = self.entry(tenant, key, status=Status.PENDING, phase=Phase.RESERVED)
        request = Admit(
            tenant=tenant,
            run_id=run_id,
            tool=tool,
            version=version,
            now=self.now,
            charges=charges,
            rates=rates,
            entry=entry,
            approval_id=None if approval is None else f"appr_{approval}",
            epoch=1,
            events=[event(kind, tenant, run_id) for kind in kinds],
            reads=reads,
            takes_over=takes_over,
        )
        self.ask("admit", request)

    @rule(
        tenant=tenants,
        run_id=runs,
        key=st.none() | keys,
        status=st.sampled_from(Status),
        phase=st.none() | st.sampled_from(Phase),
        fence=st.integers(1, 3),
        observation=st.none() | objects,
        seen=seen,
        state=effects,
        mended=st.none() | tools,
        untrusted=st.booleans(),
    )
    def settle(
        self,
        tenant,
        run_id,
        key,
        status,
        phase,
        fence,
        observation,
        seen,
        state,
        mended,
        untrusted,
    ):
        entry = None
        if key is not None:
            more = {"status": status, "phase": phase, "observation": observation}
            entry = self.entry(tenant, key, fence=fence, unknown_since=self.now, **more)
        told = [event(EventType.SUCCEEDED, tenant, run_id, {"n": self.serial})]
        request = Settle(
            tenant, run_id, self.now, entry, seen, state, told, mended, untrusted=untrusted
        )
        self.ask("settle", request)

    def entry(self, tenant, key, **more):
        self.serial += 1
        known = {"call_id": f"call_{self.serial}", "tool": "save", "version": "1.0.0"}
        return Entry(tenant=tenant, key=key, request_hash=b"r\0", **known, **more)

    @rule(tenant=tenants, run_id=runs, tool=tools, fingerprints=fingerprints, kinds=kinds)
    def refuse(self, tenant, run_id, tool, fingerprints, kinds):
        events = [event(kind, tenant, run_id) for kind in kinds]
        self.ask("refuse", tenant, run_id, tool, fingerprints, events)

    @rule(tenant=tenants, run_id=runs, body=objects)
    def note(self, tenant, run_id, body):
        async def note(store):
            store.note(event(EventType.SUCCEEDED, tenant, run_id, body))

        for store in self.stores:
            self.runner.run(note(store))

    # --- approvals --------------------------------------------------------------------------------

    @rule(
        tenant=tenants,
        key=keys,
        who=who,
        arguments=objects,
        asked=st.sampled_from("xy"),
        seen=numbers,
    )
    def hold(self, tenant, key, who, arguments, asked, seen):
        self.serial += 1
        held = Held(
            approval_id=f"appr_{self.serial}",
            tenant=tenant,
            key=key,
            approval_hash=asked,
            call_id="call_1",
            run_id="run_1",
            tool="save",
            version="1.0.0",
            contract_hash="c",
            arguments=arguments,
            agent=who[0],
            user=who[1],
            scopes=frozenset({"b", "a"}),
            reason="because",
            rule=None,
            approvers=2,
            before=arguments or None,
            version_seen=[None, seen, str(seen)][seen % 3],
            created_at=self.now,
            trace_id="0" * 32,
        )
        self.ask("hold", held, [event(EventType.APPROVAL_REQUIRED, tenant, "run_1")])

    @rule(tenant=tenants, number=st.integers(1, 6), status=st.sampled_from(HeldStatus))
    def decide(self, tenant, number, status):
        told = [event(EventType.APPROVAL_GRANTED, tenant, "run_1")]
        self.ask("decide", tenant, f"appr_{number}", status, told)

    # --- what is seen of it -----------------------------------------------------------------------

    @invariant()
    def show_the_same(self):
        if not hasattr(self, "stores"):
            return
        for tenant in TENANTS:
            for run_id in RUNS:
                self.ask("find_run", tenant, run_id)
            for key in KEYS:
                first, second = (
                    self.runner.run(store.recall(tenant, RUNS[0], key)) for store in self.stores
                )
                assert (second.entry, second.held) == (first.entry, first.held)
                assert list(map(_spent, second[2:])) == list(map(_spent, first[2:]))

    @rule(tenant=tenants, run_id=st.none() | runs)
    def events(self, tenant, run_id):
        first, second = (
            [told for _, told in self.runner.run(store.events(tenant, run_id=run_id))]
            for store in self.stores
        )
        assert second == first


def _spent(counters):
    """A counter at zero is none."""
    return {name: spent for name, spent in counters.items() if spent}


TestSameAnswers = pytest.mark.slow(SameAnswers.TestCase)
TestSameAnswers.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
