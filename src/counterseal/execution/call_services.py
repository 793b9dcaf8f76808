"""The services behind a tool's `Context`: HTTP clients, files, a logger, progress.

For tools that run in this process. Tools in another process get theirs from `isolation.worker`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterseal.contract.egress import Egress
from counterseal.contract.tool_context import Context
from counterseal.execution.attempt import Progress, ProgressCallback
from counterseal.execution.files import Files
from counterseal.execution.logs import call_logger
from counterseal.masking import Mask

if TYPE_CHECKING:
    import httpx

    from counterseal.execution.network import Clients

_LONGEST_MESSAGE = 500


class LocalServices:
    """The services of one call, each made on first use. `close` ends them with the call."""

    cancelled = False

    def __init__(
        self,
        about: Context,
        *,
        tool: str,
        egress: Egress,
        seconds: float,
        mask: Mask,
        clients: Callable[[], Clients],
        directory: Callable[[], Path],
        tell: ProgressCallback | None,
        own_clients: bool = False,
    ) -> None:
        self._about = about
        self._tool = tool
        self._egress = egress
        self._seconds = seconds
        self._mask = mask
        self._make_clients = clients
        self._clients: Clients | None = None
        self._own_clients = own_clients
        self._closed = False
        self._directory = directory
        self._tell = tell
        self._loop = None if tell is None else asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._http: httpx.AsyncClient | None = None
        self._sync_http: httpx.Client | None = None
        self._files: Files | None = None
        self._log: logging.LoggerAdapter[Any] | None = None

    @property
    def http(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = self._open_clients().client(self._egress, seconds=self._seconds)
        return self._http

    @property
    def sync_http(self) -> httpx.Client:
        if self._sync_http is None:
            self._sync_http = self._open_clients().sync_client(self._egress, seconds=self._seconds)
        return self._sync_http

    @property
    def files(self) -> Files:
        if self._files is None:
            self._files = Files(self._directory())
        return self._files

    @property
    def log(self) -> logging.LoggerAdapter[Any]:
        if self._log is None:
            about = self._about
            self._log = call_logger(
                self._mask,
                tenant=about.tenant,
                run_id=about.run_id,
                call_id=about.call_id,
                tool=self._tool,
            )
        return self._log

    def progress(self, done: float, total: float | None, message: str) -> None:
        tell = self._tell  # another thread may close the services at the same time
        if tell is None or self.cancelled:
            return
        report = progress_of(self._about.call_id, done, total, message, self._mask)
        if threading.get_ident() == self._thread:
            tell(report)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell, report)

    async def close(self) -> None:
        """Close the clients of this call. Pooled connections stay open for the next call."""
        self._tell = None
        self._closed = True
        try:
            if self._http is not None:
                await self._http.aclose()
            if self._sync_http is not None:
                self._sync_http.close()
            if self._own_clients and self._clients is not None:
                await self._clients.aclose()
                self._clients = None
        except Exception:
            self.log.warning("a connection could not be closed", exc_info=True)

    def _open_clients(self) -> Clients:
        if self._closed:
            raise RuntimeError("the call has ended, and its HTTP clients are closed")
        if self._clients is None:
            self._clients = self._make_clients()
        return self._clients


def progress_of(call_id: str, done: Any, total: Any, message: Any, mask: Mask) -> Progress:
    """Return a progress report for the caller: finite numbers, and text without secrets."""
    return Progress(
        call_id, _number(done) or 0.0, _number(total), mask.text(str(message))[:_LONGEST_MESSAGE]
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
