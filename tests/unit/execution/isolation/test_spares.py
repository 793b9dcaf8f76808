"""Spares: sandboxes that are started before their call, and know nothing of any call."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from counterseal.execution.isolation.sandboxes import Sandboxes
from tests.unit.execution.isolation.test_sandbox import PLENTY, gone, is_alive, job, result
from tests.waiting import turns, until, until_now

pytestmark = pytest.mark.slow  # starts sandboxes

PID = "import os\nresult = os.getpid()"


@pytest.fixture
async def sandboxes(tmp_path):
    made = Sandboxes(most=2, folder=lambda: tmp_path / "all")
    yield made
    await made.aclose()


async def spare(pool):
    (pid,) = await until(pool.spares)
    return pid


async def test_a_call_uses_the_spare_and_no_other_call_uses_it_again(sandboxes):
    first = await result(sandboxes, PID)
    waiting = await spare(sandboxes)
    second = await result(sandboxes, PID)
    third = await result(sandboxes, PID)
    assert waiting == second
    assert len({first, second, third}) == 3
    await gone(first, second, third)


async def test_a_spare_holds_nothing_of_a_call(sandboxes):
    secret = "hunter2-" + "9d3f" * 8
    told = job(f"result = {secret!r}")._replace(
        injected={}, secrets={"smtp": secret}, context={**job().context, "run_id": secret}
    )
    assert (await sandboxes.run(told, seconds=PLENTY)).kind == "value"
    pid = await spare(sandboxes)
    assert secret.encode() not in memory_of(pid)
    assert files_of(pid) == []
    # The same look finds it where it is.
    held = asyncio.create_task(
        sandboxes.run(told._replace(arguments={"code": "import signal\nsignal.pause()"}), seconds=9)
    )
    await until(lambda: secret.encode() in memory_of(pid))
    held.cancel()
    await held


def memory_of(pid):
    found = b""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(number, 16) for number in place.split("-"))
                memory.seek(first)
                found += memory.read(last - first)
    return found


def files_of(pid):
    return list(Path(f"/proc/{pid}/cwd").iterdir())


async def test_a_spare_that_died_is_no_failure_and_is_replaced(sandboxes):
    await result(sandboxes, PID)
    dead = await spare(sandboxes)
    os.kill(dead, signal.SIGKILL)
    await gone(dead)
    assert await result(sandboxes, PID) != dead
    assert await spare(sandboxes) != dead


async def test_a_caller_that_leaves_while_a_spare_starts_leaves_no_process(sandboxes, tmp_path):
    await result(sandboxes, PID)  # a spare is being started
    call = asyncio.create_task(sandboxes.run(job(PID), seconds=PLENTY))
    await turns()
    call.cancel()
    assert (await call).interrupted
    await until(lambda: not list((tmp_path / "all").iterdir()))


async def test_a_spare_that_dies_when_it_gets_the_call_is_no_failure(sandboxes):
    await result(sandboxes, PID)
    stopped = await spare(sandboxes)
    os.kill(stopped, signal.SIGSTOP)
    call = asyncio.create_task(result(sandboxes, PID))
    await until(lambda: not sandboxes.spares())  # it was taken
    os.kill(stopped, signal.SIGKILL)
    assert await call != stopped


@pytest.mark.parametrize("change", [{"memory_mb": 256}, {"contract": "another"}])
async def test_a_spare_is_thrown_away_when_the_contract_changes(sandboxes, change):
    await result(sandboxes, PID)
    old = await spare(sandboxes)
    reply = await sandboxes.run(job(PID)._replace(**change), seconds=PLENTY)
    assert reply.value != old
    await gone(old)


async def test_there_are_no_more_spares_than_allowed_over_all_tools(tmp_path):
    pool = Sandboxes(spares=1, folder=lambda: tmp_path)
    await result(pool, PID)
    first = await spare(pool)
    assert (await pool.run(job(name="greet"), seconds=PLENTY)).kind == "value"
    await gone(first)
    assert await spare(pool) != first
    await pool.aclose()


async def test_an_old_spare_is_ended(tmp_path):
    pool = Sandboxes(keep=0.0, folder=lambda: tmp_path)
    assert await result(pool, PID)
    await until(lambda: not list(tmp_path.iterdir()))
    assert pool.spares() == ()
    await pool.aclose()


@pytest.mark.parametrize("ready", [True, False])
async def test_closing_leaves_no_process_and_no_folder(tmp_path, ready):
    pool = Sandboxes(folder=lambda: tmp_path)
    await result(pool, PID)
    pids = [await spare(pool)] if ready else []
    await pool.aclose()
    await gone(*pids)
    assert list(tmp_path.iterdir()) == []
    assert (await pool.run(job(PID), seconds=PLENTY)).kind == "unavailable"


def program(code, temporary):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


@pytest.mark.parametrize("how", ["killed", "not closed"])
def test_a_runtime_that_ends_leaves_no_spare(tmp_path, how):
    code = f"""
    import asyncio, sys
    sys.path.insert(0, {str(Path.cwd())!r})
    from tests.unit.execution.isolation.test_spares import PID, Sandboxes, result, spare

    async def main():
        pool = Sandboxes()
        await result(pool, PID)
        print(await spare(pool), flush=True)
        return pool

    pool = asyncio.run(main())
    sys.stdin.read()
    """
    with program(code, tmp_path) as runtime:
        pid = int(runtime.stdout.readline())
        assert is_alive(pid)
        if how == "killed":
            runtime.kill()
        else:
            runtime.stdin.close()
        runtime.wait(timeout=PLENTY)
    until_now(lambda: not is_alive(pid))


TWO_LOOPS = f"""
    import asyncio, sys
    sys.path.insert(0, {str(Path.cwd())!r})
    from counterseal import Context, Principal
    from counterseal.execution.attempt import AttemptRequest
    from counterseal.execution.executor import Executor
    from tests.unit.execution.isolation.test_sandbox import PLENTY, TOOLS
    from tests.unit.execution.isolation.test_spares import PID, spare

    executor, tool = Executor(), TOOLS["run_code"]
    runner = executor.runner(tool.contract, tool)
    about = Context(principal=Principal(tenant="t", agent="a"), run_id="run_1", call_id="call_1")

    async def call():
        work = AttemptRequest({{"code": PID}}, lambda: about, PLENTY)
        assert (await runner.run(work)).code == "SUCCESS"
        return await spare(executor.sandboxes)

    print(asyncio.run(call()), asyncio.run(call()), flush=True)
    sys.stdin.read()
