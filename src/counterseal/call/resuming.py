"""Going on with a call that somebody else began: the same contract, the same arguments, the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from counterseal.audit import Event
from counterseal.call.passage import Passage
from counterseal.call.resume import Resume
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.errors import RegistryError
from counterseal.execution.attempt import Outcome
from counterseal.execution.probes import Probe, ProbeError, ProbeRequest, probe
from counterseal.gates import GATES
from counterseal.gates.base import Decision, prepared
from counterseal.ledger.entry import Entry
from counterseal.observation import Observation
from counterseal.proposal import Proposal
from counterseal.registry import Refusal, RegistryRecord
from counterseal.storage.base import RunRecord

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["MOST_LOOKS", "Resumed", "contract_for", "pause_after"]

MOST_LOOKS = 10
"""How often somebody looks what became of a call before a person is asked."""
_AGAIN = tuple(prepared(gate) for gate in GATES if gate.name in ("schema", "scope", "policy"))


def contract_for(runtime: Runtime, entry: Entry, resume: Resume) -> RegistryRecord | None:
    """The very contract that a call was admitted under, if this process holds it."""
    try:
        record = runtime.registry.get(entry.tool, entry.version)
    except RegistryError:
        return None
    return record if record.contract.hash == resume.contract_hash else None


def pause_after(looks: int, lease: float) -> float:
    """Seconds until the next look: doubling, a minute at most."""
    return float(min(60.0, lease / 30 * 2 ** min(looks, 16)))


class Resumed(Passage):
    """A call taken up again. What it spent is spent, and what was approved stays approved."""

    def __init__(
        self, runtime: Runtime, entry: Entry, resume: Resume, run: RunRecord, record: RegistryRecord
    ) -> None:
        proposal = Proposal(
            tool=entry.tool,
            arguments=resume.arguments,
            run_id=entry.run_id,
            version=entry.version,
            call_id=entry.call_id,
        )
        super().__init__(runtime, proposal, resume.principal(entry.tenant))
        self.trace_id, self.key, self.entry = resume.trace_id, entry.key, entry
        self.in_doubt = True
        compiled = runtime.compiled_for(record)
        self.ctx.learn(
            {
                "run": run,
                "record": record,
                "compiled": compiled,
                "arguments": resume.arguments,
                "config": resume.config,
                "config_shown": resume.config,
                "version_seen": resume.version_seen,
                "approval_id": resume.approval_id,
            }
        )

    def may_run(self) -> Decision | None:
        """Whether it may still be carried out: kill switch, grants, scopes and policy of today."""
        ctx, who = self.ctx, self.ctx.principal
        found = ctx.registry.resolve(
            ctx.proposal.tool,
            tenant=who.tenant,
            run_id=ctx.run.run_id,
            version=ctx.proposal.version,
            agent=who.agent,
        )
        if isinstance(found, Refusal):
            ctx.learn({"refusal": found, "record": None})
        return self.ask(_AGAIN)

    async def run_again(self, contract: Contract) -> Observation | None:
        """Once more under the same key. None when the run's budgets or the rates say no."""
        if self.entry is None or not await self._spend_retry(contract):
            return None
        self.entry = self.entry._replace(attempts=self.entry.attempts + 1)
        await self.execute()
        self.reconciled = True
        return await self.settle(self.observe())

    async def found(self, value: object) -> Observation:
        """The destination knows of it: that is the outcome."""
        self.reconciled = True
        self.outcome = Outcome(Code.SUCCESS, value)
        return await self.settle(self.observe())

    async def never_happened(self) -> Observation:
        """The destination does not know of it, and never will: the key is free again."""
        self.in_doubt = False
        self.outcome = Outcome(Code.DEPENDENCY_UNAVAILABLE, began=False)
        self.reconciled = True
        return await self.settle(self.observe())

    def told(self, answer: Observation | None = None) -> dict[str, Any]:
        """No agent proposed it now."""
        return {**super().told(answer), "resumed": True}

    async def bounded(self, answer: Observation, events: Sequence[Event] = ()) -> Observation:
        """No agent made this try, so none is told that it was one too many."""
        return answer

    def note_path(self, answer: Observation) -> None:
        """Nor is one pointed anywhere."""

    @property
    def gives_up(self) -> bool:
        return self.entry is not None and self.entry.looks >= MOST_LOOKS

    def _again_after(self, contract: Contract) -> float:
        return pause_after(self.entry.looks if self.entry else 0, self.runtime.leases.seconds)

    async def look(self, contract: Contract) -> Probe | None:
        """The target as it is now; None when it is not there. ProbeError when nobody can say."""
        if contract.probe is None:
            raise ProbeError("the contract has no probe")
        seconds = contract.runtime.timeout_ms / 1000
        self._attempt_until = self.runtime.clock() + seconds
        ctx = self.ctx
        asked = ProbeRequest(
            contract, ctx.arguments, self._about, ctx.registry, ctx.executor, seconds
        )
        return await probe(contract.probe, asked)
