"""Callers that wait for a row: woken by its change, or by the end of their time."""

import asyncio

from counterseal.storage.waiting import Waiters, wait_until

WHERE = ("acme", "k")


async def test_a_caller_is_woken_by_the_change_of_its_row_alone():
    waiters, looks = Waiters(), []
    released = asyncio.Event()

    async def look():
        looks.append(released.is_set())
        return None if released.is_set() else 1e6

    waiting = asyncio.create_task(wait_until(waiters, WHERE, look, 1e6))
    await asyncio.sleep(0)
    assert waiters
    waiters.wake(("acme", "other"))
    await asyncio.sleep(0)
    assert looks == [False]
    released.set()
    waiters.wake(WHERE)
    assert await waiting is True
    assert looks == [False, True]
    assert not waiters, "and leaves nothing behind"


async def test_a_change_during_the_look_is_not_missed():
    waiters, answers = Waiters(), [1e6, None]

    async def look():
        waiters.wake(WHERE)
        return answers.pop(0)

    assert await wait_until(waiters, WHERE, look, 1e6) is True


async def test_a_caller_looks_again_when_the_lease_is_over():
    answers = [0.0, 0.0, None]

    async def look():
        return answers.pop(0)

    assert await wait_until(Waiters(), WHERE, look, 1e6) is True


async def test_a_caller_without_time_looks_once():
    looks = []

    async def look():
        looks.append(1)
        return 1e6

    assert await wait_until(Waiters(), WHERE, look, 0) is False
    assert looks == [1]


async def test_a_cancelled_caller_is_forgotten():
    waiters = Waiters()

    async def look():
        return 1e6

    waiting = asyncio.create_task(wait_until(waiters, WHERE, look, 1e6))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not waiters
    waiters.wake_all()
