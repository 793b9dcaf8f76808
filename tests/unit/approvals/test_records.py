"""Keeping a call for a person: what can't be written down is refused, and nothing else raised."""

import pytest

from counterseal import Proposal
from counterseal.approvals.terms import Terms, strictest
from counterseal.call.call import Call
from counterseal.call.hold import UnkeepableError, held_call, held_of
from counterseal.gates.base import GateContext
from counterseal.ledger.records import RunRecord
from counterseal.testing import fake_tool, runtime_for, someone
from counterseal.vault import PLAIN, Vault, VaultError

RUNTIME = runtime_for(fake_tool("send", effect="draft"))
DEMAND = strictest([Terms(approvers=1)])


def kept(vault=PLAIN, **more):
    known = {
        "proposal": Proposal(tool="send", arguments={"a": 1}),
        "principal": someone(),
        "call_id": "call_1",
        "now": 0.0,
        "registry": RUNTIME.registry,
        "executor": RUNTIME.executor,
        "compiled": RUNTIME.compiled_for(RUNTIME.registry.records[0]),
        "arguments": {"a": 1},
        "run": RunRecord(tenant="acme", run_id="run_1", started_at=0.0),
    }
    ctx = GateContext(**{**known, **more})
    call = Call(ctx=ctx, started_ns=0, trace_id="0" * 32, epoch=0)
    return held_of(call, "k", DEMAND, None, vault)


def test_what_was_kept_comes_back_by_its_names():
    call = held_call(kept(before={"status": "open"}), PLAIN)
    assert (call.arguments, call.before, call.user) == ({"a": 1}, {"status": "open"}, "u_1")
    assert call.proposed("1.0.0").tool == "send"


@pytest.mark.parametrize(
    "odd",
    [
        {"before": {"a": 10**5000}},
        {"arguments": {"a": object()}},
        {"arguments": {"a": "\ud800"}},
        {"proposal": Proposal(tool="send", arguments={}, expected_version=object())},
    ],
    ids=["number", "object", "surrogate", "version"],
)
def test_what_can_not_be_written_down_is_not_kept(odd):
    with pytest.raises(UnkeepableError):
        kept(**odd)


def test_where_there_is_a_key_only_what_is_sealed_is_opened():
    vault = Vault(b"k" * 32)
    assert held_call(kept(vault), vault).arguments == {"a": 1}
    with pytest.raises(VaultError, match="not sealed"):
        held_call(kept(PLAIN), vault)
