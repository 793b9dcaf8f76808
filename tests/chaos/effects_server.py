"""The world outside: a process of its own that performs effects and counts them in its own file.

python effects_server.py FILE; says its port on stdout, and ends with whoever started it. It knows
nothing of Counterseal. An effect is one line of the file, on the disk before anybody is answered.

    POST /keyed/WHAT     performs once for each Idempotency-Key, as a payment service does
    POST /plain/WHAT     performs every request that it gets, whatever its key
    GET  /effects?what=&key=     what was performed under a key, or 404
    POST /plans          what is to happen to whoever asks for an effect next; see `Plan`
    GET  /drained        answers when no earlier request is under way any more

A request carries its deadline, and is not performed after it. What `read_back` promises rests on a
destination where nothing lies around for longer than that; a slow machine must not break it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Plan(NamedTuple):
    """What happens to the next request for an operation, once."""

    kill: str = ""
    """When its sender is killed: `before` it is performed, or `after`."""
    perform: bool = True
    """Whether it is performed at all; a request may get lost."""
    stop: float = 0.0
    """For how many seconds its sender is stopped, instead of killed, at that moment."""
    delay: float = 0.0
    """How long it lies around before it is performed."""
    hang_up: bool = False
    """Whether the connection is closed without an answer."""


_NONE = Plan()


class World:
    """What was performed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._plans: dict[tuple[str, str], list[Plan]] = {}

    def plan(self, what: str, op: str, plan: Plan) -> None:
        with self._lock:
            self._plans.setdefault((what, op), []).append(plan)

    def planned(self, what: str, op: str) -> Plan:
        with self._lock:
            plans = self._plans.get((what, op))
            return plans.pop(0) if plans else _NONE

    def find(self, what: str, key: str) -> dict[str, Any] | None:
        return self._found.get((what, key))

    def perform(
        self, what: str, op: str, key: str, *, keyed: bool, deadline: float
    ) -> dict[str, Any] | None:
        """What came of it; None when it came too late."""
        with self._lock:
            before = self._found.get((what, key))
            performed = not (keyed and before)
            if performed and time.time() > deadline:
                self._write({"late": what, "op": op, "key": key})
                return None
            effect = {"op": op, "receipt": f"{what}_{len(self._found)}"} if performed else before
            self._found[what, key] = effect or {}
            self._write({"what" if performed else "again": what, "op": op, "key": key})
            return effect

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps({**line, "at": time.time()}).encode() + b"\n")
        os.fdatasync(self._file)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def handle(self) -> None:
        # Looked at before it is read: a request is under way from its first byte on.
        self.request.recv(1, socket.MSG_PEEK)
        self.server.begun.add(self.request)
        super().handle()

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        if len(body) < size:
            return None  # killed before it had sent all of it
        sent = json.loads(body)
        if self.path == "/plans":
            what, op = sent.pop("what"), sent.pop("op")
            self.server.world.plan(what, op, Plan(**sent))
            return self._answer(200, {})
        mode, what = self.path.strip("/").split("/")
        return self._effect(what, sent["op"], keyed=mode == "keyed")

    def _effect(self, what: str, op: str, *, keyed: bool) -> None:
        world, plan = self.server.world, self.server.world.planned(what, op)
        key = self.headers["Idempotency-Key"]
        if plan.kill == "before":
            self._strike(plan)
        if plan.delay:
            time.sleep(plan.delay)
        effect: dict[str, Any] | None = None
        if plan.perform:
            deadline = float(self.headers.get("Deadline") or "inf")
            effect = world.perform(what, op, key, keyed=keyed, deadline=deadline)
        if plan.kill == "after":
            self._strike(plan)
        if plan.hang_up or not plan.perform:
            return None
        return self._answer(409, {}) if effect is None else self._answer(200, effect)

    def _strike(self, plan: Plan) -> None:
        """Kill whoever sent this, or stop it for a while: at exactly this moment."""
        worker = int(self.headers["Worker"].rpartition("-")[2])
        with suppress(ProcessLookupError):
            if not plan.stop:
                os.kill(worker, signal.SIGKILL)
                return
            os.kill(worker, signal.SIGSTOP)
            threading.Timer(plan.stop, _wake, (worker,)).start()

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/drained":
            return self._answer(200, {"left": self.server.left(self.request, 120.0)})
        given = {name: values[0] for name, values in parse_qs(asked.query).items()}
        effect = self.server.world.find(given["what"], given["key"])
        return self._answer(404, {}) if effect is None else self._answer(200, effect)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        with suppress(OSError):  # whoever asked may be dead
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _wake(worker: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)


class Server(ThreadingHTTPServer):
    """A connection for every request; they are numbered in the order in which they came."""

    request_queue_size = 512
    daemon_threads = True

    def __init__(self, world: World) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.world = world
        self._came = 0
        self._open: dict[Any, int] = {}
        self.begun: set[Any] = set()
        """Those of which something was read. A client may open a connection, and never use it."""
        self._changed = threading.Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._came += 1
            self._open[request] = self._came
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._over(request)

    def _over(self, request: Any) -> int:
        with self._changed:
            self._changed.notify_all()
            self.begun.discard(request)
            return self._open.pop(request, 0)

    def left(self, request: Any, seconds: float) -> list[str]:
        """Wait until everything that came before this request is over. Who is left after that."""
        mine = self._over(request)

        def left() -> list[Any]:
            return [one for one, number in self._open.items() if number < mine and self._sent(one)]

        with self._changed:
            if self._changed.wait_for(lambda: not left(), seconds):
                return []
            return [str(one) for one in left()]

    def _sent(self, request: Any) -> bool:
        if request in self.begun:
            return True
        with suppress(OSError, ValueError):  # closed at this very moment
            return bool(select.select([request], [], [], 0)[0])
        return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that dies in the middle of its request is what this is for."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    serving = Server(World(sys.argv[1]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(serving.server_port, flush=True)  # noqa: T201 - whoever started it reads this
    serving.serve_forever(poll_interval=3600)
