"""What a store remembers: runs, their budgets, held proposals, due work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from counterseal.contract.effects import Effect

__all__ = [
    "Asker",
    "Budgets",
    "Concern",
    "Due",
    "DueKind",
    "Held",
    "HeldStatus",
    "RunRecord",
    "SessionRow",
]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

Asker = tuple[str, str | None]
"""Whose request it is: the agent, and the user that it works for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits of a run, or of a tenant for a day. None is no limit of its own.

    They only ever narrow: what a tool's contract or grant allows is its own limit beside these, and
    for a critical mutation that is zero until a grant says otherwise.
    """

    reads: int | None = None
    writes: int | None = None
    external: int | None = None
    critical: int | None = None
    money: float | None = None
    seconds: float | None = None
    """Wall clock, from the start of the run."""
    retries: int | None = None
    """Further attempts at reads that failed for want of something outside."""
    repairs: int | None = None
    """Refused proposals that an agent may mend or think over by itself; None stands for 30."""
    by_effect: Mapping[str, int] = field(default_factory=dict)
    ask: bool = False
    """Whether people may be asked for one call more when a budget is spent."""

    def __post_init__(self) -> None:
        apart = ("by_effect", "ask")
        named = {name: getattr(self, name) for name in self.__slots__ if name not in apart}
        for effect in self.by_effect:
            Effect(effect)  # a budget for an effect that does not exist would limit nothing
        for name, limit in {**named, **self.by_effect}.items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"{name}: a budget is a number from 0 on, not {limit!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One agent run, as the store remembers it."""

    tenant: str
    run_id: str
    started_at: float
    objective: str | None = None
    allowed_tools: frozenset[str] | None = None
    """None: every tool that the principal may use."""
    budgets: Budgets = Budgets()
    deadline: float | None = None
    """When it must be over, whatever its budgets; in seconds since the epoch."""
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    state_versions: Mapping[str, int] = field(default_factory=dict)
    """How often each key of the state was changed; under `*`, how often any was."""
    untrusted: frozenset[str] = frozenset()
    """Keys of the state that hold something from outside."""
    turn: int = 1
    refused: frozenset[str] = frozenset()
    """Tools whose refusals are being counted."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Tool to version: what the run began with, it keeps."""
    seen: Mapping[str, str | int] = field(default_factory=dict)
    """Resource to the version that the run saw last."""


class HeldStatus(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SPENT = "spent"
    VOID = "void"
    """Approved, but the world was no longer the one that was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A proposal that waits for people: what they are asked, and all that is needed to go on."""

    approval_id: str
    tenant: str
    key: str
    approval_hash: str
    """Of the arguments after correction, and the config: what a person would say yes to."""
    call_id: str
    run_id: str
    tool: str
    version: str
    contract_hash: str
    agent: str
    user: str | None
    reason: str
    rule: str | None
    approvers: int
    """How many people must say yes."""
    risk: str
    demand: Mapping[str, Any]
    """What an approval takes, as JSON data."""
    version_seen: str | int | None
    created_at: float
    expires_at: float
    """When it is too late to decide it, and to use what was decided; by the runtime's clock."""
    trace_id: str
    sealed: bytes = field(repr=False)
    """The call itself: proposal, principal, arguments, states. The store does not look into it.

    Empty once it was forgotten.
    """
    status: HeldStatus = HeldStatus.WAITING
    votes: tuple[Mapping[str, Any], ...] = ()
    """Who has said what, in that order, as JSON data."""
    token: str | None = field(default=None, repr=False)
    """The signed proof of its approval, where there is a key to sign with."""


class DueKind(StrEnum):
    """What is to be done later, by whoever gets to it."""

    VERIFY = "verify"
    """Look whether the world is as a call has left it."""
    COMPENSATE = "compensate"
    """Reverse what a call did."""
    EXECUTE = "execute"
    """Carry out what people have approved."""
    NOTIFY = "notify"
    """Tell somebody that they are asked."""


class Due(NamedTuple):
    """A piece of work that is due at some time. There is one of a kind for a ledger key."""

    tenant: str
    kind: DueKind
    key: str
    """The ledger key of the call that it is about; for a request, its approval id."""
    call_id: str
    run_id: str
    tool: str
    version: str
    body: Mapping[str, Any] = _NOTHING
    """What the worker needs to know beside the call itself; JSON data without secrets."""
    fence: int = 0
    """Raised with every claim; who comes with an old one changes nothing."""
    tries: int = 0
    failed: str | None = None
    """Why nobody will try again: then it is on the operator's list until somebody ends it."""
    since: float = 0.0
    """When it was put down, or failed; by the store's clock."""


class Concern(NamedTuple):
    """One line of the operator's list: what no machine will settle by itself."""

    tenant: str
    kind: str
    """`unknown`: a call of which nobody knows whether it took effect; else a `DueKind`."""
    key: str
    call_id: str
    run_id: str
    tool: str
    version: str
    since: float
    reason: str
    fence: int


class SessionRow(NamedTuple):
    """One person's session at the console or the API."""

    session: str
    """Hex digest of the secret in the session's cookie; the secret itself is never stored."""
    user: str
    created_at: float
    seen_at: float
    expires_at: float
    """When the session ends; in seconds since the epoch."""
    facts: Mapping[str, Any] = _NOTHING
    """Further facts about the session, as JSON data without secrets."""
