"""Tools in processes of their own: what reaches them, what comes back, and how they are ended."""

import asyncio
import base64
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from counterseal.config.discovery import import_files
from counterseal.execution.failures import Fault
from counterseal.execution.isolation.messages import IsolatedJob, address_of
from counterseal.execution.isolation.pool import Reply, Workers
from tests.waiting import turns, until

pytestmark = pytest.mark.slow  # starts processes

FOLDER = Path(__file__).parent / "tools"
PLENTY = 60.0
CONTEXT = {
    "principal": {
        "tenant": "acme",
        "user": "u_7",
        "agent": "agent",
        "roles": ["clerk"],
        "scopes": ["case:read"],
    },
    "run_id": "run_1",
    "call_id": "call_1",
    "key": "key_1",
    "attempt": 2,
    "deadline": "2031-01-01T00:00:00+00:00",
    "expected_version": 7,
    "config": {"region": "eu"},
    "state": {"seen": [1, 2]},
}


def tools_of(name, folder=FOLDER):
    file = folder / f"{name}.py"
    module = import_files([file], lambda _: None)[file]
    assert not module.problems
    return {found.value.contract.name: found.value for found in module.declarations}


TOOLS = {
    **tools_of("kind_tools"),
    **tools_of("wild_tools"),
    **tools_of("broken_tools"),
}


def job(
    name, *, memory_mb=512, files=None, injected=None, egress="none", secrets=None, **arguments
):
    tool = TOOLS[name] if isinstance(name, str) else name
    return IsolatedJob(
        address=address_of(tool),
        arguments=arguments,
        injected=injected or {},
        context_params=["ctx"] if "ctx" in tool.injected else [],
        context=CONTEXT,
        egress={"policy": egress, "entries": []},
        files=files,
        memory_mb=memory_mb,
        secrets=secrets or {},
    )


@pytest.fixture(scope="module")
async def workers():
    made = Workers(most=2)
    yield made
    await made.aclose()


@pytest.fixture(scope="module")
async def one():
    """A single worker, which is replaced when a test breaks it."""
    made = Workers(most=1)
    yield made
    await made.aclose()


async def answer(pool, name, **more):
    reply = await pool.run(job(name, **more), seconds=PLENTY)
    assert reply.kind == "value", reply
    return reply.value


def kinds(reply):
    return Fault.from_record(reply.fault).kinds


