"""`counterseal reconcile`, on a real SQLite file whose worker is gone."""

import asyncio
import json

import pytest

TOOLS = '''
from typing import Annotated
from pathlib import Path
from pydantic import Field
from counterseal import Context, tool

BOOKS = Path(__file__).parent / "books.txt"


def in_the_books(ctx: Context):
    lines = BOOKS.read_text().split() if BOOKS.exists() else []
    return {"key": ctx.key} if ctx.key in lines else None


def write_down(key):
    with BOOKS.open("a") as books:
        books.write(key + "\\n")


DECLARED = {"effect": "draft", "version": "1.0.0", "owner": "tests"}


@tool(**DECLARED, on_unknown="read_back", read_back=in_the_books)
async def charge(ctx: Context) -> dict[str, str]:
    """Charge."""
    write_down(ctx.key)
    return {"key": ctx.key}


@tool(effect="draft", version="1.0.0", owner="tests", compensation_tool="undo_send")
async def send(ctx: Context) -> dict[str, str]:
    """Send."""
    write_down(ctx.key)
    return {"sent": "yes"}


@tool(effect="draft", version="1.0.0", owner="tests")
async def undo_send(
    sent: Annotated[str, Field(max_length=9, description="What.")],
) -> dict[str, bool]:
    """Take it back."""
    write_down("undone")
    return {"done": True}
'''
SETTINGS = """\
[tools]
paths = ["tools.py"]
[store]
url = "sqlite:///store.db"
lease_seconds = 0.01
[[grants]]
agent = "clerk"
tool = "charge"
[[grants]]
agent = "clerk"
tool = "send"
[[grants]]
agent = "clerk"
tool = "undo_send"
"""


@pytest.fixture
def project(write, folder):
    write("tools.py", TOOLS)
    write("counterseal.toml", SETTINGS)
    return folder


def sent(name):
    """The key of a call as its destination gets it."""
    from counterseal.ledger.entry import destination_key

    return destination_key("acme", f"call:{name}:k")


def submit(folder, name, *, dies=False, **own):
    """Make a call as a worker does; one that dies never settles it."""
    from counterseal import Principal, Proposal
    from counterseal.config import load_settings, open_runtime
    from counterseal.errors import StoreError

    async def gone(_request):
        raise StoreError("this process is gone")

    async def call():
        async with open_runtime(load_settings(folder / "counterseal.toml")) as runtime:
            if dies:
                runtime.store.settle = gone
            proposal = Proposal(tool=name, arguments={}, **{"run_id": "run_1", "key": "k", **own})
            return await runtime.submit(proposal, Principal(tenant="acme", agent="clerk"))

    return asyncio.run(call())


def test_nothing_is_due_in_an_empty_store(project, run):
    result = run("reconcile")
    assert (result.exit_code, result.stdout) == (0, "Nothing was due.\n")
    assert json.loads(run("reconcile", "--json").stdout) == {}
    assert run("reconcile", "list").stdout == "Nothing needs attention.\n"


def test_what_a_dead_worker_left_is_found_at_the_destination(project, run):
    assert not submit(project, "charge", dies=True).ok
    assert run("reconcile").stdout == "1 found at the destination\n"
    assert submit(project, "charge").idempotency_hit
    assert (project / "books.txt").read_text() == f"{sent('charge')}\n"


def test_a_long_pass_says_how_far_it_is_beside_its_json(project, run, slowly):
    submit(project, "charge", dies=True)
    result = run("reconcile", "--json")
    assert json.loads(result.stdout) == {"found": 1}
    assert "1 item\n" in result.stderr


def test_a_person_settles_an_unknown_outcome(project, run):
    submit(project, "send", dies=True)
    assert json.loads(run("reconcile", "--json").stdout) == {"escalated": 1}
    shown = run("reconcile", "list")
    assert "unknown: send 1.0.0" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    (listed,) = json.loads(run("reconcile", "list", "--json").stdout)
    assert (listed["kind"], listed["tenant"], listed["key"]) == ("unknown", "acme", "call:send:k")
    settled = run(
        "reconcile",
        "settle",
        "call:send:k",
        "--happened",
        "--reason",
        "Seen.",
        "--data",
        '{"sent": "yes"}',
    )
    assert (settled.exit_code, settled.stdout) == (0, "Recorded: the call took effect.\n")
    assert submit(project, "send").data == {"sent": "yes"}
    again = run("reconcile", "settle", "call:send:k", "--did-not-happen", "--reason", "No.")
    assert (again.exit_code, "needs attention" in again.stderr) == (1, True)


def test_a_call_is_named_by_its_id_and_what_was_decided_is_told_as_json(project, run):
    seen = submit(project, "send")
    undo = ("reconcile", "undo", seen.call_id, "--tenant", "acme", "--reason", "By mistake.")
    asked = run(*undo, "--json")
    assert json.loads(asked.stdout) == {"key": seen.call_id, "decision": "compensate"}
    assert run("reconcile").stdout == "1 reversed\n"


def test_undo_refuses_an_id_that_two_calls_have_and_names_them(project, run):
    runs = ("run_1", "run_2")
    made = [submit(project, "send", call_id="call_0", run_id=one, key=one) for one in runs]
    undo = ("--tenant", "acme", "--reason", "By mistake.")
    refused = run("reconcile", "undo", "call_0", *undo)
    assert refused.exit_code == 1
    assert "2 calls have the id 'call_0'" in refused.stderr
    for seen, place in zip(made, runs, strict=True):
        assert f"{seen.call_id} (send in run {place}" in refused.stderr
    assert run("reconcile").stdout == "Nothing was due.\n"
    assert run("reconcile", "undo", made[1].call_id, *undo).exit_code == 0
    assert run("reconcile").stdout == "1 reversed\n"


def test_a_call_is_reversed_on_request(project, run):
    assert submit(project, "send").ok
    asked = run("reconcile", "undo", "call:send:k", "--tenant", "acme", "--reason", "By mistake.")
    assert asked.exit_code == 0
    assert run("reconcile").stdout == "1 reversed\n"
    assert (project / "books.txt").read_text().split() == [sent("send"), "undone"]
    twice = run("reconcile", "undo", "call:send:k", "--tenant", "acme", "--reason", "Again.")
    assert (twice.exit_code, "COMPENSATED" in twice.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("again", "verify", "nope", "--reason", "x"), "needs attention"),
        (("again", "dance", "nope", "--reason", "x", "--tenant", "acme"), "must be verify or"),
        (
            ("dismiss", "verify", "nope", "--reason", "x", "--tenant", "acme"),
            "no call is recorded under the key or the id 'nope'",
        ),
        (("undo", "nope", "--reason", "x"), "--tenant"),
        (("undo", "nope", "--reason", "x", "--tenant", "acme"), "no call is recorded"),
        (
            ("settle", "k", "--happened", "--reason", " ", "--tenant", "acme"),
            "no call is recorded",
        ),
        (("settle", "k", "--happened", "--reason", "x", "--data", "[1]"), "must be a JSON object"),
        (("settle", "k", "--happened", "--reason", "x", "--data", "{"), "is not valid JSON"),
    ],
)
def test_what_makes_no_sense_is_said(project, run, arguments, said):
    result = run("reconcile", *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr


def test_without_a_store_there_is_nothing_to_look_after(write, run):
    write("tools.py", TOOLS)
    write("counterseal.toml", '[tools]\npaths = ["tools.py"]\n')
    result = run("reconcile")
    assert result.exit_code == 2
    assert "[store] url" in result.stderr
