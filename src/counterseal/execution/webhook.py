"""Webhook notices of approval requests: one signed POST to a URL that the operator configured.

A notice says where to decide, and carries nothing that could be used to decide. The receiver checks
the signature: `HMAC-SHA256(secret, "<time>.<body>")`, in hex.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

SIGNATURE: Final = "Counterseal-Signature"
_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The receiver of notices. `console` is the beginning of the links in them."""

    url: str
    secret: str = field(repr=False)
    console: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ValueError("url: expected an http or https URL")
        if len(self.secret) < 16:
            raise ValueError("secret: expected at least 16 characters")

    def link(self, approval_id: str) -> str | None:
        """Return the console's page for an approval request."""
        return None if self.console is None else f"{self.console.rstrip('/')}/{approval_id}"

    async def send(self, notice: Mapping[str, Any], now: float) -> int:
        """Send a notice and return the HTTP status. Raise OSError or httpx.HTTPError on failure."""
        import httpx  # noqa: PLC0415 - slow to import, and few deployments need it

        body = to_json(notice)
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: f"t={int(now)},v1={signature(self.secret, int(now), body)}",
        }
        # No redirects: a signed notice goes only to the configured URL.
        async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False) as client:
            response = await client.post(self.url, content=body, headers=headers)
        return response.status_code


def signature(secret: str, moment: int, body: bytes) -> str:
    """Return the signature that the receiver computes and compares."""
    return hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
