"""Passwords: slow to guess, the same however they are typed, and made aside from everything."""

import asyncio
import threading

import pytest

from counterseal.accounts.users import BusyError, Passwords


def cheap(**more):
    return Passwords(time_cost=1, memory_kib=8, **more)


async def test_two_hashes_of_one_password_differ_and_both_match():
    passwords = cheap()
    first, second = [await passwords.hashed("correct horse") for _ in range(2)]
    assert first != second
    assert "correct" not in first
    assert await passwords.matches(first, "correct horse")
    assert await passwords.matches(second, "correct horse")


async def test_the_same_letters_match_whichever_way_a_keyboard_writes_them():
    passwords = cheap()
    kept = await passwords.hashed("Zo\u00eb und die Pferde")
    assert await passwords.matches(kept, "Zoe\u0308 und die Pferde")


@pytest.mark.parametrize("given", ["", "correct", "x" * 100_000, "a\0b", "\ud800"])
async def test_what_could_not_be_a_password_matches_nothing(given):
    passwords = cheap()
    assert not await passwords.matches(await passwords.hashed("correct horse"), given)
    assert not await passwords.matches(None, given)


async def test_what_can_not_be_a_password_is_not_taken_for_an_empty_one():
    passwords = cheap()
    assert not await passwords.matches(await passwords.hashed(""), "a\0b")


async def test_damaged_hash_matches_nothing():
    assert not await cheap().matches("$argon2id$v=19$nonsense", "correct horse")


async def test_an_unknown_user_costs_as_much_time_as_a_known_one(monkeypatch):
    """Counted in hashes, not in seconds: each is one run of the same function at one price."""
    passwords, runs = cheap(), []
    kept = await passwords.hashed("correct horse")
    hasher = passwords._hasher
    spied = type(hasher)

    def counting(name):
        real = getattr(spied, name)

        def run(self, *arguments, **more):
            runs.append((name, self.time_cost, self.memory_cost, self.parallelism))
            return real(self, *arguments, **more)

        return run

    monkeypatch.setattr(spied, "hash", counting("hash"))
    monkeypatch.setattr(spied, "verify", counting("verify"))
    await passwords.matches(kept, "wrong")
    await passwords.matches(None, "wrong")
    assert runs == [("verify", 1, 8, 1), ("hash", 1, 8, 1)]


async def test_hash_of_other_parameters_is_outdated():
    kept = await cheap().hashed("correct horse")
    assert not cheap().outdated(kept)
    stronger = Passwords(time_cost=2, memory_kib=8)
    assert stronger.outdated(kept)
    assert await stronger.matches(kept, "correct horse")


def test_real_parameters_are_not_cheap():
    hasher = Passwords()._hasher
    assert (hasher.time_cost, hasher.memory_cost, hasher.type.name) == (1, 47_104, "ID")


async def test_flood_of_passwords_waits_in_line_and_is_turned_away_when_the_line_is_full():
    passwords = cheap(at_once=1, waiting=2)
    gate, seen = threading.Event(), []

    def slow():
        seen.append(threading.current_thread())
        assert gate.wait(60)
        return True

    line = [asyncio.ensure_future(passwords._in_thread(slow)) for _ in range(3)]
    try:
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await passwords.matches(None, "correct horse")
        gone = line.pop()
        gone.cancel()
        await asyncio.wait([gone])
        with pytest.raises(BusyError):  # whoever has gone away still has work done
            await passwords.hashed("correct horse")
    finally:
        gate.set()
    assert await asyncio.gather(*line) == [True, True]
    kept = await passwords.hashed("correct horse")
    assert await passwords.matches(kept, "correct horse")
    assert len(set(seen)) == 1
    assert threading.main_thread() not in seen
