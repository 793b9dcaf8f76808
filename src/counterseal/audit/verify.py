"""Verifies a tenant's record: every event is unchanged and in its place, and none is missing.

Feed a `RecordVerifier` the log in its order, page by page; it keeps only where each segment stands.
An attacker who can write to the store, but has no signing key, cannot change anything that a
checkpoint covers without a finding. Events after the last checkpoint could be chained anew: these
are reported as *unsealed*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from counterseal.audit.chain import (
    BODY,
    GENESIS,
    SALT_BYTES,
    Checkpoint,
    Columns,
    Head,
    Link,
    digest_of,
    hash_of,
    link_hash,
)
from counterseal.audit.events import EventType
from counterseal.keys import KeyRing, Purpose

# --- the report -----------------------------------------------------------------------------------


MAX_FINDINGS: Final = 100
"""Findings that are listed; more are only counted, so that a rewritten log fills no screen."""
_ROW: Final = ConfigDict(
    frozen=True, extra="ignore", json_schema_extra={"additionalProperties": False}
)


class FindingKind(StrEnum):
    """The kind of a finding."""

    CHANGED = "changed"
    MISSING = "missing"
    INSERTED = "inserted"
    REWRITTEN = "rewritten"
    """The chain is consistent, but it is not the one that was sealed."""
    ERASED = "erased"
    """Erased, without an event that records the erasure."""
    CHECKPOINT = "checkpoint"
    """A checkpoint that was changed, or does not follow from the one before."""
    CHECKPOINT_MISSING = "checkpoint_missing"
    SIGNATURE = "signature"
    """A signature that its key did not make."""
    UNKNOWN_KEY = "unknown_key"
    """Signed with a key that is not available here, so that it cannot be verified."""


class AuditFinding(NamedTuple):
    """One thing that is wrong, in one sentence, with its place."""

    kind: FindingKind
    message: str
    event_id: str | None = None
    segment: str | None = None
    place: int | None = None
    """Place in the segment, from 1 on; the first where several are missing."""
    checkpoint: int | None = None


class Findings:
    """Keeps the first findings, and counts all."""

    def __init__(self) -> None:
        self.kept: list[AuditFinding] = []
        self.count = 0

    def add(self, finding: AuditFinding) -> None:
        self.count += 1
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(finding)


class FindingRow(BaseModel):
    """One defect that a verification found."""

    model_config = _ROW

    kind: str
    message: str
    event_id: str | None
    segment: str | None
    place: int | None
    checkpoint: int | None


class AuditReport(BaseModel):
    """The result of verifying the record."""

    model_config = _ROW

    tenant: str
    ok: bool
    events: int
    segments: int
    """Parts of the record that were checked, each a chain of events."""
    sealed: int
    """Events covered by a checkpoint whose signature was verified."""
    unsealed: int
    """All other events: an attacker with write access could have changed them unseen."""
    erased: int
    erased_unsealed: int
    """Erased events whose erasure is recorded by an event that is not sealed yet."""
    checkpoints: int
    found: int
    """Number of findings; `findings` is cut at `MAX_FINDINGS`."""
    findings: list[FindingRow]


# --- checkpoints ----------------------------------------------------------------------------------


class Seals:
    """The sealed heads of a tenant's segments. Only a consistent checkpoint counts."""

    def __init__(self, tenant: str, keys: KeyRing, findings: Findings) -> None:
        self._tenant = tenant
        self._keys = keys
        self._findings = findings
        self._unknown: dict[str, list[int]] = {}
        self.heads: dict[str, dict[int, tuple[Head, int]]] = {}
        """By segment and place: the head that must be there, and the checkpoint that says so."""
        self.reach: dict[str, Head] = {}
        """How far each segment is covered by verified signatures."""

    def check(self, checkpoints: Sequence[Checkpoint], receipts: Mapping[int, bytes]) -> None:
        """Check signatures and order of all checkpoints, and compare them with receipts."""
        last, known = 0, {b"\0" * 32}
        for checkpoint in checkpoints:
            number, computed = checkpoint.number, _hash(checkpoint)
            if number > last + 1:
                which = f"{last + 1}" if number == last + 2 else f"{last + 1} to {number - 1}"
                text = f"checkpoint {which} is missing"
                self._add(FindingKind.CHECKPOINT_MISSING, last + 1, text)
            if checkpoint.tenant != self._tenant or computed != checkpoint.hash:
                self._add(FindingKind.CHECKPOINT, number, f"checkpoint {number} was changed")
            elif number == last + 1 and checkpoint.previous not in known:
                text = f"checkpoint {number} does not follow from the one before it"
                self._add(FindingKind.CHECKPOINT, number, text)
            else:
                self._accept(checkpoint)
            last, known = number, {checkpoint.hash, computed}
        for key_id, numbers in self._unknown.items():
            many = f"checkpoints {numbers[0]} to {numbers[-1]} were"
            which = f"checkpoint {numbers[0]} was" if numbers[0] == numbers[-1] else many
            text = (
                f"{which} signed with the key {key_id or '(none)'}, which is not among the audit"
                " keys here, so its signature cannot be verified"
            )
            self._add(FindingKind.UNKNOWN_KEY, numbers[0], text)
        seals = {checkpoint.number: checkpoint.hash for checkpoint in checkpoints}
        for number, seal in sorted(receipts.items()):
            if number not in seals:
                text = f"checkpoint {number} is missing, of which there is a receipt"
                self._add(FindingKind.CHECKPOINT_MISSING, number, text)
            elif seals[number] != seal:
                text = f"checkpoint {number} is another than the one of which there is a receipt"
                self._add(FindingKind.CHECKPOINT, number, text)

    def _accept(self, checkpoint: Checkpoint) -> None:
        number, key_id = checkpoint.number, checkpoint.key_id
        signed = self._keys.verify(Purpose.AUDIT, key_id, checkpoint.hash, checkpoint.signature)
        if signed is False:
            text = f"checkpoint {number} has a signature that the key {key_id} did not make"
            self._add(FindingKind.SIGNATURE, number, text)
            return
        if signed is None:
            self._unknown.setdefault(key_id, []).append(number)
        for segment, head in checkpoint.heads.items():
            self.heads.setdefault(segment, {})[head.seq] = (head, number)
            if signed:
                known = self.reach.get(segment, head)
                self.reach[segment] = max(head, known, key=lambda one: one.seq)

    def _add(self, kind: FindingKind, number: int, message: str) -> None:
        self._findings.add(AuditFinding(kind, message, checkpoint=number))


