"""`counterseal explain`: what a lint rule checks, or why a code occurs and what to do about it.

The text that an agent reads is made by the renderer of observations from an example, so that it is
the text of a real call.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument

from counterseal.cli.options import AsJson
from counterseal.cli.render import Parts, fail, heading, paragraph, render, table

if TYPE_CHECKING:
    from counterseal.codes import Response

OTHER_RULES = {
    "compensation-arguments": "compensation tool can be called with what a call leaves",
    "compensation-read-only": "compensation tool changes something, or it could undo nothing",
    "compensation-unknown": "compensation tool is among the tools",
    "definition-unusable": "definition, if an upstream wrote it, can be put under contract",
    "field-invalid": "fields have the type and range that they ask for",
    "field-unknown": "fields are ones that a contract has",
    "file-unreadable": "file can be read",
    "function-and-http": "implementation is one: a function, or a request",
    "function-drift": "arguments are those of its function",
    "function-generator": "function returns one output",
    "isolation-unavailable": "isolation is available on this machine",
    "key-unused": "key reaches the destination that is said to honour it",
    "marker-misplaced": "injected parameters are marked on the parameter itself",
    "hook-mutates": "probe, preview and read_back only read",
    "hook-unknown": "probe, preview and read_back are among the tools",
    "import-failed": "Python file can be imported",
    "overlay-invalid": "overlay, if it is an upstream's tool, fits its definition",
    "parameter-variadic": "parameters can be named by a caller",
    "secret-missing": "secrets are configured",
    "setting-invalid": "project has settings that can be used",
    "state-merge-conflict": "state effects are merged like those of others on the same key",
    "upstream-changed": "upstream lists the tools that were accepted",
    "upstream-down": "upstream can be reached",
    "variable-ambiguous": "prompt variables stand for one key of run state each",
    "version-bump-missing": "major number rises when callers break",
    "version-duplicate": "version is declared once",
}
"""Rules of problems that are found outside of lint, while contracts are read and combined."""

_WARNINGS = ("state-merge-conflict", "upstream-changed", "version-bump-missing")

_VECTOR = {
    "repairable": "The model can correct its call and try again.",
    "retryable": "The same call may succeed later.",
    "requires_approval": "A person has to approve.",
    "fail_closed": "The run must not go on as if the call had succeeded.",
    "escalate": "A person has to look at it.",
}


def rules() -> list[dict[str, str]]:
    """Return every rule that a problem can name: id, severity, summary."""
    from counterseal.contract.lint import RULES

    known = {rule.id: (rule.severity.value, rule.summary) for rule in RULES.values()}
    for name, summary in OTHER_RULES.items():
        known.setdefault(name, ("warning" if name in _WARNINGS else "error", summary))
    return [
        {"id": name, "severity": severity, "summary": summary}
        for name, (severity, summary) in sorted(known.items())
    ]


def explain(
    subject: Annotated[
        str | None,
        Argument(metavar="RULE_OR_CODE", help="A lint rule or a code; without one, lists all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a lint rule or an error code."""
    from counterseal.codes import RESPONSES, Code

    known = {rule["id"]: rule for rule in rules()}
    if subject is None:
        codes = [{"status": one.status, **one.vector()} for one in RESPONSES.values()]
        rule_rows = [(rule["id"], rule["severity"], rule["summary"]) for rule in known.values()]
        code_rows = [
            (one.code.value, str(one.status), one.next_action) for one in RESPONSES.values()
        ]
        render(
            {"rules": list(known.values()), "codes": codes},
            lambda: [heading("Rules"), table(rule_rows), heading("Codes"), table(code_rows)],
            as_json=as_json,
        )
    elif subject.upper() in RESPONSES:
        _explain_code(RESPONSES[Code(subject.upper())], as_json=as_json)
    elif subject.lower() in known:
        rule = known[subject.lower()]
        refuses = rule["severity"] == "error"
        counts = "refuses the contract" if refuses else "advises; --strict refuses"
        title = f"{rule['id']}  {rule['severity']} ({counts})"
        render(rule, lambda: [title, "", f"A contract's {rule['summary']}."], as_json=as_json)
    else:
        near = get_close_matches(subject.lower(), [*known, *(code.lower() for code in RESPONSES)])
        shown = [name if name in known else name.upper() for name in near]
        fail(
            f"{subject!r} is neither a rule nor a code.",
            f"Did you mean {', '.join(shown)}?" if shown else "`counterseal explain` lists them.",
        )


