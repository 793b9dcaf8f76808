"""uvicorn's connections, for less: what is all there is handed over at once, both ways.

uvicorn writes the head of an answer and its content one after the other, and uvloop writes at once:
two system calls, two packets, and a client that wakes up twice. Here, what is written in one turn
of the event loop goes out at the end of that turn.

Whoever answers small requests all day can do without a message for each part of them: a connection
is found in the scope, gives a body that has come whole, and takes an answer that is. Whoever finds
everything in a scope as it was may have it again for the next request that has the same head.

And spaces around headers' values are no part of them (RFC 9110, 5.5): uvicorn's fast parser leaves
those at the end.
"""

from __future__ import annotations

from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from counterseal.web.head import Head, Heads
from counterseal.web.outbox import Gathering, Outbox
from counterseal.web.standby import Standby

__all__ = ["Connection"]

_KEY: Final = "counterseal.connection"
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_LARGE: Final = 16 * 1024
"""Bytes of a request that is not held until the next one comes."""
_HEADS: Final[WeakKeyDictionary[Config, Heads]] = WeakKeyDictionary()
"""Of each server."""


class Connection(HttpToolsProtocol):
    """To be given to uvicorn as `http`."""

    transport: Any
    scope: Any
    _common: tuple[object, bytes] = (None, b"")
    """The headers of all answers, as the server last had them, and as they are written."""
    _quiet_since: float | None = None
    """Since when nothing is asked; None while something is."""
    _between = True
    """Whether the parser has read all of a request, and nothing of the next."""
    _reading = False
    """Whether the parser is at work."""
    _next: tuple[Any, Any] | None = None
    """A request that was read in the meantime, and who is to answer it."""
    _standby: Standby
    _heads: Heads
    _piece: bytes | None = None
    """The last request, when it came whole, in one piece."""
    _head: Head | None = None
    """How the last request began, when its scope is not its own alone."""
    _kept: Head | None = None
    """With which head a request is to have the scope of the last."""
    repeated = 0
    """How many requests had the scope of another."""

    @classmethod
    def of(cls, scope: Scope) -> Self | None:
        """On which a request came; None where it came by another server."""
        return scope.get(_KEY)

    def body_of(self, scope: Scope) -> bytes | None:
        """The body of this request, when all of it is there; None: receive it."""
        cycle = self.cycle
        if cycle.scope is not scope or cycle.more_body or cycle.disconnected:
            return None
        return bytes(cycle.body)

    def answer(self, scope: Scope, headers: bytes, body: bytes) -> bool:
        """Write a whole answer, with the status 200. False: send it in the usual way.

        `headers` are lines as they are written; nobody looks at them any more.
        """
        cycle = self.cycle
        usual = cycle.scope is scope and cycle.keep_alive and not cycle.response_started
        if not usual or cycle.disconnected or self.flow.write_paused:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        known, common = self._common
        if known is not self.server_state.default_headers:
            known = self.server_state.default_headers
            common = b"".join(b"%b: %b\r\n" % one for one in known)
            self._common = (known, common)
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write_whole(b"".join((_OK, common, headers, length, body)))
        cycle.on_response()
        return True

    def keep(self, scope: Scope, *, changed: bool = False) -> None:
        """Have this scope again, when the next request begins with the same head.

        For who has just answered at once, does nothing more, and left in it what it may find there;
        `changed`: it was there before, as something else. On other connections it is found, too.
        """
        cycle = self.cycle
        at_once = cycle.response_complete and cycle.chunked_encoding is None
        if cycle.scope is not scope or not at_once:
            return
        if self._head is None and self._piece is not None:
            self._head = Head.of(self._piece)
            changed = True
        self._piece = None
        self._kept = self._head
        if changed and self._head is not None:
            self._heads.add(self._head, {**scope, _KEY: None})

    # --- for uvicorn ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        kept, self._kept = self._kept, None
        if kept is not None and self._takes_next():
            body = kept.body_in(data)
            if body is not None:
                self._begin_again(kept, body)
                return
            found = self._heads.found(data)
            if found is not None:
                self._head, scope, body = found
                self._have(scope)
                self._begin_again(self._head, body)
                return
        begins, self._head, self._piece = self._between, None, None
        self._reading = True
        try:
            super().data_received(data)
        finally:
            self._reading = False
        if begins and self._between and len(data) <= _LARGE:
            self._piece = data
        if self._next is not None:
            (cycle, app), self._next = self._next, None
            self._start_asgi_task(cycle, app)

    def _takes_next(self) -> bool:
        """Whether the next request would be begun at once."""
        cycle, most = self.cycle, self.limit_concurrency
        if not self._between or not cycle.response_complete or not cycle.keep_alive:
            return False
        return most is None or (len(self.connections) < most and len(self.tasks) < most)

    def _have(self, scope: dict[str, Any]) -> None:
        """Have a scope that another request had, which may have come on another connection."""
        own = {"client": self.client, "server": self.server, "scheme": self.scheme, _KEY: self}
        state, headers = self.app_state.copy(), [*scope["headers"]]
        self.scope = {**scope, **own, "state": state, "headers": headers}
        self.cycle.scope = self.scope

    def _begin_again(self, head: Head, body: bytes) -> None:
        """Begin a request in the place of the last, from which it differs by its body alone."""
        self._quiet_since = None
        self.repeated += 1
        cycle: Any = self.cycle
        cycle.scope["headers"][head.place] = (b"content-length", b"%d" % len(body))
        cycle.body = body
        cycle.response_started = cycle.response_complete = False
        cycle.default_headers = self.server_state.default_headers
        cycle.on_response = self.on_response_complete
        self._start_asgi_task(cycle, self.app)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._reading:
            self._next = (cycle, app)  # when all is read that has come: its body may be there, too
            return
        whole = cycle is self.cycle and not cycle.more_body
        if not whole or self.transport.is_closing() or self.config.reset_contextvars:
            super()._start_asgi_task(cycle, app)
            return
        task = self._standby.begin(cycle.run_asgi(app))
        if task is not None:
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def connection_made(self, transport: Any) -> None:
        gathering: Any = Gathering(transport, Outbox.of(self.loop))
        self._standby = Standby.of(self.loop)
        self._heads = _HEADS.setdefault(self.config, Heads())
        super().connection_made(gathering)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect":
            super().on_header(name, value.strip(b" \t"))
        else:
            self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.scope[_KEY] = self

    # One timer for as long as a connection is in use, instead of one for every answer.

    def _unset_keepalive_if_required(self) -> None:
        self._quiet_since = None

    def on_response_complete(self) -> None:
        if self.pipeline:
            super().on_response_complete()  # it begins the next one: nothing is quiet
            return
        if self.timeout_keep_alive_task is None:
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
        self._quiet_since = self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._quiet_since is None:
            return  # a request is on its way, or being answered: its end sets the timer again
        rest = self._quiet_since + self.timeout_keep_alive - self.loop.time()
        if rest > 0:
            again = self.loop.call_later(rest, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = again
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        super().connection_lost(exc)
