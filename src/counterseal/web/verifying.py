"""Whether a credential is good, and whose it is: an API key of the runtime, or an OAuth token.

What was found good is remembered by its hash, and asked only whether it still is: a key, whether it
is in force, as of the last second; a token, whether it is over, and after a minute everything.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from typing import Final, NamedTuple

from mcp.server.auth.provider import AccessToken, TokenVerifier
from pydantic import AnyHttpUrl, InstanceOf
from starlette.authentication import AuthenticationError

from counterseal.canonical import canonical
from counterseal.errors import StoreError
from counterseal.operations.operator import News
from counterseal.proposal import Principal
from counterseal.registry.identities import MARK, Credential, IssuedKey
from counterseal.runtime import Runtime
from counterseal.web.access import Access
from counterseal.web.issuer import IssuerError
from counterseal.web.tokens import RefusedTokenError, Tokens

__all__ = ["Good", "Identity", "UnsureError", "Verifier"]

_log = logging.getLogger("counterseal.gateway")

_KEYS: Final = "counterseal:keys"
_ANONYMOUS: Final = "counterseal:anonymous"
"""In the place of an issuer, which is always a URL."""
_REMEMBERED: Final = 60.0
"""Seconds for which a token is not checked again."""
_MOST_REMEMBERED: Final = 4096


class Identity(AccessToken):
    """What a request was let in with. `token` is a name for the credential, not the credential."""

    principal: InstanceOf[Principal]


class UnsureError(AuthenticationError):
    """Whether a credential is good can't be told now: nobody is let in, and it is not its fault."""


class Good(NamedTuple):
    """A credential that was found good."""

    identity: Identity
    key: Credential | None
    """What has to be in force still; None of a token."""
    until: float
    """When it has to be checked anew."""


class Verifier(TokenVerifier):
    """Tells whose credential it is: an API key of this runtime, or a token of the issuer."""

    def __init__(
        self,
        access: Access,
        runtime: Runtime,
        *,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._runtime = runtime
        # As clients read it in our metadata, and ask for tokens for it.
        self._resource = str(AnyHttpUrl(access.resource))
        self._tokens: Tokens | None = None
        if access.oauth is not None:
            self._tokens = Tokens(access.oauth, self._resource, clock=runtime.clock, steady=steady)
        self._news = News(runtime, steady)
        self._doubts = News(runtime, steady)
        self._good: OrderedDict[bytes, Good] = OrderedDict()
        """By their hash, so that nobody can feel their way to one by how long a look takes."""

    async def verify_token(self, token: str) -> Identity | None:
        """None for a credential that is not good. UnsureError when that can't be told."""
        mark = _mark(token)
        try:
            if mark in self._good and self._good[mark].key is not None:
                await self._news.heard()
            known = self._remembered(mark)
            if known is not None:
                return known
            found = await (self._by_key if token.startswith(MARK) else self._by_token)(token)
        except RefusedTokenError as error:
            _log.info("a credential was refused: %s", error)
            return None
        except (IssuerError, StoreError) as error:
            raise UnsureError(str(error)) from error
        self._good[mark] = found
        if len(self._good) > _MOST_REMEMBERED:
            self._good.popitem(last=False)
        return found.identity

    def recalled(self, token: bytes) -> Good | None:
        """What was found out about it before, where that still holds. None: verify it."""
        if not self._news.fresh or not token.isascii():
            return None
        known = self._good.get(sha256(token).digest())
        return known if known is not None and self._in_force(known) else None

    def _remembered(self, mark: bytes) -> Identity | None:
        known = self._good.get(mark)
        if known is None:
            return None
        if self._in_force(known):
            return known.identity
        del self._good[mark]
        return None

    def _in_force(self, known: Good) -> bool:
        _, key, until = known
        runtime = self._runtime
        if runtime.clock() >= until:
            return False
        return key is None or runtime.registry.credential(key.key_id) is key

    async def still_valid(self, identity: AccessToken) -> bool:
        """Whether a request with it would be let in now: for streams, which outlast requests."""
        if not isinstance(identity, Identity):
            return False
        if identity.expires_at is not None and identity.expires_at <= self._runtime.clock():
            return False
        if _issuer(identity) != _KEYS:
            return True
        try:
            await self._news.heard()
        except StoreError:
            return False
        return self._runtime.registry.credential(identity.subject or "") is not None

    def anonymous(self, principal: Principal) -> Identity:
        """Somebody without a credential, where that is allowed."""
        return self._identity(principal, _ANONYMOUS, "anonymous", None, None)

    async def _by_key(self, text: str) -> Good:
        key = IssuedKey.read(text)
        if key is None:
            raise RefusedTokenError("it is no whole API key")
        registry = self._runtime.registry
        await self._news.heard()
        if registry.credential(key.key_id) is None:
            await self._doubts.heard()  # it may have been issued just now, elsewhere
        found = registry.credential(key.key_id)
        if found is None:
            raise RefusedTokenError(f"API key {key.key_id} is not in force")
        if not found.matches(key):
            raise RefusedTokenError(f"API key {key.key_id} comes with a wrong secret")
        if found.expired(datetime.fromtimestamp(self._runtime.clock(), UTC)):
            raise RefusedTokenError(f"API key {key.key_id} has expired")
        until = None if found.expires_at is None else int(found.expires_at.timestamp())
        name = f"{MARK}{key.key_id}"
        identity = self._identity(found.principal, _KEYS, name, key.key_id, until)
        return Good(identity, found, inf if until is None else until)

    async def _by_token(self, text: str) -> Good:
        if self._tokens is None or self._access.oauth is None:
            raise RefusedTokenError("it is no API key, and no issuer of tokens is configured")
        began = self._runtime.clock()
        found = await self._tokens.verify(text)
        identity = self._identity(
            found.principal, self._access.oauth.issuer, found.mark, found.subject, found.expires_at
        )
        return Good(identity, None, min(found.expires_at, began + _REMEMBERED))

    def _identity(
        self, principal: Principal, issuer: str, name: str, subject: str | None, until: int | None
    ) -> Identity:
        scopes = set(principal.scopes)
        if self._access.oauth is not None and issuer != self._access.oauth.issuer:
            scopes.update(self._access.oauth.required_scopes)  # these are asked of tokens only
        return Identity(
            token=name,
            # By these three the SDK knows whose session it is: client, issuer, subject.
            client_id=canonical([principal.tenant, principal.agent, principal.user]).decode(),
            claims={"iss": issuer},
            subject=subject,
            scopes=sorted(scopes),
            expires_at=until,
            resource=self._resource,
            principal=principal,
        )


def _mark(token: str) -> bytes:
    return sha256(token.encode(errors="replace")).digest()


def _issuer(identity: AccessToken) -> str | None:
    return (identity.claims or {}).get("iss")
