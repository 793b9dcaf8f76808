"""After an approval: carried out by whichever worker, or sent again by the agent; once, either way.

Restarts, clocks that move, callers who wait, and a webhook that tells people.
"""

import asyncio
import hashlib
import hmac
import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import pytest

from counterseal import Policy, Runtime, Webhook
from counterseal.codes import Code
from counterseal.execution.webhook import SIGNATURE
from counterseal.keys import KeyRing, Purpose
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.operations.approver import ApprovalError
from counterseal.operations.attention import NeedsAttention
from counterseal.reconcile import Reconciler
from counterseal.storage import open_store
from counterseal.storage.memory import MemoryStore
from counterseal.storage.sqlite import SqliteStore
from counterseal.testing import FakeClock
from tests.journeys.approvals_worker import (
    Office,
    agent,
    key_ring,
    letter,
    opened,
    person,
    sent_as,
)
from tests.postgres_server import borrowed_database
from tests.waiting import turns

TWO = {"approvers": 2}
SECRET = "correct horse battery"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("executed") / "keys"
    key_ring(folder)
    return folder


@pytest.fixture(scope="module")
def ring(folder):
    return KeyRing.load(folder)


@pytest.fixture
def office():
    return Office()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path, clock):
    memory = request.param == "memory"
    store = MemoryStore(clock) if memory else SqliteStore(tmp_path / "s.db", clock=clock)
    yield store
    await store.close()


@pytest.fixture
def worker(store, office, clock, ring):
    """A runtime on the store, as another process would have one."""

    def worker(declared=None, **options):
        given = {"keys": ring, "clock": clock, **options}
        return opened("", office, store=store, declared=declared, **given)

    return worker


async def asked(runtime, key="k", **more):
    return (await runtime.submit(letter(key, **more), agent())).approval_id


async def approve(runtime, approval_id, *names):
    for name in names or ("alice",):
        packet = await runtime.approvals.decide(approval_id, person(name), "approve")
    return packet.status


async def reconcile(runtime):
    """One pass, and what was done in it about approvals."""
    done = await Reconciler(runtime).once()
    del done["sealed"], done["verified"]
    return done


async def status_of(store, approval_id):
    return (await store.find_held("acme", approval_id)).status


# --- execute, and resubmit ------------------------------------------------------------------------


async def test_any_worker_carries_out_what_was_approved_and_the_agent_reads_it_by_its_key(
    worker, store, office
):
    it = await asked(worker())
    assert await reconcile(worker()) == {}
    await approve(worker(), it)
    assert (await reconcile(worker()))["executed"] == 1
    assert office.sent == [sent_as("k")]
    seen = await worker().submit(letter("k"), agent())
    assert (seen.ok, seen.idempotency_hit) == (True, True)
    assert seen.data == {"sent_to": "ann@example.org"}
    assert await reconcile(worker()) == {}
    assert (len(office.sent), await status_of(store, it)) == (1, HeldStatus.SPENT)


async def test_what_the_agent_has_to_send_again_waits_for_the_agent(worker, store, office):
    declared = {"approval": {"then": "resubmit"}}
    it = await asked(worker(declared))
    await approve(worker(declared), it)
    assert await reconcile(worker(declared)) == {}
    assert office.sent == []
    assert (await worker(declared).submit(letter("k"), agent())).ok
    assert len(office.sent) == 1


async def test_the_call_is_made_as_it_was_asked_with_its_corrections_and_its_config(
    worker, store, office
):
    nobody = {"id": "TO_US", "rule": "Nothing goes to nobody.", "check": "call.recipient != ''"}
    declared = {
        "config_params": [{"key": "sender", "default": "office", "normalizer": "lower"}],
        "invariants": [{**nobody, "correct": {"set": {"recipient": "us@example.org"}}}],
    }
    runtime = worker(declared)
    proposal = letter(arguments={"recipient": ""}, configurable={"sender": "COURT"})
    seen = await runtime.submit(proposal, agent())
    packet = await runtime.approvals.get("acme", seen.approval_id)
    assert packet.arguments["recipient"] == "us@example.org"
    assert packet.config == {"sender": "court"}
    await approve(runtime, seen.approval_id)
    assert (await reconcile(worker(declared)))["executed"] == 1
    again = await runtime.submit(proposal, agent())
    assert (again.idempotency_hit, again.data) == (True, {"sent_to": "us@example.org"})
    assert len(office.sent) == 1


