"""API keys: what is kept of them, and how operators issue and revoke them for every worker."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from counterseal.audit import EventType
from counterseal.errors import RegistryError, StoreError
from counterseal.operations.operator import ALL_TENANTS, Operator, catch_up
from counterseal.proposal import Principal
from counterseal.registry import Registry
from counterseal.registry.identities import IssuedKey, key_id_in, new_key
from counterseal.testing import FakeClock, MemoryStore, fake_tool

BOT = Principal(tenant="acme", agent="bot", user="u_7", roles=["desk"], scopes=["b", "a"])


class Worker:
    """A registry on a shared store, as each process has one."""

    def __init__(self, store, clock):
        self.store = store
        self.registry = Registry(clock=lambda: datetime.fromtimestamp(clock(), UTC))
        self.operator = Operator(store, self.registry, by="u_1", clock=clock)

    async def catch_up(self):
        return await catch_up(self.store, self.registry)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def here(store, clock):
    return Worker(store, clock)


@pytest.fixture
def there(store, clock):
    return Worker(store, clock)


# --- keys -----------------------------------------------------------------------------------------


def test_key_is_known_by_its_form_and_no_two_are_alike():
    made = {new_key().text for _ in range(100)}
    assert len(made) == 100
    form = re.compile(r"cs_key_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")
    assert all(form.fullmatch(text) for text in made)
    assert {IssuedKey.read(text).text for text in made} == made


@pytest.mark.parametrize(
    "text", ["", "cs_key_", "cs_key_12_34", "x" * 67, "cs_key_" + "0" * 16 + "_" + "x" * 44]
)
def test_what_is_no_key_is_not_read_as_one(text):
    assert IssuedKey.read(text) is None


def test_key_shows_its_id_and_keeps_its_secret_to_itself():
    key = new_key()
    assert key.key_id in repr(key)
    assert key.secret not in f"{key!r} {key} {key.hash}"


def test_id_is_taken_from_what_people_have_at_hand():
    key = new_key()
    for text in (key.key_id, f"cs_key_{key.key_id}", key.text, f" {key.key_id}\n"):
        assert key_id_in(text) == key.key_id
    with pytest.raises(RegistryError, match="16 characters") as refused:
        key_id_in(key.secret)
    assert key.secret not in str(refused.value)


# --- issuing and revoking -------------------------------------------------------------------------


async def test_issued_key_is_known_to_every_worker_by_its_hash(here, there, clock):
    end = datetime.fromtimestamp(clock(), UTC) + timedelta(days=1)
    text, made = await here.operator.issue_key(BOT, expires_at=end, reason="the desk")
    await there.catch_up()
    found = there.registry.credential(made.key_id)
    assert found == made == here.registry.credential(made.key_id)
    assert (found.principal, found.expires_at) == (BOT, end)
    assert (found.by, found.reason) == ("u_1", "the desk")
    assert found.matches(IssuedKey.read(text))
    assert not found.matches(new_key())
    assert not found.matches(IssuedKey(made.key_id, new_key().secret))


async def test_revoked_key_is_gone_at_every_worker_and_for_good(here, there, store, clock):
    _, made = await here.operator.issue_key(BOT, reason="the desk")
    await there.catch_up()
    await there.operator.revoke_key(made.key_id, reason="it leaked")
    await here.catch_up()
    started = Worker(store, clock)
    await started.catch_up()
    for worker in (here, there, started):
        assert worker.registry.credential(made.key_id) is None
        assert worker.registry.credentials == ()
        assert [change.op for change in worker.registry.changes] == ["key", "unkey"]


async def test_keys_are_listed_oldest_first(here):
    made = [(await here.operator.issue_key(BOT, reason=f"no. {n}"))[1] for n in range(3)]
    await here.operator.revoke_key(made[1].key_id, reason="over")
    assert here.registry.credentials == (made[0], made[2])


async def test_every_change_of_keys_moves_the_epoch_and_touches_no_tool(here):
    registry = here.registry
    registry.register(fake_tool("look").tool)
    records, epoch = registry.records, registry.epoch
    _, made = await here.operator.issue_key(BOT, reason="the desk")
    assert (registry.epoch, registry.stored) == (epoch + 1, 1)
    await here.operator.revoke_key(made.key_id, reason="over")
    assert (registry.epoch, registry.stored) == (epoch + 2, 2)
    assert registry.records == records


async def test_key_expires_at_its_end_and_not_before(here, clock):
    now = datetime.fromtimestamp(clock(), UTC)
    _, made = await here.operator.issue_key(BOT, expires_at=now + timedelta(1), reason="a day")
    assert not made.expired(now + timedelta(hours=23))
    assert made.expired(now + timedelta(1))
    _, endless = await here.operator.issue_key(BOT, reason="for good")
    assert not endless.expired(now + timedelta(10_000))


async def test_who_issued_and_revoked_a_key_is_on_record_without_its_secret(here, store):
    text, made = await here.operator.issue_key(BOT, reason="the desk")
    await here.operator.revoke_key(made.key_id, reason="it leaked")
    events = [event for _, event in await store.events(ALL_TENANTS)]
    assert [(one.type, one.decision, one.caller.user) for one in events] == [
        (EventType.REGISTRY_CHANGED, "key", "u_1"),
        (EventType.REGISTRY_CHANGED, "unkey", "u_1"),
    ]
    bodies = [one.record("evt_1")["body"] for one in events]
    assert bodies[0]["key"]["agent"] == "bot"
    assert bodies[1]["key_id"] == made.key_id
    stored = json.dumps([bodies, list(await store.changes(0))], default=dict)
    assert IssuedKey.read(text).secret not in stored
    assert made.hash not in f"{made!r} {made.export()}"


@pytest.mark.parametrize("agent", ["counterseal", "counterseal.compensation", "CounterSeal.x"])
async def test_key_for_counterseal_itself_is_refused(here, agent):
    with pytest.raises(RegistryError, match="reserved"):
        await here.operator.issue_key(Principal(tenant="acme", agent=agent), reason="x")
    assert here.registry.stored == 0


async def test_key_that_makes_no_sense_is_refused_and_nothing_is_stored(here, clock):
    now = datetime.fromtimestamp(clock(), UTC)
    for wrong, said in (
        ({"expires_at": now}, "is in the past"),
        ({"expires_at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is what is wrong
        ({"reason": " "}, "says why"),
    ):
        with pytest.raises(RegistryError, match=said):
            await here.operator.issue_key(BOT, **{"reason": "x", **wrong})
    wide = Principal(tenant="acme", agent="bot", scopes=[f"scope:{n:05}" for n in range(2000)])
    with pytest.raises(RegistryError, match="bytes"):
        await here.operator.issue_key(wide, reason="x")
    assert here.registry.stored == 0


async def test_key_that_is_not_in_force_can_not_be_revoked(here):
    _, made = await here.operator.issue_key(BOT, reason="the desk")
    with pytest.raises(RegistryError, match=r"0{16} is not in force"):
        await here.operator.revoke_key("0" * 16, reason="x")
    await here.operator.revoke_key(made.key_id, reason="over")
    with pytest.raises(RegistryError, match="not in force"):
        await here.operator.revoke_key(made.key_id, reason="again")


@pytest.mark.parametrize(
    "damage",
    [
        {"hash": "plain text"},
        {"key_id": "../../x"},
        {"tenant": "*"},
        {"agent": ""},
        {"expires_at": "soon"},
        {"unheard_of": 1},
    ],
)
async def test_stored_key_that_can_not_be_understood_stops_the_worker(here, damage, clock):
    await here.operator.issue_key(BOT, reason="the desk")
    what = dict(here.registry.changes[0].export())
    what.pop("number")
    what["key"] = {**what["key"], **damage}
    with pytest.raises(StoreError, match="change 1 "):
        Worker(None, clock).registry.apply(1, what)


async def test_key_of_a_tenant_whose_name_was_allowed_once_is_not_in_force(here):
    await here.operator.issue_key(BOT, reason="x")
    _, what = (await here.store.changes(0))[0]
    registry = Registry()
    registry.apply(1, {**what, "key": {**what["key"], "tenant": "acme corp"}})
    assert (registry.stored, registry.credentials) == (1, ())
