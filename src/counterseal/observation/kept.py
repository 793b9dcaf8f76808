"""What a model saw of a read, in the form in which it lies in the vault.

A ledger keeps what was done with its observation; a read goes into no ledger. Only what was shown
is in it, after everything was taken out of it. A long text is kept as far as it goes, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.observation.bound import summarise
from counterseal.observation.observation import Observation

__all__ = ["KeptRead", "open_read", "pack_read"]


class KeptRead(NamedTuple):
    """A read as it was kept."""

    record: Mapping[str, Any]
    """The observation's, without gates; where the text is cut, with a summary as its data."""
    text: str
    """As the model read it."""
    cut: str = ""
    """What is missing of the text; empty where nothing is."""


def pack_read(seen: Observation, most: int) -> bytes:
    """What is to be kept of a read: at most so many bytes of its text."""
    shown = seen._replace(raw=None, decisions=())
    text = shown.for_model().encode()
    if len(text) <= most:
        return to_json({"record": shown.record()})
    if shown.data is not None:
        size = len(to_json(shown.data))
        shown = shown._replace(data=summarise(shown.data, size, most, lambda value: value))
    begun = text[:most].decode(errors="ignore")
    return to_json({"record": shown.record(), "text": begun, "bytes": len(text)})


def open_read(kept: bytes) -> KeptRead:
    """The same, read back. ValueError when it is nothing of that kind."""
    try:
        told = from_json(kept)
        seen = Observation.from_record(told["record"])
        if "text" not in told:
            return KeptRead(told["record"], seen.for_model())
        begun, size = str(told["text"]), int(told["bytes"])
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError("this is no observation that was kept") from None
    return KeptRead(told["record"], begun, _missing(begun, size))


def _missing(begun: str, size: int) -> str:
    return f"Only the first {len(begun.encode()):,} of its {size:,} bytes are kept."
