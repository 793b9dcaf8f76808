"""Takes out of an output what differs from run to run, and the prose, which is edited on purpose.

What stays is what programs rely on: names, codes, types, structure, order and numbers.

    mask = Mask({folder: "<project>"})
    mask(data)        # the same data, with `call_1` for the first call id, `<time>`, `<text>`, …
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ID = re.compile(
    r"\b(?P<kind>call|appr|run|undo|plan|evt|ckpt|run_mcp|key|worker)_(?P<id>[0-9a-f]{16,})"
)
SECRET = re.compile(r"\b(?P<kind>cs_[a-z]+)_[0-9A-Za-z_-]{16,}")
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+")
TOKEN = re.compile(r"\b(eyJ[\w-]+\.[\w-]+\.[\w-]+|v1\.[\w-]{16,})")
BOUNDARY = re.compile(r"(untrusted-data )\S+")
HEX = re.compile(r"\b[0-9a-f]{12,}\b")
OPAQUE = re.compile(r"(?<![\w<])[0-9A-Za-z_-]{40,}={0,2}(?!\w)")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
DAY = re.compile(r"\b20\d\d-[01]\d-[0-3]\d\b")
MEASURED = re.compile(r"(^|_)(microseconds|latency_ms|duration_ms|waited_ms|took_ms|pid|bytes)$")
SINCE_2001 = 1e9
WORDS_OF_A_SENTENCE = 3
REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28", "2025-03-26", "2024-11-05")
"""Protocol revisions look like days, and stay."""


class Mask:
    """Masks data; an id keeps its number for as long as this object lives."""

    def __init__(self, places: Mapping[Path, str] | None = None, *, numbered: bool = True) -> None:
        self._places = {str(path): name for path, name in (places or {}).items()}
        self._numbers: dict[str, dict[str, int]] = {}
        self._numbered = numbered

    def __call__(self, value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            # What each gate took stands under the gate's name.
            return {
                self.text(name): self(one, "microseconds" if key == "gates" else name)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(one, key) for one in value]
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if MEASURED.search(key):
            return "<measured>"
        return "<time>" if value > SINCE_2001 else value

    def _string(self, value: str) -> str:
        masked = self.text(value)
        if len(masked.split()) >= WORDS_OF_A_SENTENCE:
            return "<text>"
        return masked

    def text(self, value: str) -> str:
        """Return a text without ids, times, secrets and places; its words stay."""
        for place, name in self._places.items():
            value = value.replace(place, name)
        value = SECRET.sub(r"\g<kind>_<secret>", value)
        value = ID.sub(lambda match: self._numbered_id(match["kind"], match["id"]), value)
        value = PORT.sub("<port>", value)
        value = TOKEN.sub("<token>", value)
        value = BOUNDARY.sub(r"\1<boundary>", value)
        value = MOMENT.sub("<time>", value)
        value = DAY.sub(lambda day: day[0] if day[0] in REVISIONS else "<day>", value)
        value = HEX.sub("<hex>", value)
        return OPAQUE.sub("<opaque>", value)

    def _numbered_id(self, kind: str, value: str) -> str:
        if not self._numbered:
            return f"{kind}_<id>"
        known = self._numbers.setdefault(kind, {})
        return f"{kind}_<{known.setdefault(value, len(known) + 1)}>"


def as_text(data: Any, *, in_any_order: bool = False) -> str:
    """Return data as JSON for a golden file; sort fields where their order says nothing."""
    return json.dumps(data, indent=1, ensure_ascii=False, sort_keys=in_any_order) + "\n"
