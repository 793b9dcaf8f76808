"""Whoever changes something for every worker: the store, who they are, and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from counterseal.cli.output import fail

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.operations.operator import Operator
    from counterseal.registry import Registry

__all__ = ["AsJson", "By", "Reason", "Store", "address", "just_look", "operate", "why"]

T = TypeVar("T")

Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; asked for if not given.")
]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who.  [default: your user name]")
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The store.  [default: as in counterseal.toml]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def address(settings: Settings, given: str | None) -> str:
    """The store that workers share; the command ends where there is none."""
    url = given or settings.store_url()
    if url is None or url.startswith("memory:"):
        fail(
            "There is no store that workers share.",
            f'Write [store] url = "sqlite:///calls.db" into {settings.file.name}, '
            "or give --store URL.",
        )
    return url


def operate(url: str, registry: Registry, by: str, act: Callable[[Operator], Awaitable[T]]) -> T:
    """Do something with the store, having caught up with it; the command ends where it can't."""
    import asyncio

    from counterseal.errors import CountersealError, StoreError
    from counterseal.operations.operator import Operator, catch_up
    from counterseal.storage import open_store

    async def opened() -> T:
        store = open_store(url)
        try:
            await store.ready()
            await catch_up(store, registry)
            return await act(Operator(store, registry, by=by))
        finally:
            await store.close()

    try:
        return asyncio.run(opened())
    except StoreError as error:
        fail(str(error), code=1)
    except CountersealError as error:
        fail(str(error))


async def just_look(_: Operator) -> None:
    """Catching up was all."""


def why(reason: str | None) -> str:
    """The reason that was given, else the one that is asked for."""
    asked: str = reason or typer.prompt("Why? The next person will read it", err=True)
    return asked
