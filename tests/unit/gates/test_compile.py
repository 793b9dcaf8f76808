"""What registration works out of a contract, so that no call has to."""

import pytest

from counterseal import CountersealError, Grant, Principal, Proposal, Registry
from counterseal.execution.executor import Executor
from counterseal.gates import GATES
from counterseal.gates.base import GateContext, require_approval
from counterseal.testing import fake_tool, runtime_for

FOR_NO_TOOL = ("parse", "schema", "scope", "approval")
"""Gates that answer a call without a contract: they refuse it, or ask for approval."""


def compiled(effect="read_only", setting="redacted", **declared):
    runtime = runtime_for(fake_tool("look_up", effect=effect, **declared), keep_reads=setting)
    return runtime.compiled_for(runtime.registry.records[0])


@pytest.mark.parametrize("gate", [gate for gate in GATES if gate.name not in FOR_NO_TOOL])
async def test_a_gate_raises_without_a_contract_and_so_denies(gate):
    """`call.decide` turns an exception of a gate into a denial."""
    principal = Principal(tenant="acme", agent="agent", user="u_1")
    ctx = GateContext(
        proposal=Proposal(tool="look_up", arguments={}),
        principal=principal,
        call_id="call_1",
        now=1000.0,
        registry=Registry(),
        executor=Executor(),
        grant=Grant(agent="agent", tool="look_up"),
        requirements=(require_approval("policy", "asked"),),
    )
    with pytest.raises(CountersealError, match="not resolved"):
        await gate.check(ctx)  # only the state gate is async; the others raise before that


@pytest.mark.parametrize(
    ("setting", "own", "keeps", "short"),
    [
        ("none", None, "none", True),
        ("redacted", None, "redacted", True),
        ("all", None, "all", False),
        ("none", "all", "all", False),
        ("all", "none", "none", True),
        ("all", "redacted", "redacted", True),
    ],
)
def test_only_a_read_that_is_always_kept_leaves_the_short_way(setting, own, keeps, short):
    made = compiled(setting=setting, **({} if own is None else {"keep_reads": own}))
    assert (made.keeps, made.leaves_nothing) == (keeps, short)


def test_a_change_leaves_something_whatever_is_said_of_reads():
    assert not compiled("draft", "none").leaves_nothing


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep_reads": "some"}, "keep_reads must be one of none, redacted, all, got 'some'"),
        ({"keep_reads": True}, "keep_reads must be one of none, redacted, all, got True"),
        ({"keep_reads_bytes": 0}, "keep_reads_bytes must be 1 or more, got 0"),
    ],
)
def test_a_word_that_means_nothing_is_refused_with_those_that_do(options, said):
    with pytest.raises(ValueError, match=said):
        runtime_for(**options)
