"""Holds a call for approval: the stored request, and the packet that approvers are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from random import getrandbits
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.approvals.display import leaves, stamp
from counterseal.approvals.packet import Packet, make_packet
from counterseal.approvals.terms import Demand
from counterseal.audit import EventType
from counterseal.call.call import DECIDE_AGAIN, Call, CallServices, DecideAgain
from counterseal.call.capture import keep_proposal
from counterseal.call.events import (
    event,
    event_body,
    gate_events,
    refused_observation,
    shown_config,
)
from counterseal.canonical import freeze, json_default, thaw, unused_key
from counterseal.codes import Code
from counterseal.contract.approval_terms import Pattern, Then
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError
from counterseal.execution.probes import ProbeError, ask
from counterseal.gates.approval import approval_hash, demand_of, ended, hash_of, votes_of
from counterseal.gates.base import Decision, GateContext, deny, hook_request
from counterseal.gates.parse import CALLER_IDS, ORIGINS, places, sound_copy
from counterseal.gates.state import state_seen
from counterseal.ledger.records import Held, HeldStatus
from counterseal.observation import Observation, Redactor
from counterseal.proposal import Principal, Proposal, RiskLevel, System
from counterseal.vault import Vault, VaultError

_PROPOSAL_FIELDS: Final = (
    *("tool", "run_id", "version", "key"),
    *("operation_id", "expected_version", *CALLER_IDS),
)
_SHOWN_OF_REQUEST: Final = (
    *("approval_id", "trace_id", "tenant", "agent", "user"),
    *("created_at", "expires_at", "risk"),
)
_SHOWN_OF_CALL: Final = ("arguments", "config", "before", "after", "origins", "spent", "reverses")
_SUPERSEDED: Final = "Something else was asked for under the same key, or on other terms."
_OVERTAKEN: Final = {
    HeldStatus.WAITING: (HeldStatus.EXPIRED, EventType.APPROVAL_EXPIRED),
    HeldStatus.APPROVED: (HeldStatus.VOID, EventType.APPROVAL_VOID),
}
_DISTINCTIVE: Final = 4
"""A text of this many characters does not equal another one by accident."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)
"""What reading a row can raise that was changed by other software."""


class UnkeepableError(CountersealError):
    """A call can't be stored, so it can't be held for approval."""


async def hold(
    call: Call, requirement: Decision, services: CallServices
) -> Decision | Observation | DecideAgain:
    """Store the call for approvers, unless exactly this call is approved already."""
    ctx = call.ctx
    if call.key is None:
        reason = "The call has no key, so it can't be held for approval."
        return deny("approval", Code.UNKNOWN_ERROR, reason)
    refused, demand = without_consent(ctx, requirement), demand_of(ctx)
    if refused is not None:
        return refused
    if not can_be_kept(ctx.proposal.configurable):
        demand = replace(demand, then=Then.RESUBMIT)  # only the caller can give its config again
    after = await _preview(call, services)
    try:
        request = held_of(call, call.key, demand, after, services.vault)
    except UnkeepableError as error:
        services.report(call.call_id, "approval", error)
        reason = "The call can't be kept for approval."
        return deny("approval", Code.UNKNOWN_ERROR, reason, rule="unkeepable")
    body = {"rule": requirement.rule, "approval_id": request.approval_id}
    body |= shown_config(call, services) | event_body(call) | keep_proposal(call, services)
    required = event(call, EventType.APPROVAL_REQUIRED, "require_approval", body)
    events, call.answered = [*gate_events(call, services), required], True
    held = await services.store.hold(request, events, services.notices(request))
    if held.approval_id == request.approval_id:
        await _supersede(call, request, services)
    if held.status is HeldStatus.APPROVED and ctx.now < held.expires_at:
        return DECIDE_AGAIN  # approved this very moment: every gate must see it
    over = ended(held, requirement, ctx.now)
    return over or refused_observation(call, requirement, approval_id=held.approval_id)


