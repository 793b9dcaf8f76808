"""What the SQLite store knows without a look is what the file says, whoever has changed it."""

import asyncio
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from counterseal.errors import StoreError
from counterseal.ledger.changes import IDLE_SECONDS
from counterseal.ledger.requests import AdmissionRefusal, Charge, ExpiryRequest, RateLimit
from counterseal.storage import open_store
from counterseal.storage.sqlite import SqliteStore, rows
from tests.store.same import KEYS, RUNS, TENANTS, keys, plain, run_machine, runs, step, tenants
from tests.store.test_same_answers import SameAnswers, charges, rates, versions
from tests.waiting import caller

requests = st.fixed_dictionaries(
    {
        "tenant": tenants,
        "run_id": runs,
        "key": st.none() | keys,
        "version": versions,
        "charges": charges,
        "rates": rates,
    }
)


class SameOfTwo(SameAnswers):
    """Two stores on one file, as two processes have them: each is asked for a while."""

    @initialize()
    def open(self):
        super().open()
        self.other = open_store(self.url)

    def teardown(self):
        if hasattr(self, "other"):
            self.runner.run(self.other.close())
        super().teardown()

    @step(8)
    def ask_the_other(self):
        self.durable, self.other = self.other, self.durable

    @step(4, crowd=st.lists(requests, min_size=2, max_size=5))
    def admit_many_at_once(self, crowd):
        asked = [
            self.request(one["tenant"], one["run_id"], one["key"])._replace(
                version=one["version"], charges=one["charges"], rates=one["rates"]
            )
            for one in crowd
        ]

        async def together(store):
            return await asyncio.gather(*map(partial(caller, store.admit), asked))

        said = self.each(together)
        assert plain(said[1]) == plain(said[0])

    @invariant()
    def recall_the_same(self):
        if hasattr(self, "other"):
            for tenant in TENANTS:
                for key in (None, *KEYS):
                    self.ask("recall", tenant, RUNS[0], key, spent=False)

    @invariant()
    def know_what_the_file_says(self):
        if hasattr(self, "other"):
            for store in (self.durable, self.other):
                database = store._backend.database
                if database.cache.version == database.version()[0]:
                    self.runner.run(self.compare(database.cache))

    async def compare(self, cache):
        memory = self.memory
        for (tenant, run_id, name), spent in cache.counters.items():
            recalled = await memory.recall(tenant, run_id or RUNS[0], None)
            counters = recalled.run_counters if run_id else recalled.tenant_counters
            assert counters.get(name, 0.0) == spent
        for (tenant, name), arrival in cache.rates.items():
            assert (await memory.recall(tenant, RUNS[0], None)).rates.get(name, 0.0) == arrival
        assert cache.epoch in (None, self.epoch)
        for (tenant, key), row in cache.entries.items():
            entry = (await memory.look_up(tenant, key)).entry
            assert plain(row.entry._replace(lapsed=False)) == plain(entry._replace(lapsed=False))
        for (tenant, run_id), row in cache.runs.items():
            run = await memory.find_run(tenant, run_id)
            if row is None:
                assert run is None
            else:
                changes = run.state_versions.get("*", 0)
                assert row[:5] == (run.turn, changes, run.pins, run.seen, run.refused)
        for (tenant, run_id), run in cache.run_records.items():
            assert run == await memory.find_run(tenant, run_id)
        for (tenant, agent, user), (run_id, used_at) in cache.implicit_runs.items():
            found = await memory.find_implicit_run(tenant, agent, user or None, used_at)
            assert found.run_id == run_id


@pytest.mark.slow
def test_two_processes_on_one_file_are_answered_as_one_in_memory():
    run_machine(SameOfTwo, "sqlite")


# --- one by one -----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    yield store
    await store.close()


@pytest.fixture
async def other(path):
    other = SqliteStore(path)
    yield other
    await other.close()


@pytest.fixture
def asked(make):
    """A call that spends, and fills whatever can be known."""
    charges = [make.charge(3), make.charge(3, of_run=False)]
    return make.admit(charges=charges, rates=[make.rate(interval=0.001, burst=9)])


async def call(store, asked):
    run = await store.find_run("acme", "run_1")
    return run, (await store.admit(asked)).refused


def said_by(store):
    """Everything that the store says to SQLite from now on, by its first word or two."""
    said = []
    store._backend.database.connection.set_trace_callback(said.append)
    return said


async def test_what_this_store_has_written_it_does_not_read(store, make, asked):
    await store.open_run(make.run())
    for _ in range(2):  # the first pins the version
        await call(store, asked)
    said = said_by(store)
    await call(store, asked)
    assert [one for one in said if one.startswith(("SELECT", "BEGIN", "PRAGMA data"))] == [
        "PRAGMA data_version",
        "BEGIN IMMEDIATE",
        "PRAGMA data_version",
    ]