"""


def test_the_spare_of_a_closed_event_loop_is_ended(tmp_path):
    with program(TWO_LOOPS, tmp_path) as runtime:
        first, second = map(int, runtime.stdout.readline().split())
        until_now(lambda: not Path(f"/proc/{first}").exists())  # not even as a zombie
        (folder,) = tmp_path.iterdir()
        assert len([path for path in folder.iterdir() if path.name.startswith("counterseal-")]) == 1
        assert is_alive(second)
        runtime.stdin.close()
        runtime.wait(timeout=PLENTY)
    until_now(lambda: not is_alive(second))


# --- directories ----------------------------------------------------------------------------------

WRITE = """
import os, tempfile
from pathlib import Path
ctx.files.write_text("a.txt", "kept")
result = [str(Path.cwd()), str(Path.home()), tempfile.gettempdir(), os.getpid()]
"""


async def test_a_spare_works_in_the_directory_of_its_call(sandboxes, tmp_path):
    await result(sandboxes, WRITE, files=tmp_path / "run_1")
    pid = await spare(sandboxes)
    run = tmp_path / "runs" / "run_2"
    assert await result(sandboxes, WRITE, files=run) == [str(run)] * 3 + [pid]
    assert (run / "a.txt").read_text() == "kept"
    assert (tmp_path / "run_1" / "a.txt").read_text() == "kept"


async def test_a_directory_with_files_is_never_replaced(sandboxes, tmp_path):
    await result(sandboxes, WRITE, files=tmp_path / "run")
    waiting = await spare(sandboxes)
    code = f"{PID}, open('a.txt').read()"
    pid, text = await result(sandboxes, code, files=tmp_path / "run")
    assert text == "kept"
    assert pid != waiting
    assert await result(sandboxes, PID) == waiting  # it was left for a call that can use it


async def test_calls_that_run_at_once_share_their_directory(sandboxes, tmp_path):
    await result(sandboxes, PID)
    await spare(sandboxes)
    wait = """
    import time
    from pathlib import Path
    Path("{0}").touch()
    while not Path("{1}").exists():
        time.sleep(0.005)
    result = "met"
    """
    one, other = (
        result(sandboxes, wait.format(*names), files=tmp_path / "run")
        for names in (("one", "other"), ("other", "one"))
    )
    assert await asyncio.gather(one, other) == ["met", "met"]
