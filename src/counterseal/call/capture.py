"""What was asked: each proposal, with what its decision depended on, for the record and for replay.

Events say which payload, contract, resource and consequence a call had. The arguments themselves
are not in events, which are exported and kept long: they are in the vault, redacted and sealed,
and the event points there. Reading them is on record (`operations.auditor.read_arguments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.approvals.packet import amount_of, consequence_of
from counterseal.call.call import Call, CallServices
from counterseal.canonical import json_default
from counterseal.contract.fill import resource_of
from counterseal.gates.base import EMPTY, GateContext
from counterseal.gates.parse import CALLER_IDS, sound_copy
from counterseal.ledger.entry import request_hash
from counterseal.ledger.rows import VaultRow, new_pointer

FORMAT: Final = 2
MAX_REFUSED_BYTES: Final = 8 * 1024
"""Of a refused proposal. Small, because any caller can fill the vault with refused proposals."""
MAX_BYTES: Final = 256 * 1024
_DAY: Final = 86_400.0
_MAY_HOLD_SECRETS: Final = ("effective", "proposal", "config", "run", "target")
"""Fields of a capture, beside its arguments."""
PRINCIPAL: Final = ("tenant", "agent", "user", "roles", "scopes", "risk_level")
_GIVEN: Final = ("version", "key", "operation_id", *CALLER_IDS, "expected_version", "origins")
_given_values: Final = attrgetter(*_GIVEN, "tokens")
_NOTHING_GIVEN: Final = (None,) * (len(_GIVEN) + 1)


class Capture(NamedTuple):
    """One proposal as it was decided. Values are redacted. It is stored as a JSON array."""

    format: int
    arguments: Any
    """As proposed: an object, or the text that could not be parsed or was too long."""
    proposal: dict[str, Any]
    """Tool, key, ids, expected version, origins and tokens, as the caller gave them."""
    principal: Sequence[Any]
    """The values of `PRINCIPAL`."""
    contract_hash: str | None
    policy_version: str | None
    run: Sequence[Any]
    """Its id, its turn, the pinned version, and the state that the decision read, with versions."""
    now: float
    memory: dict[str, Any] | None = None
    """What the ledger knew, with the charge that a budget refused; None if it was not needed."""
    config: dict[str, Any] | None = None
    target: Any = None
    """What the probe returned."""
    version_seen: str | int | None = None
    effective: dict[str, Any] | None = None
    """The arguments as they would be executed, where a correction changed them."""
    cut: bool = False
    """True if only the beginning of the arguments is kept, as text."""
    redactions: Sequence[dict[str, Any]] = ()

    def record(self) -> dict[str, Any]:
        """Return it with the names of all fields, as people read it."""
        principal = dict(zip(PRINCIPAL, self.principal, strict=True))
        run = dict(zip(("run_id", "turn", "pin", "state"), self.run, strict=True))
        return {**self._asdict(), "principal": principal, "run": run, "config": self.config or {}}


# --- what events say ------------------------------------------------------------------------------


def proposal_facts(call: Call, services: CallServices) -> dict[str, Any]:
    """Return what events say of the proposal: everything but the place of its arguments."""
    if call.proposal_facts is None:
        call.proposal_facts = _facts(call, services)
    return call.proposal_facts


def keep_proposal(call: Call, services: CallServices, *, refused: bool = False) -> dict[str, Any]:
    """Keep the proposal in the vault. Returns what the event that records it says."""
    row, place = proposal_row(call, services, refused=refused)
    try:
        if row is not None:
            services.store.keep(row)
    except Exception as error:  # noqa: BLE001 - a broken vault must not keep a call from its end
        services.report(call.call_id, "vault", error)
        place = {"not_captured": "failed"}
    return {**proposal_facts(call, services), **place}


def _facts(call: Call, services: CallServices) -> dict[str, Any]:
    ctx, fingerprint = call.ctx, services.telemetry.fingerprint
    tenant = call.tenant
    # Not the `payload_hash` of a token, which is the approval hash.
    facts: dict[str, Any] = {"payload_hash": fingerprint(tenant, _payload(call).hex())}
    if call.key is not None:
        facts["key_fingerprint"] = fingerprint(tenant, call.key)
    if ctx.record is None:
        return facts
    contract = ctx.record.contract
    facts["contract_hash"] = contract.hash
    if contract.effect is not None:
        facts["effect"] = contract.effect.value
    if ctx.arguments is EMPTY and contract.affordance.input_schema.get("required"):
        return facts  # the arguments were not valid, so no sentence can be made of them
    if kept_for(call, services) == 0:
        return facts  # where arguments must not be kept, no sentence of theirs is
    resource = resource_of(contract, ctx.arguments)
    if resource is not None:
        facts["resource"] = services.redactor.redact(resource)[0]
    amount = amount_of(contract, ctx.arguments)
    if amount is not None:
        facts["amount"] = amount
    if contract.mutates and contract.consequence:
        shown, _ = services.redactor.redact([ctx.arguments, ctx.before])
        facts["consequence"] = consequence_of(contract, *shown)
    return facts


def _payload(call: Call) -> bytes:
    """Return the hash of the arguments as proposed, parsed or not."""
    if call.request_hash:
        return call.request_hash
    arguments = _given(call.ctx)
    if not isinstance(arguments, Mapping):
        arguments = {"": arguments}
    try:
        return request_hash(arguments)
    except (ValueError, TypeError):
        return request_hash({"": repr(arguments)})


def arguments_as_proposed(ctx: GateContext) -> Mapping[str, Any]:
    """Return the arguments before any correction, by the judge of a plan or by a gate.

    They are what the request hash covers: a step that was corrected, and the step as the model
    wrote it, are one operation.
    """
    proposed: object = ctx.proposal.proposed
    sound = sound_copy(proposed) if isinstance(proposed, Mapping) else None
    if sound is not None:
        return sound
    return ctx.corrections[0].before if ctx.corrections else ctx.arguments


def _given(ctx: GateContext) -> Any:
    """Return the arguments as proposed; as they came where they could not be parsed."""
    if ctx.arguments is not EMPTY:
        return arguments_as_proposed(ctx)
    given = ctx.proposal.arguments
    if isinstance(given, bytes):
        return given.decode(errors="replace")
    return dict(given) if isinstance(given, Mapping) else given


# --- the vault ------------------------------------------------------------------------------------


def proposal_row(
    call: Call, services: CallServices, *, refused: bool = False
) -> tuple[VaultRow | None, dict[str, str]]:
    """Return the proposal as a row of the vault, and what the event says of its place.

    There is no row if contract, tenant or operator do not want one, or if this caller had too many
    proposals refused. A vault that fails must not keep a call from its end.
    """
    seconds = kept_for(call, services)
    if call.resumed or seconds == 0:  # a call that is continued was kept when it came
        return None, {} if call.resumed else {"not_captured": "opted_out"}
    if refused and not services.refused_captures.take(call.ctx.principal, services.clock()):
        return None, {"not_captured": "limit"}
    try:
        raw = _packed(call, services, MAX_REFUSED_BYTES if refused else MAX_BYTES)
        row = vault_row(call, raw, services, seconds)
    except Exception as error:  # noqa: BLE001 - whatever a value or a vault raises
        services.report(call.call_id, "vault", error)
        return None, {"not_captured": "failed"}
    return row, {"captured": row.pointer}


def vault_row(
    call: Call, raw: bytes, services: CallServices, seconds: float | None = None
) -> VaultRow:
    """Return bytes of a call, sealed, as a row of the vault that is kept for so many seconds."""
    sealed = services.vault.seal(call.tenant, call.call_id, raw)
    return VaultRow(call.tenant, new_pointer(call.call_id, services.clock()), sealed, seconds)


def kept_for(call: Call, services: CallServices) -> float | None:
    """Return the shortest time that contract, tenant and operator set; None: the vault's own."""
    tenant, record = services.tenants.get(call.tenant), call.ctx.record
    days = services.keep_arguments_days
    for source in (tenant, None if record is None else record.contract):
        own = None if source is None else source.keep_arguments_days
        if own is not None and (days is None or own < days):
            days = own
    return None if days is None else days * _DAY


