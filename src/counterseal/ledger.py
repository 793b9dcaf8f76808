"""Keys, statuses and phases of the idempotency ledger, and what a duplicate gets. Pure.

Where entries are kept is `storage`'s business; when they are written is the runtime's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from counterseal.canonical import canonical
from counterseal.contract.model import Contract
from counterseal.proposal import Principal, Proposal, System

__all__ = [
    "Answer",
    "Entry",
    "Phase",
    "Status",
    "derive_key",
    "destination_key",
    "duplicate",
    "request_hash",
]


class Status(StrEnum):
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
    """What a second request under the same key gets."""

    EXECUTE = "execute"
    REPLAY = "replay"
    IN_PROGRESS = "in_progress"
    MISMATCH = "mismatch"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One logical operation. `observation` is what its execution returned, once it did."""

    tenant: str
    key: str
    request_hash: bytes
    status: Status
    phase: Phase | None = None
    call_id: str
    tool: str
    version: str
    fence: int = 1
    attempts: int = 1
    unknown_since: float | None = None
    """Since when nobody knows what became of it."""
    observation: Mapping[str, Any] | None = None
    run_id: str = ""
    worker: str | None = None
    """Who is at work on it; None when nobody is."""
    lapsed: bool = False
    """Whether its lease was over when it was read, by the store's clock; never written."""
    looks: int = 0
    """How often somebody took it up since its worker was gone."""

    @property
    def held(self) -> bool:
        """Whether somebody is at work on it right now."""
        pending = self.status is Status.PENDING
        return pending and self.worker is not None and not self.lapsed


def request_hash(arguments: Mapping[str, Any]) -> bytes:
    """What a key is bound to: the arguments as they were proposed."""
    return hashlib.sha256(canonical(arguments)).digest()


def derive_key(
    contract: Contract,
    proposal: Proposal,
    principal: Principal,
    run_id: str,
    arguments: Mapping[str, Any],
    hashed: bytes | None = None,
) -> str:
    """The caller's key, else the contract's business key, else one derived from the whole call.

    The first two hold neither version nor payload: a retry after a rollout, or with a reworded
    note, is the same operation. The derived one makes the same arguments in one run one operation.
    `hashed` is their request hash, where it is known.
    """
    if isinstance(principal, System):
        return f"undo:{contract.name}:{proposal.key}"  # a name that no caller can take
    if proposal.key is not None:
        return f"call:{contract.name}:{proposal.key}"
    if contract.business_key:
        parts: list[Any] = [contract.name, *(arguments.get(a) for a in contract.business_key)]
        return f"biz:{_digest(parts)}"
    derived = [
        proposal.workflow_id,
        run_id,
        principal.tenant,
        principal.user,
        contract.name,
        contract.version,
        proposal.operation_id,
        (hashed or request_hash(arguments)).hex(),
    ]
    return f"run:{_digest(derived)}"


def destination_key(tenant: str, key: str) -> str:
    """The key as a destination gets it: of this tenant, opaque, and fit for any header.

    Tenants may share an account somewhere, and use the same keys.
    """
    return f"cs_{_digest([tenant, key])[:40]}"


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(canonical(parts)).hexdigest()


def duplicate(entry: Entry | None, request: bytes) -> Answer:
    """What a request gets that finds this entry under its key.

    A key is bound to its payload from the moment it is reserved. If nothing came of it
    (FAILED_RETRYABLE), it is free again, for a mended payload as well; but a payload that the
    destination has refused gets the same answer again.
    """
    if entry is None:
        return Answer.EXECUTE
    if entry.status is Status.FAILED_RETRYABLE:
        refused = entry.observation is not None and entry.request_hash == request
        return Answer.REPLAY if refused else Answer.EXECUTE
    if entry.request_hash != request:
        return Answer.MISMATCH
    if entry.status is Status.PENDING:
        return Answer.IN_PROGRESS
    return Answer.EXPIRED if entry.status is Status.EXPIRED else Answer.REPLAY
