"""What was asked: each proposal, with what its decision depended on, for the record and for replay.

Events say which payload, contract, resource and consequence a call had. The arguments themselves
are not in events, which are exported and kept long: they are in the vault, redacted and sealed,
and the event points there. Reading them is on record (`operations.auditor.read_arguments`).

A capture holds everything that the gates read, so that `evaluation.replay` can decide the proposal
again. What it lacks is on record beside it, with the reason: the manifest (`Gaps`). What came of
the call is found under its id: its events, its ledger entry, its request for approval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.approvals.packet import amount_of, consequence_of
from counterseal.call.call import Call, CallServices
from counterseal.canonical import json_default
from counterseal.contract.effects import Effect
from counterseal.contract.fill import resource_of
from counterseal.gates.base import EMPTY, GateContext, Probed
from counterseal.gates.parse import CALLER_IDS, sound_copy
from counterseal.ledger.changes import ANY_KEY
from counterseal.ledger.entry import Entry, request_hash
from counterseal.ledger.rows import VaultRow, new_pointer
from counterseal.proposal import Principal
from counterseal.registry import Grant, Refusal, RegistryRecord

FORMAT: Final = 3
_COMPLETE_FROM: Final = 3
"""The first format that holds everything that a decision depended on."""
MAX_REFUSED_BYTES: Final = 8 * 1024
"""Of a refused proposal. Small, because any caller can fill the vault with refused proposals."""
MAX_BYTES: Final = 256 * 1024
_DAY: Final = 86_400.0
_MOST_REDACTIONS: Final = 100
_MAY_HOLD_SECRETS: Final = (
    *("effective", "proposal", "config", "run", "target", "version_seen"),
    "tenant",
)
"""Fields of a capture, beside its arguments. They may be long as well."""
PRINCIPAL: Final = (
    *("tenant", "agent", "user", "roles", "scopes", "risk_level"),
    *("parents", "covered"),
)
RUN: Final = ("run_id", "turn", "pin", "state", "started_at", "settings")
_GIVEN: Final = ("version", "key", "operation_id", *CALLER_IDS, "expected_version", "origins")
_given_values: Final = attrgetter(*_GIVEN, "tokens")
_NOTHING_GIVEN: Final = (None,) * (len(_GIVEN) + 1)
_NO_STATE: Final[Mapping[str, Any]] = {}
Gaps = dict[str, str]
"""The manifest of a capture: the parts that it lacks, each with the reason. Empty: complete."""


class Capture(NamedTuple):
    """One proposal as it was decided. Values are redacted. It is stored as a JSON array."""

    format: int
    arguments: Any
    """As proposed: an object, or the text that could not be parsed or was too long."""
    proposal: dict[str, Any]
    """Tool, key, ids, expected version, origins and tokens, as the caller gave them.

    `run_id` only where the caller named another run than the call was given (None: it named none);
    `arguments` where a plan had changed them; `configurable` where `config` is not what was given.
    """
    principal: Sequence[Any]
    """The values of `PRINCIPAL`."""
    contract_hash: str | None
    policy_version: str | None
    run: Sequence[Any]
    """The values of `RUN`. The state is what the decision read: by key, its version and its value;
    under `*`, the whole state."""
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
    probe: str | None = None
    """`found`, `missing` or `failed`; None if the target was not probed."""
    authority: Sequence[Any] = ()
    """The grant without agent and tool, else None; why the registry refused, else None; the
    settings of the record that differ from their defaults. Empty if the tool is not known."""
    tenant: Sequence[Any] = ()
    """The operator's facts about the tenant, and its budgets; empty if there are none."""
    gaps: Gaps = {}  # noqa: RUF012 - never changed
    """The manifest, as far as the capture itself can say it."""

    def record(self) -> dict[str, Any]:
        """Return it with the names of all fields, as people read it."""
        # Those of an earlier version have fewer values.
        principal = dict(zip(PRINCIPAL, self.principal, strict=False))
        run = dict(zip(RUN, self.run, strict=False))
        return {**self._asdict(), "principal": principal, "run": run, "config": self.config or {}}

    @property
    def missing(self) -> Gaps:
        """The manifest: what a new decision would need and this capture lacks, with the reason."""
        return self.gaps if self.format >= _COMPLETE_FROM else {"format": "older"}


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
        call.captured = place = {"not_captured": "failed"}
    return {**proposal_facts(call, services), **place}


