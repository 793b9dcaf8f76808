"""A small stand-in for an output that is too large: its kind, its size, its outline, its beginning.

Works on any JSON object and knows no contract. The stand-in is cleaned by the caller's redactor
before it is cut to size, so that a cut never leaves half a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json

__all__ = ["summarise"]

_MOST_KEYS = 40
_LONGEST_KEY = 80
_LONGEST_PREVIEW = 2048
_DEEPEST = 6

Clean = Callable[[Any], Any]


def summarise(data: Mapping[str, Any], size: int, limit: int, clean: Clean) -> dict[str, Any]:
    """An object whose JSON has at most `limit` bytes (or is empty, below two)."""
    outline = clean({_short(key): _kind(item) for key, item in list(data.items())[:_MOST_KEYS]})
    summary = {"truncated": True, "type": "object", "bytes": size, "fields": len(data)}
    for attempt in (
        summary | {"outline": outline},
        summary,
        {"truncated": True, "bytes": size},
        {"truncated": True},
    ):
        room = limit - len(to_json(attempt)) - len(b',"preview":""')
        if room < -len(b',"preview":""'):
            continue
        preview = _preview(data, min(room, _LONGEST_PREVIEW), clean)
        return attempt | {"preview": preview} if preview else attempt
    return {}


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"string, {len(value)} characters"
    if isinstance(value, list):
        return f"array, {len(value)} items"
    if isinstance(value, Mapping):
        return f"object, {len(value)} fields"
    if isinstance(value, bool):
        return "boolean"
    return "null" if value is None else "number"


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else _cut(key, _LONGEST_KEY) + "…"


def _preview(data: Mapping[str, Any], room: int, clean: Clean) -> str:
    """The beginning, as text that takes at most `room` bytes inside a JSON string."""
    if room < 16:
        return ""
    text = to_json(clean(_beginning(data, [room * 2], _DEEPEST))).decode()
    text = text[:room]
    while text and len(to_json(text)) - 2 > room - 3:
        over = len(to_json(text)) - 2 - (room - 3)
        text = text[: -max(1, over // 4)]
    return text + "…"


def _beginning(value: Any, room: list[int], depth: int) -> Any:
    """The first part of a value: as much as there is room for, counted roughly in characters."""
    if isinstance(value, str):
        room[0] -= len(value) + 2
        return value if room[0] >= 0 else _cut(value, max(0, len(value) + room[0]))
    if isinstance(value, Mapping | list) and depth == 0:
        return {} if isinstance(value, Mapping) else []
    if isinstance(value, Mapping):
        part: dict[str, Any] = {}
        for key, item in value.items():
            if room[0] <= 0:
                break
            room[0] -= len(key) + 4
            part[_short(key)] = _beginning(item, room, depth - 1)
        return part
    if isinstance(value, list):
        items: list[Any] = []
        for item in value:
            if room[0] <= 0:
                break
            items.append(_beginning(item, room, depth - 1))
        return items
    room[0] -= 8
    return value


def _cut(text: str, length: int) -> str:
    """Cut between words: half a key is no longer recognised as one, and must not be shown."""
    words = text[:length].rsplit(maxsplit=1)
    return words[0] if len(words) == 2 else ""
