"""The case assistant's office as its project file opens it: real runtime, database and mail server.

async with Office(tmp_path) as office:
    seen = await office.call("intake-agent", "get_case_summary", case_id="case_100001")
"""

import functools
import importlib
import itertools
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

from counterseal import Principal, Proposal, Reconciler, Voter
from counterseal.config import load_settings, open_runtime
from tests import waiting

FOLDER = Path(__file__).parents[3] / "examples" / "case_assistant"
OFFICE = ("cases", "casework", "mail", "notices", "planted", "rows", "sink", "stock")
NAMES = ("project", "tools", *(f"office.{name}" for name in OFFICE))
NORTH, EAST = "northshore", "eastvale"
PATIENCE = 30.0
"""Seconds after which something that should have happened long ago is missed."""


def load(*names):
    """Modules of the example by their last names, which nobody else finds afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        found = {name.rpartition(".")[2]: importlib.import_module(name) for name in names}
        return SimpleNamespace(**found)
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
                del sys.modules[name]


example = load(*NAMES)
ROLES, PLANTED = example.project.ROLES, example.planted.PLANTED
TOOLS = {one.contract.name: one.contract for one in example.tools.TOOLS}


def agent(name, tenant=NORTH, **more):
    """One of the three agents, with the scopes that its key has."""
    who = {"user": f"{name}-desk", "scopes": ROLES[name].scopes, **more}
    return Principal(tenant=tenant, agent=name, **who)


def evidence_of(case_id, piece=1):
    """Cases and their evidence are numbered alike in both offices."""
    return f"ev_{case_id[5]}{case_id[-4:]}{piece}"


def person(user, *roles, tenant=NORTH):
    return Voter(user=user, tenant=tenant, roles=roles)


OFFICER, SECOND = person("officer-1", "case-officer"), person("officer-2", "case-officer")
SUPERVISOR = person("supervisor-1", "supervisor")
REASON = "The file is complete, as far as we know."


@functools.cache
def _prepared():
    """A home as it is written once, to be copied: keys, passwords and cases take their time."""
    folder = tempfile.TemporaryDirectory()
    example.project.write_project(folder.name)
    return folder


class Office:
    """A home folder, a mail server, and a runtime on the project file in it."""

    def __init__(self, home, *, lease=None):
        self.home = home
        self._lease = lease
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        logging.getLogger("counterseal").addHandler(logging.NullHandler())
        shutil.copytree(_prepared().name, self.home, dirs_exist_ok=True)
        accounts = example.sink.accounts_of(self.home)
        self.sink = self._stack.enter_context(example.sink.Sink(self.home, accounts))
        self.books = self.sink.books
        smtp = ("127.0.0.1", self.sink.port)
        self.file = example.project.write_project(self.home, smtp=smtp)
        if self._lease is not None:
            words = self.file.read_text(encoding="utf-8")
            leased = words.replace("[store]\n", f"[store]\nlease_seconds = {self._lease}\n")
            self.file.write_text(leased, encoding="utf-8")
        self.database = example.cases.Cases.open(self.home / "cases.db")
        self._stack.callback(os.environ.pop, "CASE_ASSISTANT_HOME", None)
        self.runtime = await self._stack.enter_async_context(open_runtime(load_settings(self.file)))
        return self

    async def __aexit__(self, *exception):
        await self._stack.__aexit__(*exception)

    # What agents do -------------------------------------------------------------------------------

    async def call(self, who, tool, *, run=None, seconds=None, **arguments):
        """One call, by an agent's name or a principal; in a run of its own if none is named."""
        principal = agent(who) if isinstance(who, str) else who
        run = run or f"run_{next(self._numbers)}"
        self._here()
        proposal = Proposal(tool=tool, arguments=arguments, run_id=run)
        return await self.runtime.submit(proposal, principal, timeout=seconds)

    async def draft(self, case_id, template="decision", *, who=None, **more):
        given = {"channel": "email", "facts": [evidence_of(case_id)]}
        if template == "penalty":
            given["amount_eur"] = 1500
        wanted = {"case_id": case_id, "template": template, **given, **more}
        return await self.call(who or "risk-agent", "create_notice_draft", **wanted)

    async def in_review(self, case_id, template="decision", **more):
        """What has to be said to have a new notice sent: its draft is laid before people."""
        who = more.get("who", "risk-agent")
        made = await self.draft(case_id, template, **more)
        assert made.ok, made.for_model()
        draft_id = made.data["draft_id"]
        laid = await self.call(who, "request_human_approval", draft_id=draft_id, reason=REASON)
        assert laid.ok, laid.for_model()
        return {"draft_id": draft_id, "recipient": made.data["recipient"]}

    async def send(self, notice, *, who=None, **more):
        return await self.call(who or "notice-agent", "send_approved_notice", **notice, **more)

    async def approve(self, held, *voters):
        for voter in voters or (OFFICER,):
            await self.runtime.approvals.decide(held.approval_id, voter, "approve")

    async def approved(self, case_id, template="decision", *voters):
        """A notice whose sending people have approved, and which was not sent yet."""
        notice = await self.in_review(case_id, template)
        held = await self.send(notice)
        assert held.code == "CONFIRMATION_MISSING", held.for_model()
        await self.approve(held, *voters)
        return notice

    async def reconcile(self):
        self._here()
        return await Reconciler(self.runtime).once()

    async def move(self, case_id, status, *, who="notice-agent", version=None, **more):
        version = version or self.case(case_id)["version"]
        wanted = {"case_id": case_id, "status": status, "expected_version": version}
        return await self.call(who, "update_case_status", **wanted, reason=REASON, **more)

    def _here(self):
        """Tools find their files by the environment, and there may be two offices in a test."""
        os.environ["CASE_ASSISTANT_HOME"] = str(self.home)

    # What there is to see, and what others do -----------------------------------------------------

    def rows(self, statement, *values):
        with self.database.reading() as db:
            return [dict(row) for row in db.execute(statement, values)]

    def case(self, case_id):
        return self.rows("SELECT * FROM cases WHERE case_id = ?", case_id)[0]

    def mails(self, notice):
        """What the mail server has received of a notice."""
        found = self.rows("SELECT message_id FROM notices WHERE draft_id = ?", notice["draft_id"])
        ids = {row["message_id"] for row in found}
        return [mail for mail in self.books.mails() if mail["message_id"] in ids]

    def change(self, case_id, status, tenant=NORTH):
        """What somebody in the office does, without any agent."""
        rows = example.casework.Office(self.database, tenant)
        who = example.rows.By("case-officer", f"by hand {next(self._numbers)}")
        version = self.case(case_id)["version"]
        rows.change_status(who, case_id, status, expected_version=version, reason="By hand.")

    @contextmanager
    def locked(self, *, reading=False):
        """Somebody else holds the database, and lets nobody write (or read)."""
        other = sqlite3.connect(self.database.path, isolation_level=None)
        try:
            if reading:
                other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE cases SET version = version")
            yield
        finally:
            other.close()

    async def events(self, tenant=NORTH, **about):
        found = await self.runtime.store.events(tenant, **about)
        return [event for _, event in found]


def stopped(seen):
    """The code, the gate and the rule with which a call ended."""
    said = [timed.decision for timed in seen.decisions if timed.decision.verdict != "allow"]
    return (seen.code.value, *((said[-1].gate, said[-1].rule) if said else ("execution", None)))


async def until(true, what):
    """What a call answers, once it is so: some things end a moment after their caller was told."""

    async def answer():
        seen = await what()
        return seen if true(seen) else None

    return await waiting.until(answer)
