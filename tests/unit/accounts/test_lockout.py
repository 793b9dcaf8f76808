"""Lock-out: waits that grow, that are bounded, and that reveal nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.accounts.sign_in import Lockout, network_of
from counterseal.testing import FakeClock

HERE, THERE = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def lockout(steady):
    return Lockout(steady=steady)


def fail(lockout, name="ada", address=HERE, times=1):
    for _ in range(times):
        assert lockout.begin(name, address) == 0


def test_fifth_failure_makes_the_name_wait_wherever_it_is_tried(lockout, steady):
    fail(lockout, times=4)
    assert lockout.wait("ada", HERE) == 0
    fail(lockout)
    assert lockout.begin("ada", HERE) == 30
    assert lockout.begin("ada", THERE) == 30
    assert lockout.begin("bob", HERE) == 0
    steady.advance(29)
    assert lockout.begin("ada", HERE) == pytest.approx(1)
    steady.advance(1)
    assert lockout.begin("ada", HERE) == 0


def test_waits_double_up_to_a_quarter_of_an_hour(lockout, steady):
    fail(lockout, times=4)
    waits = []
    for _ in range(9):
        fail(lockout)
        waits.append(lockout.wait("ada", THERE))
        steady.advance(waits[-1])
    assert waits == [30, 60, 120, 240, 480, 900, 900, 900, 900]


def test_attempt_during_the_wait_does_not_make_it_longer(lockout, steady):
    fail(lockout, times=5)
    for _ in range(100):
        assert lockout.begin("ada", HERE) > 0
    steady.advance(30)
    assert lockout.wait("ada", HERE) == 0


def test_address_that_tries_many_names_waits_too(lockout):
    for n in range(20):
        fail(lockout, f"user{n}")
    assert lockout.begin("ada", HERE) == 30
    assert lockout.begin("ada", THERE) == 0


def test_guesses_that_are_made_at_once_count_as_those_made_one_by_one(lockout):
    begun = [lockout.begin("ada", HERE) for _ in range(100)]
    assert begun.count(0) == 5, "though none of them has failed yet"


def test_success_forgets_the_failures_of_the_name_but_not_of_the_address(lockout):
    for n in range(19):
        fail(lockout, f"user{n}")
    fail(lockout)
    lockout.passed("ada", HERE)
    fail(lockout, "bob")
    assert lockout.wait("eve", HERE) == 30
    fail(lockout, address=THERE, times=4)
    assert lockout.wait("ada", THERE) == 0


def test_guesses_made_elsewhere_do_not_keep_out_who_has_signed_in_here(lockout):
    fail(lockout)
    lockout.passed("ada", HERE)
    for n in range(5):
        fail(lockout, address=f"198.51.100.{n}")
    assert lockout.begin("ada", "203.0.113.1") > 0
    assert lockout.begin("ada", HERE) == 0
    lockout.passed("ada", HERE)
    assert lockout.begin("ada", "203.0.113.1") > 0, "that success is none of the others'"
    fail(lockout, times=5)
    assert lockout.begin("ada", HERE) == 30, "here, too, only so many are let through"


def test_attempt_that_was_not_made_does_not_count(lockout):
    for _ in range(50):
        fail(lockout)
        lockout.withdraw("ada", HERE)
    fail(lockout, times=4)
    assert lockout.wait("ada", HERE) == 0


def test_failures_are_forgotten_an_hour_after_the_last_wait(lockout, steady):
    fail(lockout, times=5)
    steady.advance(30 + 3599)
    fail(lockout)
    assert lockout.wait("ada", HERE) == 60
    steady.advance(60 + 3600)
    fail(lockout, times=4)
    assert lockout.wait("ada", HERE) == 0


def test_memory_is_bounded(steady):
    lockout = Lockout(steady=steady, most=10)
    for n in range(100):
        lockout.begin(f"user{n}", f"192.0.2.{n}")
        lockout.passed(f"user{n}", f"192.0.2.{n}")
        lockout.begin(f"other{n}", f"192.0.2.{n}")
    for counts in (lockout._names, lockout._addresses):
        assert len(counts._all) <= 10
    assert len(lockout._trusted) <= 10


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:DB8:0:0:ffff::9", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
        ("x" * 500, "x" * 100),
    ],
)
def test_one_customer_is_one_address(source, address):
    assert network_of(source) == address


moves = st.lists(
    st.tuples(
        st.sampled_from(["ada", "bob"]),
        st.sampled_from([HERE, THERE]),
        st.sampled_from(["fail", "pass", "busy"]),
        st.floats(0, 2000),
    ),
    max_size=60,
)


@given(moves)
def test_a_lockout_never_lasts_longer_than_a_quarter_of_an_hour(moves):
    steady = FakeClock(0.0)
    lockout = Lockout(steady=steady)
    for name, address, outcome, later in moves:
        wait = lockout.begin(name, address)
        assert 0 <= wait <= 900
        if wait == 0 and outcome != "fail":
            (lockout.passed if outcome == "pass" else lockout.withdraw)(name, address)
            assert lockout.wait(name, address) == 0
        steady.advance(later)
    steady.advance(900)
    assert lockout.wait("ada", HERE) == lockout.wait("bob", THERE) == 0
