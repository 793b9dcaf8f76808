"""The story of the demo, in lines of at most 80 columns.

Colours and the progress line are for terminals; `NO_COLOR` turns the colours off, and a pipe gets
plain text. Agents do not learn which gate refused a call; the story reads it from the record.
"""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TextIO

from crew.model import LOST, Answer, Ask, Done, Task
from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterseal.client import Client, ProblemError
from counterseal.views.approvals import ApprovalPage, VoteRow
from counterseal.views.call_page import CallRow
from stage.invariants import Held

__all__ = ["Story"]

WIDTH: Final = 80
TOOL, WHY = 23, 29
"""Widths of the first two columns."""
_SAID: Final = re.compile(r'{"said":"(.*?)"}')
"""Marks a refusal by the tool itself in the text for the model."""


class Story:
    def __init__(self, out: TextIO) -> None:
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="replace")  # an unknown character must not end the demo
        self.console = _Console(file=out, highlight=False)
        self.console.width = min(self.console.width, WIDTH)
        self.record: Mapping[str, Client] = {}
        """A client for each tenant's record."""
        self.aside: Callable[[Task], None] = lambda _: None
        """Called for each task that waits for an approval."""
        self._about: Task | None = None
        self._requests: dict[str, tuple[Task, str]] = {}
        self._told: dict[str, int] = {}
        """Votes already reported, by request."""

    # --- the frame --------------------------------------------------------------------------------

    def say(self, words: str = "", style: str = "") -> None:
        self.console.print(Text(words, style))

    def head(self, words: str) -> None:
        self.say()
        self.say(words, "bold")
        self._about = None

    def pairs(self, **rows: str) -> None:
        """Print names, in which `_` is a space, with a value each."""
        column = max(map(len, rows)) + 4
        for name, value in rows.items():
            first, *more = textwrap.wrap(value, WIDTH - column, break_long_words=False)
            self.say(f"  {name.replace('_', ' '):<{column - 2}}{first}")
            for line in more:
                self.say(f"{'':{column}}{line}")

    def show(self, table: Table) -> None:
        self.console.print(table)

    def held(self, one: Held) -> None:
        """Print one invariant and what was checked."""
        word, style = ("ok", "green") if one.ok else ("FAILED", "bold red")
        lines = textwrap.wrap(one.looked_at, WIDTH - 32) or [""]
        first = Text.assemble("  ", (f"{word:<8}", style), f"{one.name:<22}{lines[0]}")
        self.console.print(first)
        for line in lines[1:]:
            self.say(f"{'':32}{line}")

    @contextmanager
    def progress(self, words: str) -> Iterator[None]:
        """Show a progress line."""
        if self.console.is_terminal:
            with self.console.status(words):
                yield
        else:
            self.say(words)
            yield

    # --- what agents report -----------------------------------------------------------------------

    async def answered(self, task: Task, ask: Ask, answer: Answer) -> None:
        if task.name in self._requests:
            await self._votes_on(*self._requests.pop(task.name))
        call = None if answer.ok and not task.mail_fault else await self._call(task, answer)
        self._line(task, ask, *_outcome(answer, call))
        if call is not None and call.type == "tool.reconciled":
            self._note("No answer came from the other side; looking there told that it is done.")
        elif not answer.ok and answer.code != LOST:
            self._note(f"{answer.code}: {_reason(answer)}")
        elif "Corrected:" in answer.text and not answer.replayed:
            self._note(answer.text[answer.text.index("Corrected:") :].splitlines()[0])

    async def waits(self, task: Task, ask: Ask, words: str, url: str) -> None:
        """Return the approval id at the end of a page's address."""
        if task.name not in self._requests:
            self._requests[task.name] = task, url.rpartition("/")[2]
            self._line(task, ask, "waits for a person", "yellow")
            self._note(words.removeprefix("A person has to approve this: "), lines=2)
        self.aside(task)

    async def finished(self, task: Task, done: Done) -> None:
        self._subject(task)
        self.say(f"  {done.words}", "dim")

    # --- what people do ---------------------------------------------------------------------------

    @property
    def requests(self) -> list[tuple[Task, str]]:
        """Return the waiting approval requests, oldest first."""
        return list(self._requests.values())

    async def votes(self) -> None:
        """Report the votes since the last look."""
        for task, approval_id in self.requests:
            await self._votes_on(task, approval_id)

    async def _votes_on(self, task: Task, approval_id: str) -> None:
        try:
            packet = await self.record[task.tenant].approvals.get(approval_id)
        except ProblemError:
            return
        if isinstance(packet, ApprovalPage):
            told = self._told.get(approval_id, 0)
            self._told[approval_id] = len(packet.votes.cast)
            for number, vote in enumerate(packet.votes.cast[told:], told + 1):
                self._vote(task, vote, f"{number} of {packet.approval.approvers}")

    def _vote(self, task: Task, vote: VoteRow, count: str) -> None:
        self._subject(task)
        does = ("rejects", "red")
        if vote.decision == "approve":
            does = (f"approves, {count}", "green")
        self.console.print(Text.assemble("  ", (vote.approver, "bold"), " ", does))
        if vote.comment:
            self._note(f'"{vote.comment}"')

    # --- lines ------------------------------------------------------------------------------------

    def _subject(self, task: Task) -> None:
        if self._about != task:
            self._about = task
            self.say()
            where = f"{task.tenant}, {task.case_id}, {task.agent}"
            self.console.print(Text.assemble((task.title, "bold"), "  ", (where, "dim")))

    def _line(self, task: Task, ask: Ask, outcome: str, style: str) -> None:
        self._subject(task)
        tool, why = _cut(ask.tool, TOOL), _cut(ask.why, WHY)
        words = f"  {tool:<{TOOL}} {why:<{WHY}} "
        self.console.print(Text.assemble(words, (outcome, style)))

    def _note(self, words: str, lines: int = 1) -> None:
        wrapped = textwrap.wrap(words, WIDTH - 4, max_lines=lines, placeholder=" ...")
        for line in wrapped:
            self.say(f"    {line}", "dim")

    async def _call(self, task: Task, answer: Answer) -> CallRow | None:
        """Return a call's page from the record."""
        try:
            return (await self.record[task.tenant].calls.get(answer.call_id)).call
        except ProblemError:  # a lost answer has no id
            return None


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Stop quietly, as after Ctrl-C: the reader has closed the pipe (`| head`)."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        signal.raise_signal(signal.SIGINT)


def _outcome(answer: Answer, call: CallRow | None) -> tuple[str, str]:
    if answer.code == LOST:
        return "the answer is lost", "yellow"
    if answer.replayed:
        return "replayed", "cyan"
    if answer.ok:
        return "done", "green"
    if answer.code == "CONFIRMATION_MISSING":
        return "refused by a person", "red"
    if call is not None and call.gate:
        return f"refused by {call.gate}", "red"
    return ("refused by the tool" if answer.code in REFUSALS else "failed"), "red"


REFUSALS: Final = ("SEMANTIC_INVALIDITY", "STALE_STATE")
"""Return the tool's own refusal, if this is one."""


def _reason(answer: Answer) -> str:
    """Return the most precise name of the refusal."""
    said = _SAID.search(answer.text)
    if said:
        return said[1]
    return str(answer.errors[-1]["message"]) if answer.errors else answer.text.partition("\n")[0]


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 3]}..."