async def test_a_step_of_a_plan_is_carried_out_as_it_was_planned(worker, office):
    fix = {"set": {"recipient": "us@example.org"}}
    check = {"id": "TO_US", "rule": "To somebody.", "check": "call.recipient != ''"}
    runtime = worker({"invariants": [{**check, "correct": fix}]})
    step = {"tool": "send_notice", "arguments": {"draft_id": "drf_1", "recipient": ""}}
    plan = await runtime.plan([step], agent(), run_id="run_1")
    (planned,) = plan.proposals
    seen = await runtime.submit(planned, agent())
    await approve(runtime, seen.approval_id)
    assert (await reconcile(runtime))["executed"] == 1
    for same in (planned, letter(arguments={"recipient": ""})):
        assert (await runtime.submit(same, agent())).idempotency_hit
    assert len(office.sent) == 1


async def test_a_config_that_only_the_caller_has_is_given_by_the_caller_again(worker, office):
    declared = {"config_params": [{"key": "sender"}]}
    runtime = worker(declared)
    proposal = letter("k", configurable={"sender": {"a", "b"}})
    seen = await runtime.submit(proposal, agent())
    await approve(runtime, seen.approval_id)
    assert await reconcile(runtime) == {}
    assert (await runtime.submit(proposal, agent())).ok
    assert len(office.sent) == 1


async def test_rights_that_are_gone_by_then_are_gone(worker, store, office):
    it = await asked(worker())
    await approve(worker(), it)
    assert (await reconcile(worker(grants=[])))["refused"] == 1
    assert office.sent == []


async def test_a_tool_that_was_killed_meanwhile_is_not_run(worker, store, office):
    runtime = worker()
    it = await asked(runtime)
    await approve(runtime, it)
    await worker().operator("ops").kill(tool="send_notice", reason="It misbehaves.")
    assert (await reconcile(runtime))["refused"] == 1
    assert office.sent == []


async def test_the_scopes_of_then_are_a_ceiling(worker, office):
    rule = {"id": "new", "when": "!('notice:all' in principal.scopes)", "then": "deny"}
    policy = Policy.from_data({"rules": [{**rule, "reason": "No."}]})
    plain = worker()
    it = (await plain.submit(letter("k"), agent(scopes=["notice:send"]))).approval_id
    await approve(plain, it)
    # Whoever asks may have more scopes today; the call that was approved has those of then.
    assert (await reconcile(worker(policy=policy)))["refused"] == 1
    assert office.sent == []


@pytest.mark.slow
async def test_agent_and_reconciler_at_once_do_it_once(worker, store, office):
    runtimes = [worker() for _ in range(3)]
    for number in range(20):
        it = await asked(runtimes[0], f"k{number}")
        await approve(runtimes[0], it)
        proposal = letter(f"k{number}")
        await asyncio.gather(
            reconcile(runtimes[0]),
            runtimes[1].submit(proposal, agent(), wait=30),
            runtimes[2].submit(proposal, agent(), wait=30),
        )
        assert len(office.sent) == number + 1
        assert (await runtimes[1].submit(proposal, agent())).idempotency_hit


async def test_who_finds_the_agent_at_work_looks_again_later(worker, store, office, clock):
    runtime = worker()
    it = await asked(runtime)
    await approve(runtime, it)
    office.door = asyncio.Event()
    working = asyncio.create_task(worker().submit(letter("k"), agent()))
    await office.begun.wait()
    assert await reconcile(runtime) == {"resting": 1}
    office.door.set()
    assert (await working).ok
    clock.advance(2)
    assert await reconcile(runtime) == {"dropped": 1}
    assert len(office.sent) == 1


async def test_a_world_that_can_not_be_asked_is_tried_again_and_then_told_to_an_operator(
    worker, store, office, clock
):
    runtime = worker({"approval": {"expires_seconds": 86_400}})
    it = await asked(runtime)
    await approve(runtime, it)
    office.down = True
    for _ in range(9):
        assert await reconcile(runtime) == {"resting": 1}
        clock.advance(61)
    assert await reconcile(runtime) == {"failed": 1}
    (concern,) = await store.concerns("acme")
    assert (concern.kind, concern.key) == ("execute", it)
    office.down = False
    people = NeedsAttention(runtime, by="ops")
    await people.again("acme", DueKind.EXECUTE, it, reason="It is back.")
    told = [event for _, event in await runtime.store.events("acme")][-1]
    assert (told.decision, told.caller.user, told.body["reason"]) == ("again", "ops", "It is back.")
    assert await reconcile(runtime) == {"executed": 1}
    assert len(office.sent) == 1