def _explain_code(response: Response, *, as_json: bool) -> None:
    from counterseal.observation import refusal
    from counterseal.observation.envelope import FieldError

    meaning = MEANINGS[response.code]
    example = refusal(
        response.code,
        tool=meaning.tool,
        call_id="",
        timestamp=0.0,
        reason=meaning.reason,
        errors=() if meaning.error is None else (FieldError(*meaning.error),),
    ).for_model()

    def page() -> Parts:
        yield f"{response.code}  {response.status}"
        yield heading("Cause")
        yield paragraph(meaning.cause)
        yield heading("The model sees")
        yield from map(paragraph, example.splitlines())
        yield heading("What to do")
        yield paragraph(meaning.do)
        yield heading("Response vector")
        vector = [
            (name, f"yes  {text}" if getattr(response, name) else "no")
            for name, text in _VECTOR.items()
        ]
        yield table([*vector, ("next_action", response.next_action)])

    more = {"cause": meaning.cause, "model_sees": example, "what_to_do": meaning.do}
    render({"status": response.status, **response.vector(), **more}, page, as_json=as_json)


# What each code means ----------------------------------------------------------------------------


class Meaning(NamedTuple):
    """Why a code occurs and what an engineer does about it, with an example."""

    cause: str
    do: str
    reason: str = ""
    """A reason that a gate could give. Some codes need none."""
    error: tuple[str, str, str, str, str] | None = None
    """The values of a FieldError."""
    tool: str = "send_notice"


