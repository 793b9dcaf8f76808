"""A service behind a tool that is one HTTP request, with faults on the way to it and back.

It takes the place of the network below the HTTP client: the request is the contract's own, byte for
byte, and so is the reading of the answer. There is no TLS, and no name is resolved.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import httpcore

from counterseal.canonical import steps
from counterseal.contract.model import Contract
from counterseal.execution.network import Network

_ADDRESS: Final = "93.184.215.14"
"""The address that every name resolves to; no connection is made to it."""


class WireFault(NamedTuple):
    """A failure between the HTTP client and the service."""

    name: str
    status: int = 0
    """An answer with this status, before the service has acted."""
    connect: Callable[[], Exception] | None = None
    read: Callable[[], Exception] | None = None
    acts: bool = False
    """Whether the service has acted when the answer fails to come."""


WIRE_FAULTS: Final = (
    WireFault("an HTTP answer of 503", status=503),
    WireFault("a connection that times out", connect=lambda: httpcore.ConnectTimeout("")),
    WireFault("a connection that is refused", connect=lambda: httpcore.ConnectError("")),
    WireFault("a connection reset before an answer", read=lambda: httpcore.ReadError("")),
    WireFault("an HTTP answer that is lost", read=lambda: httpcore.ReadError(""), acts=True),
    WireFault("no HTTP answer in time", read=lambda: httpcore.ReadTimeout(""), acts=True),
)


class WireService(httpcore.AsyncNetworkBackend):
    """The network and the service behind it. It honours keys."""

    def __init__(self, contract: Contract, output: Any, fault: WireFault, *, once: bool) -> None:
        self.attempts = 0
        self.effects: dict[str, int] = {}
        """How often it acted, by key; a request without one is under the empty text."""
        self._header = (contract.idempotency.key_header or "").lower()
        self._fault, self._once = fault, once
        body = output
        for step in reversed(steps(contract.http.response if contract.http else "")):
            body = {step: body}
        self._body = json.dumps(body).encode()

    @property
    def network(self) -> Network:
        async def resolve(_host: str, _port: int) -> Sequence[str]:
            return [_ADDRESS]

        return Network(resolve=resolve, connect=self)

    @property
    def failing(self) -> bool:
        return not (self._once and self.attempts > 1)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        del host, port, timeout, local_address, socket_options
        self.attempts += 1
        if self.failing and self._fault.connect is not None:
            raise self._fault.connect()
        return _Connection(self)

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a whole request; raise what the fault makes of it."""
        head = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in head)}
        fault = self._fault
        if self.failing and fault.status:
            return _response(fault.status, b"{}")
        if not self.failing or fault.acts or fault.read is None:
            self._act(headers.get(self._header, ""))
        if self.failing and fault.read is not None:
            raise fault.read()
        return _response(200, self._body)

    def _act(self, key: str) -> None:
        if not key or key not in self.effects:
            self.effects[key] = self.effects.get(key, 0) + 1


class _Connection(httpcore.AsyncNetworkStream):
    """One connection to the service; it is closed after one answer."""

    def __init__(self, service: WireService) -> None:
        self._service = service
        self._sent = b""
        self._answer: bytes | None = None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's signature
        del timeout
        self._sent += buffer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        del timeout
        if self._answer is None:
            self._answer = self._service.answer(self._sent)
        part, self._answer = self._answer[:max_bytes], self._answer[max_bytes:]
        return part

    async def aclose(self) -> None:
        """Close nothing: there is no socket."""

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> httpcore.AsyncNetworkStream:
        del ssl_context, server_hostname, timeout
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return nothing: there is no socket to know of."""
        del info


def _response(status: int, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
