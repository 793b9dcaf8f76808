"""The record at a view: searched, sealed, checked, exported."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.operations.auditor import seal_store
from counterseal.views.audit_log import VerificationRunningError
from counterseal.views.base import NotFoundError


async def test_events_are_found_newest_first_and_paged_through(office):
    for n in range(4):
        await office.call("save", {"n": n})
    view = office.view()
    seen, cursor = [], None
    while True:
        page = await view.record.search(types=["tool.succeeded"], limit=3, cursor=cursor)
        seen += [row.model_dump(mode="json") for row in page.items]
        cursor = page.next
        if cursor is None:
            break
    ids = [one["event_id"] for one in seen]
    assert len(ids) == 4
    assert ids == sorted(ids, reverse=True)
    assert {one["type"] for one in seen} == {"tool.succeeded"}


@pytest.mark.parametrize("search", [{"types": ["no.such"]}, {"cursor": "x"}, {"cursor": "WyJ4Il0"}])
async def test_what_can_not_be_searched_for_is_named(office, search):
    with pytest.raises(ValueError, match=next(iter(search))):
        await office.view().record.search(**search)


async def test_the_chain_says_how_far_it_is_sealed(office, tmp_path):
    await office.call("save")
    view = office.view()
    assert (await view.record.chain()).unsealed is None
    office.runtime.keys = KeyRing([new_key(tmp_path, Purpose.AUDIT, datetime.now(UTC))])
    signer = office.runtime.keys.signer("audit")
    made = await seal_store(office.runtime.store, "acme", signer, 1_800_000_000.0)
    status = await view.record.chain()
    assert (status.checkpoints, status.segments, status.unsealed) == (1, 1, 0)
    assert status.sealed_hash == made.hash.hex()
    assert status.has_key
    await office.call("save", {"n": 2})
    assert (await view.record.chain()).unsealed == 1
    *checked, report = [step async for step in view.record.verification()]
    assert report.ok
    assert report.events == report.sealed + report.unsealed
    assert all(0 <= number <= report.events for number in checked)
    assert await view.record.verify() == report


async def test_a_record_is_verified_once_at_a_time(office):
    view = office.view()
    steps = view.record.verification()
    assert await anext(steps) == 0
    with pytest.raises(VerificationRunningError, match="Try again when it has ended"):
        await view.record.verify()
    await steps.aclose()
    assert (await view.record.verify()).ok


async def test_an_export_holds_every_event_once_in_both_forms(office):
    await office.call("save")
    view = office.view()
    lines = b"".join([part async for part in view.record.export()]).decode().splitlines()
    events = [json.loads(line) for line in lines]
    assert [one["type"] for one in events] == ["tool.requested", "tool.started", "tool.succeeded"]
    text = b"".join([part async for part in view.record.export("csv")]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["event_id"] for row in rows] == [one["event_id"] for one in events]
    with pytest.raises(NotFoundError):
        [part async for part in view.record.export("pdf")]


async def test_a_person_without_a_role_has_no_view(office):
    from counterseal.views import TenantView
    from counterseal.views.base import RoleRequiredError

    with pytest.raises(RoleRequiredError, match="viewer"):
        TenantView(office.runtime, replace(office.view().person, roles=frozenset({"compliance"})))
