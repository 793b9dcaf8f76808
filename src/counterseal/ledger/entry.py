"""Entries of the idempotency ledger: keys, statuses, phases, answers to repeats. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from counterseal.canonical import canonical
from counterseal.contract.model import Contract
from counterseal.proposal import Principal, Proposal, System

CLIENT_WORKER: Final = "client"
"""The worker of an entry that was handed to the client. Workers' names have other forms."""
_RUN: Final = "run:"
"""How a derived key begins; a caller's own key never does."""
_DIGITS: Final = 11
_TIME: Final = 16**_DIGITS - 1
"""The largest number of milliseconds that fits into these digits."""
_SAFE: Final = 2**53
"""Whole numbers from here on are not exact in JSON."""


class EntryStatus(StrEnum):
    """The status of a ledger entry."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    FAILED_RETRYABLE = "FAILED_RETRYABLE"
    FAILED_FINAL = "FAILED_FINAL"
    COMPENSATED = "COMPENSATED"
    EXPIRED = "EXPIRED"


class Phase(StrEnum):
    """Where a PENDING entry stands."""

    RESERVED = "reserved"
    UNKNOWN = "unknown"
    ESCALATED = "escalated"


class Answer(StrEnum):
    """The answer to a repeated request under the same key."""

    EXECUTE = "execute"
    REPEAT = "repeat"
    IN_PROGRESS = "in_progress"
    MISMATCH = "mismatch"
    EXPIRED = "expired"


class Entry(NamedTuple):
    """One logical operation. The order of its fields is that of the columns in every database."""

    tenant: str
    key: str
    request_hash: bytes
    status: EntryStatus
    phase: Phase | None
    call_id: str
    run_id: str
    tool: str
    version: str
    fence: int = 1
    attempts: int = 1
    unknown_since: float | None = None
    """Since when its outcome is unknown."""
    observation: Mapping[str, Any] | None = None
    """The result, once it is known, as `observation.observation.stored` writes it."""
    worker: str | None = None
    """The worker that executes it; None when there is none."""
    looks: int = 0
    """How often a worker claimed it after its first worker was lost."""
    lapsed: bool = False
    """True when its lease was over when it was read, by the store's clock; never written."""

    def left(
        self,
        status: EntryStatus,
        attempts: int,
        *,
        phase: Phase | None = None,
        observation: Mapping[str, Any] | None = None,
        unknown_since: float | None = None,
    ) -> Entry:
        """Return the entry as its worker leaves it.

        The time since which the outcome is unknown stays, if it was unknown before.
        """
        since = self.unknown_since if unknown_since is None else unknown_since
        return self._replace(
            status=status,
            phase=phase,
            attempts=attempts,
            unknown_since=since,
            observation=observation,
            worker=None,
        )

    @property
    def held(self) -> bool:
        """True while a worker executes it under a valid lease."""
        pending = self.status is EntryStatus.PENDING
        return pending and self.worker is not None and not self.lapsed


def request_hash(arguments: Mapping[str, Any]) -> bytes:
    """Return the hash that a key is bound to: of the arguments as they were proposed."""
    for name, value in arguments.items():
        if type(name) is not str or (type(value) is not str and not _are_plain((value,))):
            return sha256(canonical(arguments)).digest()
    text = to_json(dict(sorted(arguments.items())))
    # Names that are not ASCII may be in another order in the canonical form.
    return sha256(text if text.isascii() else canonical(arguments)).digest()


def _are_plain(values: Iterable[Any]) -> bool:
    """Return True when any JSON writer gives the canonical form, whose own writer is slow."""
    for value in values:
        kind = type(value)
        if kind is str or value is None or kind is bool:
            continue
        if kind is not int or not -_SAFE < value < _SAFE:
            return False
    return True


def _given(contract: Contract, arguments: Mapping[str, Any], name: str) -> Any:
    """Return an argument, or its default: leaving it out means the same operation."""
    if name in arguments:
        return arguments[name]
    declared = contract.affordance.input_schema.get("properties", {}).get(name, {})
    return declared.get("default") if isinstance(declared, Mapping) else None


def derive_key(
    contract: Contract,
    proposal: Proposal,
    principal: Principal,
    run_id: str,
    began: float,
    arguments: Mapping[str, Any],
    hashed: bytes | None = None,
) -> str:
    """Return the caller's key, else the contract's business key, else one derived from the call.

    The first two hold neither version nor payload: a retry after a rollout, or with a reworded
    note, is the same operation. The derived key makes the same arguments in one run one operation;
    `began` is when that run began, `hashed` the request hash of the arguments, if it is known.
    """
    if isinstance(principal, System):
        return f"undo:{contract.name}:{proposal.key}"  # a key that no caller can choose
    if proposal.key is not None:
        return f"call:{contract.name}:{proposal.key}"
    if contract.business_key:
        parts = [contract.name, *(_given(contract, arguments, a) for a in contract.business_key)]
        return f"biz:{_digest(parts)}"
    tool = contract.identity
    derived = [
        proposal.workflow_id,
        run_id,
        principal.tenant,
        principal.user,
        tool.name,
        tool.version,
        proposal.operation_id,
        (hashed or request_hash(arguments)).hex(),
    ]
    # Any JSON writer gives the canonical form of texts. The time comes first, so that the keys of
    # today's runs lie together in a store's index.
    time = f"{int(began * 1000) & _TIME:0{_DIGITS}x}"
    return f"{_RUN}{time}{sha256(to_json(derived)).hexdigest()}"


def destination_key(tenant: str, key: str) -> str:
    """Return the key for a destination: specific to the tenant, opaque, and fit for any header.

    Tenants may share an account at a destination, and use the same keys. The time of the run is
    not part of it: if the ledger is lost, the destination still knows the same call of a run.
    """
    if key.startswith(_RUN):
        key = f"{_RUN}{key[len(_RUN) + _DIGITS :]}"
    return f"cs_{_digest([tenant, key])[:40]}"


def _digest(parts: list[Any]) -> str:
    text = to_json(parts) if _are_plain(parts) else canonical(parts)
    return sha256(text).hexdigest()


def duplicate(entry: Entry | None, request: bytes) -> Answer:
    """Return what a request gets that finds this entry under its key.

    A key is bound to its payload from the moment it is reserved. After FAILED_RETRYABLE it is free
    again, also for a corrected payload; but a payload that the destination has refused gets the
    same answer again.
    """
    if entry is None:
        return Answer.EXECUTE
    if entry.status is EntryStatus.FAILED_RETRYABLE:
        refused = entry.observation is not None and entry.request_hash == request
        return Answer.REPEAT if refused else Answer.EXECUTE
    if entry.request_hash != request:
        return Answer.MISMATCH
    if entry.status is EntryStatus.PENDING:
        return Answer.IN_PROGRESS
    return Answer.EXPIRED if entry.status is EntryStatus.EXPIRED else Answer.REPEAT


def reservable(entry: Entry, takes_over: int | None) -> bool:
    """Return True when a used key may be reserved again.

    A caller that takes over decided on an unsettled entry: it gets that entry or none. A caller
    that has not looked (`NEW_KEY`) gets none at all.
    """
    if takes_over is not None:
        return adrift(entry) and entry.fence == takes_over
    return entry.status is EntryStatus.FAILED_RETRYABLE


def adrift(entry: Entry) -> bool:
    """Return True when the outcome is unknown, no worker is at it, and no person was asked."""
    pending = entry.status is EntryStatus.PENDING and entry.phase is not Phase.ESCALATED
    return pending and not entry.held and (entry.lapsed or entry.phase is Phase.UNKNOWN)
