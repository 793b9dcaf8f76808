"""Work that is begun at once is done as in a task of its own, whether it waits or not."""

import asyncio
from contextvars import ContextVar

import pytest

from counterseal.web.standby import Standby

WHO = ContextVar("who", default="nobody")


@pytest.fixture
async def standby():
    found = Standby.of(asyncio.get_running_loop())
    assert Standby.of(asyncio.get_running_loop()) is found
    for _ in range(2):
        await begun(found, noop())
    await asyncio.sleep(0)  # now there are two that stand by
    return found


async def noop():
    pass


async def begun(standby, work):
    """What `begin` returns, in a turn that is no task's."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def turn():
        try:
            done.set_result(standby.begin(work))
        except Exception as error:  # noqa: BLE001 - it is told where it is waited for
            done.set_exception(error)

    loop.call_soon(turn)
    return await done


async def test_what_does_not_wait_is_done_at_once_in_the_name_of_a_task(standby):
    tasks = []

    async def work():
        async with asyncio.timeout(5):
            await noop()
            tasks.append(asyncio.current_task())

    for _ in range(4):
        assert await begun(standby, work()) is None
    assert isinstance(tasks[0], asyncio.Task)
    assert tasks[:2] == tasks[2:], "nobody knows it, so it may be somebody else's"
    assert tasks[0] is not tasks[1], "but not the next one's"
    assert asyncio.current_task() not in tasks


async def test_what_waits_goes_on_where_it_was_begun(standby):
    go, tasks, seen = asyncio.Event(), [], []

    async def work():
        tasks.append(asyncio.current_task())
        token = WHO.set("ann")
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            await go.wait()
        tasks.append(asyncio.current_task())
        seen.append(WHO.get())
        WHO.reset(token)

    task = await begun(standby, work())
    assert tasks == [task]
    go.set()
    await task
    assert tasks == [task, task]
    assert seen == ["ann"]


async def test_its_time_limit_ends_what_waits(standby):
    ended = []

    async def work():
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(True)

    await (await begun(standby, work()))
    assert ended == [True]


async def test_what_waits_for_something_that_is_there_by_then_goes_on(standby):
    there, got = asyncio.get_running_loop().create_future(), []

    async def work():
        asyncio.get_running_loop().call_soon(there.set_result, 7)
        got.append(await there)

    await (await begun(standby, work()))
    assert got == [7]


async def test_what_one_leaves_in_its_context_is_not_there_for_the_next(standby):
    seen = []

    async def work(name):
        seen.append(WHO.get())
        WHO.set(name)

    for name in ("ann", "bob", "eve", "joe", "kim", "lee"):
        await begun(standby, work(name))
        await asyncio.sleep(0)
    assert seen == ["nobody"] * 6
    assert WHO.get() == "nobody"


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_who_is_cancelled_hears_of_it_and_ends_in_its_own_time(standby, turns):
    heard = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            heard.append(asyncio.current_task())
            raise

    loop, done = asyncio.get_running_loop(), asyncio.Event()
    tasks = []

    def turn():
        tasks.append(standby.begin(work()))
        if not turns:
            tasks[0].cancel()  # before it knows what it was given
        done.set()

    loop.call_soon(turn)
    await done.wait()
    if turns:
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert heard == tasks


async def test_who_is_cancelled_may_do_without(standby):
    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    loop, done = asyncio.get_running_loop(), loop_future()

    def turn():
        task = standby.begin(work())
        task.cancel()
        done.set_result(task)

    loop.call_soon(turn)
    await (await done)


def loop_future():
    return asyncio.get_running_loop().create_future()


async def test_who_cancels_itself_and_ends_takes_nobody_along(standby):
    async def rash():
        asyncio.current_task().cancel()

    went_on = []

    async def next_one():
        await asyncio.sleep(0)
        went_on.append(True)

    loop, done = asyncio.get_running_loop(), loop_future()

    def turn():  # all in one turn, before anything is heard of the cancellation
        standby.begin(rash())
        done.set_result([standby.begin(next_one()) for _ in range(2)])

    loop.call_soon(turn)
    await asyncio.gather(*await done)
    assert went_on == [True, True]


async def test_in_one_turn_each_has_its_own(standby):
    tasks = []

    async def work():
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    loop, done = asyncio.get_running_loop(), loop_future()
    loop.call_soon(lambda: done.set_result([standby.begin(work()) for _ in range(3)]))
    begun_ones = await done
    await asyncio.gather(*begun_ones)
    assert len(set(begun_ones)) == 3
    assert sorted(map(id, tasks)) == sorted(map(id, begun_ones * 2))


async def test_in_the_turn_of_a_task_it_gets_one_of_its_own(standby):
    found = []

    async def work():
        found.append(asyncio.current_task())

    task = standby.begin(work())
    assert not found
    await task
    assert found == [task]
    assert asyncio.current_task() is not task


async def test_who_is_begun_by_somebody_elses_task_gives_nothing_of_it_to_others():
    standby, seen = Standby.of(asyncio.get_running_loop()), []

    async def first():
        WHO.set("ann")
        standby.begin(noop())  # as a request does whose answer lets the next one begin
        standby.begin(noop())
        await asyncio.sleep(0)

    async def work():
        seen.append(WHO.get())

    await asyncio.create_task(first())
    for _ in range(3):
        assert await begun(standby, work()) is None
    assert seen == ["nobody"] * 3


async def test_an_error_is_whoevers_it_was(standby):
    async def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await begun(standby, broken())
    assert await begun(standby, noop()) is None