def without_consent(ctx: GateContext, requirement: Decision) -> Decision | None:
    """Return the denial of a call that its user would have to approve, and that has no user."""
    if ctx.principal.user is not None or demand_of(ctx).pattern is not Pattern.USER_CONSENT:
        return None
    reason = "The user would have to consent, and this call is made on behalf of no user."
    code, action = Code.CONFIRMATION_MISSING, "replan"
    return deny("approval", code, reason, rule=requirement.rule, next_action=action)


async def _supersede(call: Call, request: Held, services: CallServices) -> None:
    """End the request that the same caller has replaced by this one, under the same key."""
    memory, principal = call.ctx.memory, call.ctx.principal
    before = memory.held if memory else None
    if before is None or (before.agent, before.user) != (principal.agent, principal.user):
        return
    if before.status in _OVERTAKEN:
        status, kind = _OVERTAKEN[before.status]
        body = {"approval_id": before.approval_id, "reason": _why_superseded(before, request)}
        ending = event(call, kind, status.value, body)
        await services.store.decide(call.tenant, before.approval_id, status, [ending])


def _why_superseded(before: Held, request: Held) -> str:
    """Return why a new request was made, in a sentence for the record."""
    try:
        earlier, now = (Demand.from_record(one.demand).including for one in (before, request))
    except _UNREADABLE:
        return _SUPERSEDED
    roles = sorted(" or ".join(sorted(names)) for names in now - earlier)
    if not roles or before.approval_hash != request.approval_hash:
        return _SUPERSEDED
    return f"The policy now also asks for an approver with the role {' and '.join(roles)}."


async def _preview(call: Call, services: CallServices) -> Mapping[str, Any] | None:
    """Return the state that the contract's preview hook expects after the call, if it can say."""
    contract = call.contract
    if contract.preview is None:
        return None
    seconds = contract.runtime.timeout_ms / 1000
    try:
        state = await ask(contract.preview, hook_request(call.ctx, contract, seconds))
    except ProbeError as error:
        services.report(call.call_id, "preview", error.trace)
        return None
    return state if isinstance(state, Mapping) else None


# --- the stored request ---------------------------------------------------------------------------


class HeldCall(NamedTuple):
    """The sealed part of a request: the proposal as it came, and the call as it would be made."""

    proposal: dict[str, Any]
    agent: str
    user: str | None
    roles: list[str]
    scopes: list[str]
    arguments: dict[str, Any]
    """As they would be executed, after corrections."""
    config: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    origins: dict[str, str]
    over_budget: list[str]
    """Budgets that the call would exceed."""
    risk_level: str = RiskLevel.LOW
    spent: Sequence[str] = ()
    """What was spent of each limit of money, in words."""
    reverses: dict[str, str | None] | None = None
    """The call that this one reverses, as in `System`."""
    parents: Sequence[str] = ()

    def proposed(self, version: str) -> Proposal:
        """Return the proposal to submit again, with the approved version."""
        return Proposal(**{**self.proposal, "version": version})

    def principal(self, tenant: str) -> Principal:
        """Return the principal, with the scopes of that time as a ceiling."""
        return Principal(
            tenant=tenant,
            agent=self.agent,
            user=self.user,
            roles=self.roles,
            scopes=self.scopes,
            risk_level=self.risk_level,
            parents=self.parents,
        )


