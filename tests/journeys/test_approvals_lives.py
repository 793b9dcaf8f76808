"""Requests for approval, whatever happens to them: held against a model that fits on a page.

Nothing is ever sent that was not approved by two people, in time, for this recipient, of the draft
as they were shown it; and nothing is sent twice.
"""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from counterseal.codes import Code
from counterseal.operations.approver import ApprovalError
from counterseal.reconcile import Reconciler
from counterseal.storage.memory import MemoryStore
from counterseal.storage.sqlite import SqliteStore
from counterseal.testing import FakeClock
from tests.journeys.approvals_worker import Office, agent, key_ring, letter, opened, person, sent_as

KEYS = ("k1", "k2")
ADDRESSES = ("ann@example.org", "ann@example.org", "ann@example.org", "bob@example.org")
PEOPLE = ("alice", "bob", "carol", "u_1")


async def no_pause(_seconds):
    pass


@dataclass(eq=False)
class Asked:
    """A request, as whoever sees it from outside knows it."""

    key: str
    to: str
    version: int
    ends: float
    yes: set = field(default_factory=set)
    no: bool = False
    over: bool = False
    """Spent, void, expired on record, or replaced by another."""

    def waits(self, now):
        return not (self.over or self.no or len(self.yes) >= 2) and now < self.ends

    @property
    def approved(self):
        return not (self.over or self.no) and len(self.yes) >= 2

    def stands(self, now):
        return self.approved and now < self.ends