def announced_facts(call: Call, services: CallServices) -> dict[str, Any]:
    """Return what the event says that ends a call whose admission has kept the proposal.

    That event has the place. What is missing is repeated, because endings are counted.
    """
    return {**proposal_facts(call, services), **missing_facts(call)}


def missing_facts(call: Call) -> dict[str, Any]:
    """Return what events say that the capture of the proposal lacks; empty if it is complete."""
    return {name: value for name, value in call.captured.items() if name != "captured"}


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
) -> tuple[VaultRow | None, dict[str, Any]]:
    """Return the proposal as a row of the vault, and what the event says of it.

    That is its place and its gaps. There is no row if contract, tenant or operator do not want one,
    or if this caller had too many proposals refused. A vault that fails must not keep a call from
    its end.
    """
    if call.resumed:  # it was kept when it came
        return None, missing_facts(call)
    row, seconds = None, kept_for(call, services)
    if seconds == 0:
        call.captured = {"not_captured": "opted_out"}
    elif refused and not services.refused_captures.take(call.ctx.principal, services.clock()):
        call.captured = {"not_captured": "limit"}
    else:
        try:
            raw, gaps = _packed(call, services, MAX_REFUSED_BYTES if refused else MAX_BYTES)
            row = vault_row(call, raw, services, seconds)
            call.captured = {"captured": row.pointer, **({"gaps": gaps} if gaps else {})}
        except Exception as error:  # noqa: BLE001 - whatever a value or a vault raises
            services.report(call.call_id, "vault", error)
            call.captured = {"not_captured": "failed"}
    return row, call.captured


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


def _packed(call: Call, services: CallServices, most: int) -> tuple[bytes, Gaps]:
    """Return the proposal as JSON, redacted, with at most so many bytes of each of its parts.

    The gaps are the parts that another decision could not rely on.
    """
    ctx, capture, redactor = call.ctx, _capture(call), services.redactor
    if ctx.arguments is not EMPTY:  # they could be parsed, so that they have a JSON form
        raw = _json(list(capture))  # which is written faster than a named tuple
        if len(raw) <= most and not redactor.suspects(raw):
            return raw, capture.gaps
    gaps = dict(capture.gaps)
    arguments, redactions = redactor.redact(capture.arguments)
    text = _json(arguments)
    cut = len(text) > most
    others, more = redactor.redact({name: getattr(capture, name) for name in _MAY_HOLD_SECRETS})
    gaps |= {redaction.pointer.split("/")[1]: "redacted" for redaction in more}
    if redactions:
        gaps["arguments"] = "redacted"
    if cut:
        arguments, others["effective"] = text[:most].decode(errors="ignore"), None
        gaps["arguments"] = "cut"
    for name, value in others.items():
        if len(_json(value)) > most:
            others[name], gaps[name] = _short(name, value), "cut"
    gaps.pop("effective", None)  # follows from the arguments
    found = [redaction.record() for redaction in redactions[:_MOST_REDACTIONS]]
    kept = capture._replace(arguments=arguments, cut=cut, redactions=found, gaps=gaps, **others)
    return _json(kept), gaps


def _short(name: str, value: Any) -> Any:
    """Return what stands for a part that is too long: the tool's name, the run's id, or nothing."""
    if name == "proposal":
        return {"tool": str(value["tool"])[:128]}
    return value[:1] if name == "run" else () if name == "tenant" else None


