"""Whether a tenant's checkpoints are all there and genuine, and what they say of the segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from counterseal.audit.chain import Head
from counterseal.audit.checkpoint import Checkpoint, hash_of
from counterseal.audit.report import Finding, Findings, Kind
from counterseal.keys import KeyRing, Purpose

__all__ = ["Seals"]


class Seals:
    """What the checkpoints promise. Only one that fits in is believed."""

    def __init__(self, tenant: str, keys: KeyRing, findings: Findings) -> None:
        self._tenant = tenant
        self._keys = keys
        self._findings = findings
        self._unknown: dict[str, list[int]] = {}
        self.heads: dict[str, dict[int, tuple[Head, int]]] = {}
        """By segment and place: what must be there, and which checkpoint says so."""
        self.reach: dict[str, Head] = {}
        """How far each segment is sealed by a key that is here."""

    def check(self, checkpoints: Sequence[Checkpoint], receipts: Mapping[int, bytes]) -> None:
        before: Checkpoint | None = None
        for checkpoint in checkpoints:
            self._gap(before.number if before else 0, checkpoint.number)
            if self._is_sound(checkpoint, before):
                self._believe(checkpoint)
            before = checkpoint
        for key_id, numbers in self._unknown.items():
            self._tell_unknown(key_id, numbers)
        self._compare(receipts, {one.number: one.hash for one in checkpoints})

    def _gap(self, last: int, number: int) -> None:
        if number > last + 1:
            which = f"{last + 1}" if number == last + 2 else f"{last + 1} to {number - 1}"
            self._add(Kind.CHECKPOINT_MISSING, last + 1, f"checkpoint {which} is missing")

    def _is_sound(self, checkpoint: Checkpoint, before: Checkpoint | None) -> bool:
        """Whether it says what was sealed, and follows from the one before, if that is here."""
        number = checkpoint.number
        if checkpoint.tenant != self._tenant or _hash(checkpoint) != checkpoint.hash:
            self._add(Kind.CHECKPOINT, number, f"checkpoint {number} was changed")
            return False
        if number == (before.number if before else 0) + 1:
            known = (before.hash, _hash(before)) if before else (b"\0" * 32,)
            if checkpoint.previous not in known:
                text = f"checkpoint {number} does not follow from the one before it"
                self._add(Kind.CHECKPOINT, number, text)
                return False
        return True

    def _believe(self, checkpoint: Checkpoint) -> None:
        number, key_id = checkpoint.number, checkpoint.key_id
        signed = self._keys.verify(Purpose.AUDIT, key_id, checkpoint.hash, checkpoint.signature)
        if signed is False:
            text = f"checkpoint {number} has a signature that the key {key_id} did not make"
            self._add(Kind.SIGNATURE, number, text)
            return
        if signed is None:
            self._unknown.setdefault(key_id, []).append(number)
        for segment, head in checkpoint.heads.items():
            self.heads.setdefault(segment, {})[head.seq] = (head, number)
            if signed:
                self.reach[segment] = max(head, self.reach.get(segment, head), key=_place)

    def _tell_unknown(self, key_id: str, numbers: Sequence[int]) -> None:
        first, last = numbers[0], numbers[-1]
        which = (
            f"checkpoint {first} was" if first == last else f"checkpoints {first} to {last} were"
        )
        text = (
            f"{which} signed with the key {key_id or '(none)'}, which is not among the audit keys"
            " here, so nobody can say whether that is genuine"
        )
        self._add(Kind.UNKNOWN_KEY, first, text)

    def _compare(self, receipts: Mapping[int, bytes], there: Mapping[int, bytes]) -> None:
        for number, seal in sorted(receipts.items()):
            if number not in there:
                text = f"checkpoint {number} is missing, of which there is a receipt"
                self._add(Kind.CHECKPOINT_MISSING, number, text)
            elif there[number] != seal:
                text = f"checkpoint {number} is another than the one of which there is a receipt"
                self._add(Kind.CHECKPOINT, number, text)

    def _add(self, kind: Kind, number: int, message: str) -> None:
        self._findings.add(Finding(kind, message, checkpoint=number))


def _hash(checkpoint: Checkpoint) -> bytes:
    try:
        return hash_of(checkpoint)
    except (AttributeError, TypeError, ValueError):
        return b""  # what can't be hashed was never sealed


def _place(head: Head) -> int:
    return head.seq
