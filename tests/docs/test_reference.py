"""What the generated pages say of events is what events really carry."""

import logging
import re
from pathlib import Path

import pytest

import counterseal
from counterseal import Budgets, Proposal, Reconciler
from counterseal.audit import EventType
from counterseal.operations.attention import NeedsAttention
from counterseal.testing import HANG, approver, fake_tool, runtime_for, someone

DOCS = Path(__file__).parents[2] / "docs"
logging.getLogger("counterseal").addHandler(logging.NullHandler())


@pytest.fixture
def documented(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from _events_page import documented

    return documented()


async def a_lively_day():
    """Calls that end in many ways, and what is done about them."""
    mail = {"consequence": "It is sent.", "approval": {"then": "resubmit"}}
    tools = (
        fake_tool("look_up", {"total": 1}, scopes=["case:read"]),
        fake_tool("peek", {"password": "hunter2-and-more"}),
        fake_tool("flaky", ConnectionError("down"), {"found": True}),
        fake_tool("save", {"saved": True}, effect="draft", compensation_tool="unsave"),
        fake_tool("unsave", {"gone": True}, effect="draft"),
        fake_tool("hang", HANG, effect="draft", runtime={"timeout_ms": 10}),
        fake_tool("mail", {"sent": True}, effect="external_notification", **mail),
    )
    runtime = runtime_for(*tools)
    allowed = someone(scopes=["case:read"])

    async def ask(tool, arguments=None, who=allowed, run="run_1"):
        proposal = Proposal(tool=tool, arguments=arguments or {}, run_id=run)
        return await runtime.submit(proposal, who)

    await ask("look_up")
    await ask("look_up", '{"a"')
    await ask("look_up", {"a": 1})
    await ask("look_up", who=someone())
    await ask("peek")
    await ask("flaky")
    await ask("save")
    await ask("save")
    await ask("hang")
    await ask("mail")
    await runtime.approvals.answer(approver("ada"))
    await ask("mail")
    await ask("mail", run="run_2")
    await runtime.approvals.answer(approver("ada", [], "reject", "No."))
    await ask("mail", run="run_2")
    await runtime.run(allowed, "run_3", budgets=Budgets(reads=0))
    await ask("look_up", run="run_3")
    people = NeedsAttention(runtime, by="ada")
    (lost,) = await people.list()
    await people.did_not_happen("acme", lost.key, reason="Nobody knows of it.")
    await _reversed(runtime, people)
    await runtime.operator("ada").kill(tool="mail", reason="too many")
    return [event for tenant in ("acme", "*") for _, event in await runtime.store.events(tenant)]


async def _reversed(runtime, people):
    saved = [
        event.caller.call_id
        for _, event in await runtime.store.events("acme", run_id="run_1")
        if event.type is EventType.SUCCEEDED and event.caller.tool == "save"
    ]
    await people.compensate("acme", saved[0], reason="wrong one")
    await Reconciler(runtime).once()


async def test_events_carry_what_their_page_says(documented):
    events = await a_lively_day()
    seen = {event.type for event in events}
    assert len(seen) >= 18, sorted(seen)
    for event in events:
        told = documented[event.type]
        if "…" not in told.body:
            assert set(event.body) <= set(told.body), event


def test_every_type_of_event_is_on_its_page(documented):
    assert set(documented) == set(EventType)


def test_the_python_page_has_every_public_name_with_words_of_its_own():
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(entries) == set(counterseal.__all__) - {"__version__"}
    assert not [name for name, words in entries.items() if len(words.split()) < 5]
