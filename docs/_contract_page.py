"""The reference of a contract's fields, from the records that hold them."""

from __future__ import annotations

from collections.abc import Mapping

from _tables import Row, fields, table
from pydantic import BaseModel

from counterseal.contract.approval_terms import ApprovalTerms
from counterseal.contract.bindings import HttpBinding
from counterseal.contract.effects import derive
from counterseal.contract.invariants import Invariant
from counterseal.contract.model import (
    SHORT_NAMES,
    Affordance,
    Contract,
    CostProfile,
    Envelope,
    ErrorContract,
    Example,
    Idempotency,
    Identity,
    Lifecycle,
    Observability,
    RateLimits,
    RuntimeLimits,
    Security,
    Transactional,
)
from counterseal.contract.tool_context import ConfigParam, StateEffect, StateRead

WORDS: dict[type[BaseModel], dict[str, str]] = {
    Identity: {
        "name": "Letters, digits, `_`, `.` and `-`; at most 128.",
        "version": "As semantic versioning has it.",
        "owner": "The team that answers for it.",
        "lifecycle": "See below.",
    },
    Lifecycle: {
        "status": "Whether it is still to be used.",
        "sunset_date": "The day on which it ends.",
        "replacement": "The tool to use instead.",
    },
    Affordance: {
        "model_description": "What a model reads: what it does, and what it does not.",
        "allowed_use_cases": "What it is for.",
        "forbidden_use_cases": "What it must not be used for.",
        "input_schema": "JSON Schema 2020-12 of the arguments: closed, typed, bounded.",
        "output_schema": "The same of what it returns.",
        "examples": "Calls that show how it is meant.",
    },
    Example: {"description": "What it shows.", "arguments": "Such as a model would write."},
    RuntimeLimits: {
        "timeout_ms": "How long an attempt may take.",
        "rate_limits": "See below.",
        "cost_profile": "See below.",
        "sandbox_isolated": "The same as `isolation: sandbox`.",
        "max_retries": "Further attempts at most; 2 for what only reads, and for `retry_same_key`.",
    },
    RateLimits: {
        "window_sec": "Within so many seconds,",
        "max_requests": "so many calls of a tenant.",
    },
    CostProfile: {
        "currency": "The three letters of its currency.",
        "cost_per_call": "What budgets of `cost` count, for each attempt.",
        "cost_unit": "What the price is for. Only `call` is counted, so lint refuses the others.",
    },
    Security: {
        "required_scopes": "What a caller needs.",
        "tenant_scoped": "Whether what it touches belongs to a tenant.",
        "secrets_boundary": "Where credentials come in.",
        "data_classification": "Of what it handles. Policy decides what follows.",
        "egress_policy": "Whether it may connect anywhere.",
    },
    Transactional: {
        "side_effect_class": "The risk class.",
        "confirmation_required": "Whether a person approves each call.",
        "semantics": "Whether it can be undone.",
        "compensation_tool": "The tool that reverses a call.",
        "post_action_verification_required": "Whether calls are verified afterwards.",
    },
    Idempotency: {
        "supported": "Whether it takes a key.",
        "required": "Whether a call must have one.",
        "key_header": "The header that an HTTP tool sends it in.",
        "ttl_seconds": "How long an answer is kept. The key stays taken.",
        "payload_hash_required": "Whether a key is bound to its arguments.",
    },
    Observability: {
        "trace_attributes": "What a span tells of a call.",
        "audit_required": "Whether its events are on the disk before the answer.",
        "error_taxonomy_mapping": "Codes for its own errors: by class, or by HTTP status.",
    },
    ErrorContract: {
        "repairable_errors": "Codes that the model may mend.",
        "retryable_errors": "Codes that may be tried again.",
        "fail_closed_errors": "Codes after which a run must not go on as if it had worked.",
        "escalation_errors": "Codes that a person must see.",
    },
    Contract: {
        **dict.fromkeys(Envelope.model_fields, "A section, see above."),
        "effect": "What kind of action it is: [eight kinds](effects.md). Most of the rest follows.",
        "trust": "How its output is labelled for the agent.",
        "max_output_bytes": "What is longer is cut, with a note.",
        "secrets": "Credentials that it is given, by name.",
        "config_params": "Knobs of a deployment, see below.",
        "invariants": "Rules about its own calls, see below.",
        "state_reads": "What it is given of the run's state, see below.",
        "state_effects": "What it leaves there, see below.",
        "isolation": "Where it runs: see [execution](../execution.md#isolation).",
        "probe": "Reads what the call acts on: for the state gate, the packet and verification.",
        "preview": "Says what the call would lead to, for the packet.",
        "read_back": "Asks the destination what became of a call.",
        "on_unknown": "What to do about an [unknown outcome](../execution.md#unknown-outcomes).",
    },
    ApprovalTerms: {
        "pattern": "See [approvals](../approvals.md#patterns).",
        "then": "What an approval leads to.",
    },
    Invariant: {
        "id": "How a refusal names it.",
        "rule": "One sentence, which the model reads too.",
        "check": "Whether it holds: CEL over `call`, `state`, `config`, `earlier`; or Python.",
        "correct": "The fix: `{set: {…}}`, `drop_step`, or Python.",
        "otherwise": "What happens to a call that breaks the rule and can't be corrected.",
        "approvers": "How many people must approve such a call, with `require_approval`.",
    },
    ConfigParam: {
        "key": "What it is called.",
        "default": "When neither the call nor the run says anything.",
        "normalizer": "`strip`, `lower`, `upper`, `empty_to_null`, one after the other; or Python.",
    },
    StateRead: {"key": "What to be given."},
    StateEffect: {
        "key": "Where it goes.",
        "type_hint": "Of the value, for readers.",
        "merge": "How it joins what is there.",
        "preserve_across_turns": "Whether it outlives the turn.",
        "prompt_template_var": "The `{{VARIABLE}}` that prompts name it by.",
    },
    HttpBinding: {
        "method": "The request's.",
        "headers": "One template a name.",
    },
}
KINDS = {
    Lifecycle: {"sunset_date": "a day, `2027-01-31`"},
    Affordance: dict.fromkeys(("input_schema", "output_schema"), "JSON Schema"),
    Example: {"arguments": "JSON object"},
    Contract: {
        **dict.fromkeys(("probe", "preview", "read_back"), "a tool's name, or a function"),
        **dict.fromkeys(("expected", "compensation"), "JSON object"),
        **dict.fromkeys(("money", "cost"), "table of [limits](../money.md)"),
    },
    Invariant: {"check": "text, or a function", "correct": "JSON object, or a function"},
    ConfigParam: {"normalizer": "list of text, or a function"},
    HttpBinding: {"statuses": "table of [codes](codes.md)"},
}
FOLLOWS = derive({})
"""What is filled in where a contract leaves it out: by its effect, or by what else it says."""
SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "identity": (Identity, Lifecycle),
    "affordance": (Affordance, Example),
    "runtime": (RuntimeLimits, RateLimits, CostProfile),
    "security": (Security,),
    "transactional": (Transactional,),
    "idempotency": (Idempotency,),
    "observability": (Observability,),
    "error_contract": (ErrorContract,),
}
INSIDE = {
    Lifecycle: "identity.lifecycle",
    Example: "affordance.examples[]",
    RateLimits: "runtime.rate_limits",
    CostProfile: "runtime.cost_profile",
}
BESIDE: dict[str, tuple[type[BaseModel], str]] = {
    "approval": (ApprovalTerms, "How people are asked."),
    "invariants[]": (Invariant, "See [writing contracts](../contracts.md)."),
    "config_params[]": (ConfigParam, "See [config](../runs.md#config)."),
    "state_reads[]": (StateRead, "See [state](../runs.md#state)."),
    "state_effects[]": (StateEffect, "See [state](../runs.md#state)."),
    "http": (HttpBinding, "See [HTTP tools](../http-tools.md)."),
}


