"""The chain: every event carries the hash of all before it in its segment.

A segment is what one writer recorded for one tenant, in its order. A link's hash covers its place
and a salted digest of what the event says, not the text itself: text and salt can be erased when
their time is over, and the chain still holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.audit.events import Caller, Event, EventType
from counterseal.audit.facts import filed
from counterseal.canonical import json_default
from counterseal.positional import made

__all__ = [
    "BODY",
    "CODE",
    "COST",
    "GENESIS",
    "TALLY",
    "Columns",
    "Head",
    "Link",
    "columns_of",
    "digest_of",
    "event_of",
    "extend",
]

SALT_BYTES: Final = 16
BODY: Final = 13
CODE: Final = 14
TALLY: Final = 15
COST: Final = 16
"""Which of the columns is which."""
_PLAIN: Final = frozenset({str, int, float, bool, type(None), dict, list, tuple})
Columns = tuple[Any, ...]
"""What an event says, as a store keeps it; see `columns_of`."""


class Head(NamedTuple):
    """Where a segment ends: the last link's time in microseconds, its place, its hash."""

    number: int
    seq: int
    hash: bytes


GENESIS: Final = Head(0, 0, b"\0" * 32)
"""The end of a segment that has no link yet."""


class Link(NamedTuple):
    """What chains one event to those before it."""

    number: int
    """When it was recorded, in microseconds; within a segment never twice, and never back."""
    segment: str
    seq: int
    """Its place in the segment, from 1 on."""
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
    """The next link of a segment. `micros` is the time now; a clock that went back is overruled."""
    after, seq, _ = head
    number = micros if micros > after else after + 1
    digest = digest_of(columns, salt)
    hashed = link_hash(tenant, segment, head, number, digest)
    return made(Link, (number, segment, seq + 1, salt, digest, hashed))


def digest_of(columns: Columns, salt: bytes) -> bytes:
    """Of everything that an event says. The salt keeps short values from being guessed."""
    return sha256(salt + to_json(columns)).digest()


def link_hash(tenant: str, segment: str, before: Head, number: int, digest: bytes) -> bytes:
    """Covers the link before, the place, and the digest."""
    place = f"{tenant}\0{segment}\0{before.seq + 1}\0{number}".encode()
    return sha256(before.hash + digest + place).digest()


def columns_of(event: Event) -> Columns:
    """An event as a store keeps it: type, the caller's eight, then what happened; the body as text.

    (type, tenant, run_id, call_id, tool, version, agent, user, trace_id, occurred_at, decision,
    policy_version, external_ref, body, code, tally, cost)
    """
    kind, caller, occurred_at, decision, policy_version, external_ref, body = event
    text = _written(body) if body else None
    moment = float(occurred_at)  # a store gives back no other
    counted = filed(kind, decision, body)
    return (str(kind), *caller, moment, decision, policy_version, external_ref, text, *counted)


def _written(body: Mapping[str, Any]) -> str:
    """A body as text. What is a mapping and no dict is made one first.

    The writer of JSON would only ask for that after it had tried everything else, and most bodies
    have something of that kind: what the gates said.
    """
    plain = dict(body)
    for name, value in body.items():
        if type(value) not in _PLAIN and isinstance(value, Mapping):
            copy = getattr(value, "copy", None)  # faster, where there is one, than item by item
            plain[name] = dict(value.items()) if copy is None else copy()
    return to_json(plain, fallback=_as_dict).decode()


def _as_dict(value: Any) -> Any:
    """A mapping that is no dict, one level deep: what is in it comes here in its turn."""
    return dict(value.items()) if isinstance(value, Mapping) else json_default(value)


def event_of(columns: Columns) -> Event:
    """The event that `columns_of` was given."""
    occurred_at, decision, policy_version, external_ref, body = columns[9 : BODY + 1]
    told = (occurred_at, decision, policy_version, external_ref)
    event = Event(EventType(columns[0]), Caller(*columns[1:9]), *told)
    return event if body is None else event._replace(body=from_json(body))
