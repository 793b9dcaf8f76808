"""Between checkpoints and the rows that they are kept in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from counterseal.audit import Head
from counterseal.audit.checkpoint import Checkpoint
from counterseal.storage.rows import Row, written

__all__ = ["checkpoint_of", "checkpoint_row"]


def checkpoint_row(checkpoint: Checkpoint) -> Row:
    """As `seal` takes it."""
    heads = {name: (*head[:2], head.hash.hex()) for name, head in checkpoint.heads.items()}
    return (
        checkpoint.tenant,
        checkpoint.number,
        checkpoint.sealed_at,
        written(heads),
        checkpoint.previous,
        checkpoint.hash,
        checkpoint.key_id,
        checkpoint.signature,
    )


def checkpoint_of(tenant: str, row: Row) -> Checkpoint:
    """From `checkpoints`."""
    number, sealed_at, heads, previous, own, key_id, signature = row
    return Checkpoint(
        tenant=tenant,
        number=number,
        sealed_at=sealed_at,
        heads=_heads(heads),
        previous=previous,
        hash=own,
        key_id=key_id,
        signature=signature,
    )


def _heads(text: Any) -> Mapping[str, Head]:
    """None at all for what no store has written: whoever checks the seal finds that out."""
    try:
        heads = {name: _head(*head) for name, head in from_json(text).items()}
    except (AttributeError, TypeError, ValueError):
        return {}
    return heads


def _head(number: Any, seq: Any, own: Any) -> Head:
    if type(number) is not int or type(seq) is not int:
        raise ValueError("a head's number and place are whole numbers")
    return Head(number, seq, bytes.fromhex(own))