async def test_who_does_not_hold_the_contract_leaves_it_to_who_does(worker, store, office, clock):
    it = await asked(worker())
    await approve(worker(), it)
    newer = worker({"version": "2.0.0"})
    assert (await reconcile(newer))["resting"] == 1
    clock.advance(61)
    assert (await reconcile(worker()))["executed"] == 1
    assert len(office.sent) == 1


async def test_who_has_no_key_to_check_it_leaves_it_to_who_has(
    worker, store, office, clock, ring, tmp_path
):
    it = await asked(worker())
    await approve(worker(), it)
    vault = [key for key in ring.keys if key.purpose is Purpose.VAULT]
    other = key_ring(tmp_path / "other")
    stranger = KeyRing([*vault, *(key for key in other.keys if key.purpose is Purpose.APPROVAL)])
    assert (await reconcile(worker(keys=stranger)))["resting"] == 1
    clock.advance(61)
    assert (await reconcile(worker()))["executed"] == 1
    assert len(office.sent) == 1


async def test_an_approval_that_comes_too_late_to_be_used_is_dropped(worker, store, office, clock):
    it = await asked(worker())
    await approve(worker(), it)
    clock.advance(600)
    assert await reconcile(worker()) == {"dropped": 1}
    seen = await worker().submit(letter("k"), agent())
    assert (seen.code, seen.next_action) == (Code.CONFIRMATION_MISSING, "replan")
    clock.advance(600)
    assert await reconcile(worker()) == {"expired approvals": 1}
    assert await status_of(store, it) is HeldStatus.VOID
    seen = await worker().submit(letter("k"), agent())
    assert (seen.next_action, seen.approval_id == it) == ("await_approval", False)
    assert office.sent == []


async def test_a_call_that_may_be_repeated_is_answered_once_it_was_carried_out(worker, office):
    runtime = worker({"repeatable": True})
    it = (await runtime.submit(letter(), agent())).approval_id
    await approve(runtime, it)
    assert (await reconcile(runtime))["executed"] == 1
    seen = await runtime.submit(letter(), agent())
    assert (seen.data, seen.idempotency_hit) == ({"sent_to": "ann@example.org"}, True)
    named = await runtime.submit(letter(operation_id="again"), agent())
    assert (named.next_action, len(office.sent)) == ("await_approval", 1)


READ = {
    "effect": "read_only",
    "approvers": 1,
    "approval": {"then": "resubmit"},
    "probe": None,
    "preview": None,
    "consequence": "Draft {draft_id} is read.",
}


async def test_a_read_that_came_to_nothing_does_not_use_up_its_approval(worker, store, office):
    runtime = worker(READ)
    it = await asked(runtime)
    await approve(runtime, it)
    office.busy = True
    seen = await runtime.submit(letter("k"), agent())
    assert (seen.code, await status_of(store, it)) == (Code.RATE_LIMITED, HeldStatus.APPROVED)
    office.busy = False
    assert (await runtime.submit(letter("k"), agent())).ok
    assert await status_of(store, it) is HeldStatus.SPENT


async def test_a_worker_without_the_tool_leaves_an_approved_call_to_others(
    worker, store, office, clock, ring
):
    declared = {"approval": {"expires_seconds": 86_400}}
    it = await asked(worker(declared))
    await approve(worker(declared), it)
    stranger = Runtime(store, keys=ring, clock=clock)
    clock.advance(601)
    assert await reconcile(stranger) == {"resting": 1}
    assert await store.concerns() == []
    clock.advance(61)
    assert (await reconcile(worker(declared)))["executed"] == 1
    assert len(office.sent) == 1


async def test_a_call_that_no_worker_could_execute_ends_with_its_request(
    worker, store, clock, ring
):
    it = await asked(worker())
    await approve(worker(), it)
    clock.advance(601)
    assert (await reconcile(Runtime(store, keys=ring, clock=clock)))["dropped"] == 1
    assert (await store.concerns(), await store.find_due("acme", DueKind.EXECUTE, it)) == ([], None)


# --- restarts and clocks --------------------------------------------------------------------------


