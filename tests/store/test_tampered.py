"""Rows that were changed behind a store's back are handed out, so that the change can be found."""

import sqlite3
from contextlib import closing

import pytest

from counterseal.audit import Head
from counterseal.audit.chain import Checkpoint
from counterseal.audit.verify import FindingKind, RecordVerifier
from counterseal.ledger.requests import EventFilter, ExpiryRequest
from counterseal.storage import open_store
from tests.postgres_server import execute
from tests.store.chains import log_of
from tests.store.same import DURABLE

LATER = -1e6
"""An age that everything has."""
GARBLED = [
    "",
    "{",
    "null",
    "7",
    "[]",
    '["ab12"]',
    '{"ab12": 1}',
    '{"ab12": {}}',
    '{"ab12": [1]}',
    '{"ab12": [1, 2, 3]}',
    '{"ab12": [1, 2, "no hash"]}',
    '{"ab12": ["1", 2, "00"]}',
    '{"ab12": [1, 2.5, "00"]}',
    '{"ab12": [1, 1, "00"], "cd34": null}',
]


@pytest.fixture(params=DURABLE)
def url(request):
    place, _ = DURABLE[request.param]
    with place() as url:
        yield url


@pytest.fixture
async def store(url):
    store = open_store(url)
    yield store
    await store.close()


@pytest.fixture
def tamper(url):
    """Runs a statement as an attacker does who can write to the store."""

    def tamper(statement):
        if url.startswith("sqlite:"):
            path = url.removeprefix("sqlite://")
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute(statement)
        else:
            execute(url, statement)

    return tamper


@pytest.fixture
def findings(store):
    """What a check of a tenant's record finds."""

    async def findings(tenant="acme"):
        verifier = RecordVerifier(tenant, await store.checkpoints(tenant))
        verifier.feed(await log_of(store, tenant))
        return verifier.report().findings

    return findings


WRITTEN_BACK = ["type = 'tool.started'", "body = '{}'", "tool = ''", "occurred_at = 0", "user = ''"]


@pytest.mark.parametrize("what", WRITTEN_BACK)
async def test_text_that_was_written_into_an_erased_event_is_seen(
    url, store, make, tamper, findings, what
):
    await store.settle(make.settle(events=[make.event(), make.event()]))
    await store.expire(ExpiryRequest(events_after=LATER))
    first, second, _ = await log_of(store)
    assert (first.columns, second.columns) == (None, None)
    assert not [one for one in await findings() if one.kind == FindingKind.CHANGED]
    if url.startswith("postgres"):
        what = what.replace("user", "user_id")
    tamper(f"UPDATE events SET {what} WHERE number = {first.link.number}")
    changed, untouched, _ = await log_of(store)
    assert changed.link.salt is None
    assert changed.columns[1] == "acme"
    assert len([one for one in changed.columns if one is not None]) == 2
    assert untouched == second
    (found,) = [one for one in await findings() if one.kind == FindingKind.CHANGED]
    assert found.event_id == first.link.event_id


@pytest.mark.parametrize("narrow", [{}, {"call_id": "call_1"}, {"run_id": "run_1"}])
async def test_what_was_written_into_an_erased_event_is_never_told_as_one(
    store, make, tamper, narrow
):
    await store.settle(make.settle(events=[make.event(), make.event()]))
    await store.expire(ExpiryRequest(events_after=LATER))
    said = "type = 'tool.started', run_id = 'run_1', call_id = 'call_1', occurred_at = 1"
    tamper(f"UPDATE events SET {said} WHERE salt IS NULL")
    await store.settle(make.settle())
    told = [event.type for _, event in await store.events("acme", **narrow)]
    assert told == [*([] if narrow else ["audit.erased"]), "tool.succeeded"]
    for newest_first in (True, False):
        search = EventFilter(**narrow, types=["tool.started"], newest_first=newest_first)
        assert await store.search("acme", search) == []


@pytest.mark.parametrize("heads", GARBLED)
async def test_a_checkpoint_that_was_garbled_is_still_handed_out(store, tamper, findings, heads):
    sealed = Checkpoint(
        tenant="acme",
        number=1,
        sealed_at=1.5,
        heads={"ab12": Head(1, 1, b"\1" * 32)},
        hash=b"\2" * 32,
        key_id="key_1",
        signature=b"s",
    )
    assert await store.seal(sealed)
    tamper(f"UPDATE checkpoints SET heads = '{heads}'")
    (found,) = await store.checkpoints("acme")
    assert found.heads == {}
    assert (found.number, found.hash, found.key_id, found.signature) == (
        sealed.number,
        sealed.hash,
        sealed.key_id,
        sealed.signature,
    )
    assert [(one.kind, one.checkpoint) for one in await findings()] == [(FindingKind.CHECKPOINT, 1)]


async def test_a_tenant_whose_events_are_all_gone_is_still_named(store, make, tamper, findings):
    for tenant in ("acme", "other", "zeta"):
        await store.settle(make.settle(tenant))
    heads = await store.heads("acme", 0)
    await store.seal(Checkpoint(tenant="acme", number=1, sealed_at=1.0, heads=heads))
    tamper("DELETE FROM events WHERE tenant <> 'other'")
    assert list(await store.tenants()) == ["acme", "other"]
    assert await findings()
