"""The signed proof that an approval was given: what it stands for, and why one is refused.

A JWT (EdDSA), signed with the newest approval key and verified with any. It stands for one
execution of one exact call; whether it was used before only a store can tell. It goes from
Counterseal to whoever carries out the call, and never to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from counterseal.approvals.display import stamp
from counterseal.contract.approval_terms import LONGEST
from counterseal.errors import CountersealError
from counterseal.keys import KeyRing, KeysError, Purpose

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = [
    "AUDIENCE",
    "ISSUER",
    "SCOPE",
    "SKEW",
    "Claims",
    "Expected",
    "TokenError",
    "check",
    "issue",
]


ISSUER: Final = "counterseal"
AUDIENCE: Final = "counterseal:execution"
SCOPE: Final = "single_execution"
SKEW: Final = 5.0
"""Seconds that another worker's clock may be ahead. Nothing is granted after the expiry."""

_ALGORITHM: Final = "EdDSA"
_TYPE: Final = "approval+jwt"
_LONGEST_TOKEN: Final = 16_384
_HEADER: Final = frozenset({"alg", "typ", "kid"})


class TokenError(CountersealError):
    """A token is refused. `why` is one word for programs, the text is for people."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a token says."""

    approval_id: str
    trace_id: str
    tenant: str
    tool_name: str
    tool_version: str
    contract_hash: str
    payload_hash: str
    approver_ids: tuple[str, ...]
    """Everybody who approved, in that order."""
    approved_at: float
    expires_at: float
    approval_scope: str = SCOPE
    decision: str = "approved"

    def record(self) -> dict[str, Any]:
        """As they stand in the token."""
        return {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": int(self.approved_at),
            "exp": int(self.expires_at),
            "approval_id": self.approval_id,
            "trace_id": self.trace_id,
            "tenant": self.tenant,
            "tool_name": self.tool_name,
            "tool_version": self.tool_version,
            "contract_hash": self.contract_hash,
            "payload_hash": self.payload_hash,
            "approver_id": self.approver_ids[-1],
            "approver_ids": list(self.approver_ids),
            "approved_at": stamp(self.approved_at),
            "expires_at": stamp(self.expires_at),
            "approval_scope": self.approval_scope,
            "decision": self.decision,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The call that is about to be executed, which a token must stand for."""

    approval_id: str
    trace_id: str
    tenant: str
    tool_name: str
    tool_version: str
    contract_hash: str
    payload_hash: str
    approvers: int = 1
    """How many people the demand asks for."""


def issue(claims: Claims, ring: KeyRing) -> str:
    """The signed token. KeysError where there is no approval key to sign with."""
    key = ring.newest(Purpose.APPROVAL)
    if key is None or key.private is None:
        raise KeysError(
            "there is no approval key to sign with; `counterseal keys new approval` makes one"
        )
    if not claims.approver_ids:
        raise ValueError("approver_ids: nobody has approved")
    import jwt  # noqa: PLC0415 - only who signs or checks pays for loading it

    headers = {"kid": key.key_id, "typ": _TYPE}
    return jwt.encode(claims.record(), key.private, algorithm=_ALGORITHM, headers=headers)


def check(
    token: str,
    ring: KeyRing,
    expected: Expected,
    *,
    may_approve: Callable[[str], bool],
    now: float,
) -> Claims:
    """What the token says, when it stands for exactly this call. TokenError says why it does not.

    Whether it was used before is for the store to find out, in the transaction that uses it.
    """
    claims = _read(_verified(token, ring))
    for name, why in _BOUND.items():
        if getattr(claims, name) != getattr(expected, name):
            raise TokenError(why, f"the token stands for another {why}")
    if claims.approval_scope != SCOPE:
        raise TokenError("scope", "the token is not for a single execution")
    if claims.decision != "approved":
        raise TokenError("decision", "the token says that the call was not approved")
    if not now < claims.expires_at:
        raise TokenError("expired", "the token has expired")
    if claims.approved_at > now + SKEW:
        raise TokenError("early", "the token says that it was approved only later than now")
    people = set(claims.approver_ids)
    if len(people) < expected.approvers or not all(may_approve(person) for person in people):
        raise TokenError("approver", "the token is not by as many people who may approve")
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
"""What a token is bound to, and the word for a mismatch."""


# --- reading --------------------------------------------------------------------------------------


def _verified(token: object, ring: KeyRing) -> Mapping[str, Any]:
    """What the token holds, when one of our keys signed it. Nothing of it is believed before."""
    import jwt  # noqa: PLC0415 - as in `issue`

    if not isinstance(token, str) or not token.isascii() or len(token) > _LONGEST_TOKEN:
        raise TokenError("malformed", "the token is none of ours")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise TokenError("malformed", "the token can't be read") from None
    if header.get("alg") != _ALGORITHM:
        raise TokenError("algorithm", f"the token is not signed with {_ALGORITHM}")
    if set(header) != _HEADER or header["typ"] != _TYPE:
        # Whatever names a key by its address, or brings its own, has no place here.
        raise TokenError("malformed", "the token's header is none of ours")
    key = _public(ring, header["kid"])
    options: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
    try:
        found: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[_ALGORITHM],
            audience=AUDIENCE,
            issuer=ISSUER,
            options=options,
        )
    except jwt.InvalidSignatureError:
        raise TokenError("forged", "the signature is not that of the key") from None
    except (jwt.InvalidAudienceError, jwt.InvalidIssuerError, jwt.MissingRequiredClaimError):
        raise TokenError("scope", "the token is made for something else") from None
    except jwt.PyJWTError:
        raise TokenError("malformed", "the token can't be read") from None
    return found


def _public(ring: KeyRing, key_id: object) -> Ed25519PublicKey:
    """An approval key by its id, which is compared and never looked up anywhere."""
    for key in ring.keys:
        if key.purpose is Purpose.APPROVAL and key.key_id == key_id and key.public is not None:
            return key.public
    raise TokenError("unknown-key", "the key that the token names is not here")


_TEXTS: Final = (*_BOUND, "approver_id", "approved_at", "expires_at", "approval_scope", "decision")


def _read(found: Mapping[str, Any]) -> Claims:
    people = found.get("approver_ids")
    complete = all(isinstance(found.get(name), str) and found[name] for name in _TEXTS)
    if not complete or not isinstance(people, list) or found["approver_id"] not in people:
        raise TokenError("malformed", "the token does not say everything")
    if not all(isinstance(person, str) and person for person in people):
        raise TokenError("malformed", "the token names no approvers")
    approved, expires = _moment(found["approved_at"]), _moment(found["expires_at"])
    if not 0 <= expires - approved <= LONGEST or found.get("exp") != int(expires):
        raise TokenError("malformed", "the token's times contradict each other")
    return Claims(
        **{name: found[name] for name in _BOUND},
        approver_ids=tuple(people),
        approved_at=approved,
        expires_at=expires,
        approval_scope=found["approval_scope"],
        decision=found["decision"],
    )


def _moment(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TokenError("malformed", "the token holds no time where one should be") from None
