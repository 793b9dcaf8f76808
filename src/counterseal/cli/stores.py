"""The store and the keys that a command works on: from its options, else from the project.

Every function here ends the command with an error if the store or the keys cannot be used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from counterseal.cli.options import STORE_VARIABLE
from counterseal.cli.project import project_settings_if_any
from counterseal.cli.render import fail, one_line

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.keys import KeyRing
    from counterseal.operations.operator import Operator
    from counterseal.registry import Registry
    from counterseal.storage import Store

T = TypeVar("T")

_EXAMPLE = '[store] url = "sqlite:///counterseal.db"'


# Looking -----------------------------------------------------------------------------------------


def with_store(given: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store without contracts, do the work, close it, and return the work's result."""
    import asyncio

    from counterseal.errors import CountersealError
    from counterseal.storage import open_store

    settings = None if given else project_settings_if_any()
    url = existing_store(given or (settings.store_url() if settings else None))

    async def run() -> T:
        store = open_store(url)
        try:
            await store.ready()
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except CountersealError as error:
        fail(one_line(str(error)))


def existing_store(url: str | None) -> str:
    """Return the URL of a store that exists: a command that only reads must not create one."""
    if url is None:
        fail(
            "No store is configured.",
            f"Write {_EXAMPLE} into counterseal.toml, or give --store URL, "
            f"or set {STORE_VARIABLE}.",
        )
    if url.startswith("memory:"):
        fail(
            "A store in memory belongs to one process; other processes can't read it.",
            f"Keep it in a file: {_EXAMPLE} in counterseal.toml.",
        )
    if url.startswith("sqlite:"):
        from counterseal.errors import CountersealError
        from counterseal.storage.sqlite.database import path_of

        try:
            file = path_of(url)
        except CountersealError as error:
            fail(str(error))
        if not file.is_file():
            fail(f"There is no store at {file}.", "The first call creates it.")
    return url


async def one_tenant(store: Store, given: str | None) -> str:
    """Return the given tenant, else the only tenant of the store."""
    if given is not None:
        return given
    tenants = await store.tenants()
    if not tenants:
        fail("The store has no events yet.", code=1)
    own = [name for name in tenants if name != "*"] or tenants  # "*" holds operators' changes
    if len(own) > 1:
        fail("The store has several tenants. Choose one with --tenant T.", _listed(tenants))
    return own[0]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"Tenants: {shown}{more}."


# Changing ----------------------------------------------------------------------------------------


def shared_store(settings: Settings, given: str | None) -> str:
    """Return the URL of the store that all workers share."""
    url = given or settings.store_url()
    if url is None or url.startswith("memory:"):
        fail(
            "The project has no store that workers share.",
            f"Write {_EXAMPLE} into {settings.file.name}, or give --store URL.",
        )
    return url


def operate(url: str, registry: Registry, by: str, act: Callable[[Operator], Awaitable[T]]) -> T:
    """Apply the store's registry changes to the registry, then do the operator's work."""
    import asyncio

    from counterseal.errors import CountersealError, StoreError
    from counterseal.operations.operator import Operator, catch_up
    from counterseal.storage import open_store

    async def run() -> T:
        store = open_store(url)
        try:
            await store.ready()
            await catch_up(store, registry)
            return await act(Operator(store, registry, by=by))
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StoreError as error:
        fail(str(error), code=1)
    except CountersealError as error:
        fail(str(error))


def load_registry(url: str, registry: Registry) -> Registry:
    """Return the registry with the changes of the store applied to it."""

    async def nothing(_: Operator) -> None:
        pass

    operate(url, registry, "-", nothing)
    return registry


def ask_reason(given: str | None) -> str:
    """Return the reason that was given, or ask for one."""
    reason: str = given or typer.prompt("Reason (kept on record)", err=True)
    return reason


# Keys --------------------------------------------------------------------------------------------


def keys_folder(given: Path | None) -> Path | None:
    """Return the folder of keys, existing or not; None if neither option nor project names one."""
    if given is not None:
        return given
    settings = project_settings_if_any()
    return settings.keys_path() if settings else None


def load_keys(given: Path | None) -> KeyRing:
    """Return the keys of the project; an empty ring if no folder is configured."""
    from counterseal.keys import KeyRing, KeysError

    folder = keys_folder(given)
    if folder is None:
        return KeyRing()
    try:
        return KeyRing.load(folder)
    except KeysError as error:
        fail(str(error))
