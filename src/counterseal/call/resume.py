"""What is stored with a reservation, so that somebody else can go on from it after a crash."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.canonical import json_default
from counterseal.gates.base import GateContext
from counterseal.proposal import Principal, System
from counterseal.vault import Vault

__all__ = ["Resume", "pack", "unpack"]


class Resume(NamedTuple):
    """A call as it was admitted. Its scopes are a ceiling: whoever goes on gets no more."""

    agent: str
    user: str | None
    roles: list[str]
    scopes: list[str]
    contract_hash: str
    arguments: dict[str, Any]
    """As they were executed, after corrections."""
    config: dict[str, Any]
    version_seen: str | int | None
    approval_id: str | None
    trace_id: str
    covered: bool | None = None
    """Of a reversal: whether the original's approval covers it. None for any other call."""

    def principal(self, tenant: str) -> Principal:
        who: dict[str, Any] = {
            "tenant": tenant,
            "agent": self.agent,
            "user": self.user,
            "roles": self.roles,
            "scopes": self.scopes,
        }
        return Principal(**who) if self.covered is None else System(covered=self.covered, **who)


def pack(ctx: GateContext, contract_hash: str, trace_id: str, key: str, vault: Vault) -> bytes:
    """Sealed, because arguments are personal data as often as not."""
    who = ctx.principal
    kept = (
        who.agent,
        who.user,
        sorted(who.roles) if who.roles else (),
        sorted(who.scopes) if who.scopes else (),
        contract_hash,
        ctx.arguments,
        ctx.config_shown or {},  # an empty one is no dict, and would have to be spelt out
        ctx.version_seen,
        ctx.approval_id,
        trace_id,
        who.covered if isinstance(who, System) else None,
    )
    return vault.seal(who.tenant, key, to_json(kept, fallback=json_default))


def unpack(sealed: bytes, tenant: str, key: str, vault: Vault) -> Resume:
    """VaultError when it can't be opened here."""
    return Resume(*from_json(vault.open(tenant, key, sealed)))
