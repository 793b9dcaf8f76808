"""The client in front: the program that an agent speaks to us through, where a tool may reach it.

A tool that needs a person's answer, or a model's, in the middle of its work asks the client for it.
In plain JSON, in the words of MCP, so that nothing here needs its types. Who has no client in front
(a call that a reconciler takes up, a library without a gateway) is told so. No answer of a client's
is ever an approval: those come from people who have signed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

from counterseal.errors import CountersealError

__all__ = ["ASKER", "CLIENT", "Client", "RefusedError", "client"]


class RefusedError(CountersealError):
    """The client can't be asked that, or would not answer. `missing` names what it can't do."""

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class Client(Protocol):
    """What the client in front can be asked for, while a call of its own runs."""

    @property
    def traceparent(self) -> str | None: ...

    def can(self, capability: str) -> bool:
        """Whether it does `elicitation`, `elicitation.url`, `sampling` or `roots`."""

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        """Its answer to `elicitation/create`, `sampling/createMessage` or `roots/list`.

        `name` tells this question from others of the same call. RefusedError when there is none.
        """

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Tell it something on the way, if it wants to know."""


CLIENT: Final[ContextVar[Client | None]] = ContextVar("counterseal_client", default=None)
"""Set around a call by whoever serves clients."""


ASKER: Final[ContextVar[str]] = ContextVar("counterseal_asker", default="")
"""Whose question it is, where it is not the tool's own: people are told who wants to know."""


class _Nobody:
    """Stands where there is no client."""

    traceparent: str | None = None

    def can(self, capability: str) -> bool:
        return False

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        raise RefusedError("there is no client in front of this call that could be asked")

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        pass


_NOBODY: Final = _Nobody()


def client() -> Client:
    """The client of the call that is running here."""
    return CLIENT.get() or _NOBODY
