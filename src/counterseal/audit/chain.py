"""The hash chain of events, and the signed checkpoints that say where each segment ended.

A segment is what one writer recorded for one tenant, in order. A link's hash covers its place and
a salted digest of the event, not the text itself: text and salt can be erased later, and the chain
still holds. The chain alone cannot show that its end was cut off, or that a whole segment is gone.
A checkpoint can, because it is signed with a key that the store does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.audit.events import CallFields, Event, EventType, filed
from counterseal.canonical import canonical, json_default
from counterseal.errors import CountersealError
from counterseal.keys import Signer

SALT_BYTES: Final = 16
_FIRST: Final = 8
"""Fields of a `CallFields` that events have always had."""
COLUMNS: Final = (
    *("type", *CallFields._fields[:_FIRST], "occurred_at", "decision", "policy_version"),
    *("external_ref", "body", "code", "tally", "cost", *CallFields._fields[_FIRST:]),
)
"""The columns of an event, in the order in which its digest covers them."""
BODY: Final = COLUMNS.index("body")
_LATER: Final = len(COLUMNS) - len(CallFields._fields) + _FIRST
"""Where the columns begin that events of earlier versions do not have."""
_NOTHING_LATER: Final = (None,) * (len(COLUMNS) - _LATER)
Columns = tuple[Any, ...]
"""An event as a store keeps it, in the order of `COLUMNS`."""


class Head(NamedTuple):
    """The end of a segment: number, place and hash of its last link."""

    number: int
    seq: int
    hash: bytes


GENESIS: Final = Head(0, 0, b"\0" * 32)
"""The end of a segment without links."""


class Link(NamedTuple):
    """Chains one event to those before it."""

    number: int
    """When the event was recorded, in microseconds; it strictly increases within a segment."""
    segment: str
    seq: int
    """Place in the segment, from 1 on."""
    salt: bytes | None
    """None once the event was erased."""
    digest: bytes
    hash: bytes

    @property
    def event_id(self) -> str:
        return f"evt_{self.number:014x}{self.segment}"

    @property
    def head(self) -> Head:
        return Head(self.number, self.seq, self.hash)


def extend(
    tenant: str, segment: str, head: Head, columns: Columns, micros: int, salt: bytes
) -> Link:
    """Return the next link of a segment.

    `micros` is the time now. A clock that went back does not turn the order of numbers round.
    """
    after, seq, _ = head
    number = micros if micros > after else after + 1
    digest = digest_of(columns, salt)
    hashed = link_hash(tenant, segment, head, number, digest)
    return Link(number, segment, seq + 1, salt, digest, hashed)


def digest_of(columns: Columns, salt: bytes) -> bytes:
    """Return the digest of an event. The salt keeps short values from being guessed.

    Columns that were added later are covered where one of them has a value, so that the digests of
    earlier events are still right.
    """
    covered = columns[:_LATER] if tuple(columns[_LATER:]) == _NOTHING_LATER else columns
    return sha256(salt + to_json(covered)).digest()


def link_hash(tenant: str, segment: str, before: Head, number: int, digest: bytes) -> bytes:
    """Return the hash of a link: it covers the link before, the place, and the digest."""
    place = f"{tenant}\0{segment}\0{before.seq + 1}\0{number}".encode()
    return sha256(before.hash + digest + place).digest()


def columns_of(event: Event) -> Columns:
    """Return an event as a store keeps it, with the body as JSON text."""
    kind, caller, occurred_at, decision, policy_version, external_ref, body = event
    text = to_json(body, fallback=json_default).decode() if body else None
    moment = float(occurred_at)  # as every store returns it
    said = (moment, decision, policy_version, external_ref, text, *filed(kind, decision, body))
    return (str(kind), *caller[:_FIRST], *said, *caller[_FIRST:])


def event_of(columns: Columns) -> Event:
    """Return the event that `columns_of` was given; code, tally and cost may be left out."""
    occurred_at, decision, policy_version, external_ref, body = columns[_FIRST + 1 : BODY + 1]
    event = Event(
        type=EventType(columns[0]),
        caller=CallFields(*columns[1 : _FIRST + 1], *columns[_LATER - len(COLUMNS) :]),
        occurred_at=occurred_at,
        decision=decision,
        policy_version=policy_version,
        external_ref=external_ref,
    )
    return event if body is None else event._replace(body=from_json(body))


# --- places in the log ----------------------------------------------------------------------------


def micros(moment: float) -> int:
    """Return a time as events are numbered, in microseconds."""
    return int(moment * 1e6)


class UnknownEventIdError(CountersealError):
    """A text is not the id of an event."""


def place_of(event_id: str) -> tuple[int, str]:
    """Return where an event stands in its tenant's log: its number and its segment.

    Raises UnknownEventIdError.
    """
    if event_id.startswith("evt_"):
        with suppress(ValueError):
            return int(event_id[4:18], 16), event_id[18:]
    raise UnknownEventIdError(
        f"after: {event_id!r} is not the id of an event; use an id that a search has returned"
    )


# --- checkpoints ----------------------------------------------------------------------------------


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
    tenant: str, heads: Mapping[str, Head], previous: Checkpoint | None, now: float, signer: Signer
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
    return sha256(canonical(content)).digest()


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
