"""The head of a request that comes again, byte by byte: what was read in it need not be read twice.

Whoever makes many requests over one connection sends the same head with nearly all of them, but for
the length of what follows. Only heads are known here that the parser has read, of requests that
came whole, in one piece, with a length: so a request with the same bytes means the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

__all__ = ["Head"]

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_UNUSUAL: Final = (b"\r\ntransfer-encoding:", b"\r\nupgrade:", b"\r\nexpect:")
_MOST_DIGITS: Final = 9


class Head(NamedTuple):
    """A head, without the digits of its length."""

    before: bytes
    after: bytes
    place: int
    """Which of the headers the length is."""

    @classmethod
    def of(cls, request: bytes) -> Self | None:
        """Of a request that is all there, and was parsed. None: it has to be parsed every time."""
        end = request.find(_END)
        head = request[: end + len(_END)]
        lower = head.lower()
        if (
            end < 0
            or head.startswith((b"\r", b"\n"))
            or lower.count(_LENGTH) != 1
            or any(map(lower.count, _UNUSUAL))
        ):
            return None
        line = lower.index(_LENGTH)
        begin = line + len(_LENGTH)
        digits, _, _ = head[begin:].partition(b"\r\n")
        begin += len(digits) - len(digits.lstrip(b" \t"))
        rest = head[begin + len(digits.strip(b" \t")) :]
        found = cls(head[:begin], rest, head.count(b"\r\n", 0, line))
        return found if found.body_in(request) is not None else None

    def body_in(self, request: bytes) -> bytes | None:
        """What comes behind this head. None: it is another head, or not one whole request."""
        before, after, _ = self
        if not request.startswith(before):
            return None
        begin = len(before)
        end = request.find(b"\r", begin, begin + _MOST_DIGITS + 1)
        digits = request[begin:end]
        if end < 0 or not digits.isdigit() or not request.startswith(after, end):
            return None
        body = request[end + len(after) :]
        return body if len(body) == int(digits) else None
