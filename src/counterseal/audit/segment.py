"""Whether the links of one segment follow one another, and are those that were sealed.

A link that does not follow is doubted until the next one shows what it is: changed, put in, or
behind a gap. So a single change makes one finding, and not one for every event after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from counterseal.audit.chain import GENESIS, Head, Link, link_hash
from counterseal.audit.report import Finding, Findings, Kind

__all__ = ["Segment"]


class Segment:
    """Where the check is in one segment; nothing more is kept of it."""

    __slots__ = (
        "_doubt",
        "_findings",
        "_found",
        "_good",
        "_limit",
        "_name",
        "_sealed",
        "_strangers",
        "_tenant",
        "reach",
    )

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
        self._strangers: dict[int, str] = {}
        """Events at those places that are others."""
        self._found = 0
        """The last place that was as it was sealed."""
        self._limit = limit
        self._good = GENESIS
        """The last link that is beyond doubt, or all that is left to go on from."""
        self._doubt: Link | None = None
        """A link that does not follow from it."""
        self.reach = reach
        """How far it is sealed by a key that is here."""
        if limit is not None:
            self._limit = limit._replace(seq=max([limit.seq, *sealed]))

    @property
    def begun(self) -> bool:
        """Whether anything was found of it."""
        return self._good.seq > 0

    def ended_before(self, link: Link) -> bool:
        """Whether a link came after the check had begun."""
        limit = self._limit
        return limit is not None and link.seq > limit.seq and link.number > limit.number

    def check(self, link: Link) -> None:
        """The next link of the segment, in the order of their numbers."""
        self._check_seal(link)
        doubt, good = self._doubt, self._good
        if self._follows(good, link):
            if doubt is not None:
                text = "was inserted, or moved here: the events around it follow one another"
                self._add(Kind.INSERTED, text, doubt)
            self._go_on(good.seq + 1, link)
        elif doubt is None:
            self._doubt = link
        elif doubt.seq > good.seq and self._follows(doubt.head, link):
            self._tell_doubt(doubt, link.seq)
            self._go_on(doubt.seq + 1, link)
        elif self._follows(self._recomputed(doubt), link):
            self._tell_doubt(doubt, link.seq)
            self._go_on(good.seq + 2, link)
        else:
            self._tell_doubt(doubt, link.seq)
            self._doubt = link

    def finish(self) -> None:
        """Say what was not found."""
        if self._doubt is not None:
            self._tell_doubt(self._doubt, None)
        if not self._sealed:
            return
        end, last = self._good.seq, max(self._sealed)
        if last > end:
            self._tell_cut(end + 1, last, self._sealed[last][1])
        others = [place for place in self._sealed if place <= end]
        if others:
            self._tell_other(min(others))

    # --- one link after another -------------------------------------------------------------------

    def _check_seal(self, link: Link) -> None:
        head, _ = self._sealed.get(link.seq, (None, 0))
        if head == link.head:
            del self._sealed[link.seq]
            self._found = max(self._found, link.seq)
        elif head is not None:
            self._strangers[link.seq] = link.event_id

    def _follows(self, before: Head, link: Link) -> bool:
        return link.hash == link_hash(self._tenant, self._name, before, link.number, link.digest)

    def _recomputed(self, doubt: Link) -> Head:
        """A link as it was if only its hash has been changed."""
        good = self._good
        seal = link_hash(self._tenant, self._name, good, doubt.number, doubt.digest)
        return Head(doubt.number, good.seq + 1, seal)

    def _go_on(self, place: int, link: Link) -> None:
        if link.seq != place:
            self._add(Kind.CHANGED, f"says that it is at place {link.seq}", link, place)
        self._good = Head(link.number, place, link.hash)
        self._doubt = None

    # --- findings ---------------------------------------------------------------------------------

    def _tell_doubt(self, doubt: Link, next_seq: int | None) -> None:
        """Say what is wrong with a link, now that the next is known, and go on from it."""
        place = self._good.seq + 1
        if doubt.seq < place:
            text = f"stands behind place {place - 1}: one of the two was inserted or moved here"
            self._add(Kind.INSERTED, text, doubt)
            return
        stands_at = place if next_seq == place + 1 else doubt.seq
        if stands_at == place:
            text = "does not follow from the event before it: one of the two was changed"
            self._add(Kind.CHANGED, text, doubt, place)
        else:
            text = f"{_places(place, doubt.seq - 1)} missing before the event {doubt.event_id}"
            self._findings.add(Finding(Kind.MISSING, text, doubt.event_id, self._name, place))
        self._good = Head(doubt.number, stands_at, doubt.hash)

    def _tell_cut(self, first: int, last: int, number: int) -> None:
        text = f"{_places(first, last)} missing at the end, up to where checkpoint {number} sealed"
        if first == 1:
            text = f"all of it is missing; checkpoint {number} sealed it up to place {last}"
        self._findings.add(Finding(Kind.MISSING, text, None, self._name, first, number))

    def _tell_other(self, place: int) -> None:
        """Once for all places behind: whoever writes a chain anew changes all of them."""
        number, there = self._sealed[place][1], self._strangers.get(place)
        kind = Kind.REWRITTEN
        text = f"is another than checkpoint {number} sealed; look behind place {self._since(place)}"
        if there is None:
            kind, text = Kind.MISSING, f"place {place} is missing, which checkpoint {number} sealed"
        self._findings.add(Finding(kind, text, there, self._name, place, number))

    def _since(self, place: int) -> int:
        return self._found if self._found < place else 0

    def _add(self, kind: Kind, text: str, link: Link, place: int | None = None) -> None:
        where = link.seq if place is None else place
        self._findings.add(Finding(kind, text, link.event_id, self._name, where))


def _places(first: int, last: int) -> str:
    return f"place {first} is" if first == last else f"places {first} to {last} are"