def is_alive(pid):
    """A process that ended and was not waited for is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def gone(*pids):
    await until(lambda: not any(map(is_alive, pids)))


class Told:
    """What a call tells, and a way to wait for its first words."""

    def __init__(self):
        self.said = []
        self.first = asyncio.Event()

    def __call__(self, kind, content):
        self.said.append((kind, content))
        self.first.set()

    async def first_words(self):
        with anyio.fail_after(PLENTY):
            await self.first.wait()

    def of(self, kind):
        return [content for said, content in self.said if said == kind]


# --- what reaches a tool, and what comes back -----------------------------------------------------


async def test_a_tool_runs_in_a_process_that_serves_the_next_call_too(one):
    pid = await answer(one, "where")
    assert pid != os.getpid()
    assert await answer(one, "where") == pid
    assert await answer(one, "where_later") == pid


async def test_arguments_arrive_and_modules_that_stand_beside_are_found(workers):
    assert await answer(workers, "echo", text="grüße") == {"text": "grüße"}
    assert await answer(workers, "greet") == "hello from beside"


async def test_the_context_arrives_whole(workers):
    told = await answer(workers, "tell_all")
    assert told == {
        "tenant": "acme",
        "user": "u_7",
        "agent": "agent",
        "roles": ["clerk"],
        "scopes": ["case:read"],
        "run_id": "run_1",
        "call_id": "call_1",
        "key": "key_1",
        "attempt": 2,
        "year": 2031,
        "expected_version": 7,
        "config": {"region": "eu"},
        "state": {"seen": [1, 2]},
        "cancelled": False,
    }


async def test_what_the_parent_resolved_is_injected(workers):
    given = {"password": "hunter2", "region": "eu", "seen": [1]}
    assert await answer(workers, "injected", injected=given) == ["hunter2", "eu", [1]]


async def test_a_plain_function_is_called_as_its_signature_says(workers):
    address = address_of(TOOLS["echo"])._replace(qualname="plain")
    plain = job("echo")._replace(address=address, arguments={"count": "41"}, context_params=["ctx"])
    reply = await workers.run(plain, seconds=PLENTY)
    assert reply.value == {"count": 42, "tenant": "acme"}


async def test_progress_logs_and_what_is_printed_are_passed_on(workers):
    told = Told()
    reply = await workers.run(job("report"), seconds=PLENTY, tell=told)
    assert reply.value == "done"
    assert told.of("progress") == [[1, 2, "half"]]
    assert [30, "careful with that"] in told.of("log")
    assert {"printed", "complained", "written"} <= {text for _, text in told.of("log")}


async def test_a_tool_may_print_more_than_a_pipe_holds(workers):
    told = Told()
    reply = await workers.run(job("chatter"), seconds=PLENTY, tell=told)
    assert reply.value == "done"
    assert [20, "line 000000"] in told.of("log")
    assert len(told.said) <= 10_000


async def test_a_failing_listener_does_not_end_the_call(workers):
    def tell(kind, content):
        raise RuntimeError("not listening")

    assert (await workers.run(job("report"), seconds=PLENTY, tell=tell)).value == "done"


async def test_files_are_kept_in_the_directory_of_the_call(workers, tmp_path):
    assert await answer(workers, "keep", text="kept", files=str(tmp_path)) == "kept"
    assert (tmp_path / "note.txt").read_text() == "kept"


async def test_the_directory_of_a_call_is_meant_as_seen_from_here(workers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert await answer(workers, "keep", text="kept", files=".") == "kept"
    assert (tmp_path / "note.txt").read_text() == "kept"


async def test_a_call_without_a_directory_is_told_so(workers):
    reply = await workers.run(job("keep", text="x"), seconds=PLENTY)
    assert kinds(reply)[0] == "counterseal.errors.FilesError"


@pytest.mark.parametrize("name", ["fetch", "fetch_later"])
async def test_clients_there_keep_to_the_egress_of_the_contract(workers, server, name):
    reply = await workers.run(job(name, url=server.url("/ok")), seconds=PLENTY)
    assert kinds(reply)[0] == "counterseal.errors.EgressError"
    listed = job(name, url=server.url("/ok"))._replace(
        egress={"policy": "allowlisted_domains", "entries": [f"127.0.0.1:{server.port}"]}
    )
    assert (await workers.run(listed, seconds=PLENTY)).value == "ok"


async def test_part_of_the_work_comes_back_without_the_words_of_exceptions(workers):
    reply = await workers.run(job("some"), seconds=PLENTY)
    assert reply.kind == "partial"
    assert reply.value == {
        "completed": ["a"],
        "failed": [{"error": "ValueError"}, "b"],
        "data": {"n": 1},
    }


@pytest.mark.parametrize("name", ["fail", "fail_later"])
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("value", "builtins.ValueError"),
        ("failed", "counterseal.errors.ToolFailedError"),
        ("exit", "builtins.SystemExit"),
        ("interrupt", "builtins.KeyboardInterrupt"),
        ("generator", "builtins.GeneratorExit"),
        ("cancelled", "asyncio.exceptions.CancelledError"),
        ("group", "builtins.ConnectionRefusedError"),
        ("refused", "builtins.ConnectionRefusedError"),
    ],
)
async def test_whatever_a_tool_raises_comes_back_as_data(workers, name, how, kind):
    reply = await workers.run(job(name, how=how), seconds=PLENTY)
    assert reply.kind == "fault"
    assert reply.began
    assert kinds(reply)[0] == kind
    assert "kind_tools.py" in reply.trace


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("bytes", {"raw": "__4="}),
        ("half", {"text": "\ud800"}),
        ("infinite", math.inf),
        ("hidden", "awaited"),
    ],
)
async def test_what_is_hard_to_write_as_json_is_written_somehow(workers, what, value):
    assert await answer(workers, "odd", what=what) == value


@pytest.mark.parametrize("what", ["object", "stream"])
async def test_what_has_no_json_form_is_said_to_have_none(workers, what):
    reply = await workers.run(job("odd", what=what), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("unserialisable", True)


async def test_an_output_without_bounds_is_not_read(workers):
    reply = await workers.run(job("odd", what="huge"), seconds=PLENTY)
    assert kinds(reply)[0] == "counterseal.errors.ResponseTooLargeError"


async def test_a_tool_that_could_not_be_called_has_not_begun(workers):
    unbound = await workers.run(job("echo", text=[1]), seconds=PLENTY)
    assert (unbound.kind, unbound.began) == ("fault", False)
    unloaded = await workers.run(job("never"), seconds=PLENTY)
    assert (unloaded.kind, unloaded.began) == ("fault", False)
    assert "not here" in unloaded.trace


async def test_what_can_not_be_sent_is_never_begun(workers):
    unsent = job("echo", text="x")._replace(injected={"text": object()})
    reply = await workers.run(unsent, seconds=PLENTY)
    assert (reply.kind, reply.began) == ("unavailable", False)


async def test_no_secret_variable_reaches_a_tool(monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_SMTP", "hunter2")
    monkeypatch.setenv("HARMLESS", "yes")
    pool = Workers(most=1)
    seen = await answer(pool, "environment")
    await pool.aclose()
    assert seen["HARMLESS"] == "yes"
    assert not [name for name in seen if name.startswith("COUNTERSEAL_SECRET_")]


TOKEN = "tok-Zq81xWv93LmKp02RtYbN-7c6d5e4f3a2b"


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("line", "value"),
        ("record", "value"),
        ("tail", "died"),
        ("trace", "fault"),
        ("wrapped", "value"),
        ("killed", "late"),
    ],
)
async def test_no_half_of_a_secret_is_left_where_a_text_is_cut(one, how, kind):
    told = Told()
    spill = job("spill", how=how, injected={"token": TOKEN}, secrets={"token": TOKEN})
    await answer(one, "where")
    reply = await one.run(spill, seconds=2 if how == "killed" else PLENTY, tell=told)
    assert reply.kind == kind
    said = "\n".join([reply.trace, *(text for _, text in told.of("log"))])
    assert len(said) > 1
    for start in range(len(TOKEN) - 8):
        assert TOKEN[start : start + 8] not in said
    if how == "wrapped":
        assert base64.b64encode(b"u" * 50 + TOKEN.encode()).decode()[68:76] not in said


# --- limits ---------------------------------------------------------------------------------------


async def test_memory_processor_time_and_dumps_are_bounded(one):
    reply = await one.run(job("limits", memory_mb=100), seconds=7)
    data, cpu, core = (reply.value[name] for name in ("data", "cpu", "core"))
    assert 100 * 2**20 < data < 300 * 2**20
    assert 7 < cpu < 7 * (os.cpu_count() or 1) + 30
    assert core == 0


async def test_memory_beyond_the_limit_is_refused_and_the_worker_replaced(one):
    first = await answer(one, "where")
    reply = await one.run(job("allocate", megabytes=400, memory_mb=64), seconds=PLENTY)
    assert kinds(reply)[0] == "builtins.MemoryError"
    assert await answer(one, "allocate", megabytes=400, memory_mb=512) == 400 * 2**20
    assert await answer(one, "where") != first
    await gone(first)


async def test_a_worker_that_a_tool_left_full_is_replaced(one):
    first = await answer(one, "leak", megabytes=10, memory_mb=64)
    assert await answer(one, "leak", megabytes=40, memory_mb=64) == first
    assert await answer(one, "where") != first
    await gone(first)


@pytest.mark.slow
async def test_a_worker_is_replaced_after_so_many_calls():
    pool = Workers(most=1, calls=2)
    pids = [await answer(pool, "where") for _ in range(5)]
    await pool.aclose()
    assert sorted(Counter(pids).values()) == [1, 2, 2]
    await gone(*pids)


@pytest.mark.parametrize(("how", "kept"), [("thread", False), ("hidden", False), ("ended", True)])
async def test_a_worker_in_which_a_thread_goes_on_is_replaced(one, how, kept):
    pid = await answer(one, "linger", how=how)
    assert (await answer(one, "where") == pid) is kept


# --- tools that break -----------------------------------------------------------------------------


async def test_a_tool_that_segfaults_takes_only_its_worker_along(one):
    before = await answer(one, "where")
    reply = await one.run(job("segfault"), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)
    assert "SIGSEGV" in reply.trace
    assert "about to break" in reply.trace
    assert await answer(one, "where") != before


async def test_a_tool_that_ends_the_process_has_died(one):
    reply = await one.run(job("leave", code=3), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)
    assert "exit code 3" in reply.trace
    assert await answer(one, "where")


@pytest.mark.parametrize("name", ["babble", pytest.param("unplug", marks=pytest.mark.slow)])
async def test_a_tool_that_meddles_with_the_pipes_has_died(one, name):
    reply = await one.run(job(name), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)
    assert await answer(one, "where")


@pytest.mark.parametrize("answer", ['{"kind":[]}', "7", '{"kind":"late"}', "null"])
async def test_a_forged_answer_that_makes_no_sense_is_death(one, answer):
    reply = await one.run(job("forge", answer=answer), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)


async def test_a_forged_answer_reaches_no_other_call(one):
    forged = '{"kind":"value","value":"forged"}'
    assert await answer(one, "forge", answer=forged) == "forged"
    assert await answer(one, "echo", text="mine") == {"text": "mine"}


async def test_a_tool_may_close_what_it_prints_to(one):
    assert await answer(one, "shut") == "still here"
    assert await answer(one, "where")


async def test_a_copy_of_a_worker_never_answers_for_it(one):
    first = await answer(one, "where")
    assert await answer(one, "split") == first
    for _ in range(3):
        assert await answer(one, "echo", text="mine") == {"text": "mine"}


# --- deadlines and cancellation -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loop", pytest.param("stubborn", marks=pytest.mark.slow)])
async def test_a_tool_that_ignores_its_deadline_is_killed(one, name):
    await answer(one, "where")
    told = Told()
    reply = await one.run(job(name), seconds=0.5, tell=told)
    assert (reply.kind, reply.began) == ("late", True)
    await gone(told.of("progress")[0][0])
    assert await answer(one, "where")


async def test_a_tool_that_checks_for_cancellation_has_answered(one):
    pid = await answer(one, "where")
    reply = await one.run(job("polite"), seconds=0.3, grace=PLENTY)
    assert (reply.kind, reply.value) == ("value", "stopped")
    assert await answer(one, "where") == pid


async def test_an_async_tool_is_cancelled_and_its_worker_kept(one):
    pid = await answer(one, "where")
    reply = await one.run(job("patient"), seconds=0.3, grace=PLENTY)
    assert (reply.kind, reply.began) == ("late", True)
    assert await answer(one, "where") == pid


@pytest.mark.parametrize("name", ["loop", "patient"])
async def test_a_caller_who_leaves_takes_the_tool_along(one, name):
    told = Told()
    call = asyncio.create_task(one.run(job(name), seconds=PLENTY, tell=told))
    await told.first_words()
    call.cancel()
    reply = await call
    assert (reply.kind, reply.began, reply.interrupted) == ("late", True, True)
    pid = told.of("progress")[0][0]
    if name == "loop":
        await gone(pid)
    else:
        assert await answer(one, "where") == pid


async def test_waiting_for_a_worker_counts_and_then_nothing_has_begun(one):
    told = Told()
    busy = asyncio.create_task(one.run(job("polite"), seconds=PLENTY, tell=told))
    await told.first_words()
    reply = await one.run(job("where"), seconds=0.1)
    assert (reply.kind, reply.began, reply.interrupted) == ("late", False, False)
    waiting = asyncio.create_task(one.run(job("where"), seconds=PLENTY))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await waiting == Reply("late", began=False, interrupted=True)
    busy.cancel()
    assert (await busy).interrupted


async def test_what_a_tool_answers_to_a_caller_who_left_is_not_lost(one):
    pid = await answer(one, "where")
    told = Told()
    call = asyncio.create_task(one.run(job("polite"), seconds=PLENTY, grace=PLENTY, tell=told))
    await told.first_words()
    call.cancel()
    await asyncio.sleep(0)
    call.cancel()  # impatient, and answered all the same
    assert await call == Reply("value", "stopped", interrupted=True)
    assert await answer(one, "where") == pid


async def test_a_caller_who_leaves_while_a_worker_starts_is_told_that_nothing_began():
    pool = Workers(most=1)
    call = asyncio.create_task(pool.run(job("where"), seconds=PLENTY))
    await turns()
    call.cancel()
    assert await call == Reply("late", began=False, interrupted=True)
    assert await answer(pool, "where")
    await pool.aclose()


async def test_more_calls_than_workers_take_turns(workers):
    replies = await asyncio.gather(*(answer(workers, "where_later") for _ in range(12)))
    assert len(set(replies)) <= 2


# --- what a tool started --------------------------------------------------------------------------


def started(told):
    return [int(pid) for _, _, message in told.of("progress") for pid in message.split()]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kind"), [("wait", "late"), ("break", "died"), ("go", "value")])
async def test_what_a_tool_started_goes_with_it(one, how, kind):
    first = await answer(one, "where")
    told = Told()
    seconds = 3 if how == "wait" else PLENTY
    reply = await one.run(job("multiply", how=how), seconds=seconds, tell=told)
    assert reply.kind == kind
    pids = started(told)
    assert len(pids) == 3
    await gone(*pids)
    assert await answer(one, "where") != first


async def test_processes_without_end_are_ended(one):
    told = Told()
    reply = await one.run(job("swarm", count=200), seconds=PLENTY, tell=told)
    assert reply.kind == "died"
    assert "more than 64 processes" in reply.trace
    await gone(*(pid for pid, _, _ in told.of("progress")))
    assert await answer(one, "where")


@pytest.mark.slow
async def test_a_few_processes_are_ended_with_the_deadline(one):
    told = Told()
    await answer(one, "where")
    reply = await one.run(job("swarm", count=20), seconds=1, tell=told)
    assert reply.kind == "late"
    pids = [pid for pid, _, _ in told.of("progress")]
    assert pids
    await gone(*pids)


DIES = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
import kind_tools
from counterseal.execution.isolation.messages import IsolatedJob, address_of
from counterseal.execution.isolation.pool import Workers

def job(tool, *asks):
    context = {"principal": {"tenant": "t", "agent": "a"}, "run_id": "r", "call_id": "c"}
    egress = {"policy": "none", "entries": []}
    return IsolatedJob(address_of(tool), {}, {}, asks, context, egress, None, 512)

async def main():
    pool = Workers()
    await pool.warm(2)
    idle = await pool.run(job(kind_tools.where), seconds=60)

    def die(kind, content):
        print(idle.value, content[0], flush=True)
        os._exit(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(pool.run(job(kind_tools.where_later), seconds=60))
        group.create_task(pool.run(job(kind_tools.patient, "ctx"), seconds=60, tell=die))

asyncio.run(main())
"""


