"""Of a call's decisions, those that do not simply allow are found without asking each of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Proposal
from counterseal.call.asking import Asking
from counterseal.call.trail import Trail
from counterseal.codes import Code
from counterseal.gates import GATES, Gate, gates_for
from counterseal.gates.base import Verdict, allow, deny, hold, prepared
from counterseal.storage.base import Budgets, HeldStatus
from counterseal.testing import fake_tool, runtime_for, someone

PLAIN = allow("plain")
WORDS = [
    PLAIN,
    allow("other"),
    allow("policy", rule="notes"),
    hold("policy", "ask"),
    deny("policy", Code.POLICY_VIOLATION, "no"),
]


def slowly(trail):
    return [
        timed
        for timed in trail
        if timed.decision.rule is not None or timed.decision.verdict is not Verdict.ALLOW
    ]


def asking(said):
    """A call whose gates say this, one after another."""
    call = Asking(runtime_for(fake_tool()), Proposal(tool="t", arguments={}), someone())
    call.ask([prepared(Gate("gate", lambda _, word=word: word, PLAIN)) for word in said])
    return call


words = st.sampled_from(WORDS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), words),
        st.tuples(st.just("overrule"), words),
        st.tuples(st.just("forget"), st.integers(0, 6)),
    ),
    max_size=8,
)


@given(said=st.lists(words, max_size=6), then=steps)
def test_they_are_the_same_that_one_finds_by_asking_each(said, then):
    trail = asking(said).trail
    assert trail.telling() == slowly(trail)
    for step, what in then:
        if step != "overrule" or len(trail):
            getattr(trail, step)(what)
        assert trail.telling() == slowly(trail)


def test_a_trail_that_nobody_has_filled_tells_nothing():
    assert Trail().telling() == []


def test_the_plain_yes_of_every_gate_is_one():
    ready = [gate[0] for gate, check, _ in gates_for(fake_tool().contract) if check is None]
    assert ready
    for decision in (*ready, *(gate.plain for gate in GATES if isinstance(gate, Gate))):
        assert decision is None or (decision.rule is None and decision.verdict is Verdict.ALLOW)


@pytest.mark.parametrize("effect", ["read_only", "draft", "external_notification"])
async def test_so_it_is_on_the_way_of_a_call(effect):
    runtime = runtime_for(fake_tool("act", effect=effect))
    await runtime.run(someone(), "run_1", budgets=Budgets(reads=2, writes=2))
    for number in range(3):
        call = Proposal(tool="act", arguments={}, run_id="run_1", key=f"k{number}")
        seen = await runtime.submit(call, someone())
        assert seen.decisions.telling() == slowly(seen.decisions)
        if seen.approval_id is not None:
            await runtime.store.decide("acme", seen.approval_id, HeldStatus.APPROVED, [])
            seen = await runtime.submit(call, someone())
            assert seen.decisions.telling() == slowly(seen.decisions)
