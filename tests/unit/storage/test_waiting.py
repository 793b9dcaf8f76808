"""Waiting for an answer: as a task waits for a future, but firmly where that is asked for."""

import asyncio
from contextvars import ContextVar

import pytest

from counterseal.storage.waiting import Answer

spoken = ContextVar("spoken", default="nothing")


async def begun(answer, told):
    """A task that waits for it, and tells how it went on."""

    async def waits():
        spoken.set("mine")
        try:
            await answer
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        told.append(spoken.get())

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    return task


async def at_the_end_of_a_turn(do):
    """Do it where no task runs."""
    asyncio.get_running_loop().call_soon(do)
    await asyncio.sleep(0)


@pytest.fixture
async def answer():
    return Answer(asyncio.get_running_loop())


async def test_who_waits_goes_on_in_the_next_turn_in_its_own_context(answer):
    told = []
    task = await begun(answer, told)
    answer.give()
    assert told == []
    await task
    assert told == ["mine"]


async def test_who_waits_can_go_on_at_once(answer):
    told, seen = [], []
    task = await begun(answer, told)

    def give():
        answer.give_now()
        seen.append(list(told))

    await at_the_end_of_a_turn(give)
    assert seen == [["mine"]]
    await task


async def test_an_answer_that_is_there_already_is_not_waited_for(answer):
    answer.give()
    await answer
    told = []
    await (await begun(answer, told))
    assert told == ["mine"]


async def test_a_task_that_comes_late_to_what_it_waits_for_goes_on_too(answer):
    # As when work is driven by hand up to here, and a task carries it on in the next turn.
    told = []
    answer.give()
    answer.add_done_callback(told.append)
    await asyncio.sleep(0)
    assert told == [answer]


async def test_who_is_cancelled_goes_at_once_and_is_not_woken_again(answer):
    told = []
    task = await begun(answer, told)
    task.cancel()
    await asyncio.wait([task])
    assert (told, answer.unwanted, task.cancelled()) == (["cancelled"], True, True)
    answer.give()
    await at_the_end_of_a_turn(answer.give_now)
    assert told == ["cancelled"]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_firm_one_is_cancelled_when_the_answer_is_there(answer, times):
    told = []
    task = await begun(answer, told)
    answer.firm = True
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert (told, answer.unwanted) == ([], False)
    answer.give()
    await asyncio.wait([task])
    assert (told, task.cancelled()) == (["cancelled"], True)


async def test_several_may_wait_for_it(answer):
    told = []
    tasks = [await begun(answer, told) for _ in range(2)]
    answer.give()
    await asyncio.wait(tasks)
    assert told == ["mine", "mine"]
