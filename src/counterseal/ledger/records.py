"""Records of the store: runs and their budgets, requests for approval, due work, sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from counterseal.contract.effects import Effect
from counterseal.contract.money import TENANT_WINDOWS, Limits, checked_limits

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

Asker = tuple[str, str | None]
"""The caller of a request: the agent, and the user that it works for."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Limits of a run, or of a tenant for a day. None means no limit.

    They only narrow: the limits of a tool's contract or grant apply beside them, and for a critical
    mutation that limit is zero until a grant raises it.
    """

    reads: int | None = None
    writes: int | None = None
    external: int | None = None
    critical: int | None = None
    money: Limits = field(default_factory=dict)
    """What calls may spend (`spends`), by currency: `{"run": {"EUR": 100}}`; see docs/money.md."""
    cost: Limits = field(default_factory=dict)
    """What calls may cost (`cost_per_call`), by currency, in the same form."""
    tokens: int | None = None
    """Tokens that the model of a run may use, as far as the host reports them."""
    seconds: float | None = None
    """Wall-clock time from the start of the run."""
    retries: int | None = None
    """Retries of reads that failed for an external reason."""
    repairs: int | None = None
    """Refused proposals that an agent may repair or replan by itself; None stands for 30."""
    by_effect: Mapping[str, int] = field(default_factory=dict)
    ask: bool = False
    """True when people may be asked for one more call after a budget is spent."""

    def __post_init__(self) -> None:
        for kind in ("money", "cost"):
            try:
                limits = checked_limits(getattr(self, kind), TENANT_WINDOWS)
            except ValueError as error:
                raise ValueError(f"{kind}: {error}") from None
            object.__setattr__(self, kind, limits)
        apart = ("by_effect", "money", "cost", "ask")
        named = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in apart}
        for effect in self.by_effect:
            Effect(effect)  # a budget for an effect that does not exist would limit nothing
        for name, limit in {**named, **self.by_effect}.items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"{name}: a budget must be a number from 0 on, got {limit!r}")

    @cached_property
    def limits(self) -> Mapping[str, Any]:
        """The limits that are set; `Budgets(**limits)` has them again."""
        limits = {one.name: getattr(self, one.name) for one in fields(self)}
        # Not `in (None, False, {})`: 0 is a limit, and equals False.
        return {
            name: limit
            for name, limit in limits.items()
            if not (limit is None or limit is False or limit == {})
        }


def token_counts(tokens: object, *, repair: bool) -> dict[str, int]:
    """Return the counts of a model's tokens; those of repairs also apart. Raises ValueError."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= _MOST_TOKENS:
        raise ValueError(f"tokens must be a whole number from 0 to {_MOST_TOKENS:,}")
    return {"tokens": tokens, "tokens.repairs": tokens} if repair else {"tokens": tokens}


_MOST_TOKENS: Final = 10**9


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
    """When the run must be over, whatever its budgets; in seconds since the epoch."""
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    state_versions: Mapping[str, int] = field(default_factory=dict)
    """How often each key of the state was changed; under `*`, how often any key was."""
    untrusted: frozenset[str] = frozenset()
    """Keys of the state that hold untrusted values."""
    turn: int = 1
    refused: frozenset[str] = frozenset()
    """Tools with counted refusals."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Tool to version: a run keeps the version that it used first."""
    seen: Mapping[str, str | int] = field(default_factory=dict)
    """Resource to the version that the run has seen last."""


class HeldStatus(StrEnum):
    """The status of a request for approval."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SPENT = "spent"
    VOID = "void"
    """Approved, but the state had changed since the approvers saw it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A request for approval: what approvers are asked, and everything needed to go on.

    The order of its fields is that of the columns in every database.
    """

    tenant: str
    approval_id: str
    key: str
    status: HeldStatus = HeldStatus.WAITING
    approval_hash: str
    """Hash of the corrected arguments and the config: what an approver agrees to."""
    contract_hash: str
    approvers: int
    """How many approvers are needed."""
    call_id: str
    run_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    reason: str
    rule: str | None
    risk: str
    demand: Mapping[str, Any]
    """The terms of the approval, as JSON data."""
    version_seen: str | int | None
    created_at: float
    expires_at: float
    """End of the time to decide, and to use the approval; by the runtime's clock."""
    trace_id: str
    sealed: bytes = field(repr=False)
    """The encrypted call: proposal, principal, arguments, states. Empty once it was forgotten."""
    votes: tuple[Mapping[str, Any], ...] = ()
    """The votes in their order, as JSON data."""
    token: str | None = field(default=None, repr=False)
    """The signed proof of the approval, if there is a signing key."""


class DueKind(StrEnum):
    """Work to be done later, by any worker."""

    VERIFY = "verify"
    """Verify the effect of a call."""
    COMPENSATE = "compensate"
    """Reverse the effect of a call."""
    EXECUTE = "execute"
    """Execute an approved call."""
    NOTIFY = "notify"
    """Notify approvers of a request."""


class Due(NamedTuple):
    """A piece of work that is due at some time; one of each kind for a ledger key."""

    tenant: str
    kind: DueKind
    key: str
    """The ledger key of its call; for a request for approval, the approval id."""
    call_id: str
    run_id: str
    tool: str
    version: str
    body: Mapping[str, Any] = _NOTHING
    """Further facts for the worker, beside the call itself; JSON data without secrets."""
    fence: int = 0
    """Raised with every claim: a worker with an older number changes nothing."""
    tries: int = 0
    failed: str | None = None
    """Why it is not tried again: then it needs attention until an operator ends it."""
    since: float = 0.0
    """When it was added, or failed; by the store's clock."""


class Concern(NamedTuple):
    """Something that needs an operator's attention."""

    tenant: str
    kind: str
    """`unknown`: it is not known whether the call took effect; else a `DueKind`."""
    key: str
    call_id: str
    run_id: str
    tool: str
    version: str
    since: float
    reason: str
    fence: int


class RegisteredContract(NamedTuple):
    """A contract as it was first registered, with what held it for review."""

    tool: str
    version: str
    contract_hash: str
    record: Mapping[str, Any]
    """The contract's full record."""
    held: tuple[str, ...] = ()
    """The changes for guardians that it came with; an operator accepts them, or it stays held."""
    registered_at: float = 0.0
    """Set by the store."""


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
