"""The first cases of the offices: `stock/<tenant>.json`, one file per office.

A file holds companies, cases, evidence and policies. Some evidence contains injected demands; see
README.md, *What stands in the evidence*.
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
    """Return the first rows of each table."""
    found: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("companies", "cases", "evidence", "policies")
    }
    for tenant in TENANTS:
        data = json.loads((_FOLDER / f"{tenant}.json").read_text(encoding="utf-8"))
        for table, row in _rows(data):
            found[table].append({"tenant": tenant, **row})
    return found


def _rows(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its table; nested rows get the key of their parent."""
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
    """Return texts that occur in this tenant's rows only, to detect leaks."""
    companies = (row for row in tables()["companies"] if row["tenant"] == tenant)
    return frozenset(row[name] for row in companies for name in ("name", "register_no", "mailbox"))
