"""Telling people that they are asked: one signed request to a URL of the operator's.

It says where to decide, and never carries what a decision could be made with. Whoever receives it
can check the signature: `HMAC-SHA256(secret, "<time>.<body>")`, in hex.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

__all__ = ["SIGNATURE", "Webhook", "signature"]

SIGNATURE: Final = "Counterseal-Signature"
_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where requests for approval are told of. `console` is what its links begin with."""

    url: str
    secret: str = field(repr=False)
    console: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ValueError("url: a webhook is an http or https address")
        if len(self.secret) < 16:
            raise ValueError("secret: a webhook is signed with 16 characters or more")

    def link(self, approval_id: str) -> str | None:
        """Where a person decides on a request."""
        return None if self.console is None else f"{self.console.rstrip('/')}/{approval_id}"

    async def send(self, notice: Mapping[str, Any], now: float) -> int:
        """The status that the other side answers with. OSError or httpx's own when none comes."""
        import httpx  # noqa: PLC0415 - takes long to load, and few need it

        body = to_json(notice)
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: f"t={int(now)},v1={signature(self.secret, int(now), body)}",
        }
        # No redirects: a signed notice goes where the operator said, and nowhere else.
        async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False) as client:
            answer = await client.post(self.url, content=body, headers=headers)
        return answer.status_code


def signature(secret: str, moment: int, body: bytes) -> str:
    """What a receiver computes and compares."""
    return hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
