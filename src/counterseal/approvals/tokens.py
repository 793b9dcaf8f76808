"""Approval tokens: the signed proof that one exact call was approved.

A JWT (EdDSA), signed with the newest approval key and verified with any of them. It allows one
execution; the store checks whether it was used before. Tokens go to the program that submits the
call, never to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from counterseal.approvals.display import stamp
from counterseal.canonical import exported
from counterseal.contract.approval_terms import LONGEST
from counterseal.errors import CountersealError
from counterseal.keys import KeyRing, KeysError, Purpose
from counterseal.proposal import folded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ISSUER: Final = "counterseal"
AUDIENCE: Final = "counterseal:execution"
SCOPE: Final = "single_execution"
SKEW: Final = 5.0
"""Seconds that another worker's clock may be ahead. The expiry is never extended."""

_ALGORITHM: Final = "EdDSA"
_TYPE: Final = "approval+jwt"
_LONGEST_TOKEN: Final = 16_384
_HEADER: Final = frozenset({"alg", "typ", "kid"})


class TokenError(CountersealError):
    """A token is refused. `why` is one word for programs; the text is for people."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedCall:
    """The one call that a token is for."""

    approval_id: str
    trace_id: str
    tenant: str
    tool_name: str
    tool_version: str
    contract_hash: str
    payload_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims(ApprovedCall):
    """The claims of a token."""

    approver_ids: tuple[str, ...]
    """All approvers, in the order of their votes."""
    approved_at: float
    expires_at: float
    approval_scope: str = SCOPE
    decision: str = "approved"

    def record(self) -> dict[str, Any]:
        """Return the claims in the form that the token has."""
        return {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": int(self.approved_at),
            "exp": int(self.expires_at),
            **exported(self),
            "approver_id": self.approver_ids[-1],
            "approver_ids": list(self.approver_ids),
            "approved_at": stamp(self.approved_at),
            "expires_at": stamp(self.expires_at),
        }


def issue(claims: Claims, ring: KeyRing) -> str:
    """Return a signed token. KeysError when there is no approval key."""
    key = ring.newest(Purpose.APPROVAL)
    if key is None or key.private is None:
        raise KeysError(
            "there is no approval key to sign with; make one with `counterseal keys new approval`"
        )
    if not claims.approver_ids:
        raise ValueError("approver_ids is empty; a token needs an approver")
    import jwt  # noqa: PLC0415 - slow to load, and needed for approvals only

    headers = {"kid": key.key_id, "typ": _TYPE}
    return jwt.encode(claims.record(), key.private, algorithm=_ALGORITHM, headers=headers)


def check(
    token: str,
    ring: KeyRing,
    expected: ApprovedCall,
    *,
    approvers: int,
    may_approve: Callable[[str], bool],
    now: float,
) -> Claims:
    """Return the claims of a token that matches exactly this call. TokenError says why it does not.

    `may_approve` is asked about each approver's name in its folded form. Whether the token was used
    before is checked by the store, in the transaction that uses it.
    """
    claims = _read(_verified(token, ring))
    for name, why in _BOUND.items():
        if getattr(claims, name) != getattr(expected, name):
            raise TokenError(why, f"the token is for another {why}")
    if claims.approval_scope != SCOPE:
        raise TokenError("scope", "the token's scope is not single_execution")
    if claims.decision != "approved":
        raise TokenError("decision", "the token's decision is not approved")
    if not now < claims.expires_at:
        raise TokenError("expired", "the token has expired")
    if claims.approved_at > now + SKEW:
        raise TokenError("early", "the token's approval time is in the future")
    people = set(map(folded, claims.approver_ids))
    if len(people) < approvers or not all(may_approve(person) for person in people):
        raise TokenError("approver", "the token does not have enough approvers who may approve")
    return claims


_BOUND: Final = {
    "tenant": "tenant",
    "tool_name": "tool",
    "tool_version": "version",
    "contract_hash": "contract",
    "payload_hash": "payload",
    "trace_id": "trace",
    "approval_id": "approval",
}
"""The claims that bind a token to a call, with the word for a mismatch."""


# --- reading --------------------------------------------------------------------------------------


def _verified(token: object, ring: KeyRing) -> Mapping[str, Any]:
    """Return the payload if one of our keys signed it; nothing is used before that check."""
    import jwt  # noqa: PLC0415 - slow to load, and needed for approvals only

    if not isinstance(token, str) or not token.isascii() or len(token) > _LONGEST_TOKEN:
        raise TokenError("malformed", "the token does not have the form of an approval token")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise TokenError("malformed", "the token can't be parsed") from None
    if header.get("alg") != _ALGORITHM:
        raise TokenError("algorithm", f"the token is not signed with {_ALGORITHM}")
    if set(header) != _HEADER or header["typ"] != _TYPE:
        # Headers that name a key by URL, or contain one, are refused.
        raise TokenError("malformed", "the token's header has unexpected fields")
    key = _public(ring, header["kid"])
    options: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
    try:
        payload: Mapping[str, Any] = jwt.decode(
            token, key, algorithms=[_ALGORITHM], audience=AUDIENCE, issuer=ISSUER, options=options
        )
    except jwt.InvalidSignatureError:
        raise TokenError("forged", "the signature does not match the key") from None
    except (jwt.InvalidAudienceError, jwt.InvalidIssuerError, jwt.MissingRequiredClaimError):
        raise TokenError("scope", "the token has another issuer or audience") from None
    except jwt.PyJWTError:
        raise TokenError("malformed", "the token can't be parsed") from None
    return payload


def _public(ring: KeyRing, key_id: object) -> Ed25519PublicKey:
    """Return the approval key with this id."""
    for key in ring.keys:
        if key.purpose is Purpose.APPROVAL and key.key_id == key_id and key.public is not None:
            return key.public
    raise TokenError("unknown-key", "the token's key is unknown")


_TEXTS: Final = (*_BOUND, "approver_id", "approved_at", "expires_at", "approval_scope", "decision")


def _read(payload: Mapping[str, Any]) -> Claims:
    people = payload.get("approver_ids")
    complete = all(isinstance(payload.get(name), str) and payload[name] for name in _TEXTS)
    if not complete or not isinstance(people, list) or payload["approver_id"] not in people:
        raise TokenError("malformed", "a claim of the token is missing or invalid")
    if not all(isinstance(person, str) and person for person in people):
        raise TokenError("malformed", "the token has an invalid approver")
    approved, expires = _moment(payload["approved_at"]), _moment(payload["expires_at"])
    if not 0 <= expires - approved <= LONGEST or payload.get("exp") != int(expires):
        raise TokenError("malformed", "the token's times contradict each other")
    return Claims(
        **{name: payload[name] for name in _BOUND},
        approver_ids=tuple(people),
        approved_at=approved,
        expires_at=expires,
        approval_scope=payload["approval_scope"],
        decision=payload["decision"],
    )


def _moment(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TokenError("malformed", "the token has an invalid time") from None
