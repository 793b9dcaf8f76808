"""The short way of `POST /v1/calls`: the same answers as the front gives, for less.

Nearly every request is a call by somebody who made one before, with one `Authorization`, and JSON.
Such a one needs no route, no look at sessions, and no header but a few. It is checked here for all
that the front checks, by the same parts: whose the credential is, how often, how much and how long.
Whatever is unusual is the front's, before anything was done about it; what goes wrong, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import Receive, Scope, Send

from counterseal.web.api.bodies import MOST_BYTES, read_body
from counterseal.web.api.callers import Callers, Recalled
from counterseal.web.api.exchange import JSON, Exchange, House, Raw, request_id
from counterseal.web.api.front import CALLS, Front, answer_fault
from counterseal.web.api.limits import Limits
from counterseal.web.api.submitting import Submitting
from counterseal.web.connection import Connection

__all__ = ["ShortWay"]

_HEEDED: Final = frozenset({b"idempotency-key", b"prefer", b"traceparent", b"x-request-id"})
_NONE: Final[Mapping[str, str]] = {}
_KNOWN: Final = "counterseal.caller"
"""Where a scope that comes again has who sent it."""
_LINES: Final = b"x-request-id: %b\r\ncontent-type: %b\r\n"


class ShortWay:
    """An ASGI application before the front."""

    def __init__(
        self,
        front: Front,
        *,
        house: House,
        callers: Callers,
        limits: Limits,
        submitting: Submitting,
        patience: float,
    ) -> None:
        self._front = front
        self._house = house
        self._callers = callers
        self._limits = limits
        self._submitting = submitting
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _NONE
        known: Recalled | None = scope.get(_KNOWN)
        if known is None or not self._callers.hold(known):
            known, headers = self._look(scope)
        if known is None:
            await self._front(scope, receive, send)
            return
        # From here on it is ours: its turn is taken, and its body is read.
        caller = known.agent
        named = request_id(headers.get("x-request-id"))
        connection = Connection.of(scope)
        limit = None
        try:
            limit = self._limits.by_credential(caller.credential)
            body = None if connection is None else connection.body_of(scope)
            if body is None or len(body) > MOST_BYTES:
                body = await read_body(receive, _length(scope["headers"]), self._patience)
            answer = await self._submitting.submit(caller, headers, body, named)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
            exchange = Exchange(scope, send, self._house)
            exchange.request_id, exchange.caller, exchange.limit = named, caller, limit
            await answer_fault(exchange, error)
            return
        if connection is not None and answer.status == 200 and limit is None and not answer.headers:
            lines = _LINES % (named.encode(), answer.media)
            if connection.answer(scope, lines, answer.body):
                if headers is _NONE:
                    changed = scope.get(_KNOWN) is not known
                    scope[_KNOWN] = known
                    connection.keep(scope, changed=changed)
                return
        told: Raw = [(b"x-request-id", named.encode()), (b"content-type", answer.media)]
        if limit is not None:
            told.append(limit)
        told += (*answer.headers, (b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": told})
        await send({"type": "http.response.body", "body": answer.body})

    def _look(self, scope: Scope) -> tuple[Recalled | None, Mapping[str, str]]:
        """Who calls, and what a request says about the call; nobody, where it is the front's."""
        if (
            scope["type"] != "http"
            or scope["path"] != CALLS
            or scope["method"] != "POST"
            or scope["query_string"]
        ):
            return None, _NONE
        raw: Raw = scope["headers"]
        given = dict(raw)
        if len(given) != len(raw) or given.get(b"content-type") != JSON:
            return None, _NONE
        known = self._callers.recalled(given.get(b"authorization", b""))
        return known, _NONE if _HEEDED.isdisjoint(given) else _heeded(given)


def _length(raw: Raw) -> str:
    return dict(raw).get(b"content-length", b"0").decode("latin-1")


def _heeded(given: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """The headers that say something about a call."""
    return {
        name.decode(): value.decode("latin-1") for name, value in given.items() if name in _HEEDED
    }
