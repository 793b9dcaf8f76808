"""The way in: whether we take requests, under which name we are called, and who answers.

In front of everything that a gateway serves, so it is small: one look at the headers, and those who
are asked most are found by their path alone. Whatever has another path goes to the pages' router.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from counterseal.web.console.rendering import bare_page

__all__ = ["Entrance"]

_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
_MOST_NAMES: Final = 256
_WATCHED: Final = ("/health", "/ready", "/metrics")


class Entrance:
    """Give it all requests. `straight` has who answers to a path; `api`, to all under `/v1`."""

    def __init__(
        self, app: ASGIApp, *, straight: Mapping[str, ASGIApp], api: ASGIApp, hosts: Collection[str]
    ) -> None:
        self._app = app
        self._straight = dict(straight)
        self._api = api
        self._exact = frozenset(name.lower() for name in hosts if not name.endswith(":*"))
        self._any_port = frozenset(name[:-2].lower() for name in hosts if name.endswith(":*"))
        self._is_ours = lru_cache(_MOST_NAMES)(self._named)
        self.closed = False
        """Once it is, whoever comes is told to come back later."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self.closed:
            later = {"Retry-After": "5", "Connection": "close"}
            answer = self._refusal(scope, 503, "This server is stopping.", later)
            await answer(scope, receive, send)
            return
        raw = scope["headers"]
        given = dict(raw)
        once = len(given) == len(raw) or [name for name, _ in raw].count(b"host") == 1
        # A page from elsewhere may have had a browser call us by another's name.
        if not once or not self._is_ours(given.get(b"host", b"")):
            answer = self._refusal(scope, 421, "This is not the host that you asked for.")
            await answer(scope, receive, send)
            return
        path = scope["path"]
        app = self._straight.get(path)
        if app is None:
            app = self._api if path.startswith("/v1/") else self._app
        await app(scope, receive, send)

    def _refusal(
        self, scope: Scope, status: int, told: str, more: Mapping[str, str] | None = None
    ) -> Response:
        """A line for programs, a page for people."""
        path = scope["path"]
        if path in self._straight or path in _WATCHED or path.startswith("/v1/"):
            return PlainTextResponse(f"{told}\n", status, headers=more)
        return bare_page(status, told, https=scope.get("scheme") == "https", headers=more)

    def _named(self, host: bytes) -> bool:
        """Whether a `Host` names us."""
        text = host.decode("latin-1").lower()
        return text in self._exact or _PORT.sub("", text) in self._any_port
