"""The kill test: nothing lost, nothing twice, and every entry ends settled or with a person.

A few rounds of each point; `python3 dev.py chaos` plays thousands. What is promised, and what a
kill does not prove, is in docs/crash-safety.md.
"""

import random
from dataclasses import replace

import pytest

from .planning import POINTS, Operation, Strike, draw
from .running import STORES, Job, jobs_of, run


async def violations_of(rounds, points, stores):
    """Play rounds of a new seed. What broke, and how to see it again."""
    seed = random.SystemRandom().randrange(10**9)
    outcomes = []
    await run(jobs_of(seed, rounds, points, stores), lambda _, outcome: outcomes.append(outcome))
    assert len(outcomes) == rounds
    assert any(outcome.struck for outcome in outcomes), "nobody was killed: that proves nothing"
    return [
        f"dev.py chaos --seed {plan.seed} --point {plan.point} --store {plan.store} --rounds 1\n"
        + "\n".join(outcome.violations)
        for outcome in outcomes
        if outcome.violations
        for plan in [outcome.plan]
    ]


@pytest.mark.slow
async def test_wherever_a_worker_is_killed_nothing_is_lost_and_nothing_is_done_twice():
    assert await violations_of(len(POINTS), POINTS, ["sqlite"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
async def test_the_same_holds_round_after_round(store):
    assert await violations_of(2 * len(POINTS), POINTS, [store]) == []


@pytest.mark.slow
async def test_a_contract_that_lies_about_its_destination_is_caught():
    """So that nobody thinks the rounds above could not fail."""
    careless = Operation(tool="charge_careless", clients=1)
    unread = Strike(by="server", plan=(("kill", "after"),))
    outcomes = []

    def lying(plan):
        return replace(plan, operations=(careless,), strike=unread)

    jobs = [Job(0, 1, "executed_unread", "sqlite")]
    await run(jobs, lambda _, outcome: outcomes.append(outcome), lying)
    assert outcomes[0].struck == ["server.after"]
    assert any("was performed 2 times" in one for one in outcomes[0].violations)
    assert outcomes[0].evidence["effects"]


def test_a_round_is_what_its_seed_says():
    for point in POINTS:
        assert draw(7, point, "sqlite") == draw(7, point, "sqlite")
    plans = {draw(seed, "takeover", "postgres") for seed in range(50)}
    assert len(plans) == 50


def test_every_point_is_played_on_every_store():
    jobs = list(jobs_of(100, 2 * len(POINTS), POINTS, STORES))
    assert {(job.point, job.store) for job in jobs} == {(p, s) for p in POINTS for s in STORES}
    assert [job.seed for job in jobs] == list(range(100, 100 + len(jobs)))
    assert Job(0, 1, "database", "postgres").queue == "outage"
