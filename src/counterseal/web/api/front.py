"""The way of a request: who makes it, how often, from which page, with what body; then its route.

Everything that holds for all routes is done here once, before anything of the body is believed.
Whatever goes wrong on the way, and wherever, is answered as a problem.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from counterseal.canonical import pointer
from counterseal.web.api.bodies import GoneError, is_json, read_body, refuse_unsound, replayed
from counterseal.web.api.callers import Callers
from counterseal.web.api.exchange import Answer, Exchange, House
from counterseal.web.api.limits import Limits
from counterseal.web.api.problems import ProblemError
from counterseal.web.api.submitting import Submitting

__all__ = ["CALLS", "DOCUMENT", "EXCHANGE", "INTERNAL", "Front", "methods_at", "refuse_strange"]

EXCHANGE: Final = "counterseal.exchange"
"""Where routes find it in the scope."""
DOCUMENT: Final = "/v1/openapi.json"
CALLS: Final = "/v1/calls"
_APART: Final = {DOCUMENT: ("GET",), CALLS: ("POST",)}
"""What is answered here, and is no route."""
_LISTS: Final = ("type",)
"""Parameters that may come several times."""
_BODIES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_PATIENCE: Final = 20.0
"""Seconds within which a body has to be there."""
_log = logging.getLogger("counterseal.gateway")

INTERNAL: Final = "It is on record here under this request's id."


class Front:
    """An ASGI application before the routes of another one."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        house: House,
        callers: Callers,
        limits: Limits,
        submitting: Submitting,
        document: Callable[[], bytes],
        patience: float = _PATIENCE,
    ) -> None:
        self._app = app
        self._house = house
        self._callers = callers
        self._limits = limits
        self._submitting = submitting
        self._document = document
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, send, self._house)
        try:
            await self._pass(exchange, scope, receive)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
            await answer_fault(exchange, error)

    async def _pass(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        method, path = exchange.method, scope["path"]
        client = scope.get("client")
        if path == DOCUMENT and method in ("GET", "HEAD"):
            self._limits.by_address(client[0] if client else "")
            await exchange.answer(Answer(200, self._document()))
            return
        try:
            caller = await self._callers.known(HTTPConnection(scope), exchange.headers, method)
        except ProblemError as problem:
            if problem.code == "unauthenticated":
                self._limits.by_address(client[0] if client else "")
            raise
        exchange.caller = caller
        exchange.limit = self._limits.by_credential(caller.credential)
        _refuse_repeated(scope["query_string"])
        if method == "OPTIONS":
            await exchange.answer(self._options(scope))
            return
        body = b""
        if method in _BODIES:
            length = exchange.headers.get("content-length", "0")
            body = await read_body(receive, length, self._patience)
            if body and not is_json(exchange.headers.get("content-type")):
                told = "Content-Type: takes application/json, in UTF-8."
                raise ProblemError(
                    "unsupported-media-type", told, param="/content-type", where="header"
                )
            if path == CALLS and method == "POST":
                refuse_strange(_names(scope["query_string"]), ())
                # What is asked for most takes the shortest way: the routes' would cost more than
                # all gates together.
                await exchange.answer(
                    await self._submitting.submit(
                        caller, exchange.headers, body, exchange.request_id
                    )
                )
                return
            if body:
                refuse_unsound(body)
        inner = {**scope, EXCHANGE: exchange}
        if method == "HEAD":
            inner["method"] = "GET"
        await self._app(inner, replayed(body, receive), exchange.send)

    def _options(self, scope: Scope) -> Answer:
        allowed = methods_at(self._house.routes, scope)
        if not allowed:
            raise ProblemError("not-found", "There is nothing at this path.")
        return Answer(204, b"", ((b"allow", allowed.encode()),))


async def answer_fault(exchange: Exchange, error: Exception) -> None:
    """What is told of something that went wrong on the way. Half an answer ends with the error."""
    if isinstance(error, ProblemError):
        await exchange.refuse(error)
    elif not isinstance(error, GoneError):
        _log.error("request %s failed", exchange.request_id, exc_info=error)
        if exchange.begun and not exchange.ended:
            raise error  # half an answer must not look like a whole one
        if not exchange.begun:
            await exchange.refuse(ProblemError("internal", INTERNAL))


def _refuse_repeated(query: bytes) -> None:
    """Of a parameter that comes twice, everybody on the way may take another one."""
    if b"&" not in query:
        return
    names = _names(query)
    twice = next((name for name in names if name not in _LISTS and names.count(name) > 1), None)
    if twice is not None:
        told = f"{twice[:100]}: comes twice."
        raise ProblemError("invalid-request", told, param=pointer(twice[:100]), where="query")


def _names(query: bytes) -> list[str]:
    return [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]


def refuse_strange(given: Iterable[str], known: Sequence[str]) -> None:
    """A parameter that nobody reads would make an answer look narrower than it is."""
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        named, told = strange[:100], ", ".join(known) or "none"
        raise ProblemError(
            "invalid-request",
            f"{named}: is no parameter of this. There are: {told}.",
            param=pointer(named),
            where="query",
            known=list(known),
        )


def methods_at(routes: Sequence[Route], scope: Scope) -> str:
    """By which methods a path can be reached; empty: it is none of ours."""
    found = set(_APART.get(scope["path"], ()))
    there = [route for route in routes if route.path_regex.match(scope["path"])]
    exact = [route for route in there if route.path == scope["path"]]
    for route in exact or there:  # a word of ours is nobody's id
        found |= route.methods or set()
    if not found:
        return ""
    return ", ".join(sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set())))