async def test_everything_survives_a_restart_between_any_two_steps(tmp_path, folder, clock):
    file = tmp_path / "sent"

    @asynccontextmanager
    async def restarted():
        ring = KeyRing.load(folder)
        url, there = f"sqlite:///{tmp_path}/store.db", Office(file)
        async with opened(url, there, declared=TWO, keys=ring, clock=clock) as runtime:
            yield runtime

    async with restarted() as runtime:
        it = await asked(runtime)
    async with restarted() as runtime:
        assert await asked(runtime) == it
    async with restarted() as runtime:
        assert await approve(runtime, it, "alice") == "waiting"
    async with restarted() as runtime:
        with pytest.raises(ApprovalError, match="voted"):
            await approve(runtime, it, "alice")
    async with restarted() as runtime:
        assert await approve(runtime, it, "bob") == "approved"
    assert not file.exists()
    async with restarted() as runtime:
        assert (await reconcile(runtime))["executed"] == 1
    async with restarted() as runtime:
        assert (await reconcile(runtime))["executed"] == 0
        assert (await runtime.submit(letter("k"), agent())).idempotency_hit
    assert file.read_text().splitlines() == [sent_as("k")]


async def test_at_the_very_moment_it_is_over_it_is_over(worker, store, clock, office):
    runtime = worker()
    first, second = await asked(runtime, "k1"), await asked(runtime, "k2")
    end = clock() + 600
    clock.now = end - 0.001
    assert await approve(runtime, first) == "approved"
    clock.now = end
    with pytest.raises(ApprovalError) as found:
        await approve(runtime, second)
    assert found.value.why == "expired"
    assert await status_of(store, second) is HeldStatus.EXPIRED
    assert (await runtime.submit(letter("k1"), agent())).code is Code.CONFIRMATION_MISSING
    assert office.sent == []


async def test_a_clock_that_goes_back_does_not_bring_back_what_is_over(worker, store, clock):
    runtime = worker()
    it = await asked(runtime)
    clock.advance(600)
    assert (await reconcile(runtime))["expired approvals"] == 1
    clock.advance(-600)
    with pytest.raises(ApprovalError) as found:
        await approve(runtime, it)
    assert found.value.why == "decided"
    seen = await runtime.submit(letter("k"), agent())
    assert (seen.code, seen.next_action) == (Code.CONFIRMATION_MISSING, "replan")


async def test_a_worker_whose_clock_is_behind_waits_until_it_was_approved(
    worker, store, clock, office
):
    behind = FakeClock(clock() - 60)
    it = await asked(worker())
    await approve(worker(), it)
    late = worker(clock=behind)
    seen = await late.submit(letter("k"), agent())
    assert (seen.code, office.sent) == (Code.CONFIRMATION_MISSING, [])
    assert await status_of(store, it) is HeldStatus.APPROVED
    behind.advance(60)
    assert (await late.submit(letter("k"), agent())).ok


# --- who waits ------------------------------------------------------------------------------------


@asynccontextmanager
async def two_stores(kind, folder):
    """Two workers' stores: the same one, or two on one database."""
    async with AsyncExitStack() as stack:
        if kind == "postgres":
            url = stack.enter_context(borrowed_database())
        else:
            url = f"sqlite:///{folder}/store.db" if kind == "sqlite" else "memory:"
        first = open_store(url)
        stack.push_async_callback(first.close)
        second = first
        if kind != "memory":
            second = open_store(url)
            stack.push_async_callback(second.close)
        yield first, second


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("choice", ["approve", "reject"])
async def test_who_waits_is_woken_by_the_decision(kind, choice, tmp_path, ring, clock, office):
    async with two_stores(kind, tmp_path) as (one, other):
        waiting, deciding = (
            opened("", office, store=store, declared=TWO, keys=ring, clock=clock)
            for store in (one, other)
        )
        it = await asked(waiting)
        waits = asyncio.create_task(waiting.approvals.wait("acme", it, 60))
        if choice == "approve":
            await approve(deciding, it, "alice")
        await turns()
        assert not waits.done()
        await deciding.approvals.decide(it, person("bob"), choice)
        packet = await asyncio.wait_for(waits, 30)
        assert packet.status == ("approved" if choice == "approve" else "rejected")


async def test_who_waits_too_long_or_for_nothing_is_told_so(worker, clock):
    runtime = worker()
    it = await asked(runtime)
    assert (await runtime.approvals.wait("acme", it, 0)).status == "waiting"
    assert (await runtime.approvals.wait("acme", it, 0.01)).status == "waiting"
    clock.advance(600)
    assert (await runtime.approvals.wait("acme", it, 30)).status == "expired"
    with pytest.raises(ApprovalError):
        await runtime.approvals.wait("acme", "appr_0", 1)


