"""Calls that the client carries out: handed over after admission, settled with its report.

Gates, approval and ledger are those of any call. Instead of an execution here, the caller gets the
effective arguments, and reports the outcome later. Until the deadline the entry belongs to the
client; after it the outcome is unknown, as after the crash of a worker. A report is untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from counterseal.call.admit import Resume, seconds_for_client, unpack
from counterseal.call.call import Call, CallServices
from counterseal.call.events import refused_observation
from counterseal.call.execute import observe, read_back
from counterseal.call.resume import contract_for, resumed_call, run_of
from counterseal.call.settle import settle, settled_entry
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.declare import reported_failure
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError, NotSentError, StoreError
from counterseal.execution.attempt import Outcome
from counterseal.execution.failures import code_of, describe, judge
from counterseal.execution.probes import ProbeError
from counterseal.gates.base import deny
from counterseal.gates.parse import is_id
from counterseal.ledger.entry import CLIENT_WORKER, Entry, EntryStatus, destination_key
from counterseal.ledger.requests import StoredEntry
from counterseal.observation import FieldError, Observation
from counterseal.observation.observation import from_stored
from counterseal.proposal import Principal
from counterseal.vault import VaultError

HANDED_OVER: Final = "handed-over"
CARRY_OUT: Final = "carry_out_and_report"
"""The next action of a call that was handed over."""
_REASON: Final = (
    "Carry it out once, with these arguments and before the deadline. Then report the outcome."
)
_LATE: Final = "The deadline has passed, and the outcome was looked into."


class ReportError(CountersealError):
    """A refused report. `why` is one word for programs: unknown, late, reported or elsewhere."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Report(NamedTuple):
    """A client's report about a call: its output, an error, or that nothing was done."""

    call_id: str
    fence: int
    output: Any = None
    error: Mapping[str, Any] | str | None = None
    not_done: bool = False


def hand_over(call: Call) -> Observation | None:
    """Return what the client needs to carry the call out; None if a worker carries it out."""
    entry, seconds = call.entry, seconds_for_client(call)
    if entry is None or entry.worker != CLIENT_WORKER or seconds <= 0:
        return None
    data = {
        "call_id": entry.call_id,
        "fence": entry.fence,
        "arguments": thaw(call.ctx.arguments),
        "key": destination_key(entry.tenant, entry.key),
        "deadline": datetime.fromtimestamp(call.ctx.now + seconds, UTC).isoformat(),
    }
    if call.ctx.version_seen is not None:
        data["expected_version"] = call.ctx.version_seen
    call.answered = True
    error = FieldError("", _REASON, HANDED_OVER)
    decision = deny(
        "execution",
        Code.IDEMPOTENCY_CONFLICT,
        _REASON,
        field_errors=(error,),
        next_action=CARRY_OUT,
        data=data,
    )
    return refused_observation(call, decision)


async def settle_report(
    report: Report, principal: Principal, services: CallServices
) -> Observation:
    """Settle a call with the client's report, and return the observation of its outcome.

    A repeat of the same report gets the same answer. ReportError says why a report is refused.
    """
    kept, resume = await _find(report, principal, services)
    call = await _reported_call(kept, resume, report, services)
    if report.not_done:
        await _look_whether_done(call, services)
    observation, own = observe(call, services), (resume.ids or {}).get("call_id")
    if report.fence < kept.entry.fence or not await _has_outcome(kept.entry, services):
        await _refuse_second_late(report, kept.entry, services)
        answer = await settle(call, observation, services)
        if call.settled:
            return answer._replace(caller_call_id=own)
        kept, _ = await _find(report, principal, services)
    if kept.entry.worker == CLIENT_WORKER:
        raise StoreError("the report could not be written; report it again")
    if report.fence < kept.entry.fence or not await _has_outcome(kept.entry, services):
        raise ReportError("late", _LATE)
    return _repeated(kept.entry, call, observation, services)._replace(caller_call_id=own)


async def _look_whether_done(call: Call, services: CallServices) -> None:
    """Ask the destination, where it can be asked, before a key and an approval are free again.

    A client that says "not done" of what it did could do it any number of times.
    """
    contract = call.contract
    if contract.read_back is None or not contract.mutates:
        return
    try:
        output = await read_back(call, contract, services)
    except ProbeError as error:
        services.report(call.call_id, "read_back", error.trace)
        call.in_doubt = True
        return
    if output is not None:
        call.outcome = Outcome(Code.SUCCESS, output)