def _capture(call: Call) -> Capture:
    """Return the proposal as it was decided, before anything of it is redacted."""
    ctx = call.ctx
    proposal, principal, run, record = ctx.proposal, ctx.principal, ctx.run, ctx.record
    given: dict[str, Any] = {"tool": proposal.tool}
    values = _given_values(proposal)
    if values != _NOTHING_GIVEN:
        named = zip((*_GIVEN, "tokens"), values, strict=True)
        given |= {name: value for name, value in named if value is not None}
    if proposal.run_id != run.run_id:
        given["run_id"] = proposal.run_id
    if proposal.proposed is not None:
        given["arguments"] = proposal.arguments
    gaps: Gaps = {}
    arguments = _given(ctx)
    if ctx.arguments is EMPTY and not _is_exact(proposal.arguments):
        gaps["arguments"] = "unreadable"
    shown, refused = ctx.config_shown, call.refused_by
    if refused is not None and refused.rule == "config-unusable":
        gaps["config"] = "unreadable"
    if shown:
        raw = _raw_config(ctx)
        if raw != shown:
            given["configurable"] = raw
        if ctx.config != shown:
            gaps["config"] = "unreadable"
    probed = ctx.probed
    target = None if probed is None else probed.target
    return Capture(
        format=FORMAT,
        arguments=arguments,
        proposal=given,
        principal=(*_who(principal), getattr(principal, "covered", None)),
        contract_hash=None if record is None else record.contract.hash,
        policy_version=call.policy_version,
        run=(
            run.run_id,
            run.turn,
            run.pins.get(str(proposal.tool)),
            _state(ctx) if ctx.state_read else _NO_STATE,
            run.started_at,
            _settings(ctx),
        ),
        now=ctx.now,
        memory=_memory(call),
        config=dict(shown) if shown else None,
        target=None if target is None else target.state,
        version_seen=None if target is None else target.version,
        effective=dict(ctx.arguments) if ctx.corrections else None,
        probe=None if probed is None else _answer(probed),
        authority=_authority(call),
        tenant=_tenant(ctx),
        gaps=gaps,
    )


@lru_cache(maxsize=1024)
def _who(principal: Principal) -> tuple[Any, ...]:
    """Return the values of `PRINCIPAL` but the last, in which equal principals may differ."""
    return (
        principal.tenant,
        principal.agent,
        principal.user,
        sorted(principal.roles),
        sorted(principal.scopes),
        principal.risk_level.value,
        principal.parents,
    )


def _is_exact(arguments: object) -> bool:
    """Return True if arguments that were refused are the same when they are read again."""
    if isinstance(arguments, Mapping):
        return sound_copy(arguments) is not None
    return isinstance(arguments, str)


def _raw_config(ctx: GateContext) -> dict[str, Any]:
    """Return the config values as call and run gave them, without defaults."""
    sources = ctx.proposal.configurable or {}, ctx.run.config
    return {
        param.key: next(source[param.key] for source in sources if param.key in source)
        for param in ctx.resolved.contract.config_params
        if any(param.key in source for source in sources)
    }


def _state(ctx: GateContext) -> dict[str, Any]:
    """Return the state that the decision read: the version, and the value if there is one."""
    state, read = ctx.run.state, ctx.state_read
    if ANY_KEY in read:
        return {ANY_KEY: [read[ANY_KEY], dict(state)]}
    return {
        key: [version, state[key]] if key in state else [version] for key, version in read.items()
    }


def _settings(ctx: GateContext) -> dict[str, Any]:
    """Return what gates read of the run, where it is set."""
    run, compiled, settings = ctx.run, ctx.compiled, dict[str, Any]()
    if run.allowed_tools is not None:
        settings["allowed_tools"] = sorted(run.allowed_tools)
    if run.deadline is not None:
        settings["deadline"] = run.deadline
    if run.budgets.limits:
        settings["budgets"] = run.budgets.limits
    if compiled is None:
        return settings
    if compiled.reads_run and run.objective is not None:
        settings["objective"] = run.objective
    if compiled.contract.probe is not None and run.seen:
        resource = resource_of(compiled.contract, ctx.arguments)
        seen = None if resource is None else run.seen.get(resource)
        if seen is not None:
            settings["seen"] = {resource: seen}
    return settings