def _packed(call: Call, services: CallServices, most: int) -> bytes:
    """Return the proposal as JSON, redacted, with at most so many bytes of its arguments."""
    ctx, capture, redactor = call.ctx, _capture(call), services.redactor
    if ctx.arguments is not EMPTY:  # they could be parsed, so that they have a JSON form
        raw = _json(capture)
        if len(raw) <= most and not redactor.suspects(raw):
            return raw
    arguments, redactions = redactor.redact(capture.arguments)
    text = _json(arguments)
    cut = len(text) > most
    others, _ = redactor.redact({name: getattr(capture, name) for name in _MAY_HOLD_SECRETS})
    if cut:
        arguments, others["effective"] = text[:most].decode(errors="ignore"), None
    found = [redaction.record() for redaction in redactions]
    return _json(capture._replace(arguments=arguments, cut=cut, redactions=found, **others))


def _capture(call: Call) -> Capture:
    """Return the proposal as it was decided, before anything of it is redacted."""
    ctx = call.ctx
    proposal, principal, run, record = ctx.proposal, ctx.principal, ctx.run, ctx.record
    given: dict[str, Any] = {"tool": proposal.tool}
    values = _given_values(proposal)
    if values != _NOTHING_GIVEN:
        named = zip((*_GIVEN, "tokens"), values, strict=True)
        given |= {name: value for name, value in named if value is not None}
    roles, scopes = sorted(principal.roles), sorted(principal.scopes)
    who = (principal.tenant, principal.agent, principal.user, roles, scopes, principal.risk_level)
    state = {key: [run.state.get(key), version] for key, version in ctx.state_read.items()}
    return Capture(
        format=FORMAT,
        arguments=_given(ctx),
        proposal=given,
        principal=who,
        contract_hash=None if record is None else record.contract.hash,
        policy_version=call.policy_version,
        run=(run.run_id, run.turn, run.pins.get(str(proposal.tool)), state),
        now=ctx.now,
        memory=_memory(call),
        config=dict(ctx.config_shown) if ctx.config_shown else None,
        target=ctx.before,
        version_seen=ctx.version_seen,
        effective=dict(ctx.arguments) if ctx.corrections else None,
    )


