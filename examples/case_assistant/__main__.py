"""The case assistant: three agents, two offices, approvers, and Counterseal in between.

    python examples/case_assistant            # until Ctrl-C; decide in the console
    python examples/case_assistant --auto     # scripted approvers decide; ends with a summary

`stage.world` starts the processes and keeps the files. `crew.plot` and `crew.scripted` hold the
story. `stage.invariants` checks what must never happen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

from crew.agent import OutOfReachError
from crew.language import Language
from crew.model import Model
from crew.plot import LANGUAGE, SCRIPTED, judge
from crew.scripted import Scripted
from office.register import BOOKS
from project import TENANTS
from stage.day import Day
from stage.invariants import check
from stage.people import EAST, NORTH, PEOPLE, READER, decide
from stage.story import Story
from stage.summary import gather, settled, table, total
from stage.trouble import Trouble
from stage.world import World

from counterseal.client import Client, ProblemError

HELD, VIOLATED, TROUBLE, STOPPED = 0, 1, 2, 130
"""Exit codes: the invariants held; one did not; it could not run; it was interrupted."""


def main() -> int:
    options = _options()
    story = Story(sys.stderr if options.json else sys.stdout)
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ["NO_PROXY"] = "127.0.0.1"  # all traffic stays on this machine
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # lost connections are part of the story
    try:
        model: Model = Language() if options.model == "smollm2" else Scripted()
        with ExitStack() as stack:
            with story.progress("Starting the mail server, the gateway and its console."):
                world = stack.enter_context(
                    World.open(
                        options.home.absolute(),
                        postgres=options.postgres,
                        port=options.port,
                        fresh=options.fresh,
                        tell=story.say,
                    )
                )
            return asyncio.run(show(world, story, model, options))
    except (Trouble, OutOfReachError, ProblemError) as error:
        story.say(str(error), "red")
        if not isinstance(error, Trouble):
            story.say(f"What the gateway has to say is in {_short(options.home)}/logs.")
        return TROUBLE
    except KeyboardInterrupt:
        story.say("\nStopped. Start it again, and it goes on where it was.")
        return STOPPED


async def show(world: World, story: Story, model: Model, options: argparse.Namespace) -> int:
    """Run the whole story. Only with --auto does it end by itself."""
    tasks = LANGUAGE if isinstance(model, Language) else SCRIPTED
    day = Day(world, story, model, tasks)
    async with AsyncExitStack() as stack:
        clients = {
            who: await stack.enter_async_context(Client(world.base, key=key))
            for who, key in world.sign_ins.people.items()
        }
        story.record = {tenant: clients[f"{tenant}/{READER}"] for tenant in TENANTS}
        if isinstance(model, Language):
            stack.push_async_callback(model.close)
        stack.push_async_callback(day.close)
        _welcome(world, story, options)
        if day.done:
            story.head("All of this home's work is done; --fresh begins anew.")
        await day.begin()
        offices = {
            tenant: [
                clients[f"{tenant}/{name}"]
                for name, roles in PEOPLE.items()
                if tenant in roles and name != READER
            ]
            for tenant in TENANTS
        }
        settle = partial(day.settle, partial(decide, offices, judge))
        if options.auto:
            await day.finish(partial(settle, TENANTS))
        else:
            while await settle([EAST]):
                pass
            if story.requests:
                await _look_at(world, story)
            await day.finish(story.votes)
        code = await _close(world, story, day, options)
        if not options.auto:
            story.say("\nThe console stays up. Ctrl-C ends it.")
            await asyncio.Event().wait()
        return code


async def _look_at(world: World, story: Story) -> None:
    """Print what waits for the person at the console, and on which page."""
    office = story.record[NORTH]
    pages = {
        "Approvals": "Approve or reject, and watch here what comes of it. A critical call wants "
        "its target typed. It, and a penalty, needs a second person: sign in as ben, with the "
        "same password."
    }
    if [one async for one in office.concerns.list()]:
        pages["Needs_attention"] = (
            "An entry was filed in the companies register, and no answer came. Look into "
            f"{_short(world.home / BOOKS)}, and record what happened."
        )
    quarantined = [tool.name for tool in await office.tools.list() if tool.status == "quarantined"]
    if quarantined:
        pages["Tools"] = (
            f"{', '.join(quarantined)} is in quarantine: its definition has changed since it was "
            "reviewed."
        )
    pages["Sign_in"] = f"ada, who approves and operates. The password: {world.sign_ins.password}"
    story.head(f"{len(story.requests)} calls wait for you: {world.base}/")
    story.pairs(**pages)
    story.say("Waiting for your decisions. Ctrl-C stops; nothing is lost.")


def _welcome(world: World, story: Story, options: argparse.Namespace) -> None:
    story.head("Counterseal: the model proposes, Counterseal decides.")
    workers = f"{len(world.urls)} gateway workers on Postgres" if options.postgres else "SQLite"
    story.pairs(
        Console=f"{world.base}/",
        Sign_in=f"ada, with the password {world.sign_ins.password}",
        Home=f"{_short(world.home)} ({workers})",
        Mail="goes to mail.db in the home, and no further",
    )


async def _close(world: World, story: Story, day: Day, options: argparse.Namespace) -> int:
    """Print the figures, and check the invariants."""
    with story.progress("Waiting until the gateway has verified what was done."):
        for client in story.record.values():
            await settled(client)
    figures = {tenant: await gather(client) for tenant, client in story.record.items()}
    held = await check(world, story.record, day.journal)
    story.head("What the record says")
    story.show(table(figures))
    story.head("What must hold")
    for one in held:
        story.held(one)
    ok = all(one.ok for one in held)
    if options.json:
        numbers = {tenant: one.record() for tenant, one in figures.items()}
        told = {
            "ok": ok,
            "figures": {**numbers, "together": total(figures).record()},
            "invariants": [one._asdict() for one in held],
        }
        print(json.dumps(told, indent=2), flush=True)
    return HELD if ok else VIOLATED


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="case_assistant", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--auto", action="store_true", help="let people decide by themselves, sum up, and end")
    add("--postgres", action="store_true", help="three gateway workers on a Postgres of their own")
    add("--home", type=Path, default=Path(".case-assistant"), metavar="DIR", help="where it all is")
    add("--fresh", action="store_true", help="begin anew: empty the home first")
    add("--port", type=int, default=8787, metavar="P", help="the console's; 0 takes a free one")
    add("--model", choices=("scripted", "smollm2"), default="scripted", help="who proposes")
    add("--json", action="store_true", help="the summary as JSON on stdout, the story on stderr")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
