"""A caller that is cancelled: the call is on record as cancelled, wherever it stood by then."""

import asyncio

import pytest

from counterseal import Grant, Proposal
from counterseal.accounts.users import Person
from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.testing import HANG, fake_tool, runtime_for, someone
from counterseal.views import TenantView
from tests.waiting import until

ENDS = (EventType.SUCCEEDED, EventType.FAILED, EventType.DENIED, EventType.APPROVAL_REQUIRED)


def ask(**more):
    return Proposal(tool="slow", arguments={}, run_id="run_1", **more)


async def endings(runtime):
    events = [event for _, event in await runtime.store.events("acme")]
    return [event for event in events if event.type in ENDS]


async def cancelled(runtime, began, **more):
    """Cancel a call once `began` is true, and return the event that ended it."""
    call = asyncio.ensure_future(runtime.submit(ask(**more), someone()))
    await until(began)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (end,) = await until(lambda: endings(runtime))
    return end


@pytest.mark.parametrize("effect", ["read_only", "draft"])
async def test_a_call_that_was_cancelled_while_its_tool_ran_is_on_record_as_cancelled(effect):
    tool = fake_tool("slow", HANG, effect=effect)
    runtime = runtime_for(tool)
    end = await cancelled(runtime, lambda: tool.calls)
    assert (end.type, end.decision) == (EventType.FAILED, "TIMEOUT")
    assert end.body["status"] == "CANCELLED"
    view = TenantView(runtime, Person(name="ann", tenant="acme", roles=frozenset({"viewer"})))
    (row,) = (await view.calls.search()).items
    assert (row.code, row.status) == ("TIMEOUT", "CANCELLED")
    assert (await view.calls.page(row.call_id)).call.status == "CANCELLED"


async def test_a_cancelled_change_is_still_unknown_in_the_ledger():
    tool = fake_tool("slow", HANG, effect="draft")
    runtime = runtime_for(tool)
    await cancelled(runtime, lambda: tool.calls, key="k")
    entry = (await runtime.store.look_up("acme", "call:slow:k")).entry
    assert (entry.status, entry.phase) == (EntryStatus.PENDING, Phase.ESCALATED)


async def test_a_call_that_was_cancelled_before_it_was_admitted_is_on_record():
    probing = asyncio.Event()

    async def probe():
        probing.set()
        await asyncio.Event().wait()

    tool = fake_tool("slow", effect="draft", probe=probe)
    runtime = runtime_for(tool)
    end = await cancelled(runtime, probing.is_set)
    assert (end.type, end.decision, end.body["began"]) == (EventType.FAILED, "TIMEOUT", False)
    assert end.body["status"] == "CANCELLED"
    assert list(end.body["gates"]) == ["parse", "schema", "scope", "semantics", "policy"]
    assert tool.calls == []


@pytest.mark.parametrize("effect", ["read_only", "draft"])
async def test_a_call_that_was_cancelled_during_its_admission_is_on_record(effect):
    tool = fake_tool("slow", effect=effect, observability={"audit_required": True})
    runtime = runtime_for(tool)
    admit, began, may_end = runtime.store.admit, asyncio.Event(), asyncio.Event()

    async def slowly(request):
        admission = await admit(request)
        began.set()
        await may_end.wait()
        return admission

    runtime.store.admit = slowly
    call = asyncio.ensure_future(runtime.submit(ask(), someone()))
    await began.wait()
    call.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    (end,) = await until(lambda: endings(runtime))
    assert (end.type, end.body["began"], end.body["status"]) == ("tool.failed", False, "CANCELLED")
    assert tool.calls == []


async def test_a_call_that_was_refused_and_then_cancelled_has_one_end():
    runtime = runtime_for(fake_tool("slow"))
    refuse, began = runtime.store.record_and_count, asyncio.Event()

    async def slowly(*arguments):
        times = await refuse(*arguments)
        began.set()
        await asyncio.Event().wait()
        return times

    runtime.store.record_and_count = slowly
    runtime.registry.revoke(Grant(agent="agent", tool="slow"))
    end = await cancelled(runtime, began.is_set)
    assert (end.type, "status" in end.body) == (EventType.DENIED, False)


@pytest.mark.parametrize("answers", [[{"ok": True}], [ValueError("no")]])
async def test_a_change_that_was_cancelled_while_it_was_settled_has_one_end(answers):
    runtime = runtime_for(fake_tool("slow", *answers, effect="draft"))
    settle, began, may_end = runtime.store.settle, asyncio.Event(), asyncio.Event()

    async def slowly(request):
        began.set()
        await may_end.wait()
        return await settle(request)

    runtime.store.settle = slowly
    call = asyncio.ensure_future(runtime.submit(ask(key="k"), someone()))
    await began.wait()
    call.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    (end,) = await endings(runtime)
    assert "status" not in end.body
    entry = (await runtime.store.look_up("acme", "call:slow:k")).entry
    assert entry.worker is None


async def test_a_call_that_ran_out_of_time_is_no_cancelled_call():
    runtime = runtime_for(fake_tool("slow", HANG, timeout_ms=20))
    seen = await runtime.submit(ask(), someone())
    (end,) = await endings(runtime)
    assert (seen.code, end.decision, "status" in end.body) == ("TIMEOUT", "TIMEOUT", False)
