"""The contract: everything that a tool declares, as one frozen record.

`Envelope` has the eight sections that travel between systems; its JSON form is fixed. `Contract`
adds the fields that only Counterseal needs. Fields that follow from the effect are derived when the
record is made, so a finished contract spells everything out. The model checks shape and types;
`lint` judges whether a contract is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    model_validator,
)

from counterseal.canonical import digest, freeze, pointer, thaw
from counterseal.contract.approval_terms import ApprovalTerms
from counterseal.contract.bindings import HttpBinding, McpBinding
from counterseal.contract.effects import (
    EFFECTS,
    Effect,
    RiskClass,
    Semantics,
    Trust,
    derive,
    effect_for,
)
from counterseal.contract.invariants import Invariant, ProposedCall, named_code
from counterseal.contract.money import CONTRACT_WINDOWS, Spends, checked_limits
from counterseal.contract.tool_context import ConfigParam, StateEffect, StateRead
from counterseal.errors import ContractError, Problem

NAME_PATTERN = r"^[a-zA-Z0-9_.-]{1,128}$"
SHORT_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "name": ("identity", "name"),
    "version": ("identity", "version"),
    "owner": ("identity", "owner"),
    "description": ("affordance", "model_description"),
    "allowed_use_cases": ("affordance", "allowed_use_cases"),
    "forbidden_use_cases": ("affordance", "forbidden_use_cases"),
    "examples": ("affordance", "examples"),
    "scopes": ("security", "required_scopes"),
    "data_classification": ("security", "data_classification"),
    "egress_policy": ("security", "egress_policy"),
    "risk": ("transactional", "side_effect_class"),
    "compensation_tool": ("transactional", "compensation_tool"),
    "timeout_ms": ("runtime", "timeout_ms"),
    "max_retries": ("runtime", "max_retries"),
}
"""Options of `@tool` and overlays, with the section and the field that they stand for."""


class LifecycleStatus(StrEnum):
    ACTIVE = "active"
    DEPRECATED = "deprecated"
    SUNSETTED = "sunsetted"


class CostUnit(StrEnum):
    CALL = "call"
    TOKEN = "token"  # noqa: S105 - a unit of cost, not a credential
    SECOND = "second"
    TRANSACTION = "transaction"
    CUSTOM = "custom"


class SecretsBoundary(StrEnum):
    GATEWAY_INJECTED = "gateway_injected"
    EXECUTION_SANDBOX = "execution_sandbox"
    NONE = "none"


class DataClassification(StrEnum):
    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    REGULATED = "regulated"
    SECRET = "secret"  # noqa: S105 - a data class, not a credential


class EgressPolicy(StrEnum):
    NONE = "none"
    ALLOWLISTED_DOMAINS = "allowlisted_domains"
    PRIVATE_NETWORK_ONLY = "private_network_only"
    UNRESTRICTED_WITH_APPROVAL = "unrestricted_with_approval"


class Isolation(StrEnum):
    """Where a tool runs. `auto` is inline for async functions and a thread for sync ones."""

    AUTO = "auto"
    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
    SANDBOX = "sandbox"


class ExecutedBy(StrEnum):
    """The party that carries a tool out: a worker, or the client that proposed the call."""

    SERVER = "server"
    CLIENT = "client"


class KeepReads(StrEnum):
    """Which reads keep a copy of what the model saw: none, those with redactions, or all.

    A read is a call without a ledger entry. Ledger entries always keep their observation.
    """

    NONE = "none"
    REDACTED = "redacted"
    ALL = "all"


class OnUnknown(StrEnum):
    """The way to settle an execution whose outcome is unknown."""

    RETRY_SAME_KEY = "retry_same_key"
    READ_BACK = "read_back"
    ESCALATE = "escalate"


JsonObject = Annotated[
    dict[str, Any],
    AfterValidator(freeze),
    PlainSerializer(thaw),
    WithJsonSchema({"type": "object"}),
]
MoneyLimits = Annotated[
    dict[str, dict[str, Any]],
    AfterValidator(lambda given: freeze(checked_limits(given, CONTRACT_WINDOWS))),
    PlainSerializer(thaw),
]
"""`{"call": {"EUR": 500}, "day": {"EUR": 5000}}`; see `contract.money`."""
Hook = Annotated[str | Callable[..., Any], PlainSerializer(named_code)]
"""A read-only tool, by name, or a function."""


def _day(value: Any) -> Any:
    if not isinstance(value, str | date) or isinstance(value, datetime):
        raise ValueError("must be a day, like 2027-01-31")
    return value


Day = Annotated[date, BeforeValidator(_day)]
Whole = Annotated[int, Field(strict=True, le=2**53 - 1)]
"""An integer that is exact in JSON."""


_SECTION = ConfigDict(frozen=True, extra="forbid", json_schema_serialization_defaults_required=True)


class ContractSection(BaseModel):
    model_config = _SECTION


class Lifecycle(ContractSection):
    status: LifecycleStatus = LifecycleStatus.ACTIVE
    sunset_date: Day | None = None
    replacement: str | None = None


class Identity(ContractSection):
    # The pattern is shown in the schema and enforced by lint, so that a bad name is reported
    # together with everything else that is wrong.
    name: str = Field(json_schema_extra={"pattern": NAME_PATTERN})
    version: str = "0.1.0"
    owner: str = "unassigned"
    lifecycle: Lifecycle = Lifecycle()


class Example(ContractSection):
    description: str
    arguments: JsonObject


class Affordance(ContractSection):
    model_description: str
    allowed_use_cases: tuple[str, ...] = ()
    forbidden_use_cases: tuple[str, ...] = ()
    input_schema: JsonObject
    output_schema: JsonObject = Field(default_factory=lambda: freeze({"type": "object"}))
    examples: tuple[Example, ...] = ()


class RateLimits(ContractSection):
    window_sec: Whole = Field(default=60, ge=1)
    max_requests: Whole = Field(default=600, ge=1)


class CostProfile(ContractSection):
    currency: str = "USD"
    cost_per_call: float = Field(default=0, ge=0, allow_inf_nan=False, strict=True)
    cost_unit: CostUnit = CostUnit.CALL


class RuntimeLimits(ContractSection):
    timeout_ms: Whole = Field(default=30_000, ge=1)
    rate_limits: RateLimits = RateLimits()
    cost_profile: CostProfile = CostProfile()
    sandbox_isolated: StrictBool = False
    max_retries: Whole = Field(default=0, ge=0)


class Security(ContractSection):
    required_scopes: tuple[str, ...] = ()
    tenant_scoped: StrictBool = True
    secrets_boundary: SecretsBoundary = SecretsBoundary.NONE
    data_classification: DataClassification = DataClassification.INTERNAL
    egress_policy: EgressPolicy = EgressPolicy.NONE


class Transactional(ContractSection):
    side_effect_class: RiskClass = RiskClass.CRITICAL_MUTATION
    confirmation_required: StrictBool = True
    semantics: Semantics = Semantics.IRREVERSIBLE_PIVOT
    compensation_tool: str | None = None
    post_action_verification_required: StrictBool = True


class Idempotency(ContractSection):
    supported: StrictBool = True
    required: StrictBool = True
    key_header: str | None = "Idempotency-Key"
    ttl_seconds: Whole | None = Field(default=86_400, ge=1)
    payload_hash_required: StrictBool = True


class Observability(ContractSection):
    trace_attributes: tuple[str, ...] = ()
    audit_required: StrictBool = True
    error_taxonomy_mapping: Annotated[dict[str, str], AfterValidator(freeze)] = Field(
        default_factory=lambda: freeze({})
    )


class ErrorContract(ContractSection):
    repairable_errors: tuple[str, ...] = ()
    retryable_errors: tuple[str, ...] = ()
    fail_closed_errors: tuple[str, ...] = ()
    escalation_errors: tuple[str, ...] = ()


class Envelope(BaseModel):
    """The eight sections, in the form that other systems read and write."""

    model_config = _SECTION

    identity: Identity
    affordance: Affordance
    runtime: RuntimeLimits = RuntimeLimits()
    security: Security = Security()
    transactional: Transactional = Transactional()
    idempotency: Idempotency = Idempotency()
    observability: Observability = Observability()
    error_contract: ErrorContract = ErrorContract()


class Contract(Envelope):
    """Everything that is declared about one version of one tool.

    The defaults in this class are the strictest ones; the defaults of the effect replace them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    # Optional only so that a missing effect is reported together with every other problem.
    effect: Effect | None = None
    risk_justification: str | None = None
    """Why the risk class is lower than that of the effect."""

    usage: str = ""
    """When a model should call this tool."""
    consequence: str | None = None
    """One sentence for approvers: "Notice {draft_id} goes to {recipient}, from {state.sender}".

    It can use the arguments and, if there is a probe, the state before the call.
    """
    exposed: StrictBool = False
    """Whether agents may see the tool."""
    trust: Trust = Trust.UNTRUSTED
    approvers: Whole = Field(default=2, ge=0)
    """How many people must approve each call. Policy can ask for more."""
    approval: ApprovalTerms | None = None
    """Pattern, roles and expiry of approvals. Policy can only be stricter."""
    budget: Whole = Field(default=0, ge=0)
    """Calls that a run may make, unless a grant says otherwise."""
    spends: Spends | None = None
    """The amount that a call spends: `{amount: /cents, scale: 2, currency: EUR}`.

    It is read from the arguments as they are executed.
    """
    money: MoneyLimits | None = None
    """The most that calls of this tool may spend: `{call: {EUR: 500}, day: {EUR: 5000}}`.

    By `call`, `run`, `day`, `agent` (a day) and `resource` (a day); budgets can only be stricter.
    """
    cost: MoneyLimits | None = None
    """The most that calls of this tool may cost (`cost_per_call`); written like `money`."""
    max_output_bytes: Whole = Field(default=65_536, ge=1)
    redact: tuple[Annotated[str, Field(pattern=r"^(/([^~/]|~[01])*)+$")], ...] = ()
    """JSON Pointers to values that are removed from the output; `*` stands for every item."""
    keep_reads: KeepReads | None = None
    """For a read-only tool: which calls keep a copy of what the model saw in the vault.

    None: the operator's setting of the same name decides.
    """
    keep_arguments_days: Whole | None = Field(default=None, ge=0)
    """How many days the arguments of proposals are kept in the vault; 0: not at all.

    The shortest of this, the tenant's and the operator's setting applies.
    """
    residency: tuple[str, ...] = ()
    """Regions that its data stays in; empty: not declared. Policy decides what follows."""

    secrets: tuple[str, ...] = ()
    config_params: tuple[ConfigParam, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    state_reads: tuple[StateRead, ...] = ()
    state_effects: tuple[StateEffect, ...] = ()

    executed_by: ExecutedBy = ExecutedBy.SERVER
    """`client`: an admitted call is handed to the client, which reports the outcome in time."""
    isolation: Isolation = Isolation.AUTO
    memory_mb: Whole = Field(default=1024, ge=32)
    """Memory limit of a tool that runs in its own process or sandbox."""
    runs_code: StrictBool | None = None
    """Whether it runs code that its caller wrote. None: lint judges by names and descriptions."""
    egress: tuple[str, ...] = ()
    """Where it may connect: `api.example.org`, `*.example.org`, `api.example.org:8443`.

    Private addresses must be declared as an address or a network: `10.1.0.0/16`.
    """
    http: HttpBinding | None = None
    """The request that carries the tool out, if it is not written in Python."""
    mcp: McpBinding | None = None
    """The upstream that carries the tool out, for MCP servers behind the gateway."""
    tenant_argument: str | None = None
    """The argument that must equal the principal's tenant."""
    resource: str | None = None
    """The resource that the call acts on, as a template: `case:{case_id}`."""
    version_from: str | None = None
    """JSON Pointer to the version of the resource in the output."""
    external_ref: str | None = None
    """JSON Pointer to the destination's own reference in the output, such as a payment's id."""
    version_argument: str | None = None
    """The argument with the version that the caller has read; compared with the probe's version."""
    probe: Hook | None = None
    preview: Hook | None = None
    read_back: Hook | None = None
    on_unknown: OnUnknown = OnUnknown.ESCALATE
    not_done_errors: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """For a tool that changes something: failures which it reports and which mean that nothing was
    done. After any other reported failure the outcome is unknown.

    Each is the tool's own name for it (`code` or `type`, or the number of a JSON-RPC error), or its
    message, in which `*` stands for any text. `*` alone means all of them.
    """
    business_key: tuple[str, ...] = ()
    """The arguments that identify the action across runs."""
    repeatable: StrictBool = False
    """Whether a run may intend the same arguments twice."""

    expected: JsonObject | None = None
    """The state that the probe should find after a call: `{"status": "{status}"}`.

    Only these fields are compared. `fill` describes the templates.
    """
    verify_after: int = Field(default=0, strict=True, ge=0, le=7 * 86_400)
    """Seconds between the end of a call and its verification."""
    compensation: JsonObject | None = None
    """Arguments of the compensation tool, as templates like those of `expected`.

    Arguments that are not named here are taken by name from the output, else from the call.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _complete(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Self:
        try:
            contract: Self = handler(derive(data) if isinstance(data, Mapping) else data)
        except ValidationError as error:
            name = _name_in(data)
            raise ContractError(problem.of(name) for problem in shape_problems(error)) from None
        try:
            contract.hash  # noqa: B018 - values that can't be hashed are reported here
        except ValueError as error:
            message = f"can't be recorded: {error}"
            problem = Problem(rule="field-invalid", tool=_name_in(data), message=message)
            raise ContractError([problem]) from None
        return contract

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a changed contract, validated and completed like any other."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **(update or {})})

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def version(self) -> str:
        return self.identity.version

    @property
    def risk(self) -> RiskClass:
        return self.transactional.side_effect_class

    @property
    def risk_floor(self) -> RiskClass:
        """The higher one of the risk classes that the contract and its effect stand for.

        Approval and audit follow it, until an operator accepts a contract that declares less.
        """
        return max(self.risk, EFFECTS[self.effect or Effect.IRREVERSIBLE].risk)

    @property
    def mutates(self) -> bool:
        """Whether a call changes anything. A contract without an effect counts as changing."""
        return self.effect is None or EFFECTS[self.effect].mutates

    @property
    def by_client(self) -> bool:
        """Whether the client carries calls out, and reports their outcomes."""
        return self.executed_by is ExecutedBy.CLIENT

    def violations(
        self,
        call: ProposedCall | Mapping[str, Any],
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        **facts: Any,
    ) -> list[str]:
        """Return the rules that a call breaks, in their own words; no corrector is applied.

        `call` is a `ProposedCall` or its arguments; `facts` are `principal` and `now`, if a rule
        reads them. Rules about the target are not checked here: only the state gate reads it.
        """
        if not isinstance(call, ProposedCall):
            call = ProposedCall(self.name, call)
        return [
            rule.rule
            for rule in self.invariants
            if not rule.of_target and not rule.holds(call, state, config, facts)
        ]

    def envelope(self) -> dict[str, Any]:
        """Return the eight sections as plain JSON data."""
        return self.model_dump(mode="json", include=set(Envelope.model_fields))

    def record(self) -> dict[str, Any]:
        """Return all fields as plain JSON data. Code is represented by its name."""
        return self.model_dump(mode="json")

    @cached_property
    def hash(self) -> str:
        """Digest of the whole record. Code is covered by its name only."""
        fields = type(self).model_fields
        unset = {name for name in LATER_FIELDS if getattr(self, name) == fields[name].default}
        return digest({k: v for k, v in self.record().items() if k not in unset})

    @classmethod
    def from_envelope(cls, envelope: Mapping[str, Any], **additions: Any) -> Self:
        """Read a foreign envelope. Other fields are derived, or given by keyword."""
        try:
            read = Envelope.model_validate(envelope)
        except ValidationError as error:
            raise ContractError(shape_problems(error)) from None
        left_out = list(_left_out(read.model_dump(mode="json"), envelope))
        if left_out:
            raise ContractError(left_out)
        risk = read.transactional.side_effect_class
        defaults = {
            "effect": effect_for(risk),
            "usage": read.affordance.model_description,
            "risk_justification": "The risk class is the one that the envelope declares.",
        }
        return cls.model_validate({**defaults, **additions, **dict(envelope)})


LATER_FIELDS: Final = (
    *("keep_arguments_days", "external_ref", "not_done_errors"),
    *("spends", "money", "cost", "executed_by"),
)
"""Fields that came after the first release. They are left out of the hash while they have their
default, so that contracts keep their hashes, and requests for approval made before stay valid."""


_FREE_FORM = ("input_schema", "output_schema", "error_taxonomy_mapping")


def _left_out(
    whole: Mapping[str, Any], given: Any, path: tuple[str, ...] = ()
) -> Iterator[Problem]:
    """Yield a problem for each field that an envelope must spell out and does not."""
    for name, value in whole.items():
        here = (*path, name)
        if name not in given:
            message = f"{'.'.join(here)} is missing"
            yield Problem(rule="field-invalid", pointer=pointer(*here), message=message)
        elif isinstance(value, Mapping) and name not in _FREE_FORM:
            yield from _left_out(value, given[name], here)


def _name_in(data: Any) -> str:
    identity = data.get("identity") if isinstance(data, Mapping) else None
    name = identity.get("name") if isinstance(identity, Mapping) else getattr(identity, "name", "")
    return name if isinstance(name, str) else ""


def shape_problems(error: ValidationError) -> list[Problem]:
    """Return pydantic's errors as problems: the field, and what is wrong with it."""
    problems = []
    for detail in error.errors(include_url=False, include_input=False):
        place, kind = detail["loc"], detail["type"]
        field, fix = ".".join(str(part) for part in place), ""
        text = detail["msg"].removeprefix("Value error, ")
        message = f"{field}: {text[0].lower()}{text[1:]}"
        if kind == "missing":
            message = f"{field} is missing"
        elif kind == "extra_forbidden":
            message, fix = f"{field} is not a field of a contract", _right_place(*place)
        rule = "field-unknown" if kind == "extra_forbidden" else "field-invalid"
        problems.append(Problem(rule=rule, pointer=pointer(*place), message=message, fix=fix))
    return problems


def _right_place(*location: int | str) -> str:
    """Return where an unknown field belongs, if a field of that name exists elsewhere."""
    name = str(location[-1])
    places = [SHORT_NAMES[name]] if name in SHORT_NAMES else []
    for section, field in Envelope.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name in kind.model_fields:
            places.append((section, name))
    if not places:
        beside = len(location) > 1 and name in Contract.model_fields
        return f"Write `{name}:` beside the sections, not inside of one." if beside else ""
    section, key = places[0]
    short = next((one for one, place in SHORT_NAMES.items() if place == (section, key)), "")
    option = f" In @tool it is `{short}`." if short else ""
    return f"Write it as `{section}: {{{key}: …}}`.{option}"
