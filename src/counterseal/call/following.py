"""What follows a call: which work is due after it, and whether anybody can look."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from counterseal.contract.model import Contract
from counterseal.ledger.entry import Entry
from counterseal.storage.base import Due, DueKind
from counterseal.vault import Vault

__all__ = ["due_for", "open_text", "seal_text", "verifiable"]


def verifiable(contract: Contract) -> bool:
    """Whether a call is to be looked at afterwards, and there is something to look with."""
    required = contract.transactional.post_action_verification_required
    return required and (contract.probe is not None or contract.read_back is not None)


def due_for(kind: DueKind, entry: Entry, body: Mapping[str, Any]) -> Due:
    """A piece of work about a call."""
    return Due(
        tenant=entry.tenant,
        kind=kind,
        key=entry.key,
        call_id=entry.call_id,
        run_id=entry.run_id,
        tool=entry.tool,
        version=entry.version,
        body=body,
    )


def seal_text(vault: Vault, entry: Entry, value: Any) -> str:
    """A JSON value as a text that only who has the vault's key can read."""
    return b64encode(vault.seal(entry.tenant, entry.key, to_json(value))).decode()


def open_text(vault: Vault, entry: Entry, sealed: str) -> Any:
    """What `seal_text` was given. VaultError when it can't be opened here."""
    return from_json(vault.open(entry.tenant, entry.key, b64decode(sealed)))