async def test_a_new_key_is_recalled_with_a_single_question(store, make):
    said = said_by(store)
    assert (await store.recall("acme", "run_1", "k", spent=False)).entry is None
    assert len(said) == 1
    await store.admit(make.admit(entry=make.entry()))
    assert (await store.recall("acme", "run_1", "k", spent=False)).entry.key == "k"
    held = await store.hold(make.held(key="h"), ())
    assert (await store.recall("acme", "run_1", "h", spent=False)).held == held


async def test_spending_of_another_process_counts_at_once(store, other, make, asked):
    await store.open_run(make.run())
    answers = [(await call(one, asked))[1] for one in (store, other, store, other)]
    assert answers == [None, None, None, AdmissionRefusal.BUDGET]


async def test_a_kill_by_another_process_stops_the_next_call(store, other, make, asked):
    await store.open_run(make.run())
    assert (await call(store, asked))[1] is None
    await other.change(1, {"op": "kill"}, ())
    assert (await call(store, asked))[1] is AdmissionRefusal.EPOCH


async def test_a_run_changed_by_another_process_is_seen_at_once(store, other, make, asked):
    assert (await call(store, asked))[0] is None
    await other.open_run(make.run(state={"case": 1}))
    run, refused = await call(store, asked)
    assert (run.state, refused) == ({"case": 1}, None)
    await other.new_turn("acme", "run_1", ())
    assert (await store.find_run("acme", "run_1")).turn == 2
    await other.settle(make.settle(seen={"case:1": 7}))
    assert (await store.find_run("acme", "run_1")).seen == {"case:1": 7}
    assert (await call(other, asked._replace(version="2.0.0")))[1] is AdmissionRefusal.PIN


async def test_who_names_no_run_is_in_the_one_that_the_file_says(store, other, make):
    asked = ("acme", "agent", None)
    first = await store.implicit_run(*asked, make.now)
    for _ in range(3):
        said = said_by(store)
        assert await store.implicit_run(*asked, make.now + 0.5) == first
    assert said == ["PRAGMA data_version"]
    later = make.now + IDLE_SECONDS + 1
    assert await store.find_implicit_run(*asked, later) is None
    second = await other.implicit_run(*asked, later)
    assert second != first
    assert await store.implicit_run(*asked, later) == second
    await other.new_turn("acme", second.run_id, ())
    assert (await store.implicit_run(*asked, later)).turn == 2


async def test_what_is_forgotten_is_spent_anew(store, make):
    today = Charge("tenant.writes", "writes/1", 1, 1, of_run=False)
    asked = make.admit(charges=[today])
    assert (await store.admit(asked)).refused is None
    assert (await store.admit(asked)).refused is AdmissionRefusal.BUDGET
    await store.expire(ExpiryRequest())  # that day is long over
    assert (await store.admit(asked)).refused is None


async def test_what_fails_in_a_commit_has_spent_nothing(store, make):
    asked = make.admit(charges=[make.charge(4)], rates=[make.rate(interval=1.0, burst=4)])
    unspoken = make.event()._replace(body={"what": object()})
    wanted = [asked, asked, asked._replace(entry=make.entry(request_hash=None))]
    wanted += [asked._replace(events=[unspoken]), asked, asked, asked]
    admitting = [caller(store.admit, one) for one in wanted]
    answers = await asyncio.gather(*admitting, return_exceptions=True)
    assert [isinstance(one, Exception) for one in answers] == [n in (2, 3) for n in range(7)]
    assert [one.refused for one in answers[-3:]] == [None, None, AdmissionRefusal.BUDGET]


async def test_what_could_not_be_committed_is_not_known(store, make):
    asked = make.admit(charges=[make.charge(2)], rates=[RateLimit("tool/save", 1000.0, 2)])
    assert (await store.admit(asked)).refused is None
    connection = store._backend.database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = make.event()._replace(body={"text": "x" * 50_000})
    with pytest.raises(StoreError, match="no room left"):
        await store.admit(asked._replace(events=[large]))
    connection.execute("PRAGMA max_page_count = 1073741823")
    assert (await store.admit(asked)).refused is None
    assert (await store.admit(asked)).refused is AdmissionRefusal.BUDGET


async def test_what_is_known_does_not_grow_without_end(store, make, monkeypatch):
    monkeypatch.setattr(rows, "_MOST", 8)
    limits = [make.charge(9), make.charge(45, of_run=False)]
    for _ in range(2):
        wanted = [
            make.admit(run_id=f"run_{n}", charges=limits, rates=[make.rate(f"rate/{n}", burst=9)])
            for n in range(20)
        ]
        for one in wanted:
            await store.open_run(make.run(one.run_id))
            assert (await call(store, one))[1] is None
            await store.find_run("acme", one.run_id)
    kept = store._backend.database.cache
    assert all(len(one) <= 9 for one in (kept.rates, kept.runs, kept.run_records, kept.counters))
    answers = await asyncio.gather(*map(partial(caller, store.admit), wanted))
    assert [one.refused for one in answers] == [None] * 5 + [AdmissionRefusal.BUDGET] * 15
