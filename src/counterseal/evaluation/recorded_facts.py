"""The facts of a recorded decision, as the gates read them: principal, grant, run, entry, target.

Each is read from the capture. A gate that reads a fact which was not kept gets a MissingFactError,
so that no default stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json, to_json

from counterseal.call.capture import Capture
from counterseal.errors import CountersealError
from counterseal.evaluation.recording import RecordedCall
from counterseal.execution.probes import Probe
from counterseal.gates.base import EMPTY, CompiledContract, Probed
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Budgets, RunRecord
from counterseal.proposal import Principal, Proposal, System
from counterseal.registry import Grant, Reason, Refusal, RegistryRecord
from counterseal.registry.selection import authorized

_CACHED: Final = 16_384
ContractThen = Callable[[Capture], tuple[RegistryRecord, CompiledContract] | None]
"""Returns the contract that a call was decided under, if it is known."""


class MissingFactError(CountersealError):
    """A decision needs a fact that the record does not have; the message names it."""


class RecordedAuthority:
    """Stands in for the registry: answers with the grant or the refusal that was recorded."""

    def __init__(self, call: RecordedCall, contract_then: ContractThen) -> None:
        self._call = call
        self._contract_then = contract_then

    def authorize(self, record: RegistryRecord, principal: Principal) -> Grant | Refusal:
        """Return what the recorded grant allows, or the recorded refusal."""
        capture = self._call.capture
        if capture is None:
            raise MissingFactError("the proposal was not kept")
        own = capture.principal[1]
        grant, reason, _ = capture.authority
        if principal.agent != own and not isinstance(principal, System):
            # Of the grants of an agent and those it works for, the tightest is kept.
            if self._call.outcome.rule == "parent":
                return Refusal(Reason.NO_GRANT, "")
            return _grant(principal.agent, record.name, to_json(grant) if grant else b"")
        if grant is None:
            if reason is None:
                raise MissingFactError("whether the agent had a grant is not recorded")
            then = self._contract_then(capture)
            if then is None or _demands(then[0]) != _demands(record):
                raise MissingFactError("its agent had no usable grant, and the contract differs")
            return Refusal(Reason(reason), "")
        given = _grant(principal.agent, record.name, to_json(grant) if grant else b"")
        covering = (given,) if not grant.get("version") or given.covers(record.parsed) else ()
        now = _NEVER if given.expires_at is None else datetime.fromtimestamp(capture.now, UTC)
        return authorized(record, principal, covering, now)

    def catalogue(
        self, principal: Principal, run_id: str, pins: Mapping[str, str] | None = None
    ) -> tuple[RegistryRecord, ...]:
        """Return no tools: a refusal only lists their names, and no decision depends on them."""
        return ()


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def _demands(record: RegistryRecord) -> tuple[Any, ...]:
    """Return the parts of a record that decide whether a grant is enough."""
    effect = record.contract.effect
    return record.scopes, record.risk, effect, record.exposed, record.allowed_agent_roles


class RecordedState(Mapping[str, Any]):
    """The run state that a decision read. Other keys raise MissingFactError."""

    __slots__ = ("_read",)

    def __init__(self, read: Mapping[str, Any]) -> None:
        self._read = read

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._read[key][1]

    def __contains__(self, key: object) -> bool:
        read = self._read.get(str(key))
        if read is None:
            raise MissingFactError(f"the run's state under {key!r} is not recorded")
        return len(read) > 1

    def __iter__(self) -> Iterator[str]:
        raise MissingFactError("the whole state of the run is not recorded")

    def __len__(self) -> int:
        raise MissingFactError("the whole state of the run is not recorded")


def _key(values: Any) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def principal_of(capture: Capture) -> Principal:
    """Return the principal that made the proposal."""
    return _principal(_key(capture.principal))


@lru_cache(maxsize=_CACHED)
def _principal(values: tuple[Any, ...]) -> Principal:
    tenant, agent, user, roles, scopes, risk, parents, covered = values
    fields: dict[str, Any] = {"tenant": tenant, "agent": agent, "user": user, "roles": roles}
    fields |= {"scopes": scopes, "risk_level": risk, "parents": parents}
    return Principal(**fields) if covered is None else System(covered=covered, **fields)


@lru_cache(maxsize=_CACHED)
def _grant(agent: str, tool: str, settings: bytes) -> Grant:
    # The same object for the same grant, because the budget gate caches charges by grant.
    fields = from_json(settings) if settings else {}
    if fields.get("expires_at") is not None:
        fields["expires_at"] = datetime.fromisoformat(fields["expires_at"])
    return Grant(agent=agent, tool=tool, **fields)


@lru_cache(maxsize=_CACHED)
def budgets_of(limits: bytes) -> Budgets:
    """Return budgets from their record as JSON."""
    return Budgets(**from_json(limits))


def proposal_of(capture: Capture) -> Proposal:
    """Return the proposal as the caller gave it."""
    given = dict(capture.proposal)
    given.setdefault("run_id", capture.run[0])
    config = given.pop("configurable", capture.config)
    if "arguments" in given:  # as a plan had changed them
        return Proposal(**given, configurable=config, proposed=capture.arguments)
    return Proposal(**given, arguments=capture.arguments, configurable=config)


@lru_cache(maxsize=_CACHED)
def _plain_run(tenant: str, run_id: str, turn: int, started_at: float) -> RunRecord:
    """Return a run without settings, none of whose state was read."""
    state = RecordedState({})
    return RunRecord(tenant=tenant, run_id=run_id, started_at=started_at, turn=turn, state=state)


def run_of(capture: Capture) -> RunRecord:
    """Return the run, with those parts of its state that the decision read."""
    run_id, turn, _, read, started_at, settings = capture.run
    if not (settings or read):
        return _plain_run(capture.principal[0], run_id, turn, started_at)
    more: dict[str, Any] = {}
    if settings:
        budgets, allowed = settings.get("budgets"), settings.get("allowed_tools")
        more = {
            name: settings[name] for name in ("deadline", "objective", "seen") if name in settings
        }
        if budgets:
            more["budgets"] = budgets_of(to_json(budgets))
        if allowed is not None:
            more["allowed_tools"] = frozenset(allowed)
    if "*" in read:
        version, state = read["*"]
        versions = {"*": version}
    else:
        state, versions = RecordedState(read), {key: values[0] for key, values in read.items()}
    return RunRecord(
        tenant=capture.principal[0],
        run_id=run_id,
        started_at=started_at,
        state=state,
        state_versions=versions,
        turn=turn,
        **more,
    )


def probed_of(capture: Capture) -> Probed | None:
    """Return what the probe answered; None if it was not asked."""
    if capture.probe is None:
        return None
    if capture.probe == "found":
        return Probed(Probe(capture.version_seen, capture.target))
    return Probed(None, failed=capture.probe == "failed")


def entry_of(call: RecordedCall) -> Entry | None:
    """Return the ledger entry that the call found under its key."""
    memory = None if call.capture is None else call.capture.memory
    values = None if memory is None else memory.get("entry")
    if values is None:
        return None
    call_id, status, fence, phase, same, lapsed, worker, answered = values
    caller = call.event.caller
    return Entry(
        tenant=caller.tenant,
        key="",
        request_hash=b"" if same else b"other",  # that of a judged call is b""
        status=EntryStatus(status),
        phase=None if phase is None else Phase(phase),
        call_id=call_id,
        run_id=caller.run_id,
        tool=caller.tool,
        version=caller.version,
        fence=fence,
        observation=EMPTY if answered else None,
        worker="worker" if worker else None,
        lapsed=lapsed,
    )
