"""What was asked: each proposal, with what its decision depended on, for the record and for replay.

Events say which payload, contract, resource and consequence a call had. The arguments themselves
are not in events, which are exported and kept long: they are in the vault, redacted and sealed,
and the event points there. Reading them is on record (`views.calls`).
"""

from __future__ import annotations

from collections.abc import Mapping
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

FORMAT: Final = 1
MAX_REFUSED_BYTES: Final = 8 * 1024
"""What is kept of a refused proposal: anybody who may propose can have one refused."""
MAX_BYTES: Final = 256 * 1024
_DAY: Final = 86_400.0
_UNTRUSTED: Final = ("effective", "proposal", "config", "run", "target")
"""What a secret may be in, beside the arguments."""


class Capture(NamedTuple):
    """One proposal as it was decided. Values are redacted."""

    arguments: Any
    """As proposed: an object, or the text that could not be parsed or was too long."""
    effective: dict[str, Any] | None
    """As they would be executed, where a correction changed them."""
    cut: bool
    """True if only the beginning of the arguments is kept, as text."""
    redactions: list[dict[str, Any]]
    proposal: dict[str, Any]
    """Key, ids, expected version, origins and tokens, as the caller gave them."""
    principal: dict[str, Any]
    contract_hash: str | None
    policy_version: str | None
    config: dict[str, Any]
    run: dict[str, Any]
    """The pinned version, and the state that the decision read, with versions."""
    memory: dict[str, Any] | None
    """What the ledger knew, with the charge that a budget refused; None if it was not needed."""
    target: Any
    """What the probe returned."""
    version_seen: str | int | None
    now: float
    format: int = FORMAT


# --- what events say ------------------------------------------------------------------------------


def asked(call: Call, services: CallServices) -> dict[str, Any]:
    """Return what events say of the proposal: everything but the place of its arguments."""
    if call.asked is None:
        call.asked = _facts(call, services)
    return call.asked


def keep_proposal(call: Call, services: CallServices, *, refused: bool = False) -> dict[str, Any]:
    """Keep the proposal in the vault. Returns what the event that records it says."""
    row, place = proposal_row(call, services, refused=refused)
    try:
        if row is not None:
            services.store.keep(row)
    except Exception as error:  # noqa: BLE001 - a broken vault must not keep a call from its end
        services.report(call.call_id, "vault", error)
        place = {"not_captured": "failed"}
    return {**asked(call, services), **place}


def _facts(call: Call, services: CallServices) -> dict[str, Any]:
    ctx, fingerprint = call.ctx, services.telemetry.fingerprint
    tenant = call.tenant
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
    limits = (
        services.keep_arguments_days,
        None if tenant is None else tenant.keep_arguments_days,
        None if record is None else record.contract.keep_arguments_days,
    )
    days = [limit for limit in limits if limit is not None]
    return min(days) * _DAY if days else None


def _packed(call: Call, services: CallServices, most: int) -> bytes:
    """Return the proposal as JSON, redacted, with at most so many bytes of its arguments."""
    ctx, capture, redactor = call.ctx, _capture(call), services.redactor
    if ctx.arguments is not EMPTY:  # they could be parsed, so that they have a JSON form
        raw = _json(capture._asdict())
        if len(raw) <= most and not redactor.suspects(raw):
            return raw
    arguments, redactions = redactor.redact(capture.arguments)
    text = _json(arguments)
    cut = len(text) > most
    others, _ = redactor.redact({name: getattr(capture, name) for name in _UNTRUSTED})
    if cut:
        arguments, others["effective"] = text[:most].decode(errors="ignore"), None
    found = [redaction.record() for redaction in redactions]
    clean = capture._replace(arguments=arguments, cut=cut, redactions=found, **others)
    return _json(clean._asdict())


def _capture(call: Call) -> Capture:
    """Return the proposal as it was decided, before anything of it is redacted."""
    ctx = call.ctx
    record = ctx.record
    return Capture(
        arguments=_given(ctx),
        effective=dict(ctx.arguments) if ctx.corrections else None,
        cut=False,
        redactions=[],
        proposal=_as_given(ctx),
        principal=_principal(ctx),
        contract_hash=None if record is None else record.contract.hash,
        policy_version=call.policy_version,
        config=dict(ctx.config_shown),
        run=_run(ctx),
        memory=_memory(call),
        target=ctx.before,
        version_seen=ctx.version_seen,
        now=ctx.now,
    )


def _json(value: Any) -> bytes:
    return to_json(value, fallback=json_default, inf_nan_mode="constants")


def unpack_capture(raw: bytes) -> Capture:
    """Return what was kept of a proposal. ValueError if it is no capture of a known format."""
    record = from_json(raw)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError("not a captured proposal")
    try:
        return Capture(**record)
    except TypeError:
        raise ValueError("not a captured proposal") from None


def _as_given(ctx: GateContext) -> dict[str, Any]:
    ids = ("tool", "version", "key", "operation_id", *CALLER_IDS)
    names = (*ids, "expected_version", "origins", "tokens")
    return {name: value for name in names if (value := getattr(ctx.proposal, name)) is not None}


def _principal(ctx: GateContext) -> dict[str, Any]:
    principal = ctx.principal
    return {
        "tenant": principal.tenant,
        "agent": principal.agent,
        "user": principal.user,
        "roles": sorted(principal.roles),
        "scopes": sorted(principal.scopes),
        "risk_level": principal.risk_level,
    }


def _run(ctx: GateContext) -> dict[str, Any]:
    run = ctx.run
    return {
        "run_id": run.run_id,
        "turn": run.turn,
        "pin": run.pins.get(str(ctx.proposal.tool)),
        "state": {key: [run.state.get(key), ver] for key, ver in ctx.state_read.items()},
    }


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