def held_of(
    call: Call, key: str, demand: Demand, after: Mapping[str, Any] | None, vault: Vault
) -> Held:
    """Return the request for a call's approval; what may be personal data is sealed.

    UnkeepableError if the call can't be serialised.
    """
    ctx, contract = call.ctx, call.contract
    principal, approval_id = ctx.principal, f"appr_{int(ctx.now * 1000):011x}{getrandbits(52):013x}"
    try:
        plain = to_json(_sealed_part(ctx, after), fallback=json_default)
        version_seen = state_seen(ctx.version_seen, ctx.before)
        hashed = approval_hash(ctx)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnkeepableError(f"the call can't be kept: {type(error).__name__}") from error
    return Held(
        approval_id=approval_id,
        tenant=principal.tenant,
        key=key,
        approval_hash=hashed,
        call_id=ctx.call_id,
        run_id=ctx.run.run_id,
        tool=contract.name,
        version=contract.version,
        contract_hash=contract.hash,
        agent=principal.agent,
        user=principal.user,
        reason=demand.reason,
        rule=demand.rule,
        approvers=demand.approvers,
        risk=ctx.resolved.facts["risk"],
        demand=demand.record(),
        version_seen=version_seen,
        created_at=ctx.now,
        expires_at=ctx.now + demand.expires_after,
        trace_id=call.trace_id,
        sealed=vault.seal(principal.tenant, approval_id, plain),
    )


def held_call(held: Held, vault: Vault) -> HeldCall:
    """Return the sealed part of a request. VaultError if it can't be opened, or does not match."""
    has_key = vault.key_id is not None
    raw = vault.open(held.tenant, held.approval_id, held.sealed, sealed_only=has_key)
    try:
        call = HeldCall(**from_json(raw))
        same = hash_of(call.arguments, call.config, call.over_budget) == held.approval_hash
    except (ValueError, TypeError) as error:
        raise VaultError(f"the request {held.approval_id} can't be read") from error
    if not same:
        raise VaultError(f"the request {held.approval_id} does not match its approval hash")
    if (call.agent, call.user) != (held.agent, held.user):
        raise VaultError(f"the request {held.approval_id} was made for another caller")
    return call


def can_be_kept(config: Any) -> bool:
    """Return True if a call's config is JSON, so that a worker can execute the call with it."""
    try:
        freeze(config)
    except ValueError:
        return False
    return True


def packet_of(
    held: Held, contract: Contract, vault: Vault, redactor: Redactor, fingerprint: str
) -> Packet:
    """Return everything that an approver is shown of a request, with the votes so far.

    CountersealError if the stored request can't be shown.
    """
    call = held_call(held, vault)
    fields: dict[str, Any] = {name: getattr(held, name) for name in _SHOWN_OF_REQUEST}
    fields |= {name: getattr(call, name) for name in _SHOWN_OF_CALL}
    try:
        _check_times(held)
        return make_packet(
            contract,
            Demand.from_record(held.demand),
            fingerprint=fingerprint,
            votes=votes_of(held),
            status=held.status.value,
            redact=lambda value: redactor.redact(value)[0],
            **fields,
        )
    except _UNREADABLE as error:
        raise CountersealError(f"the request {held.approval_id} can't be shown") from error


def _check_times(held: Held) -> None:
    """Raise what `stamp` raises for a time that can't be shown."""
    for moment in (held.created_at, held.expires_at):
        stamp(moment)


def _proposal(ctx: GateContext) -> dict[str, Any]:
    """Return the proposal before corrections; submitted again, it is corrected again."""
    fields = {name: getattr(ctx.proposal, name) for name in _PROPOSAL_FIELDS}
    proposed, config = ctx.proposal.proposed, ctx.proposal.configurable
    return {
        **fields,
        "arguments": ctx.corrections[0].before if ctx.corrections else ctx.arguments,
        "proposed": sound_copy(proposed) if isinstance(proposed, Mapping) else None,
        "configurable": config if can_be_kept(config) else None,
        "run_id": ctx.run.run_id,
    }


