"""Replay: decides recorded proposals again, with the real gates. Nothing is executed.

A proposal is decided from its capture alone: the contract by its hash, the principal, the grant,
what the ledger knew, what the probe answered, the run's state and the clock of that time. With the
same contract and policy the decision must be the same; another one is a defect. With others, it is
the decision that those would have made (`what_if`). A call is not judged if its decision needs a
fact that the record does not have: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import to_json

from counterseal.call.admit import unreadable_tokens
from counterseal.call.call import Call
from counterseal.call.capture import Capture
from counterseal.call.decide import ask_beyond, overdrawn, run_gates
from counterseal.call.hold import without_consent
from counterseal.call.recall import answer_from
from counterseal.contract.model import Contract
from counterseal.evaluation.recorded_facts import (
    MissingFactError,
    RecordedAuthority,
    budgets_of,
    entry_of,
    principal_of,
    probed_of,
    proposal_of,
    run_of,
)
from counterseal.evaluation.recording import CallVerdict, RecordedCall
from counterseal.execution.executor import Executor
from counterseal.gates import BEFORE_RECALL, budget, compile_record
from counterseal.gates.base import (
    EMPTY,
    AsyncGate,
    CompiledContract,
    Decision,
    GateContext,
    Verdict,
)
from counterseal.ledger.records import Held, HeldStatus, token_counts
from counterseal.ledger.requests import Charge, Memory
from counterseal.policy import Policy
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Reason, Refusal, Registry, RegistryRecord
from counterseal.registry.records import parse_version

_RESOLVED: Final = frozenset(list(Reason)[: list(Reason).index(Reason.NOT_EXPOSED)])
"""Reasons for which the registry has no record for a call. No other contract changes them."""
_DESTINATION: Final = "the destination was asked what became of an earlier call"
_WORLD: Final = {
    "outcome-unknown": _DESTINATION,
    "reversal-unknown": _DESTINATION,
    "store-failed": "the store could not be used",
}
"""By rule: why a refusal by the ledger can't be decided again from a capture."""
_REGISTRY: Final = Registry()
_EXECUTOR: Final = Executor()
_NOTHING_KNOWN: Final = GateContext(
    proposal=Proposal(tool="", arguments=""),
    principal=Principal(tenant="-", agent="-"),
    call_id="",
    now=0.0,
    registry=_REGISTRY,
    executor=_EXECUTOR,
)


class Judged(NamedTuple):
    """A recorded call, decided again."""

    call: RecordedCall
    now: CallVerdict | None
    """None if the call could not be judged."""
    why: str = ""
    """Why the call could not be judged."""
    differs: tuple[str, str, str] | None = None
    """The first gate that decided otherwise than recorded, what it did then, and now."""
    unchecked: bool = False
    """True if a budget may refuse the call: its counters were not read when it was decided."""
    made: Call | None = None
    """The call as it was decided now."""
    decision: Decision | None = None
    """The decision of a gate or of the ledger that refuses or holds the call, if there is one."""


class Rules:
    """The contracts and the policy that decide recorded calls again.

    `contracts` are those that were in force, in any number of versions; a call finds its own by
    its hash. A contract of `instead` decides about all calls of its tool. With `same`, calls that
    were decided under another policy are not judged.
    """

    def __init__(
        self,
        policy: Policy,
        contracts: Iterable[Contract],
        instead: Iterable[Contract] = (),
        *,
        same: bool = True,
    ) -> None:
        self.policy = policy
        self.same = same
        self._by_hash = {contract.hash: contract for contract in contracts}
        newest: dict[str, Contract] = {}
        for contract in instead:
            known = newest.get(contract.name)
            if known is None or _version(known) < _version(contract):
                newest[contract.name] = contract
        self._instead = newest
        self._compiled: dict[Any, tuple[RegistryRecord, CompiledContract]] = {}

    def recorded(self, capture: Capture) -> tuple[RegistryRecord, CompiledContract] | None:
        """Return the contract that a call was decided under; None if it is not known here."""
        contract = self._by_hash.get(capture.contract_hash or "")
        return None if contract is None else self._record(contract, capture)

    def deciding(self, capture: Capture) -> tuple[RegistryRecord, CompiledContract] | None:
        """Return the contract that decides now: one of `instead`, else the recorded one."""
        contract = self._instead.get(str(capture.proposal["tool"]))
        return self.recorded(capture) if contract is None else self._record(contract, capture)

    def _record(
        self, contract: Contract, capture: Capture
    ) -> tuple[RegistryRecord, CompiledContract]:
        settings = capture.authority[2]
        key = (contract.hash, to_json(settings) if settings else b"")
        known = self._compiled.get(key)
        if known is None:
            if settings.get("risk_accepted") and contract.hash != capture.contract_hash:
                settings = {**settings, "risk_accepted": False}  # accepted for another contract
            record = RegistryRecord(contract=contract, **settings)
            known = self._compiled[key] = record, compile_record(record, self.policy, _EXECUTOR)
        return known