# --- the webhook ----------------------------------------------------------------------------------


@pytest.fixture
def hook():
    """A real server that is told of requests. It answers with `answers`, the last one again."""

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.told.append((dict(self.headers), raw))
            self.send_response(self.server.answers[0])
            if self.server.answers[1:]:
                self.server.answers.pop(0)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    server.told, server.answers = [], [204]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}/approvals"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def telling(worker, hook):
    return worker(webhook=Webhook(url=hook.url, secret=SECRET, console="https://c.example/a/"))


async def test_people_are_told_where_to_decide_and_by_whom_they_are_told(telling, hook, clock):
    it = await asked(telling)
    await asked(telling)
    assert (await reconcile(telling))["notified"] == 1
    assert await reconcile(telling) == {}
    ((headers, raw),) = hook.told
    notice = json.loads(raw)
    assert notice["approval_id"] == it
    assert notice["url"] == f"https://c.example/a/{it}"
    assert notice["consequence"].startswith("Notice drf_1 is e-mailed")
    moment, signature = (part.split("=")[1] for part in headers[SIGNATURE].split(","))
    assert float(moment) == clock()
    expected = hmac.new(SECRET.encode(), f"{moment}.".encode() + raw, hashlib.sha256)
    assert signature == expected.hexdigest()


async def test_a_worker_without_a_hook_leaves_notifying_to_one_that_has_it(
    telling, worker, hook, clock
):
    await asked(telling)
    assert await reconcile(worker()) == {"resting": 1}
    clock.advance(61)
    assert await reconcile(telling) == {"notified": 1}
    assert len(hook.told) == 1


async def test_no_notice_carries_what_a_decision_could_be_made_with(telling, hook, store):
    it = await asked(telling)
    await reconcile(telling)
    await approve(telling, it)
    held = await store.find_held("acme", it)
    await reconcile(telling)
    told = repr(hook.told)
    assert held.token.split(".")[1] not in told
    assert SECRET not in told
    assert held.votes[0]["signature"] not in told
    assert len(hook.told) == 1


@pytest.mark.parametrize("answer", [500, 302, 404])
async def test_who_does_not_take_it_is_told_again(telling, hook, clock, answer):
    hook.answers[:] = [answer, answer, 200]
    await asked(telling)
    for _ in range(2):
        assert (await reconcile(telling))["resting"] == 1
        assert await reconcile(telling) == {}
        clock.advance(61)
    assert (await reconcile(telling))["notified"] == 1
    assert len(hook.told) == 3
    assert {urlsplit(hook.url).path} == {"/approvals"}


@pytest.mark.slow
async def test_who_never_takes_it_is_a_matter_for_an_operator(worker, hook, store, clock):
    declared = {"approval": {"expires_seconds": 86_400}}
    telling = worker(declared, webhook=Webhook(url=hook.url, secret=SECRET))
    hook.answers[:] = [503]
    it = await asked(telling)
    for _ in range(9):
        assert (await reconcile(telling))["resting"] == 1
        clock.advance(61)
    assert (await reconcile(telling))["not_notified"] == 1
    (concern,) = await store.concerns()
    assert (concern.kind, concern.key, concern.reason) == ("notify", it, "the webhook answers 503")
    assert len(hook.told) == 10


async def test_no_notification_is_sent_for_a_request_that_is_decided_or_over(telling, hook, clock):
    first, second = await asked(telling, "k1"), await asked(telling, "k2")
    await telling.approvals.decide(first, person("alice"), "reject")
    clock.advance(600)
    assert (await reconcile(telling))["dropped"] == 2
    assert hook.told == []
    assert first != second


async def test_a_missing_hook_does_not_prevent_requests(worker, hook, clock):
    webhook = Webhook(url=hook.url, secret=SECRET)
    hook.shutdown()
    hook.server_close()
    telling = worker(webhook=webhook)
    it = await asked(telling)
    assert (await reconcile(telling))["resting"] == 1
    await approve(telling, it)
    assert (await reconcile(telling))["executed"] == 1


@pytest.mark.parametrize(
    "wrong", [{"url": "ftp://x/y"}, {"url": "https://"}, {"secret": "short"}, {"url": "nothing"}]
)
def test_a_webhook_is_an_address_and_a_secret(wrong):
    with pytest.raises(ValueError, match="|".join(wrong)):
        Webhook(**{"url": "https://example.org/x", "secret": SECRET, **wrong})
    assert SECRET not in repr(Webhook(url="https://example.org/x", secret=SECRET))
