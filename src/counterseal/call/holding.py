"""Keeping a call for a person: what they are shown, and what is needed to go on from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import getrandbits
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.approvals.display import leaves, stamp
from counterseal.approvals.packet import Packet, make_packet
from counterseal.approvals.terms import Demand
from counterseal.call.bounded import bounded
from counterseal.canonical import freeze, json_default, pointer, thaw
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError
from counterseal.gates.approval import approval_hash, hash_of
from counterseal.gates.base import GateContext
from counterseal.gates.parse import is_sound
from counterseal.gates.proof import votes_of
from counterseal.gates.state import state_seen
from counterseal.observation import Redactor
from counterseal.proposal import Principal, Proposal
from counterseal.storage.base import Held
from counterseal.vault import Vault, VaultError

__all__ = ["HeldCall", "UnkeepableError", "can_be_kept", "held_call", "held_of", "packet_of"]

_PROPOSAL = (
    "tool",
    "run_id",
    "version",
    "key",
    "workflow_id",
    "operation_id",
    "expected_version",
)


class UnkeepableError(CountersealError):
    """A call can't be written down as it is, so nobody could be asked about it later."""


class HeldCall(NamedTuple):
    """What is sealed with a request: the proposal as it came, and the call as it would be made."""

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
    """Budgets that the call would go beyond."""

    def proposed(self, version: str) -> Proposal:
        """The proposal, to be made once more, of the very version that was approved."""
        return Proposal(**{**self.proposal, "version": version})

    def principal(self, tenant: str) -> Principal:
        """On whose behalf; the scopes are those of then, and a ceiling."""
        return Principal(
            tenant=tenant, agent=self.agent, user=self.user, roles=self.roles, scopes=self.scopes
        )


def held_of(
    ctx: GateContext,
    contract: Contract,
    demand: Demand,
    *,
    key: str,
    after: Mapping[str, Any] | None,
    trace_id: str,
    vault: Vault,
) -> Held:
    """The request for a call's approval. Everything that may be personal in it is sealed.

    UnkeepableError when that can't be.
    """
    who, approval_id = ctx.principal, f"appr_{int(ctx.now * 1000):011x}{getrandbits(52):013x}"
    try:
        kept = to_json(_kept(ctx, after), fallback=json_default)
        seen = state_seen(ctx.version_seen, ctx.before)
        approved = approval_hash(ctx)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnkeepableError(f"the call can't be kept: {type(error).__name__}") from error
    return Held(
        approval_id=approval_id,
        tenant=who.tenant,
        key=key,
        approval_hash=approved,
        call_id=ctx.call_id,
        run_id=ctx.run.run_id,
        tool=contract.name,
        version=contract.version,
        contract_hash=contract.hash,
        agent=who.agent,
        user=who.user,
        reason=demand.reason,
        rule=demand.rule,
        approvers=demand.approvers,
        risk=contract.risk.value,
        demand=demand.record(),
        version_seen=seen,
        created_at=ctx.now,
        expires_at=ctx.now + demand.expires_after,
        trace_id=trace_id,
        sealed=vault.seal(who.tenant, approval_id, kept),
    )


def held_call(held: Held, vault: Vault) -> HeldCall:
    """What was sealed with a request. VaultError when it can't be opened here, or is another."""
    has_key = vault.key_id is not None
    raw = vault.open(held.tenant, held.approval_id, held.sealed, sealed_only=has_key)
    try:
        call = HeldCall(**from_json(raw))
        same = hash_of(call.arguments, call.config, call.over_budget) == held.approval_hash
    except (ValueError, TypeError) as error:
        said = f"what is kept of the request {held.approval_id} can't be read"
        raise VaultError(said) from error
    if not same:
        raise VaultError(f"what is kept of the request {held.approval_id} is not what was asked")
    if (call.agent, call.user) != (held.agent, held.user):
        raise VaultError(f"the request {held.approval_id} was made for somebody else than it says")
    return call


def can_be_kept(config: Any) -> bool:
    """Whether a call's own config is JSON, so that somebody else can make the call with it."""
    try:
        freeze(config)
    except ValueError:
        return False
    return True


