"""Texts of notices. A letter cites evidence by number and day, and never quotes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["TEMPLATES", "subject", "text"]

TEMPLATES: Final[Mapping[str, tuple[str, str]]] = {
    "information_request": (
        "Request for information",
        "We ask you to send us, within 21 days, everything that you hold on the matter above.",
    ),
    "hearing": (
        "Invitation to a hearing",
        "Before we decide, you may be heard. Tell us within 14 days whether you will come.",
    ),
    "decision": (
        "Decision",
        "We have decided in the matter above. You may appeal within 30 days.",
    ),
    "penalty": (
        "Notice of penalty",
        "For the breach above we impose a penalty of {amount_eur} euros, to be paid in 30 days.",
    ),
}
"""Title and body of each kind of notice."""

_LETTER: Final = """\
To {name}, register number {register_no}

{title}: {subject}
Case {case_id}

{words}

It rests on:
{facts}

The regulator of {office}
"""


def subject(template: str, case: Mapping[str, Any]) -> str:
    """Return the subject line."""
    return f"{TEMPLATES[template][0]} in case {case['case_id']}"


def text(
    template: str, case: Mapping[str, Any], facts: Iterable[Mapping[str, Any]], amount_eur: int
) -> str:
    """Return the whole letter."""
    title, words = TEMPLATES[template]
    lines = (
        f"- {fact['evidence_id']}, {fact['kind']}, received on {fact['received_on']}"
        for fact in facts
    )
    return _LETTER.format(
        **{key: case[key] for key in ("name", "register_no", "subject", "case_id")},
        title=title,
        words=words.format(amount_eur=amount_eur),
        facts="\n".join(lines),
        office=case["tenant"].capitalize(),
    )
