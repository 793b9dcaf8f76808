"""Rules on effect, risk, idempotency, approval, verification and compensation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from inspect import signature

from counterseal.canonical import steps
from counterseal.codes import FAILURES
from counterseal.contract.approval_terms import Then, term_faults
from counterseal.contract.effects import EFFECTS, RISKS, RiskClass, Semantics, Trust
from counterseal.contract.lint.rule import Breach, rule
from counterseal.contract.model import Contract, CostUnit, Isolation, OnUnknown
from counterseal.contract.money import CURRENCY
from counterseal.contract.schemas import Presence, presence
from counterseal.contract.signature import marks_of


@rule("effect-missing", "effect is declared")
def effect_missing(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        yield Breach("/effect", "no effect is declared", f"Choose one of {', '.join(EFFECTS)}.")


@rule("risk-lowered", "risk class is at least that of its effect, or the reason is given")
def risk_lowered(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None or (contract.risk_justification or "").strip():
        return
    usual = EFFECTS[contract.effect].risk
    if contract.risk < usual:
        yield Breach(
            "/transactional/side_effect_class",
            f"the risk class is {contract.risk}; the effect {contract.effect} stands for {usual}",
            "Raise it, or give the reason in risk_justification. Approval and audit follow the "
            "effect until an operator accepts the reason.",
        )


@rule("idempotency-off", "calls that change something have a key")
def idempotency_off(contract: Contract) -> Iterator[Breach]:
    mutates = contract.effect is not None and contract.mutates
    if not mutates and not RISKS[contract.risk].key:
        return
    for name in ("supported", "required", "payload_hash_required"):
        if not getattr(contract.idempotency, name):
            fault = (
                f"idempotency.{name} is false, but {contract.effect or contract.risk} calls write"
            )
            fix = "Remove it: without a key, a retry would repeat the action."
            yield Breach(f"/idempotency/{name}", fault, fix)


@rule("retry-writes", "calls that write are not retried like reads")
def retry_writes(contract: Contract) -> Iterator[Breach]:
    writes = contract.risk > RiskClass.READ_ONLY
    if writes and not contract.mutates and contract.runtime.max_retries:
        yield Breach(
            "/runtime/max_retries",
            f"max_retries is {contract.runtime.max_retries}: the effect {contract.effect} allows "
            f"retries, but the risk class {contract.risk} means that calls write",
            "Declare an effect that writes, like draft or internal_mutation; "
            "or set max_retries to 0.",
        )


@rule("confirmation-off", "high-risk calls are approved by people")
def confirmation_off(contract: Contract) -> Iterator[Breach]:
    demanded = RISKS[contract.risk].approval.approvers
    otherwise = (
        "or declare the actual class in risk, with the reason in risk_justification. Approval "
        "follows the effect until an operator accepts the reason."
    )
    if demanded and not contract.transactional.confirmation_required:
        fault = f"confirmation_required is false, but {contract.risk} needs {demanded} approvers"
        yield Breach("/transactional/confirmation_required", fault, f"Remove it, {otherwise}")
    if contract.approvers < demanded:
        fault = f"approvers is {contract.approvers}, but {contract.risk} needs {demanded}"
        yield Breach("/approvers", fault, f"Set it to at least {demanded}, {otherwise}")


@rule("approvers-unasked", "number of approvers agrees with confirmation_required")
def approvers_unasked(contract: Contract) -> Iterator[Breach]:
    asks = contract.transactional.confirmation_required
    if asks != (contract.approvers > 0):
        said = "true" if asks else "false"
        fault = f"approvers is {contract.approvers}, but confirmation_required is {said}"
        yield Breach("/approvers", fault, "Set both, or neither.")


@rule("verification-off", "high-risk calls are verified afterwards", warning=True)
def verification_off(contract: Contract) -> Iterator[Breach]:
    if contract.transactional.post_action_verification_required:
        return
    place = "/transactional/post_action_verification_required"
    if RISKS[contract.risk].verification:
        fault = f"verification is off, but calls of {contract.risk} should be verified"
        yield Breach(place, fault, "Remove the setting and declare a probe.")
    for name in ("expected", "verify_after"):
        if getattr(contract, name):
            fault = f"verification is off, but {name} is declared"
            yield Breach(place, fault, "Remove the setting.")


@rule("audit-off", "audit is not refused where it is always kept", warning=True)
def audit_off(contract: Contract) -> Iterator[Breach]:
    if RISKS[contract.risk].audit and not contract.observability.audit_required:
        fault = f"audit_required is false, but calls of {contract.risk} are always on record"
        yield Breach("/observability/audit_required", fault, "Remove the setting.")


@rule("meta-exposed", "tools that change agents are hidden from agents")
def meta_exposed(contract: Contract) -> Iterator[Breach]:
    hidden = contract.effect is not None and not EFFECTS[contract.effect].exposed
    if hidden and contract.exposed:
        fault = "a meta tool changes agents or tools, and must not be visible to agents"
        yield Breach("/exposed", fault, "Remove `exposed`, and let people or workflows call it.")


@rule("semantics-contradictory", "transaction semantics match its effect")
def semantics_contradictory(contract: Contract) -> Iterator[Breach]:
    transactional = contract.transactional
    compensable = transactional.semantics is Semantics.COMPENSABLE_WRITE
    if compensable and not transactional.compensation_tool:
        fault = "the semantics are compensable_write, but no compensation tool is declared"
        fix = "Name it in transactional.compensation_tool."
        yield Breach("/transactional/compensation_tool", fault, fix)
    mutates = contract.effect is not None and contract.mutates
    if mutates and transactional.semantics is Semantics.READ_ONLY:
        fault = f"the semantics are read_only, but the effect is {contract.effect}"
        fix = "Remove `semantics`, or set it to what the change is."
        yield Breach("/transactional/semantics", fault, fix)
    if transactional.compensation_tool == contract.name:
        yield Breach("/transactional/compensation_tool", "a tool can't compensate itself")


@rule("unknown-unanswered", "way to settle unknown outcomes is declared")
def unknown_unanswered(contract: Contract) -> Iterator[Breach]:
    if contract.on_unknown is OnUnknown.READ_BACK and contract.read_back is None:
        fault = "on_unknown is read_back, but no read_back is declared"
        fix = "Declare a read-only tool or function that asks the destination for the outcome."
        yield Breach("/on_unknown", fault, fix)


@rule("sandbox-contradictory", "isolation and sandbox_isolated agree")
def sandbox_contradictory(contract: Contract) -> Iterator[Breach]:
    sandboxed = contract.isolation is Isolation.SANDBOX
    if contract.runtime.sandbox_isolated != sandboxed:
        given = str(not sandboxed).lower()
        fault = f"sandbox_isolated is {given}, isolation is {contract.isolation}"
        fix = "Set isolation; sandbox_isolated follows from it."
        yield Breach("/runtime/sandbox_isolated", fault, fix)


@rule("code-unknown", "error codes are known failure codes")
def code_unknown(contract: Contract) -> Iterator[Breach]:
    mapping = contract.observability.error_taxonomy_mapping
    codes = [(("observability", "error_taxonomy_mapping", k), v) for k, v in mapping.items()]
    for name in type(contract.error_contract).model_fields:
        listed = getattr(contract.error_contract, name)
        codes += [(("error_contract", name, str(i)), code) for i, code in enumerate(listed)]
    for place, code in codes:
        if code not in FAILURES:
            fault = f"{code!r} is not a failure code"
            yield Breach(place, fault, "`counterseal explain` lists them.")


@rule("id-repeated", "invariants, config params and state keys have unique ids")
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
                yield Breach((section, where), f"{name} is declared {count} times")


@rule("hook-arguments", "hooks take arguments that the tool has")
def hook_arguments(contract: Contract) -> Iterator[Breach]:
    """A hook gets the arguments that it names, so a name that no call has would fail each call."""
    arguments = contract.affordance.input_schema.get("properties", {})
    for hook in ("probe", "preview", "read_back"):
        function = getattr(contract, hook)
        if not callable(function) or hasattr(function, "contract"):
            continue  # a tool, whose own schema says what it takes
        try:
            parameters = signature(function).parameters
        except (TypeError, ValueError):
            continue
        for name in parameters.keys() - marks_of(function).keys() - set(arguments):
            one = parameters[name]
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                fault = f"takes {name}, which is not an argument of the tool"
                yield Breach(f"/{hook}", fault, "Correct the name, or give it a default.")


@rule("target-unseen", "rules about the target have a probe that reads it")
def target_unseen(contract: Contract) -> Iterator[Breach]:
    if contract.probe is not None:
        return
    if contract.version_argument is not None:
        fault = (
            f"{contract.version_argument} is compared with the version of a probe; there is none"
        )
        fix = "Declare `probe`: a function or read-only tool that returns the target's version."
        yield Breach("/version_argument", fault, fix)
    for index, invariant in enumerate(contract.invariants):
        if invariant.of_target:
            fault = f"{invariant.id} checks the target, but there is no probe that reads it"
            fix = "Declare `probe`: a function or read-only tool that returns the target's state."
            yield Breach(("invariants", index, "check"), fault, fix)


@rule("budget-generous", "run budget is not above what its risk class allows", warning=True)
def budget_generous(contract: Contract) -> Iterator[Breach]:
    if contract.risk >= RiskClass.CRITICAL_MUTATION and contract.budget > 0:
        fault = f"every run may make {contract.budget} calls of a {contract.risk} without a grant"
        yield Breach("/budget", fault, "Set it to 0 and allow calls by grant.")


@rule("money-unlimited", "calls that spend or cost something have a limit in that currency")
def money_unlimited(contract: Contract) -> Iterator[Breach]:
    spends, price = contract.spends, contract.runtime.cost_profile
    charges: list[tuple[str, str, str | None]] = []
    if spends is not None:
        named = None if spends.currency.startswith("/") else spends.currency
        charges.append(("money", "spends an amount", named))
    elif contract.money is not None:
        fix = "Declare in `spends` which argument is the amount, or remove it."
        yield Breach("/money", "limits amounts, but calls spend nothing", fix)
    if price.cost_per_call:
        charges.append(("cost", "costs something", price.currency))
    for field, what, currency in charges:
        limits = (getattr(contract, field) or {}).values()
        if not any(currency is None or currency in limit for limit in limits):
            fault = f"each call {what}{f' in {currency}' if currency else ''}"
            example = f'{field}={{"day": {{"{currency or "EUR"}": 100}}}}'
            yield Breach(
                f"/{field}", f"{fault}, and no limit is declared", f"Declare one: {example}."
            )


@rule("cost-unit", "price is for a call, in a currency")
def cost_unit(contract: Contract) -> Iterator[Breach]:
    cost = contract.runtime.cost_profile
    if cost.cost_unit is not CostUnit.CALL:
        fault = f"cost_unit is {cost.cost_unit}, but budgets count cost_per_call for each call"
        fix = "Give the price of a call, with cost_unit: call."
        yield Breach("/runtime/cost_profile/cost_unit", fault, fix)
    if cost.cost_per_call and CURRENCY.fullmatch(cost.currency) is None:
        fault = f"currency is {cost.currency!r}, which is not the code of a currency"
        yield Breach("/runtime/cost_profile/currency", fault, "Use three capital letters: EUR.")


@rule("spends-unread", "amount and currency that it spends are arguments of every call")
def spends_unread(contract: Contract) -> Iterator[Breach]:
    spends, schema = contract.spends, contract.affordance.input_schema
    for field in ("amount", "currency") if spends else ():
        place = getattr(spends, field)
        if place.startswith("/") and presence(schema, steps(place)) is not Presence.ALWAYS:
            fault = f"{field} is {place}, which is not an argument that every call has"
            yield Breach(f"/spends/{field}", fault, "Point to a required argument, like /cents.")
    if spends is not None and not contract.idempotency.required:
        fault = "a call that spends an amount has no key, so a repeated call would spend it again"
        yield Breach("/spends", fault, "Declare an effect that changes something.")


@rule("approval-terms", "approval terms can be met, and fit the pattern")
def approval_terms(contract: Contract) -> Iterator[Breach]:
    terms = contract.approval
    if terms is None:
        return
    for field, message, fix in term_faults(terms, contract.approvers):
        if field:
            yield Breach(f"/approval/{field}", message, fix)
        else:
            yield Breach("/approvers", f"approvers {message}", fix)
    if terms.then is Then.EXECUTE and not contract.idempotency.supported:
        fault = "then is execute, but without a key an agent could not ask for the outcome"
        yield Breach("/approval/then", fault, "Set it to resubmit.")


@rule("expected-unprobed", "expected state is read by a probe")
def expected_unprobed(contract: Contract) -> Iterator[Breach]:
    if contract.expected is not None and contract.probe is None:
        fault = "an expected state is declared, but no probe that reads it"
        fix = "Declare a probe: a read-only tool or function that reads the resource."
        yield Breach("/expected", fault, fix)


@rule("verification-blind", "verification has a probe or a read_back", warning=True)
def verification_blind(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        return  # it is not known yet whether calls must be verified
    required = contract.transactional.post_action_verification_required
    if required and contract.probe is None and contract.read_back is None:
        fault = "nothing verifies calls: no probe, no read_back"
        yield Breach("/probe", fault, "Declare a probe and the `expected` state, or a read_back.")


LONGEST_HANDOVER = 3600
"""Seconds that a client may have for a call: the longest lease of a ledger entry."""


@rule("client-unverified", "changes that a client carries out are verified")
def client_unverified(contract: Contract) -> Iterator[Breach]:
    if not contract.by_client or not contract.mutates:
        return
    if not contract.transactional.post_action_verification_required:
        fault = "the client carries out this change, but verification is off"
        place = "/transactional/post_action_verification_required"
        yield Breach(place, fault, "Remove the setting.")
    if contract.probe is None and contract.read_back is None:
        fault = "the client carries out this change, and nothing verifies what it reports"
        fix = "Declare a read_back, or a probe with the `expected` state."
        yield Breach("/read_back", fault, fix)


@rule("client-executed", "fields fit a tool that the client carries out")
def client_executed(contract: Contract) -> Iterator[Breach]:
    if not contract.by_client:
        return
    runtime, terms, remove = contract.runtime, contract.approval, "Remove it."
    unfit = [
        *(
            (f"/{name}", bool(getattr(contract, name)), f"{name} would be used by no one", remove)
            for name in ("http", "mcp", "secrets", "egress", "runs_code")
        ),
        (
            "/isolation",
            contract.isolation is not Isolation.AUTO,
            f"isolation is {contract.isolation}",
            remove,
        ),
        ("/trust", contract.trust is Trust.TRUSTED, "its report is not trusted", remove),
        (
            "/on_unknown",
            contract.on_unknown is OnUnknown.RETRY_SAME_KEY,
            "no worker can try it again",
            "Declare a read_back, or set it to escalate.",
        ),
        ("/runtime/max_retries", bool(runtime.max_retries), "no worker can retry it", remove),
        (
            "/runtime/timeout_ms",
            runtime.timeout_ms > LONGEST_HANDOVER * 1000,
            f"it has {runtime.timeout_ms} ms to report",
            f"Set it to {LONGEST_HANDOVER * 1000} at most.",
        ),
        (
            "/approval/then",
            terms is not None and terms.then is Then.EXECUTE,
            "no worker can execute it after an approval",
            "Set it to resubmit.",
        ),
        (
            "/idempotency/required",
            not contract.idempotency.required,
            "its report needs a ledger entry",
            remove,
        ),
    ]
    for place, is_unfit, fault, fix in unfit:
        if is_unfit:
            yield Breach(place, f"the client carries it out: {fault}", fix)


@rule("compensation-unused", "compensation arguments belong to a compensation tool")
def compensation_unused(contract: Contract) -> Iterator[Breach]:
    if contract.compensation is not None and not contract.transactional.compensation_tool:
        fault = "arguments for a reversal are declared, but no compensation tool"
        yield Breach("/compensation", fault, "Name it in transactional.compensation_tool.")


@rule("keep-reads-unused", "keep_reads applies to calls without a ledger entry", warning=True)
def keep_reads_unused(contract: Contract) -> Iterator[Breach]:
    if contract.keep_reads is not None and contract.idempotency.required:
        fault = f"keep_reads is {contract.keep_reads}, but the ledger keeps results of keyed calls"
        yield Breach("/keep_reads", fault, "Remove it.")