MEANINGS: Mapping[str, Meaning] = {
    "SYNTACTIC_PARSE_FAIL": Meaning(
        cause="The arguments are not one JSON object: cut off, with text around it, with a "
        "duplicate key, too deep or too large.",
        do="Return the observation to the model. If it keeps happening, look for code that cuts "
        "or wraps the model's output.",
        reason="The arguments end too early.",
    ),
    "STRUCTURAL_VIOLATION": Meaning(
        cause="A field is missing or not declared, or this caller has no tool of that name.",
        do="Return the observation to the model; it lists every field. For an unknown tool, check "
        "that it is registered, and for this tenant.",
        error=("/recipient", "recipient is missing", "", "present", "missing"),
    ),
    "TYPE_MISMATCH": Meaning(
        cause="A field has another type than the contract's schema declares.",
        do="Return the observation to the model. If models often get the same field wrong, "
        "improve its description.",
        error=("/copies", "copies must be integer", "", "integer", "string"),
    ),
    "OUT_OF_BOUNDS": Meaning(
        cause="A value has the right type and breaks a limit: length, range, pattern, choice.",
        do="Return the observation to the model. If legitimate calls break the limit, change the "
        "contract.",
        error=("/copies", "copies is too large", "", "at most 5", "integer"),
    ),
    "SEMANTIC_INVALIDITY": Meaning(
        cause="The arguments are well formed and break one of the contract's invariants, or "
        "repeat a repeatable call without an operation id; or the service behind the tool does "
        "not accept them.",
        do="Let the agent plan again or ask its user. If a wrong call has exactly one right form, "
        "give the invariant a corrector.",
        reason="The refund is no larger than the order.",
        tool="refund_order",
    ),
    "SIGNATURE_MISMATCH": Meaning(
        cause="The key was used before, with other arguments.",
        do="Give a new operation a new key. If the arguments should have been the same, find out "
        "why they changed: it can be an attack.",
        reason="The key was used for another request.",
    ),
    "PERMISSION_DENIED": Meaning(
        cause="A grant, scope, role, tenant, version or risk limit does not allow the call; or "
        "the tool is disabled, killed, or outside of the run's purpose; or the service behind the "
        "tool refused it.",
        do="The rule of the scope gate says which one. Grant it if the agent should have it; no "
        "other wording of the call helps.",
        reason="send_notice needs the scopes notice:send.",
    ),
    "POLICY_VIOLATION": Meaning(
        cause="A policy rule denied the call, no rule allowed it, or a rule could not be "
        "evaluated; or the tool tried what its contract does not allow.",
        do="Find the rule that the decision names with `counterseal policy show`, and add the "
        "call as a case for `counterseal policy test`.",
        reason="At night only people on call may change anything.",
    ),
    "STALE_STATE": Meaning(
        cause="The probe found the target missing, or in another version than the one approved, "
        "proposed against, or last seen by this run; "
        "or verification found another state than the call should have left.",
        do="Let the agent read the target again and plan again. An approval for the old version "
        "is void.",
        reason="The target has changed since it was seen.",
    ),
    "CONFIRMATION_MISSING": Meaning(
        cause="The effect or a policy requires a person's approval, and there is none for exactly "
        "these arguments.",
        do="Let an approver decide on the approval id. After that, as the contract says, either a "
        "reconciler executes the call or the agent proposes it again; the same proposal gets the "
        "result in both cases. Changed arguments need a new approval.",
        reason="A person must approve a call that reaches people or systems outside.",
    ),
    "BUDGET_EXHAUSTED": Meaning(
        cause="One more call would exceed a budget of the run, the tool, the grant or the tenant.",
        do="The rule names the budget. Raise it where it is set, or end the run: an agent that "
        "spends a whole budget is often in a loop.",
        reason="The budget run.tool.send_notice is spent. An operator can raise it: "
        "`max_calls_per_run` of the agent's grant for send_notice.",
    ),
    "RATE_LIMITED": Meaning(
        cause="The tenant called the tool more often than its contract's rate limit allows, or the "
        "service behind the tool takes no more calls for now.",
        do="Wait as long as the observation says, and retry the same call. Raise `rate_limits` in "
        "the contract if the tool can take more.",
        reason="Too many calls in a short time.",
    ),
    "IDEMPOTENCY_CONFLICT": Meaning(
        cause="The same operation is in progress, its outcome is not known yet, or its answer is "
        "no longer kept.",
        do="Wait, and retry with the same key. If the outcome stays unknown, find out what "
        "happened before anything runs again.",
        reason="A call with the same key is under way. Wait for it.",
    ),
    "SUCCESS": Meaning(
        cause="Every gate allowed the call, the tool returned, and its output fits its schema.",
        do="Nothing. Read the warnings: they say what was corrected.",
    ),
    "PARTIAL_SUCCESS": Meaning(
        cause="The tool did several things and reported that some of them did not succeed.",
        do="Read the failed steps in the data. Propose only those again, never the whole call.",
    ),
    "TIMEOUT": Meaning(
        cause="The tool did not answer within its `timeout_ms`. It may have taken effect.",
        do="Retry with the same key only; a new key could execute it twice. Look into the tool, "
        "or give it more time.",
        reason="The tool did not answer in time.",
    ),
    "DEPENDENCY_UNAVAILABLE": Meaning(
        cause="Something that the tool needs did not answer: a service, a secret that is not "
        "configured, the code itself, or the probe of the target.",
        do="Read the log entries with the call's id. Retry the same call when the dependency is "
        "back.",
        reason="Something that the tool needs is not available.",
    ),
    "OBSERVATION_NORMALIZATION_FAIL": Meaning(
        cause="The tool ran and returned something that its output schema does not allow.",
        do="Fix the tool, or its output schema. Do not repeat the call: it has taken effect.",
    ),
    "COMPENSATION_REQUIRED": Meaning(
        cause="Verification found that the call's effect is not as expected, or an operator wants "
        "it reversed.",
        do="Run the contract's compensation tool, or have a person reverse it.",
    ),
    "COMPENSATION_FAILED": Meaning(
        cause="The reversal of a call failed, so the call's effect still stands.",
        do="Stop the run. A person has to compare both records and correct them by hand.",
    ),
    "UNKNOWN_ERROR": Meaning(
        cause="The tool or a gate raised an error that no mapping names.",
        do="Read the log entries with the call's id. Map expected errors with "
        "`error_taxonomy_mapping` in the contract.",
        reason="The tool failed.",
    ),
}
"""By code."""
