"""Answers repeated calls from the ledger, and finds out what became of unknown ones."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from time import monotonic
from typing import Any, Final

from counterseal.audit import EventType
from counterseal.call.call import Call, CallServices
from counterseal.call.capture import arguments_as_proposed, keep_proposal
from counterseal.call.events import count_refusal, event, event_body, note_path
from counterseal.call.execute import observe, read_back
from counterseal.call.settle import settle
from counterseal.codes import Code
from counterseal.contract.approval_terms import Then
from counterseal.contract.model import Contract, OnUnknown
from counterseal.errors import RegistryError
from counterseal.execution.attempt import Outcome
from counterseal.execution.probes import ProbeError
from counterseal.gates import semantics
from counterseal.gates.base import Decision, Learned, TimedDecision, Verdict, deny
from counterseal.ledger import entry as ledger
from counterseal.ledger.entry import CLIENT_WORKER, Answer, Entry, EntryStatus, Phase, adrift
from counterseal.ledger.records import HeldStatus
from counterseal.ledger.requests import Memory, SettlementRequest
from counterseal.observation import Observation
from counterseal.observation.observation import from_stored

_IN_PROGRESS: Final = "in-progress"
"""Rule of the refusal of a call while another one with the same key is executed."""
_UNKNOWN: Final = "outcome-unknown"
_RETRY_AFTER: Final = 1.0


async def recall(
    call: Call, services: CallServices, *, always: bool = False
) -> Decision | Observation | None:
    """Read what is stored about this call: ONE read. Returns the answer of a repeated call.

    Unless `always`, a call whose decision needs nothing stored is left to its admission.
    """
    compiled = call.ctx.resolved
    if not (always or call.recall_first) or not (compiled.keyed or compiled.reads_run):
        return None
    if compiled.keyed:
        identify(call)
    counters = call.needs_counters or call.ctx.preview
    memory = await read_memory(call, services, counters=counters)
    return None if memory.entry is None else await _known(call, memory.entry, services)


def identify(call: Call) -> str:
    """Set the key and the request hash under which the ledger knows this call."""
    ctx, arguments = call.ctx, arguments_as_proposed(call.ctx)
    call.request_hash = ledger.request_hash(arguments)
    call.key = ledger.derive_key(
        call.contract,
        ctx.proposal,
        ctx.principal,
        ctx.run.run_id,
        ctx.run.started_at,
        arguments,
        call.request_hash or None,
    )
    return call.key


async def read_memory(call: Call, services: CallServices, *, counters: bool = True) -> Memory:
    """Read everything stored that matters to this call; counters only on request."""
    principal, run_id = call.ctx.principal, call.ctx.run.run_id
    requester = (principal.agent, principal.user)
    memory = await services.store.recall(call.tenant, run_id, call.key, requester, spent=counters)
    call.counters_recalled = counters
    call.learn(memory=memory)
    return memory


async def wait_for_other_call(
    call: Call, end: Decision, until: float, services: CallServices
) -> bool:
    """Wait until the call that holds this key has ended. Returns False on timeout.

    `until` is a moment of the monotonic clock.
    """
    left = until - monotonic()
    if end.rule != _IN_PROGRESS or call.key is None or left <= 0:
        return False
    return await services.store.wait(call.tenant, call.key, left)


# --- a key that was used before -------------------------------------------------------------------


def repeated(call: Call, entry: Entry) -> Decision | Observation | None:
    """Return the answer to another request under the same key; None if it may be executed."""
    answer = answer_from(call, entry)
    if not isinstance(answer, Mapping):
        return answer
    # The outcome is that of the first call, the trace that of this one.
    kept = from_stored(answer, idempotency_hit=True, trace_id=call.trace_id)
    records = (decision.record() for decision in kept.decisions)
    return kept._replace(decisions=tuple(map(TimedDecision.from_record, records)))


def answer_from(call: Call, entry: Entry) -> Decision | Mapping[str, Any] | None:
    """Return the stored observation that answers a request, or why it is refused.

    None if it may be executed.
    """
    answer = ledger.duplicate(entry, call.request_hash)
    if answer is Answer.EXECUTE:
        return None
    if answer is Answer.MISMATCH:
        reason = "The key was used for another request."
        return deny("ledger", Code.SIGNATURE_MISMATCH, reason)
    if answer is Answer.REPEAT and _must_be_named(call) and not _was_approved(call):
        reason = "This call was made before. To mean it again, give an operation_id or a key."
        return deny("ledger", Code.SEMANTIC_INVALIDITY, reason, rule="repeat-unnamed")
    if answer is Answer.REPEAT and entry.observation is not None:
        return entry.observation
    code = Code.IDEMPOTENCY_CONFLICT
    if answer is Answer.EXPIRED:
        reason = "The answer to this key is no longer kept."
        return deny("ledger", code, reason, rule="key-expired", next_action="use_new_operation")
    if adrift(entry) and call.contract.on_unknown is not OnUnknown.ESCALATE:
        call.takes_over = entry.fence
        return None
    if entry.phase is Phase.ESCALATED or adrift(entry):
        reason = "It is not known whether an earlier call with this key took effect."
        return deny("ledger", code, reason, rule=_UNKNOWN, next_action="escalate")
    if entry.worker == CLIENT_WORKER:
        reason = (
            "The client carries out a call with the same key, and has not reported its outcome."
            " Do not carry it out again. Report what came of it, or wait for the report."
        )
        place = {"call_id": entry.call_id, "fence": entry.fence}
        more: dict[str, Any] = {"next_action": "report_outcome", "data": place}
        return deny("ledger", code, reason, rule=_IN_PROGRESS, retry_after=_RETRY_AFTER, **more)
    reason = "A call with the same key is under way. Wait for it."
    return deny("ledger", code, reason, rule=_IN_PROGRESS, retry_after=_RETRY_AFTER)


async def answer_repeat(
    call: Call, entry: Entry, answer: Observation, services: CallServices
) -> Decision | Observation:
    """Answer with the outcome of an earlier call, and record that; unless it may be reversed."""
    doubt = await _reversal_in_doubt(call, entry, services) if answer.ok else None
    if doubt is not None or call.ctx.preview:
        return doubt or answer
    kept = keep_proposal(call, services, refused=True)  # as rarely, because repeats cost nothing
    body = {**event_body(call), **kept, "of": answer.call_id}
    services.store.note(event(call, EventType.REPLAYED, answer.code.value, body))
    if answer.ok:
        return answer
    # The repetition of a failed call is the same mistake once more.
    counted = await count_refusal(call, answer, services)
    if counted is not answer:
        note_path(call, counted, services)
    return counted


async def _reversal_in_doubt(call: Call, entry: Entry, services: CallServices) -> Decision | None:
    """Return a denial if a reversal of the earlier call has begun and is not known to be undone.

    A reversal that succeeded makes the entry COMPENSATED soon after; one that certainly had no
    effect leaves the outcome as it is.
    """
    try:
        contract = call.ctx.registry.get(entry.tool, entry.version).contract
    except RegistryError:
        contract = call.contract
    undo = contract.transactional.compensation_tool
    status, generation = EntryStatus.FAILED_FINAL, 0
    while undo is not None and status is EntryStatus.FAILED_FINAL:
        key = f"undo:{undo}:{compensation_key(entry.key, generation)}"
        kept = await services.store.look_up(entry.tenant, key)
        if kept is None or kept.entry.status is EntryStatus.FAILED_RETRYABLE:
            return None
        status, generation = kept.entry.status, generation + 1
        if status is not EntryStatus.FAILED_FINAL:
            reason = "This call took effect, and it is not known whether it was reversed since."
            stuck = kept.entry.phase is Phase.ESCALATED or status is EntryStatus.EXPIRED
            action = "escalate" if stuck else None
            code, rule = Code.IDEMPOTENCY_CONFLICT, "reversal-unknown"
            return deny("ledger", code, reason, rule=rule, next_action=action)
    return None


def compensation_key(key: str, generation: int = 0) -> str:
    """Return the key of a compensation, derived from the original's key.

    An operator who tries a compensation again that has failed for good begins a new generation.
    """
    text = f"{key}\0{generation}" if generation else key
    return sha256(text.encode()).hexdigest()


def _must_be_named(call: Call) -> bool:
    """Return True if the tool is repeatable, so that a second call needs a key or operation id."""
    proposal = call.ctx.proposal
    return call.contract.repeatable and proposal.key is None and proposal.operation_id is None


def _was_approved(call: Call) -> bool:
    """Return True if a worker executed it after approval, and the same caller asks again."""
    memory, principal = call.ctx.memory, call.ctx.principal
    held = memory.held if memory else None
    if held is None or held.status is not HeldStatus.SPENT:
        return False
    same_caller = (held.agent, held.user) == (principal.agent, principal.user)
    return same_caller and held.demand.get("then") == Then.EXECUTE


# --- an earlier call whose outcome is unknown -----------------------------------------------------


async def _known(call: Call, entry: Entry, services: CallServices) -> Decision | Observation | None:
    """Answer from the entry, after asking the destination where the outcome is unknown."""
    end = repeated(call, entry)
    if isinstance(end, Observation):
        return await answer_repeat(call, entry, end, services)
    in_doubt = call.takes_over is not None or (end is not None and end.rule == _UNKNOWN)
    if in_doubt and entry.lapsed and services.leases.mistrusted():
        call.takes_over = None
        return _not_known_yet(_RETRY_AFTER)
    if end is not None or call.takes_over is None:
        return end
    call.takes_over = None
    contract = _contract_of(call, entry)
    if contract is None or services.executor.abandoned(entry.tenant, entry.key):
        return _not_known_yet(1.0)
    if contract.on_unknown is OnUnknown.RETRY_SAME_KEY:
        _take_over(call, entry)
        call.in_doubt = True
        return None
    if call.ctx.preview:
        return _not_known_yet(None)
    return await _ask_destination(call, entry, contract, services)


def _contract_of(call: Call, entry: Entry) -> Contract | None:
    """Return the version that was executed: only that one says how to find out its outcome."""
    if call.contract.version == entry.version:
        return call.contract
    try:
        older = call.ctx.registry.get(entry.tool, entry.version).contract
    except RegistryError:
        return None
    return None if older.on_unknown is OnUnknown.ESCALATE else older


async def _ask_destination(
    call: Call, entry: Entry, contract: Contract, services: CallServices
) -> Decision | Observation | None:
    """Read back the outcome of an earlier call. Returns None if it was certainly not executed."""
    if not _corrected(call):
        return _not_known_yet(None)
    # Before the question, because the answer is as old as that.
    seconds = seconds_until_not_executed(entry, contract, services)
    try:
        output = await read_back(call, contract, services, call.until - services.clock())
    except ProbeError as error:
        services.report(call.call_id, "read_back", error.trace)
        return _not_known_yet(None)
    if output is not None:
        call.entry, call.reconciled = entry, True
        call.outcome = Outcome(Code.SUCCESS, output)
        answer = await settle(call, observe(call, services), services)
        return answer._replace(idempotency_hit=True)
    if seconds > 0:
        if entry.phase is not Phase.UNKNOWN:  # this call is the first to notice that
            await _mark_unknown(call, entry, seconds, services)
        return _not_known_yet(seconds)
    _take_over(call, entry)
    return None


def seconds_until_not_executed(entry: Entry, contract: Contract, services: CallServices) -> float:
    """Return the seconds until a missing record at the destination counts as "not executed".

    Until then, the request may still be on its way there. It takes two looks of one process:
    what another process has seen, and when, is known only by clocks that can be set.
    """
    return contract.runtime.timeout_ms / 1000 - services.leases.orphaned_for(entry)


def _take_over(call: Call, entry: Entry) -> None:
    """Continue an operation whose worker is gone. Its approval remains valid."""
    call.takes_over = entry.fence
    call.learn(takes_over=True)


async def _mark_unknown(call: Call, entry: Entry, seconds: float, services: CallServices) -> None:
    """Write down that its worker is gone: should it live, it begins no other attempt from here."""
    now = services.clock()
    unknown = entry._replace(phase=Phase.UNKNOWN, unknown_since=now, worker=None)
    request = SettlementRequest(
        tenant=call.tenant,
        run_id=entry.run_id,
        now=now,
        entry=unknown,
        seen={},
        state=(),
        events=(),
        again_after=seconds,
    )
    if await services.store.settle(request):
        services.leases.orphaned_for(unknown)


def _corrected(call: Call) -> bool:
    """Let the invariants correct the arguments, as they did before the first execution."""
    result = semantics.check(call.ctx)
    decision = result.decision if isinstance(result, Learned) else result
    if decision.verdict is not Verdict.ALLOW:
        return False
    if isinstance(result, Learned):
        call.learn(**result.facts)
    return True


def _not_known_yet(retry_after: float | None) -> Decision:
    reason = "It is not known yet whether an earlier call with this key took effect."
    code = Code.IDEMPOTENCY_CONFLICT
    return deny("ledger", code, reason, rule=_UNKNOWN, retry_after=retry_after)
