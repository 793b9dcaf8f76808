"""Who makes a request: an agent by its credential, or a person by a session or a personal key.

The two never mix. An agent's credential makes calls and looks at its own; a person's looks and
decides. A header that names a credential counts alone: whoever sends one does not mean the cookie.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from counterseal.accounts import People, Person, Session, check_csrf
from counterseal.accounts.users import PERSON_MARK
from counterseal.errors import StoreError
from counterseal.proposal import Principal
from counterseal.web.api.problems import ProblemError
from counterseal.web.browser import same_origin, session_cookie
from counterseal.web.identity import Access, CannotVerifyError, Identity, Verifier

__all__ = ["CSRF", "SAFE", "Agent", "Caller", "Callers", "Human"]

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF: Final = "x-csrf-token"
"""Where a page of the console sends back what its session gave it."""
_LONGEST: Final = 16 * 1024 + 16
_REALM: Final = 'Bearer realm="counterseal"'


class Agent(NamedTuple):
    """Somebody who makes calls."""

    principal: Principal
    credential: str
    """Something to know the credential by that does not tell it."""

    @property
    def tenant(self) -> str:
        return self.principal.tenant


class Human(NamedTuple):
    """Somebody who looks and decides."""

    person: Person
    credential: str
    session: Session | None = None

    @property
    def tenant(self) -> str:
        return self.person.tenant


Caller = Agent | Human


class Callers:
    """`own` are the origins whose pages may send a session's cookie along with a change."""

    def __init__(
        self, access: Access, verifier: Verifier, people: People, own: Collection[str]
    ) -> None:
        self._verifier = verifier
        self._people = people
        self._own = tuple(own)
        self._scopes = frozenset(access.oauth.required_scopes if access.oauth else ())
        who = access.anonymous
        self._anonymous = None if who is None else verifier.anonymous(who)
        self._https = access.resource.startswith("https:")

    async def known(
        self, connection: HTTPConnection, headers: Mapping[str, str], method: str
    ) -> Caller:
        """Who it is. ProblemError where that can't be told, or the session's page did not ask."""
        given = headers.get("authorization")
        try:
            if given is not None:
                return await self._by_header(given)
            cookie = session_cookie(connection, https=self._https)
            session = await self._people.session(cookie)
        except (CannotVerifyError, StoreError):
            told = "It can't be told now whether this credential is good. Try again later."
            raise ProblemError("unavailable", told, headers={"Retry-After": "10"}) from None
        if session is None:
            return self._without(headers)
        if method not in SAFE:
            self._refuse_forged(session, headers)
        return Human(session.person, f"session:{session.session_id}", session)

    async def _by_header(self, given: str) -> Caller:
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token or len(given) > _LONGEST:
            raise _refused("Authorization: takes `Bearer` and one key or token.")
        if token.startswith(PERSON_MARK):
            person = await self._people.by_key(token)
            if person is None:
                raise _refused(_NOT_GOOD)
            return Human(person, f"person:{person.tenant}:{person.name}")
        identity = await self._verifier.verify_token(token)
        if identity is None:
            raise _refused(_NOT_GOOD)
        return self._agent(identity)

    def _agent(self, identity: Identity) -> Agent:
        if not self._scopes.issubset(identity.scopes):
            needed = " ".join(sorted(self._scopes))
            headers = {
                "WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{needed}"'
            }
            raise ProblemError("scope-required", f"It takes the scopes {needed}.", headers=headers)
        return Agent(identity.principal, identity.token)

    def _without(self, headers: Mapping[str, str]) -> Caller:
        """Nobody, or whoever may come without a credential; but no page of somebody else's."""
        if self._anonymous is not None and same_origin(headers, self._own):
            return self._agent(self._anonymous)
        raise _refused("Send a key or a token as `Authorization: Bearer …`, or sign in.", no=False)

    def _refuse_forged(self, session: Session, headers: Mapping[str, str]) -> None:
        if not same_origin(headers, self._own):
            raise ProblemError("csrf", "The request comes from a page of somebody else's.")
        if not check_csrf(session, headers.get(CSRF)):
            told = f"{CSRF}: has to be what this session was given."
            raise ProblemError("csrf", told, param=f"/{CSRF}", where="header")


_NOT_GOOD: Final = "This credential is not good, or not any more."


def _refused(detail: str, *, no: bool = True) -> ProblemError:
    """Whoever sent nothing is only told what to send; a bad credential is called one."""
    told = f'{_REALM}, error="invalid_token"' if no else _REALM
    return ProblemError("unauthenticated", detail, headers={"WWW-Authenticate": told})