def _json(value: Any) -> bytes:
    return to_json(value, fallback=json_default, inf_nan_mode="constants")


def unpack_capture(raw: bytes) -> Capture:
    """Return what was kept of a proposal. ValueError if it is no capture of a known format."""
    record = from_json(raw)
    try:
        if isinstance(record, list) and record[0] == FORMAT:
            return Capture(*record)
        if isinstance(record, dict) and record["format"] == 1:  # of version 0.1.0
            who, run = (list(record[name].values()) for name in ("principal", "run"))
            return Capture(**{**record, "principal": who, "run": run})
    except (TypeError, KeyError, IndexError):
        pass
    raise ValueError("not a captured proposal")


def _memory(call: Call) -> dict[str, Any] | None:
    memory, refused = call.ctx.memory, dict[str, Any]()
    if call.overdrawn is not None:
        charge, spent = call.overdrawn
        refused["charge"] = {"budget": charge.budget, "limit": charge.limit, "spent": spent}
    if memory is None:
        return refused or None
    entry, held = memory.entry, memory.held
    return {
        "entry": None if entry is None else [entry.call_id, entry.status.value, entry.fence],
        "approval": None if held is None else [held.approval_id, held.status.value],
        "run_counters": dict(memory.run_counters),
        "tenant_counters": dict(memory.tenant_counters),
        **refused,
    }
