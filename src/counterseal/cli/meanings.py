"""What each code means to an engineer: why it comes up, what the agent is told, what to do.

Data for `counterseal explain`. The agent's words are made by the renderer itself, from an example,
so that they are always those of a real call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from counterseal.codes import Code
from counterseal.observation import refusal
from counterseal.observation.envelope import FieldError

__all__ = ["MEANINGS", "Meaning", "example"]


class Meaning(NamedTuple):
    """`says` is the reason that a gate might give with it; a code may speak for itself."""

    cause: str
    do: str
    says: str = ""
    error: FieldError | None = None
    tool: str = "send_notice"


MEANINGS: Final[Mapping[Code, Meaning]] = {
    Code.SUCCESS: Meaning(
        cause="Every gate allowed the call, the tool returned, and its output fits its schema.",
        do="Nothing. Look at the warnings: they tell what was corrected on the way.",
    ),
    Code.PARTIAL_SUCCESS: Meaning(
        cause="The tool did several things and reported that some of them did not succeed.",
        do="Read the failed steps in the data. Propose those again, never the whole call.",
    ),
    Code.SYNTACTIC_PARSE_FAIL: Meaning(
        cause="The arguments are not one JSON object: broken off, with text around it, with a key "
        "twice, too deep or too large.",
        do="Hand the observation back to the model. If it keeps happening, look for whatever cuts "
        "or wraps the model's output before it gets here.",
        says="The arguments end too early.",
    ),
    Code.STRUCTURAL_VIOLATION: Meaning(
        cause="A field is missing or not declared, or there is no tool of that name for this "
        "caller.",
        do="Hand the observation back to the model; it lists every field. For an unknown tool, "
        "check that it is registered, and for this tenant.",
        error=FieldError("/recipient", "recipient is missing", "", "present", "missing"),
    ),
    Code.TYPE_MISMATCH: Meaning(
        cause="A field has another type than the contract's schema declares.",
        do="Hand the observation back to the model. If models often get the same field wrong, "
        "say more in its description.",
        error=FieldError("/copies", "copies must be integer", "", "integer", "string"),
    ),
    Code.OUT_OF_BOUNDS: Meaning(
        cause="A value has the right type and breaks a limit: length, range, pattern, choice.",
        do="Hand the observation back to the model. If honest calls break the limit, change the "
        "contract, not the call.",
        error=FieldError("/copies", "copies is too large", "", "at most 5", "integer"),
    ),
    Code.SEMANTIC_INVALIDITY: Meaning(
        cause="The arguments are well formed and break one of the contract's invariants, or repeat "
        "a repeatable call without naming it.",
        do="Let the agent plan anew or ask its user. Where a wrong call has one right form, give "
        "the invariant a corrector.",
        says="The refund is no larger than the order.",
        tool="refund_order",
    ),
    Code.PERMISSION_DENIED: Meaning(
        cause="Grant, scope, role, tenant, version or risk limit is missing; or the tool is "
        "disabled, killed, or outside of what the run is for.",
        do="The rule of the scope gate says which one. Grant it if that is meant; no wording of "
        "the call will help.",
        says="send_notice needs the scopes notice:send.",
    ),
    Code.POLICY_VIOLATION: Meaning(
        cause="A policy rule denied the call, no rule allowed it, or a rule could not be "
        "evaluated.",
        do="Find the rule that the decision names with `counterseal policy show`, and write the "
        "call down as a case for `counterseal policy test`.",
        says="At night only people on call may change anything.",
    ),
    Code.STALE_STATE: Meaning(
        cause="The probe found the target gone, or in another version than the one approved, "
        "proposed against, or seen last by this run.",
        do="Let the agent read the target again and plan anew. An approval for the old version is "
        "void.",
        says="The target has changed since it was seen.",
    ),
    Code.CONFIRMATION_MISSING: Meaning(
        cause="The effect or a policy demands a person's consent, and there is none for exactly "
        "these arguments.",
        do="Have the held call decided on under its approval id. Once approved, a reconciler "
        "carries it out, or the agent proposes it again, as its contract says; either way the same "
        "proposal gets the answer. Changed arguments need an approval of their own.",
        says="A person must approve a call that reaches people or systems outside.",
    ),
    Code.BUDGET_EXHAUSTED: Meaning(
        cause="One more call would exceed a budget of the run, the tool, the grant or the tenant.",
        do="The rule names the budget. Raise it where it is set, or end the run: an agent that "
        "spends a whole budget is often going round in circles.",
        says="The budget run.tool.send_notice is spent. More can be granted by an operator.",
    ),
    Code.RATE_LIMITED: Meaning(
        cause="The tenant called the tool more often than its contract's rate limit allows.",
        do="Wait as long as the observation says, and retry the same call. Raise `rate_limits` in "
        "the contract if the tool can take more.",
        says="Too many calls in a short time.",
    ),
    Code.TIMEOUT: Meaning(
        cause="The tool did not answer within its `timeout_ms`. It may have taken effect.",
        do="Retry under the same key only; a new key could do it twice. Look into the tool, or "
        "give it more time.",
        says="The tool did not answer in time.",
    ),
    Code.IDEMPOTENCY_CONFLICT: Meaning(
        cause="The same operation is under way, its outcome is not known yet, or its answer is no "
        "longer kept.",
        do="Wait, and retry with the same key. Where the outcome stays unknown, find out what "
        "happened before anything runs again.",
        says="A call with the same key is under way.",
    ),
    Code.SIGNATURE_MISMATCH: Meaning(
        cause="The key was used before, with other arguments.",
        do="Give a new operation a new key. If the arguments should have been the same, find out "
        "why they changed: this can also be somebody trying.",
        says="The key was used for another request.",
    ),
    Code.DEPENDENCY_UNAVAILABLE: Meaning(
        cause="Something that the tool needs did not answer: a service, a secret that is not "
        "configured, the code itself, or the probe of the target.",
        do="Look at what was logged with the call's id. Retry the same call once the dependency is "
        "back.",
        says="Something that the tool needs is not available.",
    ),
    Code.OBSERVATION_NORMALIZATION_FAIL: Meaning(
        cause="The tool ran and returned something that its output schema does not allow.",
        do="Mend the tool, or its output schema. Do not repeat the call: it has taken effect.",
    ),
    Code.COMPENSATION_REQUIRED: Meaning(
        cause="A later step failed after this one had taken effect, so this one must be reversed.",
        do="Run the contract's compensation tool, or have a person reverse it.",
    ),
    Code.COMPENSATION_FAILED: Meaning(
        cause="The reversal of a step failed. The world is half changed.",
        do="Stop the run. A person has to look at both records and put it right by hand.",
    ),
    Code.UNKNOWN_ERROR: Meaning(
        cause="The tool, or a gate, raised something that nothing knows how to name.",
        do="Look at what was logged with the call's id. Map errors that are to be expected with "
        "`error_taxonomy_mapping` in the contract.",
        says="The tool failed.",
    ),
}


def example(code: Code) -> str:
    """What an agent would read."""
    meaning = MEANINGS[code]
    seen = refusal(
        code,
        tool=meaning.tool,
        call_id="",
        timestamp=0.0,
        reason=meaning.says,
        errors=() if meaning.error is None else (meaning.error,),
    )
    return seen.for_model()