def _answer(probed: Probed) -> str:
    if probed.failed:
        return "failed"
    return "missing" if probed.target is None else "found"


def _authority(call: Call) -> Sequence[Any]:
    """Return what the scope gate found: the grant, or the refusal, and the record's settings."""
    ctx, record = call.ctx, call.ctx.record
    if record is None:
        return (None, None if ctx.refusal is None else ctx.refusal.reason.value, {})
    found = ctx.grant
    if found is None:  # refused by it, or before it was asked
        answer = ctx.registry.authorize(record, ctx.principal)
        if isinstance(answer, Refusal):
            return (None, answer.reason.value, _record_settings(record))
        found = answer
    return (_grant_record(found, found.max_effect), None, _record_settings(record))


@lru_cache(maxsize=4096)
def _grant_record(grant: Grant, _max_effect: Effect | None) -> dict[str, Any]:
    """Return the settings of a grant that are not the defaults, without agent and tool.

    Equal grants may differ in their highest effect, which is therefore given apart.
    """
    plain = Grant(agent=grant.agent, tool=grant.tool).export()
    return {name: value for name, value in grant.export().items() if value != plain[name]}


def _record_settings(record: RegistryRecord) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if record.allowed_agent_roles:
        settings["allowed_agent_roles"] = sorted(record.allowed_agent_roles)
    if record.allowed_tenants:
        settings["allowed_tenants"] = sorted(record.allowed_tenants)
    if record.risk_accepted:
        settings["risk_accepted"] = True
    return settings


def _tenant(ctx: GateContext) -> Sequence[Any]:
    if not ctx.tenant and ctx.limits is None:
        return ()
    return (dict(ctx.tenant), None if ctx.limits is None else ctx.limits.limits)


def _json(value: Any) -> bytes:
    return to_json(value, fallback=json_default, inf_nan_mode="constants")


def unpack_capture(raw: bytes) -> Capture:
    """Return what was kept of a proposal. ValueError if it is no capture of a known format."""
    record = from_json(raw)
    try:
        if isinstance(record, list) and record[0] in (2, FORMAT):
            return Capture(*record)
        if isinstance(record, dict) and record["format"] == 1:  # of version 0.1.0
            who, run = (list(record[name].values()) for name in ("principal", "run"))
            return Capture(**{**record, "principal": who, "run": run})
    except (TypeError, KeyError, IndexError):
        pass
    raise ValueError("not a captured proposal")


def _memory(call: Call) -> dict[str, Any] | None:
    ctx, memory, known = call.ctx, call.ctx.memory, dict[str, Any]()
    if call.overdrawn is not None:
        charge, spent = call.overdrawn
        known["charge"] = {"budget": charge.budget, "limit": charge.limit, "spent": spent}
    refused = call.refused_by
    if refused is not None and refused.retry_after is not None:
        known["wait"] = refused.retry_after
    if ctx.over_budget:
        known["over_budget"] = ctx.over_budget
    if ctx.takes_over:
        known["takes_over"] = True
    if memory is None:
        return known or None
    entry, held = memory.entry, memory.held
    known["entry"] = None if entry is None else _entry(entry, call.request_hash)
    known["approval"] = None if held is None else [held.approval_id, held.status, len(held.votes)]
    if call.counters_recalled:
        known["run_counters"] = dict(memory.run_counters)
        known["tenant_counters"] = dict(memory.tenant_counters)
        if memory.rates:
            known["rates"] = dict(memory.rates)
    return known


def _entry(entry: Entry, request: bytes) -> Sequence[Any]:
    """Return an entry as far as the answer to a repeated call depends on it."""
    flags = entry.request_hash == request, entry.lapsed, entry.worker is not None
    answered = entry.observation is not None
    return (entry.call_id, entry.status, entry.fence, entry.phase, *flags, answered)