def _version(contract: Contract) -> Any:
    return parse_version(contract.version)


def judge(call: RecordedCall, rules: Rules) -> Judged:
    """Decide a recorded call again."""
    capture = call.capture
    if call.lacks or capture is None:
        return Judged(call, None, call.lacks)
    why = _unjudgeable(call)
    if not why and rules.same and capture.policy_version not in (None, rules.policy.version):
        why = "it was decided under another policy"
    if why:
        return Judged(call, None, why)
    try:
        return _Judgement(call, capture, rules).result()
    except MissingFactError as error:
        return Judged(call, None, str(error))


def _unjudgeable(call: RecordedCall) -> str:
    outcome, body = call.outcome, call.event.body
    if outcome.gate == "ledger" and outcome.verdict == "deny":
        if outcome.rule in _WORLD:
            return _WORLD[outcome.rule]
        if outcome.code == "DEPENDENCY_UNAVAILABLE":
            return "what it depended on kept changing"
    if body.get("status") == "CANCELLED" and "began" in body:
        return "the caller was gone before it was decided"
    if outcome.rule == "gate-error":
        return "a gate failed"
    if outcome.gate == "approval" and outcome.verdict == "deny" and _was_approved(call):
        return "the proof of an approval is not part of the record"
    if outcome.gate == "approval" and outcome.code == "UNKNOWN_ERROR":
        return "the call could not be held"
    if "reconciled" in call.event.type:
        return _DESTINATION
    return ""


def _was_approved(call: RecordedCall) -> bool:
    """Return True if the request was approved in time, so that only its token was refused."""
    if str(call.outcome.rule).startswith("token-"):
        return True
    if call.held is None or call.capture is None or call.capture.memory is None:
        return False
    _, status, _ = call.capture.memory["approval"]
    return bool(status == HeldStatus.APPROVED and call.capture.now < call.held.expires_at)


