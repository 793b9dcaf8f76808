"""The head of a request that comes again, byte by byte: what was read in it need not be read twice.

Whoever makes many requests over one connection sends the same head with nearly all of them, but for
the length of what follows. Only heads are known here that the parser has read, of requests that
came whole, in one piece, with a length: so a request with the same bytes means the same.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

__all__ = ["Head", "Heads"]

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_UNUSUAL: Final = (b"\r\ntransfer-encoding:", b"\r\nupgrade:", b"\r\nexpect:")
_MOST_DIGITS: Final = 9
_MOST: Final = 1024
"""Heads that a server remembers."""
_MOST_LENGTHS: Final = 4


class Head(NamedTuple):
    """A head, without the digits of its length, and without the empty line at its end."""

    before: bytes
    after: bytes
    place: int
    """Which of the headers the length is."""

    @classmethod
    def of(cls, request: bytes) -> Self | None:
        """Of a request that is all there, and was parsed. None: it has to be parsed every time."""
        head, end, _ = request.partition(_END)
        lower = head.lower() + b"\r\n"
        if (
            not end
            or head.startswith((b"\r", b"\n"))
            or lower.count(_LENGTH) != 1
            or any(map(lower.count, _UNUSUAL))
        ):
            return None
        line = lower.index(_LENGTH)
        begin = line + len(_LENGTH)
        given, _, _ = head[begin:].partition(b"\r\n")
        digits = given.lstrip(b" \t")
        begin += len(given) - len(digits)
        after = head[begin + len(digits) :]
        found = cls(head[:begin], after, head.count(b"\r\n", 0, line))
        return found if found.body_in(request) is not None else None

    def body_in(self, request: bytes) -> bytes | None:
        """What comes behind this head. None: it is another head, or not one whole request."""
        before, after, _ = self
        head, end, body = request.partition(_END)
        digits = head[len(before) : len(head) - len(after)]
        if not end or not digits.isdigit() or len(digits) > _MOST_DIGITS:
            return None
        return body if before + digits + after == head and int(digits) == len(body) else None


class Heads:
    """Those that a server has read lately, each with the scope that was made of it.

    Behind a proxy, requests of many callers come over one connection, and each caller's over many.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Head, dict[str, Any]]] = {}
        """By what they are without the digits of their length."""
        self._lengths: list[int] = []
        """How much is before these digits: mostly as much with one caller as with another."""

    def add(self, head: Head, scope: dict[str, Any]) -> None:
        """Remember it, and forget whom we have known for longest."""
        known, lengths, length = self._known, self._lengths, len(head.before)
        name = head.before + head.after
        if name not in known and len(known) >= _MOST:
            del known[next(iter(known))]
        known[name] = (head, scope)
        if length not in lengths:
            lengths.insert(0, length)
            del lengths[_MOST_LENGTHS:]

    def found(self, request: bytes) -> tuple[Head, dict[str, Any], bytes] | None:
        """Its head and its body, where it is one whole request whose head is known."""
        end = request.find(_END)
        for length in self._lengths:
            after = request.find(b"\r", length, length + _MOST_DIGITS + 1)
            known = self._known.get(request[:length] + request[after:end])
            if known is not None:
                head, scope = known
                body = head.body_in(request)
                if body is not None:
                    return head, scope, body
        return None
