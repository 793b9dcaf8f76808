"""How much of a response is read: so many bytes as they come, and so many when they are unpacked.

Content is decoded here and not by httpx, which unpacks a piece whole, however large it becomes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import httpx

from counterseal.errors import ResponseTooLargeError

__all__ = ["ACCEPTED", "Body"]

ACCEPTED: Final = "gzip, deflate"
_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_PIECE: Final = 65_536


class Body:
    """The body of one response: fed as it arrives, given out decoded, cut off at a limit."""

    def __init__(self, headers: httpx.Headers, limit: int) -> None:
        named = headers.get("Content-Encoding", "").lower().split(",")
        self.coding = ", ".join(filter(None, (coding.strip() for coding in named)))
        """Empty when the bytes are sent as they are."""
        if self.coding == "identity":
            self.coding = ""
        self._limit = limit
        self._raw = 0
        self._decoded = 0
        self._stream: Any = None  # zlib does not name the type
        self._begun = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        self._raw = self._bounded(self._raw + len(chunk))
        if not self.coding:
            yield chunk
            return
        if self.coding not in _CODINGS:
            raise httpx.DecodingError(f"the response is {self.coding}; {ACCEPTED} was asked for")
        try:
            yield from self._unpacked(self._begun + chunk)
        except zlib.error as error:
            raise httpx.DecodingError(f"the response is no {self.coding}: {error}") from error

    def finish(self) -> None:
        """What ends in the middle is not whole, even if the connection ended well."""
        if self._stream is not None or self._begun:
            raise httpx.DecodingError(f"the response ends in the middle of its {self.coding}")

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        more = True
        while data or more:
            if self._stream is None:
                # Two bytes tell what it is, and nothing follows a stream but another one.
                self._begun = data if len(data) < 2 else b""
                if len(data) < 2:
                    return
                self._stream = zlib.decompressobj(self._window(data))
            piece = self._stream.decompress(data, _PIECE)
            self._decoded = self._bounded(self._decoded + len(piece))
            if piece:
                yield piece
            data, more = self._stream.unconsumed_tail, len(piece) == _PIECE
            if self._stream.eof:
                data, more = self._stream.unused_data, False
                self._stream = None

    def _window(self, start: bytes) -> int:
        if self.coding != "deflate":
            return zlib.MAX_WBITS | 16
        # "deflate" means zlib's format, but some servers send the bare stream inside it.
        wrapped = start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
        return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS

    def _bounded(self, size: int) -> int:
        if size > self._limit:
            raise ResponseTooLargeError(
                f"the response is larger than {self._limit} bytes, and no more is read"
            )
        return size