async def test_workers_do_not_outlive_a_runtime_that_died():
    command = [sys.executable, "-c", DIES, str(FOLDER)]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(set(pids)) == 2, ended.stderr
    await gone(*pids)


# --- which worker ---------------------------------------------------------------------------------


async def test_what_one_call_prints_the_next_does_not_hear(one):
    for _ in range(20):
        loud, quiet = Told(), Told()
        await one.run(job("report"), seconds=PLENTY, tell=loud)
        await one.run(job("where"), seconds=PLENTY, tell=quiet)
        assert len(loud.of("log")) == 4
        assert quiet.said == []


async def test_a_worker_that_dies_idle_is_replaced(one):
    pid = await answer(one, "where")
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    await until(lambda: not (one._idle and one._idle[0].fit))
    assert await answer(one, "where") != pid


async def test_a_start_that_is_too_slow_for_one_call_serves_the_next():
    pool = Workers(most=1)
    reply = await pool.run(job("where"), seconds=0.001)
    assert (reply.kind, reply.began) == ("late", False)
    assert await answer(pool, "where")
    await pool.aclose()
    reply = await pool.run(job("where"), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("unavailable", False)


async def test_folders_may_hold_modules_of_the_same_name(tmp_path, one):
    pids = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tools.py").write_text(
            "import os\n"
            "from counterseal import tool\n"
            "@tool(effect='read_only', version='1.0.0', owner='tests')\n"
            "def which() -> list:\n"
            "    '''Say which one this is.'''\n"
            f"    return [{name!r}, os.getpid()]\n"
        )
        found, pid = await answer(one, tools_of("tools", folder)["which"])
        assert found == name
        pids.append(pid)
    assert len(set(pids)) == 2


async def test_workers_are_started_before_they_are_needed():
    pool = Workers(most=2)
    address = address_of(TOOLS["where"])
    await asyncio.gather(pool.warm(1, address), pool.warm(1, address))
    (child,) = pool._idle
    assert await answer(pool, "where") == child.pid
    await pool.warm(2)
    assert len(pool._idle) == 2
    await pool.aclose()


async def test_a_warm_up_that_fails_is_left_to_the_first_call(tmp_path):
    pool = Workers(most=1)
    await pool.warm(1, address_of(TOOLS["never"]))
    assert (await pool.run(job("never"), seconds=PLENTY)).began is False
    await pool.aclose()


async def test_without_an_interpreter_nothing_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    pool = Workers()
    reply = await pool.run(job("where"), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("unavailable", False)
    await pool.aclose()


async def test_an_interpreter_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pool = Workers()
    reply = await pool.run(job("where"), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("unavailable", False)
    assert "exit code 1" in reply.trace
    await pool.aclose()
