"""Where requests for approval are decided from: the project's runtime, and the person who decides.

The runtime stays open while a person reads, on one event loop that stands still meanwhile; so that
Ctrl-C at a question is a plain Ctrl-C.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from counterseal.cli.output import fail, one_line
from counterseal.cli.stores import STORE_VARIABLE
from counterseal.cli.trying import opened, user_name

if TYPE_CHECKING:
    import asyncio

    from counterseal.approvals.votes import Voter
    from counterseal.config import Settings
    from counterseal.runtime import Runtime
    from counterseal.storage.base import Held

__all__ = ["Desk", "Person", "at_desk", "person_of"]

T = TypeVar("T")


class Desk:
    """The project's runtime, and a way to run something on it."""

    def __init__(self, runtime: Runtime, runner: asyncio.Runner) -> None:
        self.runtime = runtime
        self._runner = runner

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @property
    def has_keys(self) -> bool:
        """Whether approvals have to be signed here."""
        ring = self.runtime.keys
        return ring is not None and any(key.purpose == "approval" for key in ring.keys)

    async def find(
        self, approval_id: str, tenant: str | None, seen: Sequence[str] | None = None
    ) -> Held:
        """The request of this id, whosever it is. `seen` are the tenants that may be looked at."""
        from counterseal.operations.approver import ApprovalError

        approvals = self.runtime.approvals
        named = await self.runtime.store.tenants() if tenant is None else [tenant]
        for one in named:
            if seen is None or one in seen:
                try:
                    return await approvals.find(one, approval_id)
                except ApprovalError as error:
                    if error.why != "unknown":
                        raise
        raise ApprovalError("unknown", "There is no such request.")


@contextmanager
def at_desk(settings: Settings, store: str | None) -> Iterator[Desk]:
    """The project opened on its store; the command ends with the reason where that can't be."""
    import asyncio

    from counterseal.config.tables import NotificationsTable
    from counterseal.errors import CountersealError

    _refuse_storeless(settings, store or os.environ.get(STORE_VARIABLE) or settings.store_url())
    # Nobody is notified from here, so nobody needs the secret that notices are signed with.
    quiet = settings.model_copy(update={"notifications": NotificationsTable()})
    runtime = opened(quiet, store)
    try:
        with asyncio.Runner() as runner:
            runner.run(runtime.__aenter__())
            try:
                yield Desk(runtime, runner)
            finally:
                runner.run(runtime.__aexit__(None, None, None))
    except CountersealError as error:
        fail(one_line(str(error)), code=1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _refuse_storeless(settings: Settings, url: str | None) -> None:
    """Looking for requests must not make a store to look at."""
    if url is None:
        fail(
            "No store is configured, so there are no requests to decide on.",
            f'Write [store] url = "sqlite:///counterseal.db" into {settings.file.name}, '
            f"or give --store URL, or set {STORE_VARIABLE}.",
        )
    if url.startswith("memory:"):
        fail(
            "A store in memory is its program's own; nobody else can decide there.",
            f'Keep it in a file: [store] url = "sqlite:///counterseal.db" in {settings.file.name}.',
        )
    if url.startswith("sqlite:"):
        from counterseal.errors import CountersealError
        from counterseal.storage.sqlite.database import path_of

        try:
            file = path_of(url)
        except CountersealError as error:
            fail(str(error))
        if not file.is_file():
            fail(f"There is no store at {file}.", "The first call that is made on it makes it.")


# Who decides -------------------------------------------------------------------------------------


class Person:
    """Somebody whom the file declares as an approver."""

    def __init__(self, name: str, roles: Sequence[str], tenants: Sequence[str] | None) -> None:
        self.name = name
        self.tenants = tenants
        self._roles = roles

    def voter(self, tenant: str) -> Voter:
        from counterseal.approvals.votes import Voter

        return Voter(user=self.name, tenant=tenant, roles=frozenset(self._roles))


def person_of(settings: Settings, given: str | None) -> Person:
    """The person who was named, else whoever is logged in; the file has to know them."""
    name = given or user_name("--as")
    table = settings.approvers.get(name)
    if table is None:
        _fail_undeclared(settings, name, named=given is not None)
    return Person(name, table.roles, table.tenants)


def _fail_undeclared(settings: Settings, name: str, *, named: bool) -> NoReturn:
    who = f"{name!r} is" if named else f"You are {name!r}, who is"
    key = (
        name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else f'"{name}"'
    )
    declared = ", ".join(sorted(settings.approvers))
    others = f" Declared are: {declared}." if declared else ""
    otherwise = "" if named else ", or say who decides with --as NAME"
    fail(
        one_line(f"{who} no approver in {settings.file.name}."),
        one_line(f"Write [approvers.{key}] and their roles = [] into it{otherwise}.{others}"),
    )