class _Judgement:
    """One recorded call while it is decided again."""

    def __init__(self, call: RecordedCall, capture: Capture, rules: Rules) -> None:
        self.recorded = call
        self.capture = capture
        self.rules = rules
        self.known = capture.memory or {}
        self.error: BaseException | str | None = None
        self.unchecked = False
        self.counted = "run_counters" in self.known
        """Whether the counters of budgets were recorded."""
        self.call = Call(
            ctx=self._context(), started_ns=0, trace_id="", epoch=0, policy_version=None
        )

    def report(self, _call_id: str, _where: str, error: BaseException | str) -> None:
        """Keep the error of a gate."""
        self.error = error

    def result(self) -> Judged:
        """Return the decision, and where it differs from the recorded one."""
        end = self._decide()
        if isinstance(self.error, MissingFactError):
            raise self.error
        now = _verdict(end)
        differs = _difference(self.recorded, now, self.call)
        decision = end if isinstance(end, Decision) else None
        return Judged(self.recorded, now, "", differs, self.unchecked, self.call, decision)

    # --- the way of the call, without what waits --------------------------------------------------

    def _decide(self) -> Decision | CallVerdict | None:
        """Return a refusal, a requirement of approval, or None if the call may be executed."""
        call = self.call
        refused = run_gates(call, BEFORE_RECALL, self)
        tokens = self._beyond_tokens()
        if tokens is not None or refused is not None:
            return tokens or refused
        answer = self._answer()
        if answer is not None:
            return answer
        if call.ctx.resolved.reads_run and not self.counted:
            raise MissingFactError("the counters that a policy rule reads are not recorded")
        call.first_decision = len(call.decisions)
        while True:
            denied = self._run_gates()
            if denied is not None:
                return denied
            beyond = overdrawn(call) if call.approval_requirement else self._over_budget()
            if beyond is None:
                break
            charge, spent = beyond
            if not budget.can_ask(call.ctx, charge):
                return call.overrule(budget.exhausted(charge, spent))
            ask_beyond(call, charge, spent)
        requirement = call.approval_requirement
        if requirement is not None:
            refused = without_consent(call.ctx, requirement)
            if refused is not None:
                call.add_decision(refused)
            return refused or requirement
        wait = self._wait()
        return None if wait <= 0 else call.overrule(budget.rate_limited(wait))

    def _run_gates(self) -> Decision | None:
        """Run the gates after recall. Returns the first denial."""
        ctx = self.call.ctx
        if ctx.probed is not None or ctx.resolved.contract.probe is None:
            return run_gates(self.call, ctx.resolved.gates, self)
        for gate in ctx.resolved.gates:
            if isinstance(gate, AsyncGate):
                raise MissingFactError("the target was not probed then")
            denied = run_gates(self.call, (gate,), self)
            if denied is not None:
                return denied
        return None

    def _answer(self) -> Decision | CallVerdict | None:
        """Return the ledger's answer if the call's key was used before."""
        memory = self.call.ctx.memory
        if memory is None or memory.entry is None or self.call.ctx.takes_over:
            return None
        answer = answer_from(self.call, memory.entry)
        if isinstance(answer, Mapping):
            return CallVerdict("repeat", "ledger")
        if answer is None and self.call.takes_over is not None:
            raise MissingFactError(_DESTINATION)
        if answer is not None:
            self.call.add_decision(answer)
        return answer

    def _beyond_tokens(self) -> Decision | None:
        tokens, charge = self.call.ctx.proposal.tokens, self.known.get("charge")
        if tokens is None:
            return None
        try:
            token_counts(tokens, repair=False)
        except ValueError as error:
            denied = unreadable_tokens(error)
        else:
            limit = self.call.ctx.run.budgets.tokens
            if limit is None or charge is None or charge["budget"] != "run.tokens":
                return None
            if charge["spent"] + tokens <= limit:
                return None
            charged = Charge("run.tokens", "tokens", tokens, limit, of_run=True)
            denied = budget.exhausted(charged, charge["spent"])
        self.call.add_decision(denied)
        return denied

    def _over_budget(self) -> tuple[Charge, int] | None:
        """Return the first budget that the call exceeds, as its admission found out."""
        ctx, refused = self.call.ctx, self.known.get("charge")
        memory = ctx.memory if self.counted else None
        before: Mapping[str, Charge] | None = None
        for charge in ctx.charges:
            if charge.budget in ctx.over_budget:
                continue
            if refused is not None and charge.budget == refused["budget"]:
                if charge.exceeds(refused["spent"]):
                    return charge, refused["spent"]
            elif memory is None and charge.budget in self.known.get("over_budget", ()):
                return charge, int(charge.limit)
            elif memory is not None:
                counters = memory.run_counters if charge.of_run else memory.tenant_counters
                spent = counters.get(charge.counter, 0)
                if charge.exceeds(spent):
                    return charge, spent
            else:
                before = self._charges_then() if before is None else before
                earlier = before.get(charge.counter)
                if (
                    earlier is None
                    or charge.limit < earlier.limit
                    or charge.amount > earlier.amount
                ):
                    self.unchecked = True
        return None

    def _charges_then(self) -> Mapping[str, Charge]:
        """Return the charges that the admission of the call allowed; none if it was refused."""
        then = self.rules.recorded(self.capture)
        if self.recorded.outcome.verdict != "allow" or then is None:
            return {}
        if then[1] is self.call.ctx.compiled:
            return {charge.counter: charge for charge in self.call.ctx.charges}
        record, compiled = then
        result = budget.check(self.call.ctx.replace(record=record, compiled=compiled, memory=None))
        facts = getattr(result, "facts", {})
        return {charge.counter: charge for charge in facts.get("charges", ())}

    def _wait(self) -> float:
        """Return how long the call has to wait for its rate, as its admission found out."""
        ctx, known = self.call.ctx, self.known
        if "wait" in known:
            then, now = self.rules.recorded(self.capture), self.rules.deciding(self.capture)
            if then is None or now is None or _rates(then) != _rates(now):
                raise MissingFactError("the arrivals that its rate counted are not recorded")
            return float(known["wait"])
        arrivals = known.get("rates", EMPTY)
        known_rates = (rate for rate in ctx.rates if rate.counter in arrivals)
        return max((rate.wait(arrivals[rate.counter], ctx.now) for rate in known_rates), default=0)

    # --- the context of that time -----------------------------------------------------------------

    def _context(self) -> GateContext:
        capture, found = self.capture, None
        reason = capture.authority[1] if capture.authority else None
        if reason is not None and Reason(reason) in _RESOLVED:
            refusal = Refusal(Reason(reason), "")
        else:
            refusal, found = None, self.rules.deciding(capture)
            if found is None and (capture.contract_hash is not None or reason is None):
                _missing_contract(capture)
        principal, known = principal_of(capture), self.known
        run = run_of(capture)
        budgets = capture.tenant[1] if capture.tenant else None
        return _NOTHING_KNOWN.replace(  # many times as fast as a new context
            proposal=proposal_of(capture),
            principal=principal,
            call_id=self.recorded.call_id,
            now=capture.now,
            run=run,
            tenant=capture.tenant[0] if capture.tenant else EMPTY,
            limits=None if budgets is None else budgets_of(to_json(budgets)),
            refusal=refusal,
            recorded=RecordedAuthority(self.recorded, self.rules.recorded),
            record=None if found is None else found[0],
            compiled=None if found is None else found[1],
            memory=self._memory(),
            probed=probed_of(capture),
            takes_over="takes_over" in known,
        )

    def _memory(self) -> Memory | None:
        known = self.known
        entry = entry_of(self.recorded)
        held = self._held()
        if "entry" not in known and "run_counters" not in known:
            return None
        counters = (known.get(name, EMPTY) for name in ("run_counters", "tenant_counters", "rates"))
        return Memory(entry, held, *counters)

    def _held(self) -> Held | None:
        """Return the request for approval as the decision knew it."""
        values, held = self.known.get("approval"), self.recorded.held
        if values is None or held is None:
            return None
        contract_hash, found = held.contract_hash, self.rules.deciding(self.capture)
        if contract_hash == self.capture.contract_hash and found is not None:
            contract_hash = found[0].contract.hash  # as if it had been approved so
        return replace(
            held,
            status=HeldStatus(values[1]),
            votes=held.votes[: values[2]],
            contract_hash=contract_hash,
        )