def _sealed_part(ctx: GateContext, after: Mapping[str, Any] | None) -> dict[str, Any]:
    principal = ctx.principal
    reversed_call = principal.reverses if isinstance(principal, System) else None
    return HeldCall(
        proposal=_proposal(ctx),
        agent=principal.agent,
        user=principal.user,
        roles=sorted(principal.roles),
        scopes=sorted(principal.scopes),
        arguments=thaw(ctx.arguments),
        config=thaw(ctx.config_shown),
        before=bounded_copy(ctx.before),
        after=bounded_copy(after),
        origins=_origins(ctx),
        over_budget=list(ctx.over_budget),
        risk_level=principal.risk_level.value,
        spent=list(_spent(ctx)),
        reverses=dict(reversed_call) if reversed_call else None,
        parents=list(principal.parents),
    )._asdict()


def _spent(ctx: GateContext) -> Iterator[str]:
    """Yield what was spent of each limit of money, in words."""
    memory = ctx.memory
    if memory is None:
        return
    for charge in ctx.charges:
        if charge.counter.startswith("money.") and charge.limit < inf:
            counters = memory.run_counters if charge.of_run else memory.tenant_counters
            spent = charge.words(counters.get(charge.counter, 0))
            yield f"{spent} of {charge.words(charge.limit)} spent before ({charge.budget})"


def _origins(ctx: GateContext) -> dict[str, str]:
    """Return where arguments came from, by the caller's word and by the run's state.

    Where the two differ, the more suspicious one counts.
    """
    named = ctx.proposal.origins or {}
    known = set(places(ctx.arguments)) if named else ()  # as corrected; *parse* saw the others
    origins = {place: word for place, word in named.items() if place in known}
    state: dict[str, str] = {}
    for key, value in ctx.run.state.items():
        if isinstance(value, str) and len(value) >= _DISTINCTIVE:
            origin = "untrusted" if key in ctx.run.untrusted else "trusted"
            state[value] = _worse(origin, state.get(value))
    for place, value in leaves(ctx.arguments) if state else ():
        if isinstance(value, str) and value in state:
            origins[place] = _worse(state[value], origins.get(place))
    return origins


def _worse(origin: str, other: str | None) -> str:
    return origin if other is None else max(origin, other, key=ORIGINS.index)


# --- a state within bounds ------------------------------------------------------------------------

_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 4_000
_MAX_CHARACTERS: Final = 200_000
_SAFE_INTEGER: Final = 2**53 - 1
_DEEPER: Final = f"[nested deeper than {_MAX_DEPTH} levels, not shown]"


def bounded_copy(state: Any) -> Any:
    """Return a bounded copy of a state as plain JSON, so that any state makes a packet.

    Parts beyond the limits are replaced by a note; numbers that JSON can't carry become text.
    """
    return _Copy().of(state, 0)


class _Copy:
    values, characters = _MAX_VALUES, _MAX_CHARACTERS
    """What is left of the limits."""

    def of(self, value: Any, depth: int) -> Any:
        self.values -= 1
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, Mapping | list | tuple):
            return _scalar(value)
        if depth >= _MAX_DEPTH:
            return _DEEPER
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        copy: list[Any] = []
        for item in value:
            if self._is_full:
                copy.append(_more(len(value) - len(copy)))
                break
            copy.append(self.of(item, depth + 1))
        return copy

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for count, (key, item) in enumerate(value.items()):
            if self._is_full:
                copy[unused_key("[more]", copy)] = _more(len(value) - count)
                break
            name = self._text(str(key))
            copy[unused_key(name, copy)] = self.of(item, depth + 1)
        return copy

    @property
    def _is_full(self) -> bool:
        return self.values <= 0 or self.characters <= 0

    def _text(self, value: str) -> str:
        shown = value[: max(self.characters, 0)]
        self.characters -= len(shown)
        rest = len(value) - len(shown)
        whole = shown.encode(errors="replace").decode()
        return f"{whole}[{rest:,} more characters, not shown]" if rest else whole


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, int | float):
        return f"[{type(value).__name__}]"
    if -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
        return value
    try:
        return str(value)
    except ValueError:
        return "[a number of too many digits]"


def _more(count: int) -> str:
    return f"[{count:,} more, not shown]"
