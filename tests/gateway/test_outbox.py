"""What is written goes out when the turn is over, for all at once; nothing is held back longer."""

import asyncio
import gc
import weakref

from counterseal.web.outbox import Gathering, Outbox


class Recorded:
    """A transport that says what was done to it."""

    def __init__(self):
        self.done = []

    def write(self, data):
        self.done.append(data)

    def close(self):
        self.done.append("closed")

    def is_closing(self):
        return "closed" in self.done


async def test_what_is_written_in_one_turn_is_one_write():
    recorded = Recorded()
    gathering = Gathering(recorded, Outbox(asyncio.get_running_loop()))
    gathering.write(b"head ")
    gathering.write(b"content")
    assert recorded.done == []
    await asyncio.sleep(0)
    assert recorded.done == [b"head content"]
    gathering.write(b"more")
    await asyncio.sleep(0)
    assert recorded.done == [b"head content", b"more"]


async def test_what_was_written_goes_out_before_the_end():
    recorded = Recorded()
    gathering = Gathering(recorded, Outbox(asyncio.get_running_loop()))
    assert not gathering.is_closing()
    gathering.write(b"last words")
    gathering.close()
    assert gathering.is_closing()
    await asyncio.sleep(0)
    assert recorded.done == [b"last words", "closed"]


async def test_what_was_written_to_several_goes_out_in_its_order_when_the_turn_is_over():
    outbox = Outbox(asyncio.get_running_loop())
    one, other = Recorded(), Recorded()
    first, second = Gathering(one, outbox), Gathering(other, outbox)
    first.write_whole(b"a")
    second.write_whole(b"b")
    first.write(b"c")
    assert one.done == other.done == []
    await asyncio.sleep(0)
    assert one.done == [b"ac"]
    assert other.done == [b"b"]


async def test_who_is_alone_is_answered_at_once():
    outbox = Outbox(asyncio.get_running_loop())
    recorded = Recorded()
    gathering = Gathering(recorded, outbox)
    gathering.write_whole(b"first")  # who knows whether anybody else is there
    await asyncio.sleep(0)
    for answer in (b"second", b"third"):
        gathering.write_whole(answer)
        assert recorded.done[-1] == answer


async def test_nobody_overtakes_what_was_written_before():
    outbox = Outbox(asyncio.get_running_loop())
    recorded = Recorded()
    gathering = Gathering(recorded, outbox)
    gathering.write_whole(b"first")
    await asyncio.sleep(0)
    gathering.write(b"part ")
    gathering.write_whole(b"whole")
    assert recorded.done == [b"first"]
    await asyncio.sleep(0)
    assert recorded.done == [b"first", b"part whole"]


async def test_of_two_who_are_answered_in_turn_both_wait_for_the_end_of_it():
    outbox = Outbox(asyncio.get_running_loop())
    those = [Recorded(), Recorded()]
    gatherings = [Gathering(one, outbox) for one in those]
    for turn in range(3):
        for one in gatherings:
            one.write_whole(b"x")
        assert [len(one.done) for one in those] == [turn, turn]
        await asyncio.sleep(0)
    assert [one.done for one in those] == [[b"x"] * 3] * 2


async def test_one_that_is_closed_is_not_kept():
    outbox = Outbox(asyncio.get_running_loop())
    gathering = Gathering(Recorded(), outbox)
    gathering.write_whole(b"x")
    gathering.close()
    await asyncio.sleep(0)
    gone = weakref.ref(gathering)
    del gathering
    gc.collect()
    assert gone() is None


async def test_a_loop_has_one_and_keeps_none_of_another():
    loop = asyncio.get_running_loop()
    assert Outbox.of(loop) is Outbox.of(loop)
    other = asyncio.new_event_loop()
    try:
        assert Outbox.of(other) is not Outbox.of(loop)
    finally:
        other.close()
