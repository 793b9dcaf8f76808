"""Signed, chained checkpoints: where every segment of a tenant ended at some time.

The chain alone cannot show that its end was cut off, or that a whole segment is gone. A checkpoint
can, because it is signed with a key that the store does not have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from counterseal.audit.chain import Head
from counterseal.canonical import canonical
from counterseal.keys import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Seals every segment that grew since the checkpoint before, up to its end."""

    tenant: str
    number: int
    """From 1 on, without gaps."""
    sealed_at: float
    heads: Mapping[str, Head]
    previous: bytes = field(default=b"\0" * 32, repr=False)
    """The hash of the checkpoint before."""
    hash: bytes = field(default=b"", repr=False)
    key_id: str = ""
    signature: bytes = field(default=b"", repr=False)


def make_checkpoint(
    tenant: str,
    heads: Mapping[str, Head],
    previous: Checkpoint | None,
    now: float,
    signer: Signer,
) -> Checkpoint:
    """Return the next checkpoint, signed. `heads` are the segments that grew since the last one."""
    unsigned = Checkpoint(
        tenant=tenant,
        number=1 if previous is None else previous.number + 1,
        sealed_at=now,
        heads=dict(sorted(heads.items())),
    )
    if previous is not None:
        unsigned = replace(unsigned, previous=previous.hash)
    seal = hash_of(unsigned)
    return replace(unsigned, hash=seal, key_id=signer.key_id, signature=signer.sign(seal))


def hash_of(checkpoint: Checkpoint) -> bytes:
    """Return the hash of a checkpoint. ValueError when it has no canonical form."""
    content = {
        "tenant": checkpoint.tenant,
        "number": checkpoint.number,
        "sealed_at": checkpoint.sealed_at,
        "heads": {
            segment: [head.number, head.seq, head.hash.hex()]
            for segment, head in checkpoint.heads.items()
        },
        "previous": checkpoint.previous.hex(),
    }
    return hashlib.sha256(canonical(content)).digest()


def sealed_heads(checkpoints: Iterable[Checkpoint]) -> dict[str, Head]:
    """Return how far each segment is sealed by these checkpoints together."""
    sealed: dict[str, Head] = {}
    for checkpoint in checkpoints:
        for segment, head in checkpoint.heads.items():
            if segment not in sealed or head.seq > sealed[segment].seq:
                sealed[segment] = head
    return sealed


def receipt(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what to keep elsewhere, to prove later that this checkpoint was made."""
    return {
        "tenant": checkpoint.tenant,
        "number": checkpoint.number,
        "hash": checkpoint.hash.hex(),
        "sealed_at": checkpoint.sealed_at,
        "key_id": checkpoint.key_id,
    }