class Lives(RuleBasedStateMachine):
    """One office, two keys, three people and the requester."""

    durable = False

    def __init__(self):
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.clock, self.office = FakeClock(), Office()
        self.ring = RING
        self.asked, self.last, self.sent = {}, {}, {}
        self._told = 0

    @initialize(then=st.sampled_from(["execute", "resubmit"]))
    def begin(self, then):
        self.declared = {"approvers": 2, "approval": {"then": then}, "max_retries": 0}
        self.then = then
        self._open()
        for key in KEYS:
            self.submit(key, ADDRESSES[0])

    def _open(self):
        path = Path(self._folder.name) / "store.db"
        self.store = (
            SqliteStore(path, clock=self.clock) if self.durable else MemoryStore(self.clock)
        )
        self._start()

    def _start(self):
        options = {"keys": self.ring, "clock": self.clock, "pause": no_pause}
        self.runtime = opened("", self.office, store=self.store, declared=self.declared, **options)

    def teardown(self):
        if hasattr(self, "store"):
            self.loop.run(self.store.close())
        self.loop.close()
        self._folder.cleanup()

    # --- what can happen --------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), to=st.sampled_from(ADDRESSES))
    def submit(self, key, to):
        now, mine = self.clock(), self.last.get(key)
        same = mine is not None and mine.to == to
        ready = same and mine.stands(now) and key not in self.sent
        stale = same and mine.approved and mine.version != self.office.version
        # What nobody used for as long again as it was open stands for nothing any more.
        stale = stale and key not in self.sent and now < mine.ends + 600
        seen = self.loop.run(self.runtime.submit(letter(key, arguments={"recipient": to}), agent()))
        self._look()
        if seen.ok:
            assert self.sent[key] == to
        elif key in self.sent:
            assert seen.code is Code.SIGNATURE_MISMATCH
            assert self.sent[key] != to
        elif stale:
            assert seen.code is Code.STALE_STATE
            mine.over = True
        elif ready:
            assert self.office.busy
            assert seen.code is Code.RATE_LIMITED
        else:
            assert seen.code is Code.CONFIRMATION_MISSING
            self._asked(seen, key, to)
            if same and not mine.waits(now) and not mine.over:
                assert seen.next_action in ("replan", "escalate")  # the third time, a person
        assert not (ready and not stale and not self.office.busy) or seen.ok

    def _asked(self, seen, key, to):
        if seen.next_action != "await_approval" or seen.approval_id in self.asked:
            return
        if key in self.last:
            self.last[key].over = True
        new = Asked(key, to, self.office.version, self.clock() + 600)
        self.asked[seen.approval_id] = self.last[key] = new

    @rule(data=st.data(), name=st.sampled_from(PEOPLE), no=st.sampled_from([False, False, True]))
    def vote(self, data, name, no):
        if self.asked:
            self._vote(data.draw(st.integers(0, len(self.asked) - 1)), name, no=no)

    def _vote(self, place, name, *, no):
        approval_id = list(self.asked)[place]
        one, choice = self.asked[approval_id], "reject" if no else "approve"
        may = one.waits(self.clock()) and name != "u_1" and name not in one.yes
        why = self._decide(approval_id, person(name), choice)
        assert (why is None) is may, why
        if may and no:
            one.no = True
        elif may:
            one.yes.add(name)

    def _decide(self, *what):
        try:
            self.loop.run(self.runtime.approvals.decide(*what))
        except ApprovalError as error:
            return error.why
        return None

    @rule(key=st.sampled_from(KEYS), names=st.permutations(PEOPLE))
    def everybody_votes(self, key, names):
        """Until it is approved, if it can be."""
        if key in self.last:
            place = list(self.asked.values()).index(self.last[key])
            for name in names:
                self._vote(place, name, no=False)

    @rule(seconds=st.sampled_from([1.0, 1.0, 100.0, 599.0, 600.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @rule(more=st.sampled_from([0, 0, 0, 1]))
    def somebody_edits_the_draft(self, more):
        self.office.version += more

    @rule(busy=st.sampled_from([False, False, True]))
    def the_mail_server_is(self, busy):
        self.office.busy = busy

    @rule()
    def reconcile(self):
        done = self.loop.run(Reconciler(self.runtime, seal_every=1e9).once())
        self._look()
        assert self.then == "execute" or not done["executed"]
        for key, one in list(self.last.items()):
            if self.then == "execute" and one.approved and one.version != self.office.version:
                self._see(key)

    def _see(self, key):
        """What became of a request that the reconciler may have replaced by another."""
        held = self.loop.run(self.store.recall("acme", "run_1", f"call:send_notice:{key}")).held
        if held.approval_id not in self.asked:
            self.last[key].over = True
            new = Asked(key, self.last[key].to, self.office.version, held.expires_at)
            self.asked[held.approval_id] = self.last[key] = new

    @rule()
    def the_process_starts_anew(self):
        if self.durable:
            self.loop.run(self.store.close())
            self._open()
        else:
            self._start()

    # --- what must never happen -------------------------------------------------------------------

    def _look(self):
        """Whatever was sent since: was it allowed?"""
        for line in self.office.sent[self._told :]:
            key = next(key for key in KEYS if sent_as(key) == line)
            one = self.last[key]
            assert key not in self.sent, "it was sent twice"
            assert one.stands(self.clock()), f"nobody allowed {one}"
            assert one.version == self.office.version, f"{one} was shown something else"
            self.sent[key] = one.to
            one.over = True
        self._told = len(self.office.sent)

    @invariant()
    def nothing_is_sent_unseen(self):
        assert len(self.office.sent) == self._told == len(self.sent)

    @invariant()
    def what_is_on_record_as_spent_was_sent(self):
        if hasattr(self, "runtime"):
            spent = self.loop.run(self.runtime.approvals.list(status="spent"))
            assert {held.key.rpartition(":")[2] for held in spent} == set(self.sent)
            assert len(spent) == len(self.sent)


@pytest.fixture(scope="module", autouse=True)
def _keys(tmp_path_factory):
    global RING  # noqa: PLW0603 - the machine is made by hypothesis, without fixtures
    RING = key_ring(tmp_path_factory.mktemp("lives") / "keys")


RING = None


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_requests_live_as_the_model_says(durable):
    class Machine(Lives):
        pass

    Machine.durable = durable
    many = settings.default.max_examples
    bounds = settings(
        max_examples=min(many, 15 if durable else 40), stateful_step_count=30, deadline=None
    )
    run_state_machine_as_test(Machine, settings=bounds)


@pytest.mark.parametrize("then", ["execute", "resubmit"])
def test_an_old_approval_of_what_has_changed_since_stands_for_nothing(then):
    life = Lives()
    try:
        life.begin(then)
        life.everybody_votes("k1", PEOPLE)
        life.somebody_edits_the_draft(1)
        life.time_passes(1200.0)
        life.submit("k1", ADDRESSES[0])
        assert life.last["k1"].waits(life.clock()), "somebody is asked anew"
    finally:
        life.teardown()