def packet_of(
    held: Held, contract: Contract, vault: Vault, redactor: Redactor, fingerprint: str
) -> Packet:
    """Everything that an approver is shown of a request, with the votes so far.

    CountersealError when what is stored of it can't be shown.
    """
    call = held_call(held, vault)
    try:
        stamp(held.created_at), stamp(held.expires_at)  # whatever shows a packet tells them
        return _packet(held, call, contract, redactor, fingerprint)
    except _GARBAGE as error:
        said = f"what is stored of the request {held.approval_id} can't be shown"
        raise CountersealError(said) from error


_GARBAGE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)
"""What reading a row can come to that was not written here."""


def _packet(
    held: Held, call: HeldCall, contract: Contract, redactor: Redactor, fingerprint: str
) -> Packet:
    packet = make_packet(
        contract,
        Demand.from_record(held.demand),
        approval_id=held.approval_id,
        trace_id=held.trace_id,
        tenant=held.tenant,
        agent=held.agent,
        user=held.user,
        arguments=call.arguments,
        fingerprint=fingerprint,
        created_at=held.created_at,
        expires_at=held.expires_at,
        config=call.config,
        before=call.before,
        after=call.after,
        votes=votes_of(held),
        status=held.status.value,
        redact=lambda value: redactor.redact(value)[0],
    )
    known: Any = call.origins  # as the caller of `submit` gave them
    return replace(packet, origins=known)


def _proposal(ctx: GateContext) -> dict[str, Any]:
    """The proposal as it came, to be made again: correctors will do to it what they did."""
    kept = {name: getattr(ctx.proposal, name) for name in _PROPOSAL}
    before = ctx.corrections[0].before if ctx.corrections else ctx.arguments
    first = ctx.proposal.proposed
    sound = isinstance(first, Mapping) and is_sound(dict(first))
    given = {"arguments": before, "proposed": first if sound else None}
    config = ctx.proposal.configurable
    given["configurable"] = config if can_be_kept(config) else None
    return {**kept, **given, "run_id": ctx.run.run_id}


def _kept(ctx: GateContext, after: Mapping[str, Any] | None) -> dict[str, Any]:
    who = ctx.principal
    return HeldCall(
        proposal=_proposal(ctx),
        agent=who.agent,
        user=who.user,
        roles=sorted(who.roles),
        scopes=sorted(who.scopes),
        arguments=thaw(ctx.arguments),
        config=thaw(ctx.config_shown),
        before=bounded(ctx.before),
        after=bounded(after),
        origins=_origins(ctx),
        over_budget=list(ctx.over_budget),
    )._asdict()


def _origins(ctx: GateContext) -> dict[str, str]:
    """Where arguments came from: as the caller says and the run's state shows.

    Where the two differ, the more suspicious one is told.
    """
    told: Any = ctx.proposal.origins
    places = set(_places(ctx.arguments)) if told and isinstance(told, Mapping) else set()
    given = {place: told[place] for place in places if place in told}
    found = {place: str(word) for place, word in given.items() if word in _ORIGINS}
    state: dict[str, str] = {}
    for key, value in ctx.run.state.items():
        if isinstance(value, str) and len(value) >= _TELLING:
            origin = "untrusted" if key in ctx.run.untrusted else "trusted"
            state[value] = _worse(origin, state.get(value))
    for place, value in leaves(ctx.arguments) if state else ():
        if isinstance(value, str) and value in state:
            found[place] = _worse(state[value], found.get(place))
    return found


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """A JSON Pointer to everything in a value."""
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list | tuple):
        inside = enumerate(value)
    for key, item in inside:
        yield pointer(*path, key)
        yield from _places(item, (*path, key))


def _worse(one: str, other: str | None) -> str:
    return one if other is None else max(one, other, key=_ORIGINS.index)


_ORIGINS: Final = ("user", "trusted", "untrusted")
"""From the least suspicious to the most."""
_TELLING: Final = 4
"""A text that is this long is not the same as another by accident."""
