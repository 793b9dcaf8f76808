"""Writes the reference pages from the tables of the program, and the pictures made from text.

`python docs/generate.py` writes them; `--check` fails when one is out of date. Pages written by
hand are not changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import _commands_page
import _contract_page
import _events_page
import _http_page
import _python_page
import _settings_page
import diagram
from _tables import table

from counterseal.codes import RESPONSES
from counterseal.contract.diff import MEANINGS
from counterseal.contract.effects import EFFECTS, RISKS
from counterseal.contract.lint import RULES
from counterseal.execution.failures import ROWS

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py from the code; change that, not this. -->\n"


def effects() -> str:
    """Both tables, and what a contract of each effect comes out as."""
    joined = [
        (
            f"`{effect.value}`",
            f"`{row.risk.value}`",
            row.mutates or RISKS[row.risk].key,
            RISKS[row.risk].approval.value,
            RISKS[row.risk].verification,
            RISKS[row.risk].budget if row.exposed else "never for agents",
            row.trust.value,
            RISKS[row.risk].audit,
        )
        for effect, row in EFFECTS.items()
    ]
    risks = [
        (f"`{risk.value}`", row.key, row.approval.value, row.verification, row.budget, row.audit)
        for risk, row in RISKS.items()
    ]
    told = [(f"`{effect.value}`", row.disclosure) for effect, row in EFFECTS.items()]
    posture = ["key", "approval", "verification", "calls a run", "audit"]
    return f"""# Effects and risk classes

A contract declares an *effect*; everything in its row follows from that, and can be overridden
where a tool differs.

{table(["effect", "risk class", *posture[:4], "output is", "audit"], joined)}
A *risk class* can be raised with `risk=`; the posture is then the one of its own row. Lowering it
below its effect's is an error unless `risk_justification` says why. Approval and audit follow the
effect all the same, until an operator accepts the lower class (`counterseal registry accept-risk`).

{table(["risk class", *posture], risks)}
What a model is told about each effect:

{table(["effect", "disclosure"], told)}"""


def rules() -> str:
    rows = [
        (
            f"`{rule.id}`",
            f"{rule.severity.value}{', error if strict' if rule.strict else ''}",
            f"A contract's {rule.summary}.",
        )
        for rule in sorted(RULES.values(), key=lambda rule: (rule.severity.value, rule.id))
    ]
    return f"""# Lint rules

`counterseal lint` reports these; registration refuses a contract that breaks one marked *error*.
Those marked *error if strict* are errors with `strict = true` in `[tools]`, with `strict=True` of
`Runtime` or `register`, and for `counterseal check`.

{table(["rule", "severity", "what it wants"], rows)}"""


def codes() -> str:
    rows = [
        (
            f"`{response.code.value}`",
            response.status,
            response.repairable,
            response.retryable,
            response.requires_approval,
            response.fail_closed,
            response.escalate,
            f"`{response.next_action}`",
        )
        for response in RESPONSES.values()
    ]
    vector = ["repair", "retry", "approval", "fail closed", "escalate", "next action"]
    return f"""# Codes

Every observation has one of these codes, and with it a response vector: what a caller can do.

{table(["code", "status", *vector], rows)}"""


def changes() -> str:
    """Every change of a contract, and what it means to each audience."""
    rows = [
        (
            f"`{name}`",
            *(part.value.replace("_", " ") for part in meaning[:3]),
            meaning.bump.name.lower(),
        )
        for name, meaning in MEANINGS.items()
    ]
    return f"""# Changes of contracts

What `counterseal diff` calls a change, and what it means: to callers, who send arguments and read
outputs; to models, which read descriptions and schemas; to guardians, who answer for what a tool
may do. The last column is the part of the version that has to rise. [Versions](../versions.md)
tells how to use it. Ids do not change their meaning.

{table(["id", "callers", "models", "guardians", "version"], rows)}"""


def failures() -> str:
    rows = [
        (row.scope, ", ".join(f"`{name}`" for name in row.names.split()), f"`{row.code.value}`")
        for row in ROWS
    ]
    return f"""# What an exception means

Whatever a tool raises has exactly one code. A contract's own word for it comes first
(`observability.error_taxonomy_mapping`: an HTTP status, a name that a plain tool reported, a class
by its bare or its full name, or a base of it; the nearest class wins). Then the number that the
other side gave, then the name that a plain tool reported, then the nearest class in this table; a
group of exceptions has the gravest code of its members.

{table(["of", "what", "code"], rows)}"""


PAGES = {
    "reference/effects.md": effects,
    "reference/contract.md": _contract_page.page,
    "reference/lint.md": rules,
    "reference/changes.md": changes,
    "reference/codes.md": codes,
    "reference/failures.md": failures,
    "reference/events.md": _events_page.page,
    "reference/commands.md": _commands_page.page,
    "reference/http.md": _http_page.page,
    "reference/configuration.md": _settings_page.page,
    "reference/python.md": _python_page.page,
}
PICTURES = {"images/architecture.svg": diagram.svg, "images/overview.svg": diagram.overview}


def write(*, only_look: bool = False) -> list[str]:
    """Bring the pages up to date, or only say which of them are not."""
    texts = {name: NOTE + page().rstrip() + "\n" for name, page in PAGES.items()}
    texts |= {name: picture() for name, picture in PICTURES.items()}
    stale = []
    for name, text in texts.items():
        path = HERE / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not only_look:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return stale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail when a page is stale")
    checking = parser.parse_args().check
    stale = write(only_look=checking)
    verb = "stale" if checking else "written"
    names = f": {', '.join(stale)}" if stale else ""
    print(f"{len(PAGES) + len(PICTURES)} pages, {len(stale)} {verb}{names}")
    if stale and checking:
        print("Fix: python3 dev.py docs", file=sys.stderr)
    return 1 if stale and checking else 0


if __name__ == "__main__":
    sys.exit(main())
