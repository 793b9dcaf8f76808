"""Two real processes that decide, expire and execute the same requests at once."""

import json
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from counterseal.ledger.records import HeldStatus
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
from tests.warm import warm

ROOT = Path(__file__).parents[2]
ROUNDS = 12
NOW = FakeClock().now
TWO = {"approvers": 2}

pytestmark = pytest.mark.slow


class Process:
    """Does what it is told, and tells what came of it."""

    def __init__(self, *arguments):
        worker = "tests.journeys.approvals_worker"
        command = warm("-m", worker, *map(str, arguments))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, cwd=ROOT, **pipes)

    def do(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def told(self):
        line = self.process.stdout.readline()
        assert line, "the process ended without a word"
        return json.loads(line)

    def end(self):
        self.process.kill()
        self.process.communicate()


class World:
    """One database, and two processes on it. Two people must approve what they are asked for."""

    def __init__(self, stack, url, folder):
        self._keys, self._file, self._url = folder / "keys", folder / "sent", url
        self._ring = key_ring(self._keys)
        self.processes = [Process(url, self._keys, self._file, json.dumps(TWO)) for _ in range(2)]
        for process in self.processes:
            stack.callback(process.end)

    def open(self):
        """The runtime of this process, on the same database."""
        return opened(self._url, Office(), declared=TWO, keys=self._ring, clock=FakeClock())

    def both(self, first, second):
        """What two answer who are asked at once."""
        for process, what in zip(self.processes, (first, second), strict=True):
            process.do(**what)
        return [process.told() for process in self.processes]

    def sent(self, name):
        """How often each notice was sent whose key begins so."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        keys = {sent_as(f"{name}{number}"): f"{name}{number}" for number in range(ROUNDS)}
        return Counter(keys[line] for line in lines if line in keys)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("races")
    with ExitStack() as stack:
        if request.param == "postgres":
            url = stack.enter_context(borrowed_database())
        else:
            url = f"sqlite:///{folder}/store.db"
        made = World(stack, url, folder)
        for process in made.processes:
            assert process.told() == "ready"
        yield made


async def asked(runtime, key, *names):
    """A request that these people have approved already."""
    approval_id = (await runtime.submit(letter(key), agent())).approval_id
    for name in names:
        await runtime.approvals.decide(approval_id, person(name), "approve")
    return approval_id


async def kinds_of(runtime, approval_id):
    found = [event for _, event in await runtime.store.events("acme")]
    return Counter(e.type.value for e in found if e.body.get("approval_id") == approval_id)


def vote(approval_id, name, choice="approve", now=NOW):
    return {"vote": approval_id, "by": name, "choice": choice, "now": now}


async def test_two_who_ask_the_same_at_once_ask_once(world):
    async with world.open() as runtime:
        for number in range(ROUNDS):
            ask = {"submit": f"ask{number}", "now": NOW}
            assert world.both(ask, ask) == ["CONFIRMATION_MISSING"] * 2
        found = [event for _, event in await runtime.store.events("acme")]
        asked = [event for event in found if event.type.value == "approval.required"]
        waiting = await runtime.approvals.list("acme", limit=1000)
        assert len(asked) == len(waiting) == ROUNDS


async def test_two_who_approve_at_once_approve_it_once_and_it_is_done_once(world):
    """And the agent sends it again while a worker carries out what is due."""
    async with world.open() as runtime:
        for number in range(ROUNDS):
            key = f"two{number}"
            it = await asked(runtime, key)
            said = world.both(vote(it, "alice"), vote(it, "bob"))
            assert sorted(said) == ["approved", "waiting"]
            kinds = await kinds_of(runtime, it)
            assert (kinds["approval.voted"], kinds["approval.granted"]) == (2, 1)
            done, code = world.both({"reconcile": 1}, {"submit": key})
            assert code in ("SUCCESS", "IDEMPOTENCY_CONFLICT")
            assert code == "SUCCESS" or done.get("executed") == 1
            assert world.sent("two")[key] == 1
        world.both({"reconcile": 1}, {"reconcile": 1})
        assert world.sent("two") == {f"two{number}": 1 for number in range(ROUNDS)}


async def test_two_workers_who_carry_out_the_same_do_it_once(world):
    async with world.open() as runtime:
        ids = [await asked(runtime, f"same{n}", "alice", "bob") for n in range(ROUNDS)]
        done = world.both({"reconcile": 1, "now": NOW}, {"reconcile": 1, "now": NOW})
        assert sum(one.get("executed", 0) for one in done) == ROUNDS
        assert world.sent("same") == {f"same{number}": 1 for number in range(ROUNDS)}
        spent = await runtime.approvals.list("acme", status=HeldStatus.SPENT, limit=1000)
        assert set(ids) <= {held.approval_id for held in spent}


async def test_a_yes_and_a_no_at_once_are_one_or_the_other(world):
    async with world.open() as runtime:
        for number in range(ROUNDS):
            it = await asked(runtime, f"no{number}", "alice")
            said = world.both(vote(it, "bob"), vote(it, "carol", "reject"))
            assert said in (["approved", "no: decided"], ["no: decided", "rejected"])
            kinds = await kinds_of(runtime, it)
            assert kinds["approval.granted"] + kinds["approval.rejected"] == 1
            world.both({"reconcile": 1}, {"submit": f"no{number}"})
            assert world.sent("no")[f"no{number}"] == (said[0] == "approved")


async def test_a_yes_at_the_end_of_its_time_counts_or_is_too_late(world):
    async with world.open() as runtime:
        for number in range(ROUNDS):
            it = await asked(runtime, f"end{number}", "alice")
            end = NOW + 600
            expires = {"expire": 1, "now": end}
            said, _ = world.both(vote(it, "bob", now=end - 0.001), expires)
            kinds = await kinds_of(runtime, it)
            ended = (said, kinds["approval.granted"], kinds["approval.expired"])
            assert ended in (("approved", 1, 0), ("no: decided", 0, 1))
            world.both({"submit": f"end{number}", "now": end}, {"reconcile": 1, "now": end})
        assert world.sent("end") == {}


async def test_who_waits_in_another_process_is_woken(world):
    async with world.open() as runtime:
        it = await asked(runtime, "woken", "alice")
        waiting = world.processes[0]
        waiting.do(wait=it, now=NOW)
        assert waiting.told() == "waits"
        await runtime.approvals.decide(it, person("bob"), "approve")
        assert waiting.told() == "approved"
