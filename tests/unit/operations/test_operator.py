"""Operators' changes: stored first, on record, and replayed by every process on the store."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from counterseal.audit import EventType
from counterseal.errors import GrantError, RegistryError, StoreError
from counterseal.operations.operator import ALL_TENANTS, Operator, catch_up
from counterseal.proposal import Principal
from counterseal.registry import Deprecation, Grant, Reason, Refusal, Registry
from counterseal.testing import FakeClock, MemoryStore, fake_tool

CLOCK = FakeClock()
BOT = Principal(tenant="acme", agent="bot")
GRANT = Grant(
    agent="bot",
    tool="look",
    version=">=1,<3",
    mode="read",
    max_calls_per_run=3,
    scopes=["b", "a"],
    risk_limit="READ_ONLY",
    expires_at=datetime(2027, 1, 1, tzinfo=UTC),
    tenant="acme",
)


class Worker:
    """A registry on a shared store, as each process has one."""

    def __init__(self, store, *versions):
        self.store = store
        self.registry = Registry(clock=lambda: datetime.fromtimestamp(CLOCK(), UTC))
        for version in versions or ("1.0.0",):
            self.registry.register(fake_tool("look", version=version).tool)
        self.operator = Operator(store, self.registry, by="u_1", clock=CLOCK)

    async def catch_up(self):
        return await catch_up(self.store, self.registry)

    def reason(self, name="look"):
        found = self.registry.resolve(name, tenant="acme", run_id="run_1")
        return found.reason if isinstance(found, Refusal) else None


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def here(store):
    return Worker(store)


@pytest.fixture
def there(store):
    return Worker(store)


# --- one changes, all know ------------------------------------------------------------------------


async def test_kill_reaches_another_worker_and_one_that_starts_later(here, there, store):
    kill = await here.operator.kill(tool="look", reason="leak")
    assert here.reason() is Reason.KILLED, "at once where it was pulled"
    assert await there.catch_up()
    assert there.reason() is Reason.KILLED
    assert there.registry.kills == here.registry.kills == (kill,)
    assert (kill.id, kill.by, kill.reason) == ("kill_1", "u_1", "leak")
    started = Worker(store)
    await started.catch_up()
    assert started.reason() is Reason.KILLED


async def test_kill_of_one_worker_is_undone_by_another_which_has_not_heard_of_it(here, there):
    kill = await here.operator.kill(effect="read_only", reason="leak")
    await there.operator.restore(kill.id, reason="mended")
    await here.catch_up()
    assert (here.reason(), there.reason()) == (None, None)


async def test_catching_up_says_whether_there_was_anything_new(here, there):
    assert not await there.catch_up()
    await here.operator.disable("look", reason="wrong totals")
    assert await there.catch_up()
    assert not await there.catch_up()
    assert there.registry.stored == 1


async def test_every_change_arrives_as_it_was_made(here, there):
    moment = datetime.fromtimestamp(CLOCK(), UTC)
    end = Deprecation(removal_at=moment + timedelta(days=1), replacement_tool="other")
    operator = here.operator
    await operator.grant(GRANT, reason="for the audit")
    await operator.set_rollout("look", "1.0.0", 40, reason="slowly")
    await operator.disable("look", "1.0.0", reason="wrong totals")
    await operator.enable("look", reason="mended")
    await operator.deprecate("look", "1.0.0", end, reason="slow")
    await there.catch_up()
    assert there.registry.grants == (GRANT,)
    record = there.registry.get("look", "1.0.0")
    assert (record.rollout_percentage, record.enabled, record.note) == (40, True, "mended")
    assert record.deprecation == end
    await operator.revoke(GRANT, reason="the audit is over")
    await operator.deprecate("look", "1.0.0", None, reason="fast enough")
    await there.catch_up()
    assert there.registry.grants == ()
    assert there.registry.get("look", "1.0.0").deprecation is None
    exports = [worker.registry.export() for worker in (here, there)]
    assert exports[0] == exports[1]


async def test_new_grant_does_not_cover_what_is_deprecated_when_it_is_given(store):
    here, there = Worker(store, "1.0.0", "2.0.0"), Worker(store, "1.0.0", "2.0.0")
    grant = Grant(agent="bot", tool="look")
    await here.operator.deprecate("look", "1.0.0", Deprecation(), reason="slow")
    await here.operator.grant(grant, reason="asked for")
    await here.operator.deprecate("look", "2.0.0", Deprecation(), reason="slow too")
    await there.catch_up()
    for worker in (here, there):
        newer, older = worker.registry.versions("look")
        assert worker.registry.authorize(newer, BOT) == grant
        assert isinstance(worker.registry.authorize(older, BOT), Refusal)


async def test_preview_leaves_out_what_another_worker_has_stopped(here, there):
    assert [one.name for one in await there.operator.preview_kill()] == ["look"]
    await here.operator.disable("look", reason="wrong totals")
    assert await there.operator.preview_kill() == ()
    assert there.registry.kills == ()


# --- at the same time -----------------------------------------------------------------------------


async def test_changes_made_at_the_same_time_are_all_stored_in_one_order(store):
    workers = [Worker(store) for _ in range(4)]
    kills = await asyncio.gather(
        *(worker.operator.kill(reason=f"leak {n}") for n, worker in enumerate(workers))
    )
    assert sorted(kill.id for kill in kills) == ["kill_1", "kill_2", "kill_3", "kill_4"]
    for worker in workers:
        await worker.catch_up()
        assert worker.registry.kills == workers[0].registry.kills
        assert worker.registry.stored == 4


async def test_who_was_slower_is_judged_by_what_the_faster_one_left(here, there):
    kill = await here.operator.kill(reason="leak")
    await there.catch_up()
    ends = await asyncio.gather(
        *(one.operator.restore(kill, reason="mended") for one in (here, there)),
        return_exceptions=True,
    )
    (error,) = (end for end in ends if isinstance(end, Exception))
    assert isinstance(error, RegistryError)
    assert "kill_1 is not in force" in str(error)
    assert len(await here.store.changes(0)) == 2


class Overrun(MemoryStore):
    """Another writer is always faster."""

    async def change(self, number, what, events):
        taken = await super().change(number, {**what, "by": "u_2"}, events)
        return not taken


async def test_who_is_always_slower_gives_up():
    worker = Worker(Overrun())
    with pytest.raises(StoreError, match="disable was tried 5 times"):
        await worker.operator.disable("look", reason="wrong totals")


# --- on record ------------------------------------------------------------------------------------


async def test_every_change_is_on_record_with_who_and_why(here, store):
    await here.operator.kill(tool="look", reason="leak")
    await here.operator.grant(GRANT, reason="for the audit")
    await here.operator.set_rollout("look", "1.0.0", 5, reason="slowly")
    events = [event for _, event in await store.events(ALL_TENANTS)]
    assert {event.type for event in events} == {EventType.REGISTRY_CHANGED}
    assert [event.decision for event in events] == ["kill", "grant", "rollout"]
    assert [event.caller.user for event in events] == ["u_1"] * 3
    assert [(event.caller.tool, event.caller.version) for event in events] == [
        ("look", ""),
        ("look", ">=1,<3"),
        ("look", "1.0.0"),
    ]
    stored = [{"number": number, **what} for number, what in await store.changes(0)]
    assert [event.body for event in events] == stored
    assert json.loads(json.dumps(stored)) == stored
    assert [change.export() for change in here.registry.changes] == stored
    assert {event.occurred_at for event in events} == {CLOCK()}


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda one: one.kill(tool="loook", reason="leak"), RegistryError, "did you mean look"),
        (lambda one: one.kill(effect="drafts", reason="leak"), RegistryError, "is not one of"),
        (lambda one: one.kill(reason=" "), RegistryError, "reason must be a text that says why"),
        (lambda one: one.kill(reason=None), RegistryError, "reason must be a text that says why"),
        (lambda one: one.kill(reason="x" * 1001), RegistryError, "reason must have at most 1000"),
        (lambda one: one.kill(reason="a\0b"), RegistryError, "NUL character"),
        (lambda one: one.kill(reason="\ud800"), RegistryError, "plain JSON"),
        (lambda one: one.restore("kill_7", reason="mended"), RegistryError, "not in force"),
        (lambda one: one.enable("look", "9", reason="mended"), RegistryError, "no version '9'"),
        (lambda one: one.set_rollout("look", "1.0.0", 101, reason="x"), RegistryError, "0 to 100"),
        (lambda one: one.set_rollout("look", None, 10, reason="x"), RegistryError, "version: "),
        (lambda one: one.revoke(GRANT, reason="x"), GrantError, "no such grant"),
        (
            lambda one: one.grant(Grant(agent="b" * 20_000, tool="look"), reason="x"),
            RegistryError,
            "at most 16,384 bytes",
        ),
    ],
)
async def test_change_that_makes_no_sense_stores_nothing(here, store, act, error, message):
    with pytest.raises(error, match=message):
        await act(here.operator)
    assert await store.changes(0) == []
    assert await store.events(ALL_TENANTS) == []
    assert here.registry.stored == 0


@pytest.mark.parametrize(
    ("by", "message"),
    [("", "by must be a text that says who"), ("u" * 201, "by must have at most")],
)
def test_operator_has_a_name(by, message):
    with pytest.raises(RegistryError, match=message):
        Operator(MemoryStore(), Registry(), by=by)


async def test_worker_that_does_not_understand_a_change_says_so(here, store):
    await store.change(1, {"op": "quarantine", "tool": "look"}, [])
    with pytest.raises(StoreError, match="update this worker"):
        await here.catch_up()
    assert here.registry.stored == 0
