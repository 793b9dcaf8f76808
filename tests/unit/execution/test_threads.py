"""Threads for tools that are not async: each starts at once, and none holds up another."""

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from counterseal.errors import IsolationError
from counterseal.execution import in_process as module
from counterseal.execution.in_process import Threads
from tests.waiting import until

PATIENCE = 60


@pytest.fixture
def threads():
    made = Threads()
    yield made
    made.close()


@pytest.fixture
def release():
    """An event that hanging functions wait for; set in the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def complaints():
    """What the event loop complained about."""
    loop, said = asyncio.get_running_loop(), []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda loop, about: said.append(about))
    yield said
    loop.set_exception_handler(before)


def alive(threads):
    return threads._alive


async def hanging(threads, release, count):
    """Futures of functions that all hang, each in a thread of its own."""
    begun = threading.Semaphore(0)

    def hang():
        begun.release()
        release.wait(PATIENCE)

    futures = [threads.run(hang) for _ in range(count)]
    for _ in range(count):
        await until(lambda: begun.acquire(blocking=False))
    return futures


# --- running --------------------------------------------------------------------------------------


async def test_a_function_runs_in_another_thread_and_its_result_comes_back(threads):
    ident, value = await threads.run(lambda: (threading.get_ident(), "done"))
    assert value == "done"
    assert ident != threading.get_ident()


async def test_a_function_sees_the_callers_context_variables_and_changes_only_its_own(threads):
    name = contextvars.ContextVar("name", default="nobody")
    name.set("caller")

    def rename():
        before = name.get()
        name.set("tool")
        return before

    assert await threads.run(rename) == "caller"
    assert await threads.run(rename) == "caller"
    assert name.get() == "caller"


async def test_more_functions_may_hang_than_a_default_pool_has_threads(threads, release):
    futures = await hanging(threads, release, 70)
    assert await threads.run(lambda: "on time") == "on time"
    release.set()
    assert await asyncio.gather(*futures) == [None] * 70


async def test_a_function_starts_although_no_task_awaits_it(threads):
    started = threading.Event()
    future = threads.run(started.set)
    assert started.wait(PATIENCE)  # the event loop does not turn meanwhile
    await future


def test_it_is_for_an_event_loop_only(threads):
    with pytest.raises(RuntimeError, match="no running event loop"):
        threads.run(int)
    assert alive(threads) == 0


# --- reuse ----------------------------------------------------------------------------------------


async def test_an_idle_thread_is_used_again(threads):
    first = await threads.run(threading.get_ident)
    assert {await threads.run(threading.get_ident) for _ in range(50)} == {first}
    assert alive(threads) == 1


async def test_the_thread_that_was_busy_last_is_used_first(threads, release):
    gates = [threading.Event() for _ in range(3)]

    def hold(gate):
        gate.wait(PATIENCE)
        return threading.get_ident()

    futures = [threads.run(lambda gate=gate: hold(gate)) for gate in gates]
    idents = []
    for gate, future in zip(gates, futures, strict=True):
        gate.set()
        idents.append(await future)
    assert len(set(idents)) == 3
    assert await threads.run(threading.get_ident) == idents[-1]


async def test_an_idle_thread_ends_after_a_while(release):
    threads = Threads(idle_seconds=0.01)
    busy = await hanging(threads, release, 1)
    thread = await threads.run(threading.current_thread)
    await until(lambda: not thread.is_alive())
    assert alive(threads) == 1
    release.set()
    await busy[0]
    await until(lambda: alive(threads) == 0)
    assert await threads.run(lambda: "again") == "again"


async def test_no_call_is_lost_to_a_thread_that_is_about_to_end():
    threads = Threads(idle_seconds=0.0002)
    for number in range(500):
        if number % 3 == 0:
            time.sleep(0.0002)  # noqa: ASYNC251 - about as long as a thread stays
        assert await asyncio.wait_for(threads.run(lambda number=number: number), PATIENCE) == number
    threads.close()


async def test_an_idle_thread_keeps_nothing_alive(threads):
    class Thing:
        pass

    thing = Thing()
    seen = weakref.ref(thing)

    def give(thing=thing):
        return thing

    def fail(thing=thing):
        raise ValueError(thing)

    assert await threads.run(give) is thing
    with pytest.raises(ValueError, match="Thing"):
        await threads.run(fail)
    del thing, give, fail

    def gone():
        gc.collect()
        return seen() is None

    await until(gone)
    assert alive(threads) == 1


# --- bounds ---------------------------------------------------------------------------------------


async def test_when_too_many_hang_the_next_is_refused_and_not_kept_waiting(release):
    threads = Threads(most=3)
    futures = await hanging(threads, release, 3)
    with pytest.raises(IsolationError, match="all 3 threads are busy"):
        threads.run(int)
    release.set()
    await asyncio.gather(*futures)
    assert await threads.run(lambda: "again") == "again"
    assert alive(threads) == 3
    threads.close()


async def test_a_system_that_gives_no_thread_is_told_as_such(threads, monkeypatch):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "Thread", Refused)
    with pytest.raises(IsolationError, match=r"can.t start another thread"):
        threads.run(int)
    assert alive(threads) == 0
    monkeypatch.undo()
    assert await threads.run(int) == 0


# --- what is raised -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("own")]
)
async def test_whatever_a_function_raises_goes_to_the_future_and_not_to_the_thread(threads, error):
    def fail():
        raise error

    future = threads.run(fail)
    await asyncio.wait({future})
    assert future.exception() is error
    assert not future.cancelled()
    assert await threads.run(lambda: "the thread lives") == "the thread lives"
    assert alive(threads) == 1


async def test_what_a_future_cannot_carry_becomes_what_it_can(threads):
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        await threads.run(lambda: next(iter(())))
    assert isinstance(raised.value.__cause__, StopIteration)


# --- nobody listens -------------------------------------------------------------------------------


async def test_the_late_result_of_a_cancelled_call_is_dropped(threads, release, complaints):
    (future,) = await hanging(threads, release, 1)
    assert future.cancel()
    release.set()
    await until(lambda: threads._idle)
    await threads.run(int)  # comes after the late one
    assert future.cancelled()
    assert complaints == []


async def test_the_late_failure_of_a_forgotten_call_is_dropped(threads, release, complaints):
    def fail():
        release.wait(PATIENCE)
        raise ValueError("late")

    future = threads.run(fail)
    gone = weakref.ref(future)
    del future
    release.set()
    await until(lambda: gc.collect() is not None and gone() is None)
    assert complaints == []


def test_a_result_that_comes_after_the_loop_is_closed_is_dropped(threads, release):
    workers = []

    def hang():
        workers.append(threading.current_thread())
        release.wait(PATIENCE)

    async def leave():
        future = threads.run(hang)
        await until(lambda: workers)
        return future

    future = asyncio.run(leave())
    threads.close()
    release.set()
    workers[0].join(PATIENCE)
    assert not workers[0].is_alive()
    assert alive(threads) == 0
    assert not future.done()


@pytest.mark.slow
def test_the_interpreter_leaves_without_those_that_hang():
    script = """
import asyncio, threading
from counterseal.execution.in_process import Threads

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    Threads().run(hang)
    begun.wait()
    print("leaving")

asyncio.run(main())
"""
    left = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (left.stdout, left.stderr, left.returncode) == ("leaving\n", "", 0)


# --- the end --------------------------------------------------------------------------------------


async def test_closing_ends_idle_threads_and_lets_busy_ones_finish(release):
    threads = Threads()
    (busy,) = await hanging(threads, release, 1)
    idle = await threads.run(threading.current_thread)
    threads.close()
    await until(lambda: not idle.is_alive())
    assert not busy.done()
    release.set()
    await busy
    await until(lambda: alive(threads) == 0)
    with pytest.raises(IsolationError, match="closed"):
        threads.run(int)
    threads.close()