def _missing_contract(capture: Capture) -> NoReturn:
    digest = str(capture.contract_hash)[:19]
    raise MissingFactError(f"its contract ({capture.proposal['tool']} {digest}…) is not here")


def _rates(found: tuple[RegistryRecord, CompiledContract]) -> Any:
    return found[0].contract.runtime.rate_limits


# --- comparing ------------------------------------------------------------------------------------


def _verdict(end: Decision | CallVerdict | None) -> CallVerdict:
    if end is None:
        return CallVerdict("allow")
    if isinstance(end, CallVerdict):
        return end
    code = None if end.code is None else end.code.value
    if end.verdict is Verdict.REQUIRE_APPROVAL:
        return CallVerdict("ask", "approval", code, end.rule)
    return CallVerdict("deny", end.gate, code, end.rule)


def _difference(call: RecordedCall, now: CallVerdict, judged: Call) -> tuple[str, str, str] | None:
    """Return the first gate with another decision than recorded: its name, then and now."""
    if call.outcome.verdict == now.verdict == "repeat":
        return None
    decided = {timed.decision.gate: timed.decision for timed in judged.decisions}
    for gate, recorded in call.gates.items():
        decision = decided.get(gate)
        then = ("allow", None) if not isinstance(recorded, list) else tuple(recorded[1:])
        if decision is None or (decision.verdict.value, decision.rule) == then:
            continue
        # A gate that ran twice found the arguments already corrected the second time.
        if gate == "semantics" and decision.verdict.value == then[0] == "allow":
            continue
        return gate, _words(*then), _words(decision.verdict.value, decision.rule)
    effective = None if call.capture is None else call.capture.effective
    if effective is not None and now.verdict != "deny" and effective != judged.ctx.arguments:
        return "semantics", "corrected", "corrected to other arguments"
    if call.outcome == now:
        return None
    return now.gate or call.outcome.gate or "", str(call.outcome), str(now)


def _words(verdict: str, rule: str | None) -> str:
    return verdict.replace("_", " ") if rule is None else f"{verdict.replace('_', ' ')} ({rule})"
