"""What is known of sessions of 2025-11-25, so that their calls may go the short way.

The sessions are the SDK's: it opens and ends them, and watches how long they are idle. So each has
one request go the long way now and then. What a session's client takes back, or leaves behind when
the session ends, is stopped here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import (
    AuthenticatedUser,
    AuthorizationContext,
    authorization_context,
)
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.shared.dispatcher import coerce_request_id

__all__ = ["HEADER", "Session", "Sessions"]

HEADER: Final = "mcp-session-id"
_LONG_WAY: Final = 60.0
"""Seconds after which the SDK is shown that a session is in use. It ends what is idle for 1,800."""


class Session:
    """One session."""

    def __init__(self, name: str, connection: Connection, owner: AuthorizationContext) -> None:
        self.name = name
        self.connection = connection
        self._owner = owner
        self._seen = monotonic()
        self._ending = False
        self.calls: dict[int | str, asyncio.Task[Any]] = {}
        """Those that are under way here, by the ids of their requests."""
        self.taken_back: set[int | str] = set()
        """Of which the client said that it does not want them any more."""
        self.over = False

    def is_owned_by(self, user: Any) -> bool:
        return isinstance(user, AuthenticatedUser) and authorization_context(user) == self._owner

    def is_for(self, user: Any) -> bool:
        """Whether it is this caller's, and the SDK has seen it in use."""
        fresh = monotonic() - self._seen < _LONG_WAY
        return fresh and not self._ending and self.is_owned_by(user)

    def seen(self, *, ending: bool) -> None:
        """One of its requests goes the long way: perhaps the one that ends it."""
        self._seen = monotonic()
        self._ending = self._ending or ending

    def take_back(self, number: Any) -> None:
        """The client has changed its mind about a call."""
        if isinstance(number, int | str):
            number = coerce_request_id(number)
            task = self.calls.get(number)
            if task is not None:
                self.taken_back.add(number)
                task.cancel()

    def end(self) -> None:
        """It is over, and so is what it has under way."""
        self.over = self._ending = True
        for task in self.calls.values():
            task.cancel()


class Sessions:
    """Those that were opened, by their names."""

    def __init__(self) -> None:
        self._held: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, name: bytes | None) -> Session | None:
        return None if name is None else self._held.get(name.decode("latin-1"))

    def noticed(self, ctx: ServerRequestContext[Any, Any]) -> None:
        """A notification has come the long way: a session is open, or takes something back."""
        name = None if ctx.request is None else ctx.request.headers.get(HEADER)
        if not isinstance(name, str):
            return
        if ctx.method == "notifications/initialized":
            self._join(name, ctx)
        elif ctx.method == "notifications/cancelled" and name in self._held:
            given: Mapping[str, Any] = ctx.params or {}
            self._held[name].take_back(given.get("requestId"))

    def _join(self, name: str, ctx: ServerRequestContext[Any, Any]) -> None:
        user = None if ctx.request is None else ctx.request.scope.get("user")
        if name in self._held or not isinstance(user, AuthenticatedUser):
            return
        connection = ctx.session._connection  # noqa: SLF001 - the SDK has no other way to it yet
        self._held[name] = Session(name, connection, authorization_context(user))
        connection.exit_stack.callback(self._part, name)

    def _part(self, name: str) -> None:
        session = self._held.pop(name, None)
        if session is not None:
            session.end()