async def _has_outcome(entry: Entry, services: CallServices) -> bool:
    """Return True if the outcome of a call is on record; False if no report was accepted.

    A reported error can leave the outcome unknown; the report is on record nevertheless.
    """
    if entry.status is not EntryStatus.PENDING:
        return True
    if entry.worker == CLIENT_WORKER:
        return False
    return any("settled" not in body for body in await _reports_on_record(entry, services))


async def _refuse_second_late(report: Report, entry: Entry, services: CallServices) -> None:
    """Raise ReportError for a late report after the first, which is on record with its output.

    Reports are no calls, so that no budget would limit what a client could store with them.
    """
    late = report.fence < entry.fence or entry.worker != CLIENT_WORKER
    if late and any("settled" in body for body in await _reports_on_record(entry, services)):
        raise ReportError("late", _LATE)


async def _reports_on_record(entry: Entry, services: CallServices) -> list[Mapping[str, Any]]:
    """Return what the events of a call say of its reports. A late one has `settled`: False."""
    events = await services.store.events(entry.tenant, call_id=entry.call_id)
    return [event.body for _, event in events if "reported_by" in event.body]


async def _find(
    report: Report, principal: Principal, services: CallServices
) -> tuple[StoredEntry, Resume]:
    """Return the entry of a call that was handed to this principal; ReportError for any other."""
    found: Sequence[StoredEntry] = ()
    if is_id(report.call_id):
        found = await services.store.look_up_call(principal.tenant, report.call_id)
    for kept in found:
        entry = kept.entry
        if kept.resume is None or not 1 <= report.fence <= entry.fence:
            continue
        try:
            resume = unpack(kept.resume, entry.tenant, entry.key, services.vault)
        except VaultError as error:
            services.report(entry.call_id, "vault", error)
            continue
        if (resume.agent, resume.user) != (principal.agent, principal.user):
            continue
        record = contract_for(services.registry, entry, resume)
        if record is None:
            reason = f"{entry.tool} {entry.version} is not registered here as it was called."
            raise ReportError("elsewhere", f"{reason} Report to a worker that has it.")
        if record.contract.by_client:
            return kept, resume
    raise ReportError("unknown", "There is no such call that was handed to this client.")


async def _reported_call(
    kept: StoredEntry, resume: Resume, report: Report, services: CallServices
) -> Call:
    entry = kept.entry
    record = services.registry.get(entry.tool, entry.version)
    call = resumed_call(entry, resume, await run_of(services, entry), record, services)
    call.resumed = call.in_doubt = False  # its caller waits, and no other attempt was made
    call.reported = True
    call.entry = entry._replace(fence=report.fence)
    if kept.created_at is not None:
        took = max(0.0, services.clock() - kept.created_at)
        call.started_ns = perf_counter_ns() - int(took * 1e9)
    call.outcome = _outcome(report, call.contract)
    return call


def _outcome(report: Report, contract: Contract) -> Outcome:
    if report.error is None and not report.not_done:
        return Outcome(Code.SUCCESS, report.output)
    if report.error is None:
        fault = describe(NotSentError("the client did nothing"))
        return Outcome(code_of(fault, contract), fault=fault, began=False, not_done=True)
    failure = reported_failure(contract.name, report.error, open_fields=True)
    fault = describe(failure)
    code, not_done = judge(fault, failure.words, contract)
    if report.not_done:
        code, not_done = code_of(fault, contract), True
    return Outcome(
        code,
        fault=fault,
        began=not report.not_done,
        not_done=not_done,
        words=failure.words,
        error_fields=failure.fields,
    )


def _repeated(
    entry: Entry, call: Call, observation: Observation, services: CallServices
) -> Observation:
    """Answer a repeat of the accepted report. ReportError if it reports another outcome."""
    again = settled_entry(call, entry, observation, None, services)
    same_state = (again.status, again.phase) == (entry.status, entry.phase)
    if not same_state or _outcome_kept(again) != _outcome_kept(entry):
        raise ReportError("reported", "Another outcome of this call is on record.")
    return observation if entry.observation is None else from_stored(entry.observation)


def _outcome_kept(entry: Entry) -> tuple[Any, ...] | None:
    """Return the code, data and errors of an entry's outcome, without times and ids."""
    if entry.observation is None:
        return None
    kept = from_stored(entry.observation)
    return kept.code, kept.data, kept.errors
