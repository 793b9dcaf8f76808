"""`counterseal explain`: what a lint rule checks, or why a code occurs and what to do about it.

The words are in `explain.yaml`. The text that an agent reads is made by the renderer of
observations from an example, so that it is the text of a real call.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from counterseal.cli.options import AsJson
from counterseal.cli.render import Parts, fail, heading, paragraph, render, table

if TYPE_CHECKING:
    from counterseal.codes import Response

_VECTOR = {
    "repairable": "The model can correct its call and try again.",
    "retryable": "The same call may succeed later.",
    "requires_approval": "A person has to approve.",
    "fail_closed": "The run must not go on as if the call had succeeded.",
    "escalate": "A person has to look at it.",
}


@cache
def words() -> Mapping[str, Any]:
    """Return rules of problems that are found outside of lint (`rules`), and what `codes` mean."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(Path(__file__).with_name("explain.yaml").read_text("utf-8"))  # type: ignore[no-any-return]


def rules() -> list[dict[str, str]]:
    """Return every rule that a problem can name: id, severity, summary."""
    from counterseal.contract.lint import RULES

    known = {rule.id: (rule.severity.value, rule.summary) for rule in RULES.values()}
    for name, summary in words()["rules"].items():
        known.setdefault(name, ("warning" if name in words()["warnings"] else "error", summary))
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

    meaning = words()["codes"][response.code.value]
    example = refusal(
        response.code,
        tool=meaning.get("tool", "send_notice"),
        call_id="",
        timestamp=0.0,
        reason=meaning.get("reason", ""),
        errors=[FieldError(*meaning["error"])] if "error" in meaning else (),
    ).for_model()

    def page() -> Parts:
        yield f"{response.code}  {response.status}"
        yield heading("Cause")
        yield paragraph(meaning["cause"])
        yield heading("The model sees")
        yield from map(paragraph, example.splitlines())
        yield heading("What to do")
        yield paragraph(meaning["do"])
        yield heading("Response vector")
        vector = [
            (name, f"yes  {text}" if getattr(response, name) else "no")
            for name, text in _VECTOR.items()
        ]
        yield table([*vector, ("next_action", response.next_action)])

    more = {"cause": meaning["cause"], "model_sees": example, "what_to_do": meaning["do"]}
    render({"status": response.status, **response.vector(), **more}, page, as_json=as_json)
