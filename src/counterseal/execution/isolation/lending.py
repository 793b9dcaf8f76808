"""What a tool is lent in a process of its own: clients, files, a logger, progress.

The counterpart of `services`, on the other side of the pipe: what is logged or reported becomes a
message to the runtime, which masks it and passes it on. What is cut here is masked before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterseal.contract.tool_context import Context
from counterseal.errors import FilesError
from counterseal.execution.isolation.cover import Cover
from counterseal.proposal import Principal

if TYPE_CHECKING:
    import asyncio

    import httpx

    from counterseal.execution.files import Files
    from counterseal.execution.network.clients import Clients

__all__ = ["Lent", "context_of"]

_LONGEST_RECORD = 8 * 1024
_CANCELLED = "CancelledError"

Send = Callable[[str, int, Any], None]


class Lent:
    """The services of one call, and the way to cancel it."""

    def __init__(self, send: Send, number: int, job: Mapping[str, Any]) -> None:
        self.cancelled = False
        self.number = number
        self.cover = Cover(job.get("secrets", {}))
        self._send = send
        self._job = job
        self._http: httpx.AsyncClient | None = None
        self._sync_http: httpx.Client | None = None
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    # Clients are made for each call: an async one can't outlive its event loop.

    @property
    def http(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = self._clients.client(self._egress, seconds=self._job["seconds"])
        return self._http

    @property
    def sync_http(self) -> httpx.Client:
        if self._sync_http is None:
            self._sync_http = self._clients.sync_client(self._egress, seconds=self._job["seconds"])
        return self._sync_http

    @cached_property
    def _clients(self) -> Clients:
        from counterseal.execution.network.clients import Clients  # noqa: PLC0415 - httpx is slow to import

        return Clients()

    @property
    def _egress(self) -> Any:
        from counterseal.contract.egress import Egress  # noqa: PLC0415 - only for who connects

        return Egress.from_record(self._job["egress"])

    @cached_property
    def files(self) -> Files:
        from counterseal.execution.files import Files  # noqa: PLC0415 - only for who has files

        if self._job["files"] is None:
            raise FilesError("this call was given no directory")
        return Files(Path(self._job["files"]))

    @cached_property
    def log(self) -> logging.LoggerAdapter[Any]:
        logger = logging.Logger("counterseal.tool")  # noqa: LOG001 - this call's own, not kept
        logger.addHandler(_ToRuntime(self._send, self.number, self.cover))
        return logging.LoggerAdapter(logger, {})

    def progress(self, done: float, total: float | None, message: str) -> None:
        self._send("progress", self.number, [done, total, _text(message, self.cover)])

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """The result of an async tool, in an event loop of its own."""
        import asyncio  # noqa: PLC0415 - only async tools need it

        async def main() -> Any:
            task = asyncio.current_task()
            if task is not None:
                self._task = (asyncio.get_running_loop(), task)
            if task is not None and self.cancelled:
                task.cancel()
            try:
                return await awaitable
            finally:
                if self._http is not None:
                    await self._http.aclose()
                    await self._clients.aclose()

        return asyncio.run(main())

    def cancel(self) -> None:
        """Called from another thread than the tool's."""
        self.cancelled = True
        if self._task is not None:
            loop, task = self._task
            with suppress(RuntimeError):  # the loop is closed: the tool has just ended
                loop.call_soon_threadsafe(task.cancel)

    def ended_by(self, error: BaseException) -> bool:
        """Whether this is how an async tool ends that was cancelled."""
        return self.cancelled and self._task is not None and type(error).__name__ == _CANCELLED

    def close(self) -> None:
        if self._sync_http is not None:
            self._sync_http.close()
            self._clients.close()
            self._sync_http = None


class _ToRuntime(logging.Handler):
    def __init__(self, send: Send, number: int, cover: Cover) -> None:
        super().__init__()
        self._cover = cover
        self._to = send
        self._number = number

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = _text(self.format(record), self._cover)
            self._to("log", self._number, [record.levelno, text])
        except Exception:  # noqa: BLE001 - logging never fails the call
            self.handleError(record)


def _text(value: object, cover: Cover) -> str:
    return cover.beginning(str(value), _LONGEST_RECORD).encode(errors="replace").decode()


def context_of(fields: Mapping[str, Any], lent: Lent) -> Context:
    """The context of a call, from plain data."""
    deadline = fields.get("deadline")
    return Context(
        **{
            **fields,
            "principal": Principal(**fields["principal"]),
            "deadline": datetime.fromisoformat(deadline) if deadline else None,
            "services": lent,
        }
    )