def _hash(checkpoint: Checkpoint) -> bytes:
    try:
        return hash_of(checkpoint)
    except (AttributeError, TypeError, ValueError):
        return b""  # a checkpoint that cannot be hashed was never sealed


# --- segments -------------------------------------------------------------------------------------


class Segment:
    """How far one segment was verified; nothing more is kept of it."""

    def __init__(
        self,
        tenant: str,
        name: str,
        findings: Findings,
        *,
        sealed: Mapping[int, tuple[Head, int]],
        reach: int,
        limit: Head | None,
    ) -> None:
        self._tenant = tenant
        self._name = name
        self._findings = findings
        self._sealed = dict(sealed)
        """Heads that checkpoints name, by place, as long as they were not found."""
        self._replaced_ids: dict[int, str] = {}
        """Ids of events that stand at those places instead."""
        self._found = 0
        """The last place that was found as it was sealed."""
        self.limit = None if limit is None else limit._replace(seq=max([limit.seq, *sealed]))
        """Its head when the verification began; later links are left for the next time."""
        self._good = GENESIS
        """The last link that is consistent, or the best one to go on from."""
        self._doubt: Link | None = None
        """A link that does not follow from the last consistent one."""
        self.reach = reach
        """How far it is covered by verified signatures."""

    @property
    def begun(self) -> bool:
        """True when any link of the segment was found."""
        return self._good.seq > 0

    def check(self, link: Link) -> None:
        """Check the next link of the segment, in the order of numbers."""
        head, _ = self._sealed.get(link.seq, (None, 0))
        if head == link.head:
            del self._sealed[link.seq]
            self._found = max(self._found, link.seq)
        elif head is not None:
            self._replaced_ids[link.seq] = link.event_id
        doubt, good = self._doubt, self._good
        if self._hash(good, link) == link.hash:
            if doubt is not None:
                text = "was inserted, or moved here: the events around it follow one another"
                self._add(FindingKind.INSERTED, text, doubt)
            self._go_on(good.seq + 1, link)
            return
        if doubt is None:
            self._doubt = link
            return
        self._report_doubt(doubt, link.seq)
        # Perhaps only the hash of the doubtful link was changed.
        changed = Head(doubt.number, good.seq + 1, self._hash(good, doubt))
        if doubt.seq > good.seq and self._hash(doubt.head, link) == link.hash:
            self._go_on(doubt.seq + 1, link)
        elif self._hash(changed, link) == link.hash:
            self._go_on(good.seq + 2, link)
        else:
            self._doubt = link

    def finish(self) -> None:
        """Report what was not found."""
        if self._doubt is not None:
            self._report_doubt(self._doubt, None)
        if not self._sealed:
            return
        end, last = self._good.seq, max(self._sealed)
        if last > end:
            number = self._sealed[last][1]
            text = f"all of it is missing; checkpoint {number} sealed it up to place {last}"
            if end:
                places = _places(end + 1, last)
                text = f"{places} missing at the end, up to where checkpoint {number} sealed"
            missing = FindingKind.MISSING
            self._findings.add(AuditFinding(missing, text, None, self._name, end + 1, number))
        others = [place for place in self._sealed if place <= end]
        if others:
            # Reported once: rewriting the chain changes all places behind.
            place = min(others)
            number, event_id = self._sealed[place][1], self._replaced_ids.get(place)
            since = self._found if self._found < place else 0
            kind = FindingKind.REWRITTEN
            text = f"is another than checkpoint {number} sealed; look behind place {since}"
            if event_id is None:
                kind = FindingKind.MISSING
                text = f"place {place} is missing, which checkpoint {number} sealed"
            self._findings.add(AuditFinding(kind, text, event_id, self._name, place, number))

    # --- one link after another -------------------------------------------------------------------

    def _hash(self, before: Head, link: Link) -> bytes:
        return link_hash(self._tenant, self._name, before, link.number, link.digest)

    def _go_on(self, place: int, link: Link) -> None:
        if link.seq != place:
            self._add(FindingKind.CHANGED, f"says that it is at place {link.seq}", link, place)
        self._good = Head(link.number, place, link.hash)
        self._doubt = None

    # --- findings ---------------------------------------------------------------------------------

    def _report_doubt(self, doubt: Link, next_seq: int | None) -> None:
        """Report a doubtful link, now that the next one is known, and go on from it."""
        place = self._good.seq + 1
        if doubt.seq < place:
            text = f"stands behind place {place - 1}: one of the two was inserted or moved here"
            self._add(FindingKind.INSERTED, text, doubt)
            return
        stands_at = place if next_seq == place + 1 else doubt.seq
        if stands_at == place:
            text = "does not follow from the event before it: one of the two was changed"
            self._add(FindingKind.CHANGED, text, doubt, place)
        else:
            text = f"{_places(place, doubt.seq - 1)} missing before the event {doubt.event_id}"
            self._findings.add(
                AuditFinding(FindingKind.MISSING, text, doubt.event_id, self._name, place)
            )
        self._good = Head(doubt.number, stands_at, doubt.hash)

    def _add(self, kind: FindingKind, text: str, link: Link, place: int | None = None) -> None:
        where = link.seq if place is None else place
        self._findings.add(AuditFinding(kind, text, link.event_id, self._name, where))


