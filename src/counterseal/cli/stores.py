"""The store and the keys that a command works on: as given, else as the project says."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from counterseal.cli.output import Progress, fail, one_line, safe

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.keys import KeyRing
    from counterseal.storage import Store

__all__ = [
    "STORE_VARIABLE",
    "Counting",
    "KeysFolder",
    "StoreUrl",
    "keys_folder",
    "one_tenant",
    "ring_of",
    "with_store",
]

T = TypeVar("T")

STORE_VARIABLE = "COUNTERSEAL_STORE"

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        help="The store to look at.  [default: as in counterseal.toml]",
    ),
]
KeysFolder = Annotated[
    Path | None,
    typer.Option(
        "--keys", metavar="FOLDER", help="Where the keys are.  [default: as in counterseal.toml]"
    ),
]


def with_store(given: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the store, and nothing with tools. Ends the command where it can't."""
    import asyncio

    from counterseal.errors import CountersealError
    from counterseal.storage import open_store

    url = given or _configured()
    _refuse_empty(url)

    async def opened() -> T:
        store = open_store(url)
        try:
            await store.ready()
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(opened())
    except CountersealError as error:
        fail(one_line(str(error)))


def _configured() -> str:
    settings = _settings()
    url = settings.store_url() if settings else None
    if url is None:
        fail(
            "No store is configured.",
            'Write [store] url = "sqlite:///counterseal.db" into counterseal.toml, or give'
            f" --store URL, or set {STORE_VARIABLE}.",
        )
    return url


def _refuse_empty(url: str) -> None:
    """Looking must not make what is looked for."""
    if url.startswith("memory:"):
        fail(
            "A store in memory is gone when its program ends; there is nothing to look at.",
            'Keep it in a file: [store] url = "sqlite:///counterseal.db" in counterseal.toml.',
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


def _settings() -> Settings | None:
    from counterseal.config import ConfigError, find_config, load_settings

    file = find_config(Path.cwd())
    if file is None:
        return None
    try:
        return load_settings(file)
    except ConfigError as error:
        fail(str(error))


async def one_tenant(store: Store, given: str | None) -> str:
    """The one that was named, else the only one there is."""
    if given is not None:
        return given
    tenants = await store.tenants()
    if not tenants:
        fail("Nothing is on record yet.", code=1)
    own = [name for name in tenants if name != "*"] or tenants  # operators' changes are there
    if len(own) > 1:
        fail("Say which tenant, with --tenant T.", f"There are: {_listed(tenants)}.")
    return own[0]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def keys_folder(given: Path | None) -> Path | None:
    """The folder of keys, whether it is there or not; None when nobody named one."""
    if given is not None:
        return given
    settings = _settings()
    return settings.keys_path() if settings else None


def ring_of(given: Path | None) -> KeyRing:
    """The keys of the project; none where it has none."""
    from counterseal.keys import KeyRing, KeysError

    folder = keys_folder(given)
    if folder is None:
        return KeyRing()
    try:
        return KeyRing.load(folder)
    except KeysError as error:
        fail(str(error))


class Counting(Progress):
    """Says on stderr how far a long piece of work is, where a person waits."""

    def say(self, text: str) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._started > 1:
            self._shown = True
            print(f"\r\x1b[K{safe(text)[:79]}", end="", file=sys.stderr, flush=True)
