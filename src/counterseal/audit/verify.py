"""Checking a tenant's record: every event is what was recorded, where it was, and none is missing.

Feed a `Verifier` the log in its order, page by page; it keeps no more than where each segment is.
Somebody who can write to the store, and has no key, can't change anything that a checkpoint covers
without a finding. What came after the last checkpoint they could chain anew: that is *unsealed*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from counterseal.audit.chain import BODY, SALT_BYTES, Columns, Head, Link, digest_of
from counterseal.audit.checkpoint import Checkpoint
from counterseal.audit.events import EventType
from counterseal.audit.report import Finding, Findings, Kind, Report
from counterseal.audit.seals import Seals
from counterseal.audit.segment import Segment
from counterseal.keys import KeyRing

__all__ = ["LATE_MICROS", "Verifier"]

LATE_MICROS: Final = 600_000_000
"""How much later than its number an event may be committed: ten minutes."""
_HASH_BYTES: Final = 32


class Verifier:
    """One check of one tenant. `feed` it pages, then take its `report`.

    `limits` are the heads as they were at the beginning: what came later is left for the next time.
    `erasures` are events that put erasures on record (their ids, and until which number), as far as
    they are known before; `receipts` are hashes of checkpoints by number, from elsewhere.
    """

    def __init__(
        self,
        tenant: str,
        checkpoints: Sequence[Checkpoint],
        keys: KeyRing | None = None,
        *,
        limits: Mapping[str, Head] | None = None,
        erasures: Iterable[tuple[str, int]] = (),
        receipts: Mapping[int, bytes] | None = None,
    ) -> None:
        self._tenant = tenant
        self._findings = Findings()
        self._seals = Seals(tenant, keys or KeyRing(), self._findings)
        self._seals.check(checkpoints, receipts or {})
        self._checkpoints = len(checkpoints)
        self._limits = limits
        self._latest = max((head.number for head in (limits or {}).values()), default=0)
        self._segments: dict[str, Segment] = {}
        self._events = self._sealed = self._erased = 0
        sealed = [until for one, until in erasures if self._is_sealed(*_place_of(one))]
        self._announced = max(sealed, default=0)
        """Until where erasures are known to be on sealed record; it is still to be seen."""
        self._until = self._until_unsealed = 0
        """The same as it was seen; and by records that are not sealed yet."""
        self._told = 0
        """How many erasures are on record, sealed or not. Such a record is never erased itself."""
        self._pending: list[Link] = []
        """Erased events whose record is still to be seen."""

    @property
    def events(self) -> int:
        """How many were looked at so far."""
        return self._events

    def feed(self, rows: Iterable[tuple[Link, Columns | None]]) -> None:
        """The next rows, ordered by (number, segment)."""
        for link, columns in rows:
            if not _is_readable(link):
                self._tell_unreadable(link)
                continue
            segment = self._segments.get(link.segment) or self._begin(link.segment)
            if self._came_later(segment, link):
                self._note_erasure(link, columns)
                continue
            self._events += 1
            self._sealed += link.seq <= segment.reach
            self._check_text(link, columns)
            segment.check(link)

    def note(self, kind: Kind, text: str) -> None:
        """Something that is wrong with the whole."""
        self._findings.add(Finding(kind, text))

    def report(self) -> Report:
        """What came of it. Nothing can be fed afterwards."""
        for name in self._seals.heads:
            if name not in self._segments:
                self._begin(name)
        for segment in self._segments.values():
            segment.finish()
        return Report(
            tenant=self._tenant,
            events=self._events,
            segments=sum(segment.begun for segment in self._segments.values()),
            sealed=self._sealed,
            unsealed=self._events - self._sealed,
            erased=self._erased,
            erased_unsealed=self._tell_erased(),
            checkpoints=self._checkpoints,
            findings=tuple(self._findings.kept),
            found=self._findings.count,
        )

    def _begin(self, name: str) -> Segment:
        reach = self._seals.reach.get(name)
        self._segments[name] = Segment(
            self._tenant,
            name,
            self._findings,
            sealed=self._seals.heads.get(name, {}),
            reach=0 if reach is None else reach.seq,
            limit=None if self._limits is None else self._limits.get(name),
        )
        return self._segments[name]

    def _came_later(self, segment: Segment, link: Link) -> bool:
        """Whether it was recorded during the check, while a slower commit may be on its way."""
        if self._limits is None or link.segment in self._limits:
            return segment.ended_before(link)
        is_new = link.segment not in self._seals.heads
        return is_new and link.number > self._latest - LATE_MICROS

    # --- what an event says -----------------------------------------------------------------------

    def _check_text(self, link: Link, columns: Columns | None) -> None:
        if columns is None and link.salt is None:
            self._erased += 1
            if link.number > self._announced:
                self._pending.append(link)
        elif columns is None or link.salt is None:
            self._add(Kind.CHANGED, "is erased by half", link)
        elif not _says(columns, link):
            self._add(Kind.CHANGED, "does not say what was recorded", link)
        else:
            self._note_erasure(link, columns)

    def _note_erasure(self, link: Link, columns: Columns | None) -> None:
        if columns is None or columns[0] != EventType.ERASED or not _says(columns, link):
            return
        count, until = _erasure(columns)
        self._told += count
        if self._is_sealed(link.number, link.segment):
            self._until = max(self._until, until)
        else:
            self._until_unsealed = max(self._until_unsealed, until)

    def _is_sealed(self, number: int, segment: str) -> bool:
        reach = self._seals.reach.get(segment)
        return reach is not None and number <= reach.number

    def _tell_erased(self) -> int:
        """How many erasures are only on an unsealed record; findings for those on none."""
        pending = [link for link in self._pending if link.number > self._until]
        silent = [link for link in pending if link.number > self._until_unsealed]
        for link in silent:
            self._add(Kind.ERASED, "was erased without a record of it", link)
        if self._erased - len(silent) > self._told:
            text = f"{self._erased} events are erased, and only {self._told} of them are on record"
            self._findings.add(Finding(Kind.ERASED, text))
        return len(pending) - len(silent)

    def _tell_unreadable(self, link: Link) -> None:
        self._events += 1
        text = f"at {link.number!r} in segment {link.segment!r} is a row that no store has written"
        self._findings.add(Finding(Kind.CHANGED, text, None, str(link.segment)))

    def _add(self, kind: Kind, text: str, link: Link) -> None:
        self._findings.add(Finding(kind, text, link.event_id, link.segment, link.seq))


def _says(columns: Columns, link: Link) -> bool:
    """Whether the text is the one that the link was made for."""
    salt = link.salt or b""
    try:
        return len(salt) == SALT_BYTES and digest_of(columns, salt) == link.digest
    except (TypeError, ValueError):
        return False  # what is no JSON was never recorded


def _erasure(columns: Columns) -> tuple[int, int]:
    """How many events were erased, and until which number."""
    body = from_json(columns[BODY] or "{}")
    told = [body.get(name) for name in ("events", "until")] if isinstance(body, dict) else [0, 0]
    count, until = (one if isinstance(one, int) else 0 for one in told)
    return count, until


def _place_of(event_id: str) -> tuple[int, str]:
    """The number and the segment that an event's id is made of."""
    try:
        return int(event_id[4:18], 16), event_id[18:]
    except ValueError:
        return 0, ""


def _is_readable(link: tuple[Any, ...]) -> bool:
    """A store hands out what lies there, whatever somebody has put there."""
    number, segment, seq, salt, digest, seal = link
    if not (isinstance(number, int) and isinstance(segment, str) and isinstance(seq, int)):
        return False
    if not isinstance(digest, bytes) or not isinstance(seal, bytes):
        return False
    known = salt is None or isinstance(salt, bytes)
    return known and len(digest) == len(seal) == _HASH_BYTES