def _places(first: int, last: int) -> str:
    return f"place {first} is" if first == last else f"places {first} to {last} are"


LATE_MICROS: Final = 600_000_000
"""Microseconds by which a commit may come later than its event's number: ten minutes."""
_HASH_BYTES: Final = 32


class RecordVerifier:
    """Verifies one tenant's record once: `feed` it pages, then take its `report`.

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
        sealed = [until for erasure, until in erasures if self._is_sealed(*_place_of(erasure))]
        self._announced = max(sealed, default=0)
        """Number until which erasures are announced by sealed events that are still to be fed."""
        self._until = self._until_unsealed = 0
        """Number until which fed events record erasures: sealed ones, and unsealed ones."""
        self._recorded_erasures = 0
        """Number of erased events on record, sealed or not. Such records are never erased."""
        self._pending: list[Link] = []
        """Erased events whose record is still to be fed."""

    @property
    def events(self) -> int:
        """Number of events that were verified so far."""
        return self._events

    def feed(self, rows: Iterable[tuple[Link, Columns | None]]) -> None:
        """Verify the next rows, ordered by (number, segment)."""
        for link, columns in rows:
            if not _is_readable(link):
                self._events += 1
                row = "is a row that no store has written"
                text = f"at {link.number!r} in segment {link.segment!r} {row}"
                self._findings.add(AuditFinding(FindingKind.CHANGED, text, None, str(link.segment)))
                continue
            segment = self._segments.get(link.segment) or self._begin(link.segment)
            if self._limits is None or link.segment in self._limits:
                limit = segment.limit
                later = limit and link.seq > limit.seq and link.number > limit.number
            else:  # a segment begun during the verification, or by a slower commit
                is_new = link.segment not in self._seals.heads
                later = is_new and link.number > self._latest - LATE_MICROS
            if later:
                self._note_erasure(link, columns)
                continue
            self._events += 1
            self._sealed += link.seq <= segment.reach
            self._check_text(link, columns)
            segment.check(link)

    def note(self, kind: FindingKind, text: str) -> None:
        """Add a finding that concerns the record as a whole."""
        self._findings.add(AuditFinding(kind, text))

    def report(self) -> AuditReport:
        """Return the result. Nothing can be fed afterwards."""
        for name in self._seals.heads:
            if name not in self._segments:
                self._begin(name)
        for segment in self._segments.values():
            segment.finish()
        erased_unsealed = self._report_erasures()
        return AuditReport(
            tenant=self._tenant,
            ok=self._findings.count == 0,
            events=self._events,
            segments=sum(segment.begun for segment in self._segments.values()),
            sealed=self._sealed,
            unsealed=self._events - self._sealed,
            erased=self._erased,
            erased_unsealed=erased_unsealed,
            checkpoints=self._checkpoints,
            findings=[FindingRow(**one._asdict()) for one in self._findings.kept],
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

    # --- texts and erasures -----------------------------------------------------------------------

    def _check_text(self, link: Link, columns: Columns | None) -> None:
        if columns is None and link.salt is None:
            self._erased += 1
            if link.number > self._announced:
                self._pending.append(link)
        elif columns is None or link.salt is None:
            self._add(FindingKind.CHANGED, "is erased by half", link)
        elif not _matches_digest(columns, link):
            self._add(FindingKind.CHANGED, "does not say what was recorded", link)
        else:
            self._note_erasure(link, columns)

    def _note_erasure(self, link: Link, columns: Columns | None) -> None:
        if columns is None or columns[0] != EventType.ERASED or not _matches_digest(columns, link):
            return
        body = from_json(columns[BODY] or "{}")
        named = body if isinstance(body, dict) else {}
        count, until = (
            value if isinstance(value := named.get(name), int) else 0
            for name in ("events", "until")
        )
        self._recorded_erasures += count
        if self._is_sealed(link.number, link.segment):
            self._until = max(self._until, until)
        else:
            self._until_unsealed = max(self._until_unsealed, until)

    def _is_sealed(self, number: int, segment: str) -> bool:
        reach = self._seals.reach.get(segment)
        return reach is not None and number <= reach.number

    def _report_erasures(self) -> int:
        """Report erasures without a record. Returns how many only unsealed events record."""
        pending = [link for link in self._pending if link.number > self._until]
        silent = [link for link in pending if link.number > self._until_unsealed]
        for link in silent:
            self._add(FindingKind.ERASED, "was erased without a record of it", link)
        if self._erased - len(silent) > self._recorded_erasures:
            recorded = self._recorded_erasures
            text = f"{self._erased} events are erased, and only {recorded} of them are on record"
            self._findings.add(AuditFinding(FindingKind.ERASED, text))
        return len(pending) - len(silent)

    def _add(self, kind: FindingKind, text: str, link: Link) -> None:
        self._findings.add(AuditFinding(kind, text, link.event_id, link.segment, link.seq))


def _matches_digest(columns: Columns, link: Link) -> bool:
    """Return True when the link was made for this text."""
    salt = link.salt or b""
    try:
        return len(salt) == SALT_BYTES and digest_of(columns, salt) == link.digest
    except (TypeError, ValueError):
        return False  # a value that is no JSON was never recorded


def _place_of(event_id: str) -> tuple[int, str]:
    """Return the number and the segment of an event's id; zero for a malformed id."""
    try:
        return int(event_id[4:18], 16), event_id[18:]
    except ValueError:
        return 0, ""


def _is_readable(link: tuple[Any, ...]) -> bool:
    """Return False for a row that no store has written: an attacker may store anything."""
    number, segment, seq, salt, digest, seal = link
    if not (isinstance(number, int) and isinstance(segment, str) and isinstance(seq, int)):
        return False
    if not isinstance(digest, bytes) or not isinstance(seal, bytes):
        return False
    known = salt is None or isinstance(salt, bytes)
    return known and len(digest) == len(seal) == _HASH_BYTES
