"""What a running tool is lent: clients, files, a logger, progress. Made on first use.

For tools that run in this process; those in a process of their own have the worker's services.
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
from counterseal.contract.surroundings import Context
from counterseal.execution.attempt import Progress, ProgressCallback
from counterseal.execution.files import Files
from counterseal.execution.logs import call_logger
from counterseal.masking import Mask

if TYPE_CHECKING:
    import httpx

    from counterseal.execution.network import Clients

__all__ = ["LocalServices", "progress_of"]

_LONGEST_MESSAGE = 500


class LocalServices:
    """The services of one call. `close` gives back what was lent."""

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
            self._http = self._lent_clients().client(self._egress, seconds=self._seconds)
        return self._http

    @property
    def sync_http(self) -> httpx.Client:
        if self._sync_http is None:
            self._sync_http = self._lent_clients().sync_client(self._egress, seconds=self._seconds)
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
        tell = self._tell  # another thread may close this meanwhile
        if tell is None or self.cancelled:
            return
        report = progress_of(self._about.call_id, done, total, message, self._mask)
        if threading.get_ident() == self._thread:
            tell(report)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell, report)

    async def close(self) -> None:
        """Close the clients of this call; what they were lent stays open for the next."""
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

    def _lent_clients(self) -> Clients:
        if self._closed:
            raise RuntimeError("the call is over; its clients are closed")
        if self._clients is None:
            self._clients = self._make_clients()
        return self._clients


def progress_of(call_id: str, done: Any, total: Any, message: Any, mask: Mask) -> Progress:
    """A report as a caller may see it: numbers that are numbers, words without secrets."""
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
