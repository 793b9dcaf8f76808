"""Messages between the runtime and a process that runs tools: framing, jobs, replies, masking.

A message is four bytes of length, then JSON: a list of the message's kind, the call's number, and
the content. Both sides bound what they send and read, in bytes and in parsed size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from counterseal.execution.isolation.address import FunctionAddress
from counterseal.masking import SHORTEST, Mask

LONGEST_VALUE: Final = 16 * 1024 * 1024
LONGEST_MESSAGE: Final = LONGEST_VALUE + 1024 * 1024
_MOST_CONTAINERS: Final = 1_000_000


def framed(body: bytes) -> bytes:
    """Return the message with its length before it."""
    return len(body).to_bytes(4, "big") + body


def is_too_much(json: bytes) -> bool:
    """Return whether parsing would take far more memory than the text: `[]` is two bytes."""
    return json.count(b"[") + json.count(b"{") > _MOST_CONTAINERS


# --- jobs and replies -----------------------------------------------------------------------------


Tell = Callable[[str, Any], None]
"""Receives `"progress"` with `[done, total, message]`, and `"log"` with `[level, text]`."""

Kind = Literal["value", "partial", "unserialisable", "fault", "died", "late", "unavailable"]


class IsolatedJob(NamedTuple):
    """A call for another process, as plain data."""

    address: FunctionAddress
    arguments: Mapping[str, Any]
    injected: Mapping[str, Any]
    """Resolved secrets, config and state, by parameter."""
    context_params: Sequence[str]
    context: Mapping[str, Any]
    """The fields of a `Context`, without its services."""
    egress: Mapping[str, Any]
    files: str | None
    memory_mb: int
    secrets: Mapping[str, str] = {}
    """The injected secrets by name. Both sides mask them in output, logs and errors, before they
    cut long text."""


class Reply(NamedTuple):
    """The result of a job."""

    kind: Kind
    value: Any = None
    """The tool's return value; for `partial`, an object of completed, failed and data."""
    fault: Any = None
    """The record of a `Fault`, as the child sent it."""
    trace: str = ""
    """For operators: a traceback, or how the child died and its last output."""
    words: str = ""
    """The tool's own message about its failure, for the caller."""
    began: bool = True
    """False when the call never reached the tool's function."""
    interrupted: bool = False
    """True if the caller was cancelled meanwhile. The other fields still hold."""


# --- cutting text without exposing half a secret --------------------------------------------------


_WIDEST = 16
"""The factor by which an escaped or wrapped form of a secret is longer than the secret."""
_WIDEST_MARGIN = 256 * 1024


class Cover:
    """Masks one call's secrets in text that is cut, so that no part of a secret is left."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {k: value for k, value in secrets.items() if len(value) >= SHORTEST}
        longest = max(map(len, self._secrets.values()), default=0)
        self.margin = min(longest * _WIDEST + 1024, _WIDEST_MARGIN) if longest else 0
        """How many characters a secret at the edge of a cut can take up."""

    @cached_property
    def _mask(self) -> Mask:  # most calls print nothing
        return Mask(self._secrets)

    def text(self, text: str) -> str:
        """Return the whole text, masked."""
        return self._mask.text(text) if self._secrets else text

    def kept(self, most: int) -> int:
        """Return how many characters to keep in order to show `most` of them."""
        return most + 2 * self.margin

    def beginning(self, text: str, most: int, *, cut: bool = False) -> str:
        """Return the first characters, masked. `cut` means that the text was longer once."""
        kept = self.kept(most)
        clean = self.text(text[:kept])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[: -self.margin]
        return clean[:most]

    def ending(self, text: str, most: int, *, cut: bool = False) -> str:
        """Return the last characters, masked. `cut` means that more came before them."""
        kept = self.kept(most)
        clean = self.text(text[-kept:])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[self.margin :]
        return clean[-most:]


NO_COVER: Final = Cover({})
