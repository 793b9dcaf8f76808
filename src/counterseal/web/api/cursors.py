"""Cursors as callers hold them: good for one tenant and one list, and for nobody to make up."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from typing import Final

from counterseal.keys import KeyRing, derived_key
from counterseal.web.api.problems import ProblemError

__all__ = ["Cursors"]

_MARK: Final = 16
_LONGEST: Final = 2000


class Cursors:
    """Without a vault key in the ring they are good in this process only."""

    def __init__(self, ring: KeyRing | None) -> None:
        self._key = derived_key(ring, "api cursors") or os.urandom(32)

    def give(self, tenant: str, what: str, place: str | None) -> str | None:
        """A place in a list, as it is given out."""
        if place is None:
            return None
        raw = place.encode()
        return base64.urlsafe_b64encode(self._mark(tenant, what, raw) + raw).decode().rstrip("=")

    def take(self, tenant: str, what: str, given: str | None) -> str | None:
        """The place that was given out. ProblemError for anything else."""
        if given is None:
            return None
        try:
            raw = given.encode("ascii") if len(given) <= _LONGEST else b""
            told = base64.b64decode(raw + b"=" * (-len(raw) % 4), b"-_", validate=True)
            place = told[_MARK:].decode()
        except (ValueError, binascii.Error):
            raise _strange() from None
        if not hmac.compare_digest(told[:_MARK], self._mark(tenant, what, told[_MARK:])):
            raise _strange()
        return place

    def _mark(self, tenant: str, what: str, place: bytes) -> bytes:
        about = f"{tenant}\0{what}\0".encode()
        return hmac.digest(self._key, about + place, "sha256")[:_MARK]


def _strange() -> ProblemError:
    told = "cursor: is none that was given out here; leave it out to begin at the top."
    return ProblemError("invalid-cursor", told, param="/cursor", where="query")
