"""The form of a message between the runtime and a process that runs tools, on both sides alike.

Four bytes of length, and that many bytes of JSON: a list of what it is, the number of the call, and
the content. Both what is sent and what is read is bounded, in bytes and in how much memory a few
bytes can become.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST_MESSAGE", "LONGEST_VALUE", "framed", "is_too_much"]

LONGEST_VALUE: Final = 16 * 1024 * 1024
LONGEST_MESSAGE: Final = LONGEST_VALUE + 1024 * 1024
_MOST_CONTAINERS: Final = 1_000_000


def framed(body: bytes) -> bytes:
    """The message as it is sent."""
    return len(body).to_bytes(4, "big") + body


def is_too_much(json: bytes) -> bool:
    """Whether JSON would take far more memory than its size: an empty list is two bytes of it."""
    return json.count(b"[") + json.count(b"{") > _MOST_CONTAINERS
