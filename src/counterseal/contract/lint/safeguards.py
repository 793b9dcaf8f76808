"""Rules on effect, risk, keys, approval and what follows when something goes wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from counterseal.codes import FAILURES
from counterseal.contract.approval_terms import Then, term_faults
from counterseal.contract.effects import EFFECTS, RISKS, RiskClass, Semantics
from counterseal.contract.lint.rule import Breach, breach, rule
from counterseal.contract.model import Contract, Isolation, OnUnknown


@rule("effect-missing", "effect is declared")
def effect_missing(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        yield breach("/effect", "no effect is declared", f"Choose one of {', '.join(EFFECTS)}.")


@rule("risk-lowered", "risk class is at least its effect's, or a reason is written down")
def risk_lowered(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None or (contract.risk_justification or "").strip():
        return
    usual = EFFECTS[contract.effect].risk
    if contract.risk < usual:
        yield breach(
            "/transactional/side_effect_class",
            f"{contract.risk} is below {usual}, which {contract.effect} stands for",
            "Raise it, or say why in risk_justification.",
        )


@rule("idempotency-off", "calls that change something have a key")
def idempotency_off(contract: Contract) -> Iterator[Breach]:
    mutates = contract.effect is not None and EFFECTS[contract.effect].mutates
    if not mutates and not RISKS[contract.risk].key:
        return
    for name in ("supported", "required", "payload_hash_required"):
        if not getattr(contract.idempotency, name):
            yield breach(
                f"/idempotency/{name}",
                f"is off, but {contract.effect or contract.risk} changes something",
                "Leave it on: without it a retry would do the action twice.",
            )


@rule("retry-writes", "calls that write are not retried as if they only read")
def retry_writes(contract: Contract) -> Iterator[Breach]:
    writes = contract.risk > RiskClass.READ_ONLY
    if writes and not contract.mutates and contract.runtime.max_retries:
        yield breach(
            "/runtime/max_retries",
            f"is {contract.runtime.max_retries}: {contract.effect} says that a retry is harmless, "
            f"and {contract.risk} that it writes",
            "Declare the effect that it has, like draft or internal_mutation; "
            "or, if it only reads, set max_retries to 0.",
        )


@rule("confirmation-off", "high-risk calls ask a person")
def confirmation_off(contract: Contract) -> Iterator[Breach]:
    demanded = RISKS[contract.risk].approval.approvers
    if demanded and not contract.transactional.confirmation_required:
        yield breach(
            "/transactional/confirmation_required",
            f"is off, but {contract.risk} needs {demanded} to approve",
            "Leave it on, or declare the risk class that the tool really has.",
        )
    if contract.approvers < demanded:
        yield breach(
            "/approvers",
            f"asks {contract.approvers}, but {contract.risk} needs {demanded} to approve",
            f"Ask at least {demanded}.",
        )


@rule("approvers-unasked", "number of approvers and the demand for approval agree")
def approvers_unasked(contract: Contract) -> Iterator[Breach]:
    asks = contract.transactional.confirmation_required
    if asks != (contract.approvers > 0):
        yield breach(
            "/approvers",
            f"is {contract.approvers}, but confirmation_required is {str(asks).lower()}",
            "Set both, or neither.",
        )


@rule("verification-off", "high-risk calls are checked afterwards", warning=True)
def verification_off(contract: Contract) -> Iterator[Breach]:
    if contract.transactional.post_action_verification_required:
        return
    place = "/transactional/post_action_verification_required"
    if RISKS[contract.risk].verification:
        fault = f"is off, but a {contract.risk} should be checked after it ran"
        yield breach(place, fault, "Leave it on and declare a probe.")
    for name in ("expected", "verify_after"):
        if getattr(contract, name):
            yield breach(place, f"is off, but {name} says how to check", "Leave it on.")


@rule("meta-exposed", "kind is not one that agents must never see")
def meta_exposed(contract: Contract) -> Iterator[Breach]:
    hidden = contract.effect is not None and not EFFECTS[contract.effect].exposed
    if hidden and contract.exposed:
        yield breach(
            "/exposed",
            "a meta tool changes agents and tools themselves; no agent may see it",
            "Take `exposed` out, and let people or workflows call it.",
        )


@rule("semantics-contradictory", "transaction semantics fit its effect")
def semantics_contradictory(contract: Contract) -> Iterator[Breach]:
    transactional = contract.transactional
    if (
        transactional.semantics is Semantics.COMPENSABLE_WRITE
        and not transactional.compensation_tool
    ):
        yield breach(
            "/transactional/compensation_tool",
            "the tool says that it can be compensated, but not by what",
            "Name the compensation tool.",
        )
    mutates = contract.effect is not None and EFFECTS[contract.effect].mutates
    if mutates and transactional.semantics is Semantics.READ_ONLY:
        yield breach(
            "/transactional/semantics",
            f"is read_only, but the effect is {contract.effect}",
            "Say how its change behaves.",
        )
    if transactional.compensation_tool == contract.name:
        yield breach("/transactional/compensation_tool", "a tool can't compensate itself")


@rule("unknown-unanswered", "plan for unknown outcomes can be carried out")
def unknown_unanswered(contract: Contract) -> Iterator[Breach]:
    if contract.on_unknown is OnUnknown.READ_BACK and contract.read_back is None:
        yield breach(
            "/on_unknown",
            "is read_back, but no read_back is declared",
            "Declare a read-only tool or function that asks the destination.",
        )


@rule("sandbox-contradictory", "isolation is said once, one way")
def sandbox_contradictory(contract: Contract) -> Iterator[Breach]:
    sandboxed = contract.isolation is Isolation.SANDBOX
    if contract.runtime.sandbox_isolated != sandboxed:
        yield breach(
            "/runtime/sandbox_isolated",
            f"is {str(not sandboxed).lower()}, but isolation is {contract.isolation}",
            "Set isolation; sandbox_isolated follows from it.",
        )


@rule("code-unknown", "error codes are among those of a failure")
def code_unknown(contract: Contract) -> Iterator[Breach]:
    mapping = contract.observability.error_taxonomy_mapping
    found = [(("observability", "error_taxonomy_mapping", k), v) for k, v in mapping.items()]
    for name in type(contract.error_contract).model_fields:
        listed = getattr(contract.error_contract, name)
        found += [(("error_contract", name, str(i)), code) for i, code in enumerate(listed)]
    for place, code in found:
        if code not in FAILURES:
            yield breach(
                place, f"{code!r} is no code of a failure", "`counterseal explain` lists them."
            )


@rule("id-repeated", "invariants, config params and state keys have ids of their own")
def id_repeated(contract: Contract) -> Iterator[Breach]:
    named = {
        "invariants": [invariant.id for invariant in contract.invariants],
        "config_params": [param.key for param in contract.config_params],
        "state_reads": [read.key for read in contract.state_reads],
        "state_effects": [effect.key for effect in contract.state_effects],
    }
    for section, ids in named.items():
        for name, count in Counter(ids).items():
            if count > 1:
                where = len(ids) - 1 - ids[::-1].index(name)
                yield breach((section, where), f"{name} is declared {count} times")


@rule("target-unseen", "what is said of the target is compared with what a probe finds")
def target_unseen(contract: Contract) -> Iterator[Breach]:
    if contract.probe is not None:
        return
    if contract.version_argument is not None:
        yield breach(
            "/version_argument",
            f"{contract.version_argument} is compared with what a probe finds, and there is none",
            "Declare `probe`: a function, or a read-only tool, that tells the target's version.",
        )
    for index, invariant in enumerate(contract.invariants):
        if invariant.of_target:
            yield breach(
                ("invariants", index, "check"),
                f"{invariant.id} is about the target, and nothing looks at it",
                "Declare `probe`: a function, or a read-only tool, that gives the target's state.",
            )


@rule("budget-generous", "run budget stays near what its risk class allows", warning=True)
def budget_generous(contract: Contract) -> Iterator[Breach]:
    if contract.risk >= RiskClass.CRITICAL_MUTATION and contract.budget > 0:
        yield breach(
            "/budget",
            f"every run gets {contract.budget} calls of a {contract.risk} without a grant",
            "Leave it at 0 and give calls by grant.",
        )


# --- approval ---


@rule("approval-terms", "terms of approval can be met, and fit its pattern")
def approval_terms(contract: Contract) -> Iterator[Breach]:
    terms = contract.approval
    if terms is None:
        return
    for fault in term_faults(terms, contract.approvers):
        place = f"/approval/{fault.field}" if fault.field else "/approvers"
        yield breach(place, fault.message, fault.fix)
    if terms.then is Then.EXECUTE and not contract.idempotency.supported:
        yield breach(
            "/approval/then",
            "is execute, but without a key nobody could ask for the outcome",
            "Let the agent come again: resubmit.",
        )