def page() -> str:
    sections = "\n".join(
        f"## `{name}`\n\n{_section(name, *them)}" for name, them in SECTIONS.items()
    )
    rows = [row for row in _rows(Contract, FOLLOWS) if row.name.strip("`") not in SECTIONS]
    beside = "\n".join(
        f"### `{name}`\n\n{about}\n\n{table(HEAD, _rows(model))}"
        for name, (model, about) in BESIDE.items()
    )
    renamed = {one: place for one, place in SHORT_NAMES.items() if one != place[1]}
    shorts = ", ".join(f"`{one}` is `{'.'.join(place)}`" for one, place in renamed.items())
    return f"""# Contract fields

[Writing contracts](../contracts.md) shows them in use. The eight sections are what travels
between systems (`counterseal schema envelope` prints their JSON Schema); what stands beside them is
Counterseal's own. A contract file has these names, section by section; `counterseal schema
contract` prints the JSON Schema of a file, for editors. `@tool` takes most of them by keyword, and
calls some by a shorter name: {shorts}. Where the default is *follows*, [the effect](effects.md)
fills it in, or what else the contract says; `counterseal show TOOL` tells what came of it.

{sections}
## Beside the sections

{table(HEAD, rows)}
{beside}"""


HEAD = ["field", "takes", "default", ""]
FILLING = "[writing contracts](../contracts.md#after-the-call-verification-and-reversal)"


def _section(name: str, first: type[BaseModel], *inside: type[BaseModel]) -> str:
    deeper = [f"### `{INSIDE[model]}`\n\n{table(HEAD, _rows(model))}" for model in inside]
    return "\n".join([table(HEAD, _rows(first, FOLLOWS.get(name, {}))), *deeper])


def _rows(model: type[BaseModel], follows: Mapping[str, object] | None = None) -> list[Row]:
    return [
        row._replace(
            default="*follows*" if row.name.strip("`") in (follows or {}) else row.default,
            words=row.words.replace("`filling`", FILLING),
        )
        for row in fields(model, WORDS.get(model, {}), KINDS.get(model, {}))
    ]
