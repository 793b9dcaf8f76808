"""`counterseal explain`: what a rule wants, or why a code comes up and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterseal.cli.output import fail, print_json, print_styled

if TYPE_CHECKING:
    from counterseal.codes import Response

__all__ = ["OTHER_RULES", "explain", "rules"]

OTHER_RULES = {
    "compensation-arguments": "compensation tool can be called with what a call leaves",
    "compensation-read-only": "compensation tool changes something, or it could undo nothing",
    "compensation-unknown": "compensation tool is among the tools",
    "definition-unusable": "definition, if an upstream wrote it, can be put under contract",
    "field-invalid": "fields have the type and range that they ask for",
    "field-unknown": "fields are ones that a contract has",
    "file-unreadable": "file can be read",
    "function-and-http": "way of being carried out is one: a function, or a request",
    "function-drift": "arguments are those of its function",
    "function-generator": "function returns one output",
    "isolation-unavailable": "isolation can be had on this machine",
    "key-unused": "key reaches the destination that is said to honour it",
    "marker-misplaced": "injected things are marked on the parameter itself",
    "hook-mutates": "probe, preview and read_back only read",
    "hook-unknown": "probe, preview and read_back are among the tools",
    "import-failed": "Python file can be imported",
    "overlay-invalid": "overlay, if it is an upstream's tool, fits its definition",
    "parameter-variadic": "parameters can be named by a caller",
    "state-merge-conflict": "state effects are merged like those of others on the same key",
    "variable-ambiguous": "prompt variables stand for one key of run state each",
    "version-bump-missing": "major number rises when callers break",
    "version-duplicate": "version is declared once",
}
"""What is found outside lint, while contracts are read and put together."""

_WARNINGS = ("state-merge-conflict", "version-bump-missing")

_YES = {
    "repairable": "The model can mend its call and try again.",
    "retryable": "The same call may work later.",
    "requires_approval": "A person has to approve.",
    "fail_closed": "The run must not go on as if it had worked.",
    "escalate": "A person has to look at it.",
}


def rules() -> list[dict[str, str]]:
    """Every rule that a problem can name: id, severity, summary."""
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
        typer.Argument(
            metavar="RULE_OR_CODE", help="A lint rule or a code; without one, lists all."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a lint rule or an error code."""
    from counterseal.codes import RESPONSES, Code

    known = {rule["id"]: rule for rule in rules()}
    if subject is None:
        _list(list(known.values()), list(RESPONSES.values()), as_json=as_json)
    elif subject.upper() in RESPONSES:
        _explain_code(RESPONSES[Code(subject.upper())], as_json=as_json)
    elif subject.lower() in known:
        _explain_rule(known[subject.lower()], as_json=as_json)
    else:
        near = get_close_matches(subject.lower(), [*known, *(code.lower() for code in RESPONSES)])
        shown = [name if name in known else name.upper() for name in near]
        fail(
            f"{subject!r} is neither a rule nor a code.",
            f"Did you mean {', '.join(shown)}?" if shown else "`counterseal explain` lists them.",
        )


def _list(known: list[dict[str, str]], responses: list[Response], *, as_json: bool) -> None:
    if as_json:
        print_json({"rules": known, "codes": [_record(response) for response in responses]})
        return
    from counterseal.cli.layout import heading, table

    codes = [(one.code.value, str(one.status), one.next_action) for one in responses]
    print_styled(
        heading("Rules"),
        table([(rule["id"], rule["severity"], rule["summary"]) for rule in known]),
        heading("Codes"),
        table(codes),
    )


def _record(response: Response) -> dict[str, Any]:
    return {"status": response.status, **response.vector()}


def _full_record(response: Response) -> dict[str, Any]:
    from counterseal.cli.meanings import MEANINGS, example

    meaning = MEANINGS[response.code]
    told = {"cause": meaning.cause, "model_sees": example(response.code), "what_to_do": meaning.do}
    return {**_record(response), **told}


def _explain_rule(rule: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(rule)
        return
    counts = "refuses the contract" if rule["severity"] == "error" else "advises; --strict refuses"
    print(f"{rule['id']}  {rule['severity']} ({counts})\n\nA contract's {rule['summary']}.")


def _explain_code(response: Response, *, as_json: bool) -> None:
    if as_json:
        print_json(_full_record(response))
        return
    from counterseal.cli.layout import heading, paragraph, table
    from counterseal.cli.meanings import MEANINGS, example

    meaning = MEANINGS[response.code]
    print(f"{response.code}  {response.status}")
    print_styled(
        heading("Cause"),
        paragraph(meaning.cause),
        heading("The model sees"),
        *(paragraph(line) for line in example(response.code).splitlines()),
        heading("What to do"),
        paragraph(meaning.do),
        heading("Response vector"),
        table([*_vector(response), ("next_action", response.next_action)]),
    )


def _vector(response: Response) -> Iterator[tuple[str, str]]:
    for name, meaning in _YES.items():
        yield name, f"yes  {meaning}" if getattr(response, name) else "no"
