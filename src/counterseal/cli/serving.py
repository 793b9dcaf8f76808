"""What `mcp` and `serve` have in common: the gateway's libraries, and an end that is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterseal.cli.output import fail, note, one_line
from counterseal.cli.stores import STORE_VARIABLE

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from counterseal.config import Settings
    from counterseal.proposal import Principal

__all__ = [
    "StoreToServe",
    "declared_agent",
    "need_gateway",
    "run_until_stopped",
    "tell",
    "tidy_memory",
    "usable",
]

StoreToServe = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        help="The store.  [default: as in counterseal.toml]",
    ),
]


def need_gateway(*packages: str) -> None:
    """End the command where what it needs is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        fail(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            "Install what the gateway needs: pip install 'counterseal[gateway]'",
        )


def declared_agent(settings: Settings, name: str, option: str) -> Principal:
    """Who `[agents.NAME]` is. Nobody is made up here: whoever comes in acts as them."""
    from counterseal.proposal import Principal

    declared = settings.agents.get(name)
    if declared is None or declared.tenant is None:
        what = "has no tenant" if declared else f"is not in {settings.file.name}"
        fix = f'Write [agents.{name}] tenant = "T" into {settings.file.name}.'
        others = [] if declared else sorted(settings.agents)
        fail(
            f"{option} {name}: the agent {what}.",
            f"Declared are: {', '.join(others)}. {fix}" if others else fix,
        )
    try:
        return Principal(agent=name, **dict(declared))
    except ValueError as error:
        fail(str(error))


def tell(text: str) -> None:
    """Progress, line by line."""
    note(one_line(text))


@contextmanager
def usable() -> Iterator[None]:
    """End the command with every problem that keeps the project from being served."""
    from counterseal.errors import ContractError, CountersealError
    from counterseal.policy import PolicyError

    try:
        yield
    except (ContractError, PolicyError) as error:
        for problem in error.problems:
            note(one_line(str(problem)))
        count = len(error.problems)
        fail(f"{count} problem{'' if count == 1 else 's'}; nothing is served.")
    except CountersealError as error:
        fail(str(error))


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends by itself or somebody ends it: then it may put things in order.

    The first SIGINT or SIGTERM cancels it, the second ends the process at once. What has handlers
    of its own for them, once it serves, ends in its own way.
    """
    import asyncio
    import signal

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        asked = False

        def stop() -> None:
            nonlocal asked
            if asked:
                os._exit(1)
            asked = True
            tell("stopping")
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            # Where a loop can't do that (Windows), Ctrl-C is a KeyboardInterrupt.
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, stop)
        try:
            await task
        except asyncio.CancelledError:
            if not asked:
                raise

    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(watched())


def tidy_memory() -> None:
    """What is there by now stays, and need not be looked through again and again for garbage."""
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """The faster event loop, where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    made: Callable[[], AbstractEventLoop] = uvloop.new_event_loop
    return made
