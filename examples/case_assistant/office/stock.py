"""The cases that the offices begin with: `stock/<tenant>.json`, one file for each.

A file holds companies, their cases, the cases' evidence, and the office's policies. Some of the
evidence asks for things; see README.md, *What stands in the evidence*.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["TENANTS", "marks", "tables"]

_FOLDER: Final = Path(__file__).with_name("stock")
TENANTS: Final = tuple(sorted(file.stem for file in _FOLDER.glob("*.json")))


def tables() -> dict[str, list[dict[str, Any]]]:
    """The rows of every table that does not begin empty."""
    found: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("companies", "cases", "evidence", "policies")
    }
    for tenant in TENANTS:
        data = json.loads((_FOLDER / f"{tenant}.json").read_text(encoding="utf-8"))
        for table, row in _rows(data):
            found[table].append({"tenant": tenant, **row})
    return found


def _rows(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its table; what lies inside another one is told where it belongs."""
    for company in data["companies"]:
        cases = company.pop("cases")
        yield "companies", company
        for case in cases:
            evidence = case.pop("evidence")
            yield "cases", {"register_no": company["register_no"], "version": 1, **case}
            for piece in evidence:
                yield "evidence", {"case_id": case["case_id"], **piece}
    for policy in data["policies"]:
        yield "policies", policy


def marks(tenant: str) -> frozenset[str]:
    """Texts that only this tenant's rows hold: whoever else reads one has read too much."""
    companies = (row for row in tables()["companies"] if row["tenant"] == tenant)
    return frozenset(row[name] for row in companies for name in ("name", "register_no", "mailbox"))
