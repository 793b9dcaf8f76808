"""What proves an approval: votes signed one by one, and the token that they come to.

Where there is a key for it, nothing is believed because it stands in a table. Whoever can write to
the database, but has no key, can neither vote for others, nor make the terms easier on which they
voted, nor turn a request into an approved one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from counterseal.approvals.terms import Demand, Pattern
from counterseal.approvals.tokens import Expected, TokenError
from counterseal.approvals.tokens import check as check_token
from counterseal.approvals.votes import Choice, Tally, Vote, tally
from counterseal.canonical import canonical
from counterseal.keys import KeyRing, Purpose, Signer
from counterseal.storage.base import Held

__all__ = ["has_keys", "has_unknown_keys", "proven_votes", "signed", "unproven", "votes_of"]

_SIGNATURE: Final = "signature"
_FORM: Final = b"counterseal vote\0"
"""So that no signature of a vote can be taken for one of a token."""


def has_keys(ring: KeyRing | None) -> bool:
    """Whether approvals have to be proven here; the public half of a key is enough for that."""
    return ring is not None and any(key.purpose is Purpose.APPROVAL for key in ring.keys)


def votes_of(held: Held) -> tuple[Vote, ...]:
    """Who has said what, as it is stored."""
    return tuple(Vote.from_record(_said(vote)) for vote in held.votes)


def signed(held: Held, vote: Vote, signer: Signer | None) -> dict[str, Any]:
    """A vote as it is stored: bound to the request, who asks, what it is about, and its terms."""
    said = vote.record()
    if signer is None:
        return said
    signature = signer.sign(_message(held, said)).hex()
    return {**said, _SIGNATURE: f"{signer.key_id}.{signature}"}


def proven_votes(held: Held, ring: KeyRing) -> tuple[Vote, ...]:
    """Those that were cast here, on exactly this, and nobody has changed since."""
    return tuple(
        Vote.from_record(_said(vote)) for vote in held.votes if _is_proven(held, vote, ring) is True
    )


def has_unknown_keys(held: Held, ring: KeyRing) -> bool:
    """Whether a vote is signed with a key that is not here: neither proven nor forged."""
    return any(_is_proven(held, vote, ring) is None for vote in held.votes)


def unproven(
    held: Held, token: str | None, ring: KeyRing, expected: Expected, demand: Demand, now: float
) -> str | None:
    """Why an approval does not stand for this call, in a word; None when it does."""
    votes = proven_votes(held, ring)
    said = {vote.approver for vote in votes if vote.decision is Choice.APPROVE}
    why: str | None = None
    try:
        check_token(token or "", ring, expected, may_approve=said.__contains__, now=now)
    except TokenError as error:
        why = error.why
    if why is None and not _are_others(held, said):
        return "approver"
    if why is None and tally(demand, votes, now=now, expires_at=held.expires_at) is Tally.APPROVED:
        return None
    if why in (None, "approver") and has_unknown_keys(held, ring):
        return "unknown-key"  # who has that key may well know better
    return why or "votes"


def _are_others(held: Held, approvers: set[str]) -> bool:
    """Whether no requester is among the approvers; of a user's consent, nobody but the user."""
    if held.demand["pattern"] == Pattern.USER_CONSENT:
        return approvers == {held.user}
    return approvers.isdisjoint({held.agent, held.user})


def _said(vote: Any) -> dict[str, Any]:
    return {name: value for name, value in vote.items() if name != _SIGNATURE}


def _is_proven(held: Held, vote: Any, ring: KeyRing) -> bool | None:
    """Whether it was cast here and on exactly this; None where its key is not here to tell."""
    if not isinstance(vote, Mapping):
        return False
    key_id, _, signature = str(vote.get(_SIGNATURE, "")).partition(".")
    try:
        raw, message = bytes.fromhex(signature), _message(held, _said(vote))
    except ValueError:
        return False
    return ring.verify(Purpose.APPROVAL, key_id, message, raw) if raw else False


def _message(held: Held, said: dict[str, Any]) -> bytes:
    seen = held.version_seen
    request = {
        "tenant": held.tenant,
        "approval_id": held.approval_id,
        "approval_hash": held.approval_hash,
        "contract_hash": held.contract_hash,
        "tool": held.tool,
        "version": held.version,
        "key": held.key,
        "run_id": held.run_id,
        "trace_id": held.trace_id,
        "agent": held.agent,
        "user": held.user,
        # As text, with its kind: a number here may be larger than JSON carries exactly.
        "version_seen": None if seen is None else f"{type(seen).__name__} {seen}",
        "expires_at": held.expires_at,
        "demand": held.demand,
        "shown": sha256(held.sealed).hexdigest(),
    }
    return _FORM + canonical([request, said])
