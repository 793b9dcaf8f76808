"""Asks a durable store the same as the one in memory, and sees that they agree.

Each store goes by its own clock. So whatever takes time here takes none or does not end, and
moments that a store has made up are left out of the comparison.
"""

import asyncio
import tempfile
from contextlib import ExitStack, contextmanager
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from counterseal.audit import CallFields, Event, EventType
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Concern, Due
from counterseal.ledger.requests import Admission, AdmissionRequest, StoredEntry
from counterseal.storage import open_store
from tests.postgres_server import borrowed_database
from tests.waiting import caller


@contextmanager
def sqlite():
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/store.db"


DURABLE = {"sqlite": (sqlite, 30), "postgres": (borrowed_database, 15)}
"""Name to a context that gives the URL of an empty store, and to how many examples are tried."""

FOREVER = 3600.0
TENANTS = ("acme", "other")
RUNS = ("run_1", "run_2")
KEYS = ("k1", "k2")
SLOTS = (("acme", "k1"), ("acme", "k2"), ("other", "k1"))
"""Where the ledger is used, when it is about the ledger: few, so that much happens to each."""
TOOLS = ("save", "send")

tenants = st.sampled_from(TENANTS)
runs = st.sampled_from(RUNS)
keys = st.sampled_from(KEYS)
tools = st.sampled_from(TOOLS)
numbers = st.integers(0, 9)
seconds = st.sampled_from([0.0, FOREVER])
kinds = st.lists(st.sampled_from(EventType), max_size=2)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
objects = st.dictionaries(st.text(max_size=3), json, max_size=2)
who = st.tuples(st.sampled_from(["agent", "other"]), st.sampled_from(["u_1", None]))
mostly = st.sampled_from([0, 0, 0, 0, 1])
"""By how much a number is wrong."""


def event(kind, tenant, run_id, body=None):
    caller = CallFields(tenant, run_id, "call_1", "save", "1.0.0", "agent", None, "0" * 32)
    return Event(kind, caller, 1.5, "allow", "p1", "ref", body or {})


def plain(said):
    """An answer without the moments that a store has made up."""
    if isinstance(said, Entry):
        return said._replace(unknown_since=said.unknown_since is not None)
    if isinstance(said, Due | Concern):
        return said._replace(since=0.0)
    if isinstance(said, Admission):
        return said._replace(entry=plain(said.entry))
    if isinstance(said, StoredEntry | StoredEntry):
        return plain(said.entry), said.resume
    if isinstance(said, Event) and said.type is EventType.ERASED and "until" in said.body:
        return said.type, said.caller, said.body["events"]
    if type(said) in (list, tuple):
        return [plain(one) for one in said]
    return said


def step(often=1, **drawn):
    """Marks what may happen at any time, with what is drawn for it.

    As rules of their own, most of them would be left out of most examples. Here much must come
    together before anything happens, so every step of a machine goes through one rule.
    """

    def mark(method):
        method.happenings = [
            st.tuples(st.just(method.__name__), st.fixed_dictionaries(drawn)) for _ in range(often)
        ]
        return method

    return mark


class Same(RuleBasedStateMachine):
    """The stores, and how they are asked."""

    def __init__(self, back_end):
        super().__init__()
        self.place, _ = DURABLE[back_end]

    @classmethod
    @cache
    def happenings(cls):
        marked = [getattr(getattr(cls, name), "happenings", ()) for name in sorted(dir(cls))]
        return st.one_of([one for some in marked for one in some])

    @rule(data=st.data())
    def go_on(self, data):
        name, drawn = data.draw(self.happenings())
        getattr(self, name)(**drawn)

    @initialize()
    def open(self):
        self.runner = asyncio.Runner()
        self.given = ExitStack()
        self.url = self.given.enter_context(self.place())
        self.memory, self.durable = open_store("memory:"), open_store(self.url)
        self.now = 1_767_225_600.0
        self.serial = 0
        self.epoch = 0

    def teardown(self):
        if hasattr(self, "runner"):
            self.runner.run(self.durable.close())
            self.given.close()
            self.runner.close()

    def each(self, ask):
        """What each store says to something, memory first."""
        return [self.runner.run(caller(ask, store)) for store in (self.memory, self.durable)]

    def ask(self, method, *arguments, **more):
        """Ask both, see that they agree, and say what memory said."""
        said = self.each(lambda store: getattr(store, method)(*arguments, **more))
        assert plain(said[1]) == plain(said[0]), method
        return said[0]

    @step()
    def restart(self):
        self.runner.run(self.durable.close())
        self.durable = open_store(self.url)

    def entry_now(self, tenant, key):
        kept = self.runner.run(self.memory.look_up(tenant, key))
        return None if kept is None else kept.entry

    def entry(self, tenant, key, tool="save", **more):
        self.serial += 1
        known = {"call_id": f"call_{self.serial}", "tool": tool, "version": "1.0.0"}
        values = {"status": EntryStatus.PENDING, "phase": Phase.RESERVED, "worker": "w_1"}
        return Entry(
            tenant=tenant, key=key, request_hash=b"r\0", run_id="run_1", **known, **values, **more
        )

    def request(self, tenant, run_id, key=None, tool="save"):
        """A plain admission."""
        entry = None if key is None else self.entry(tenant, key, tool)
        told = [event(EventType.STARTED, tenant, run_id)]
        values = (tenant, run_id, tool, "1.0.0", self.now, (), (), entry, None, self.epoch, told)
        return AdmissionRequest(*values)

    def due(self, tenant, kind, key, tool="save", body=None):
        return Due(tenant, kind, key, "call_1", "run_1", tool, "1.0.0", body or {})


def run_machine(machine, back_end):
    """Try the examples of a back-end."""
    many = settings(max_examples=DURABLE[back_end][1], stateful_step_count=40, deadline=None)
    run_state_machine_as_test(lambda: machine(back_end), settings=many)


def one_of(things, number):
    return things[number % len(things)] if things else None
