"""Reads an OpenAPI file: JSON or YAML, larger than a contract may be, plain data at the end.

YAML is read by a careful but slow parser: a megabyte takes several seconds. Most publishers of
large documents offer JSON too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from counterseal.errors import ContractError, Problem, Source

__all__ = ["MAX_BYTES", "read_openapi"]

MAX_BYTES = 16 * 1024 * 1024
_DEEPEST = 200
_MOST_VALUES = 4_000_000


def read_openapi(path: str | Path) -> dict[str, Any]:
    """The document. ContractError says why it can't be read."""
    path = Path(path)
    try:
        raw = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    except OSError as error:
        raise _unreadable(path, f"can't be opened: {error.strerror}") from None
    if raw is None:
        raise _unreadable(path, f"longer than {MAX_BYTES:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
        data = _json(text) if _looks_like_json(path, text) else _yaml(text)
        plain = _Plain().of(data, 0)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise _unreadable(path, f"can't be read: {reason}") from None
    if not isinstance(plain, dict):
        raise _unreadable(path, "a document is a mapping")
    return plain


def _unreadable(path: Path, message: str) -> ContractError:
    source = Source(file=str(path))
    return ContractError([Problem(rule="file-unreadable", message=message, source=source)])


def _looks_like_json(path: Path, text: str) -> bool:
    return path.suffix.lower() == ".json" or text.lstrip()[:1] == "{"


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_pairs)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _yaml(text: str) -> Any:
    from ruamel.yaml import YAML  # noqa: PLC0415 - slow to import, and JSON does without
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415 - as above

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(f"no YAML: {error}") from None


class _Plain:
    """JSON data from what YAML can hold: keys become texts, and so do dates."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        # Aliases let a few lines stand for more than any memory holds.
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError("it unfolds into too much")
        if isinstance(value, Mapping):
            return {str(key): self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(item, depth + 1) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return value.isoformat() if isinstance(value, date) else str(value)
