"""What the runtime asks of a store, in the words of the domain.

A store remembers runs, ledger entries, held proposals, counters, due work and events. It decides
nothing: limits come in with the request, and the answer says which one would have been broken.
Every method that changes something is one transaction: all of it happens, or none. A store that
can't do what it is asked raises StoreError, and then nothing was done, or nobody knows.

Leases are measured by the store's own clock, which all its workers share; every other moment comes
in with the request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from counterseal.audit import Event, Head
from counterseal.audit.checkpoint import Checkpoint
from counterseal.ledger.entry import Entry
from counterseal.ledger.records import (
    Asker,
    Budgets,
    Concern,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import (
    NEW_KEY,
    Admission,
    Admit,
    Ballot,
    Calls,
    Charge,
    Claim,
    Erasure,
    Finish,
    Kept,
    Memory,
    Rate,
    Recorded,
    Refused,
    Search,
    Settle,
    Tallied,
)

__all__ = [
    "IDLE_SECONDS",
    "NEW_KEY",
    "Admission",
    "Admit",
    "Asker",
    "Ballot",
    "Budgets",
    "Calls",
    "Charge",
    "Claim",
    "Concern",
    "Due",
    "DueKind",
    "Erasure",
    "Finish",
    "Held",
    "HeldStatus",
    "Kept",
    "Memory",
    "Rate",
    "Recorded",
    "Refused",
    "RunRecord",
    "Search",
    "SessionRow",
    "Settle",
    "Store",
    "Tallied",
]

IDLE_SECONDS: Final = 3600.0
"""After how long without a call an implicit run is over."""


class Store(Protocol):
    """The seam between the runtime and whatever keeps its memory."""

    async def ready(self) -> None:
        """Connect, and bring the schema up to date. Whoever does not ask gets it at first use."""

    # --- runs -------------------------------------------------------------------------------------

    async def open_run(self, run: RunRecord) -> RunRecord:
        """The run as it is stored; the given one where there was none."""

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        """The run, if it was opened."""

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        """The run of somebody who names none, if they have one that is not over."""

    async def implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord:
        """The same; where there is none, one is opened (`rules.implicit`). It counts as used now.

        It is over when it was not used for `IDLE_SECONDS`.
        """

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        """Begin another turn: what the state holds under other keys is forgotten."""

    # --- the way of a call ------------------------------------------------------------------------

    async def recall(
        self,
        tenant: str,
        run_id: str,
        key: str | None,
        who: Asker | None = None,
        *,
        spent: bool = True,
    ) -> Memory:
        """One read of all that bears on a call; what was `spent`, only where that does.

        `held` is the last request under the key: this caller's own, or anybody's for None.
        """

    async def admit(self, request: Admit) -> Admission:
        """Check limits, spend, reserve, record: all, or none."""

    def note(self, event: Event) -> None:
        """Put an event on record with the next commit; nobody waits for it."""

    async def settle(self, request: Settle) -> bool:
        """Write the outcome. False when somebody else holds the entry by now, or has settled it."""

    async def renew(self, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
        """Hold entries for so many seconds from now. False for each that is somebody else's."""

    async def wait(self, tenant: str, key: str, seconds: float) -> bool:
        """Wait until nobody holds the entry under a key any more. False when the time was over.

        Nobody holds an entry that is settled, unknown or escalated, or whose lease is over.
        """

    # --- requests for approval --------------------------------------------------------------------

    async def hold(
        self, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]] = ()
    ) -> Held:
        """Keep a proposal for people, and put down what follows from that.

        Where the caller's last one under the key asks the same and still stands (`rules.stands`),
        that one is returned instead, and nothing else happens.
        """

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        """A request, whatever became of it."""

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        *,
        after: float | None = None,
        newest_first: bool = False,
        beyond: tuple[float, str] | None = None,
    ) -> Sequence[Held]:
        """Requests of a status, by when they end, then by id. None: of every tenant.

        Only those that end after a moment, where one is given; or what ends last comes first.
        `beyond` is when a request ends, and its id, to go on behind in the order asked for.
        """

    async def vote(self, ballot: Ballot) -> Held | None:
        """Take a vote on a request that waits. None when it does not, or others have voted since.

        The votes, what they come to, the token, due work and events: all, or none.
        """

    async def wait_held(self, tenant: str, approval_id: str, seconds: float) -> bool:
        """Wait until a request no longer waits. False when the time was over."""

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        """Decide a request without a vote. None when there is none, or it was decided before.

        One that waits can take any decision; one that was approved can only become void, and has
        no token then.
        """

    # --- refusals ---------------------------------------------------------------------------------

    async def refuse(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        """Record a refusal, and count it under each fingerprint. Returns the counts.

        They are forgotten when the tool succeeds in this run (`Settle.mended`), but for those that
        begin with `run/`: these are the run's, whatever the tool. One given twice counts twice.
        """

    # --- what is to be done later -----------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[Kept]:
        """Take over entries that are PENDING, not escalated, and that nobody holds any more.

        Oldest first. No two workers get the same one: each comes with a new fence, phase UNKNOWN
        and the claim's lease, and `looks` counts how often that happened.
        """

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        """Take work whose time has come, and that nobody else has taken."""

    async def schedule(self, after: float, work: Due, events: Sequence[Event]) -> bool:
        """Put down work to be done in so many seconds. False, and nothing, if it is there."""

    async def finish(self, request: Finish) -> bool:
        """Say what came of a piece of work. False when somebody else has taken it by now."""

    async def look_up(self, tenant: str, key: str) -> Kept | None:
        """An entry, with what is needed to go on from it."""

    async def look_up_call(self, tenant: str, call_id: str) -> Kept | None:
        """The same by the call that it is of."""

    async def concerns(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        """The operator's list, oldest first: escalated entries, and due work that failed."""

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        """A piece of due work, failed ones too."""

    # --- the registry's stored changes ------------------------------------------------------------

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        """What operators changed since a change, oldest first, numbered without gaps from 1."""

    async def change(self, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> bool:
        """Put a change on record as the next one. False when that number is taken."""

    # --- sessions ---------------------------------------------------------------------------------

    async def save_session(self, row: SessionRow) -> bool:
        """Store a new session, or refresh a stored one. Returns False for a session that has ended.

        A row with `seen_at` after `created_at` only refreshes: a session that was ended in the
        meantime, by any worker, is not brought back.
        """

    async def find_session(self, session: str) -> SessionRow | None:
        """Return the stored session. The caller compares `expires_at` with its clock."""

    async def end_session(self, session: str) -> bool:
        """Delete a session. Returns False when there was none."""

    async def end_sessions(self, user: str) -> int:
        """Delete all sessions of a user. Returns their number."""

    # --- the record -------------------------------------------------------------------------------

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        """Put a tool's raw output into the vault. Returns a pointer that no model can follow."""

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        """What a pointer leads to; None when it is no longer kept, or was never there."""

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        """Events of a tenant with their ids, oldest first; erased ones are left out."""

    async def search(self, tenant: str, search: Search) -> Sequence[tuple[str, Event]]:
        """The same, narrowed down."""

    async def calls(self, tenant: str, search: Calls) -> Sequence[tuple[str, Event]]:
        """Calls, newest first: of each, the last event that ended it."""

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int = 1
    ) -> Sequence[Tallied]:
        """How much of what was recorded from a moment on until another, in so many equal parts."""

    async def tenants(self) -> Sequence[str]:
        """Everybody of whom something is on record, by name."""

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[Recorded]:
        """A page of the log with its links, ordered by (number, segment), behind a place."""

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        """Segments with links from this number on, and where each ends."""

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        """What was sealed, oldest first."""

    async def seal(self, checkpoint: Checkpoint) -> bool:
        """Keep a checkpoint. False when its number is taken."""

    # --- forgetting -------------------------------------------------------------------------------

    async def expire(self, request: Erasure) -> Mapping[str, int]:
        """Forget one batch of what is over.

        How many of `keys`, `vault`, `requests`, `events`, `counters`,
        `sessions`. A request that was decided
        stays without its call and its token, once it ended as long ago as the vault keeps things.
        A key whose answer is no longer kept stays, with its hash, as EXPIRED (one that is free
        anyway stays free); PENDING never expires. Erased events leave their links, and an
        `audit.erased` event says how many and until when. Fewer than the limit of each: all done.
        """

    async def close(self) -> None: ...
