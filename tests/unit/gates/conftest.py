import pytest

from counterseal import Grant, Principal, Proposal, Registry
from counterseal.execution.executor import Executor
from counterseal.gates import compile_record
from counterseal.gates.base import GateContext
from counterseal.ledger.records import RunRecord
from counterseal.ledger.requests import Memory
from counterseal.policy import Policy


@pytest.fixture
def context():
    """A gate context for one tool, as far as the first gates need it."""

    def context(tool, arguments, *, principal=None, run=None, **more):
        registry, executor = Registry(), Executor()
        registry.register(tool, grants=[Grant(agent="agent", tool=tool.contract.name)])
        principal = principal or Principal(tenant="acme", agent="agent", user="u_1")
        record = registry.records[0]
        proposal = Proposal(tool=record.name, arguments=arguments, run_id="run_1")
        return GateContext(
            proposal=proposal,
            principal=principal,
            call_id="call_1",
            now=1000.0,
            run=run or RunRecord(tenant=principal.tenant, run_id="run_1", started_at=1000.0),
            registry=registry,
            executor=executor,
            record=record,
            compiled=compile_record(record, Policy.default(), executor),
            arguments=arguments if isinstance(arguments, dict) else {},
            memory=Memory(None, None, {}, {}, {}),
        ).replace(**more)

    return context
