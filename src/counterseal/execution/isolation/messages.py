"""The form of a message between the runtime and a process that runs tools, on both sides alike.

Four bytes of length, and that many bytes of JSON: a list of what it is, the number of the call, and
the content. Both what is sent and what is read is bounded, in bytes and in how much memory a few
bytes can become.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from counterseal.execution.isolation.address import Address
from counterseal.masking import SHORTEST, Mask

__all__ = [
    "LONGEST_MESSAGE",
    "LONGEST_VALUE",
    "NO_COVER",
    "Cover",
    "Job",
    "Kind",
    "Reply",
    "Tell",
    "framed",
    "is_too_much",
]


LONGEST_VALUE: Final = 16 * 1024 * 1024
LONGEST_MESSAGE: Final = LONGEST_VALUE + 1024 * 1024
_MOST_CONTAINERS: Final = 1_000_000


def framed(body: bytes) -> bytes:
    """The message as it is sent."""
    return len(body).to_bytes(4, "big") + body


def is_too_much(json: bytes) -> bool:
    """Whether JSON would take far more memory than its size: an empty list is two bytes of it."""
    return json.count(b"[") + json.count(b"{") > _MOST_CONTAINERS


# --- jobs and replies -----------------------------------------------------------------------------


Tell = Callable[[str, Any], None]
"""Takes `"progress"` with `[done, total, message]`, and `"log"` with `[level, text]`."""

Kind = Literal["value", "partial", "unserialisable", "fault", "died", "late", "unavailable"]


class Job(NamedTuple):
    """A call for another process: all of it plain data."""

    address: Address
    arguments: Mapping[str, Any]
    injected: Mapping[str, Any]
    """By parameter: secrets, config and state, already resolved."""
    context_params: Sequence[str]
    context: Mapping[str, Any]
    """The fields of a `Context`, the services left out."""
    egress: Mapping[str, Any]
    files: str | None
    memory_mb: int
    secrets: Mapping[str, str] = {}
    """By name: those of the injected values that nothing which is printed, logged or raised may
    show. Both sides hide them before they cut what is too long."""


class Reply(NamedTuple):
    """What came back."""

    kind: Kind
    value: Any = None
    """What the tool returned; for `partial` an object of completed, failed and data."""
    fault: Any = None
    """The record of a `Fault`, as the child wrote it."""
    trace: str = ""
    """For an operator: a traceback, or how the child died and what it last printed."""
    words: str = ""
    """What the tool said of its failure, for its caller."""
    began: bool = True
    """False when the call never reached the tool's function."""
    interrupted: bool = False
    """Whether the caller went away meanwhile. The rest is true all the same."""


# --- cutting text without exposing half a secret --------------------------------------------------


_WIDEST = 16
"""How much longer than a secret any form of it is: escaped, escaped again, or wrapped."""
_WIDEST_MARGIN = 256 * 1024


class Cover:
    """The secrets of one call, which both sides of the pipe have to hide."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {k: value for k, value in secrets.items() if len(value) >= SHORTEST}
        longest = max(map(len, self._secrets.values()), default=0)
        self.margin = min(longest * _WIDEST + 1024, _WIDEST_MARGIN) if longest else 0
        """How many characters a secret at an edge can take up."""

    @cached_property
    def _mask(self) -> Mask:  # most calls say nothing that it is needed for
        return Mask(self._secrets)

    def text(self, text: str) -> str:
        """All of it, masked."""
        return self._mask.text(text) if self._secrets else text

    def kept(self, most: int) -> int:
        """How much has to be kept of what is shown up to this length."""
        return most + 2 * self.margin

    def beginning(self, text: str, most: int, *, cut: bool = False) -> str:
        """The first so many characters, masked. `cut` says that the text went on once."""
        kept = self.kept(most)
        clean = self.text(text[:kept])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[: -self.margin]
        return clean[:most]

    def ending(self, text: str, most: int, *, cut: bool = False) -> str:
        """The last so many characters, masked. `cut` says that there was more before them."""
        kept = self.kept(most)
        clean = self.text(text[-kept:])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[self.margin :]
        return clean[-most:]


NO_COVER: Final = Cover({})
