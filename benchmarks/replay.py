"""What does it cost to keep a proposal for replay, and to decide it again?

Keeping: the same calls through two runtimes on SQLite files, of which one keeps no arguments;
processor time, in turns. A capture's size is the median of what is in the vault. Replay: a record
on a SQLite file is decided again under a stricter policy, every call by every gate; processor time
of one decision, beside the 100 µs that allow 10,000 a second. The record is made of real calls,
copied with ids of their own. With `--big` it has a million calls.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.house import Block, House
from benchmarks._house.rows import Row, Turn
from counterseal import Grant, Principal, Proposal, Runtime
from counterseal.audit import Event
from counterseal.evaluation.recording import RecordedCall, read_calls
from counterseal.evaluation.replay import Rules
from counterseal.evaluation.what_if import ReplayReport, replay
from counterseal.ledger.requests import EventFilter
from counterseal.ledger.rows import VaultRow, new_pointer
from counterseal.policy import Policy
from counterseal.testing import fake_tool

KEPT, NOT_KEPT = "proposals kept", "proposals not kept"
SIZE, KILOBYTE = "a capture", "1 kB"
DECIDED, HUNDRED = "a decision made again", "100 µs"
CALLS, FEW, SOME, MANY = 200, 2_000, 20_000, 1_000_000
PER_RUN = 20
CLERK = Principal(
    tenant="acme", agent="clerk", user="u_7", roles=["clerk"], scopes=["case:read", "case:write"]
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "maxLength": 20, "description": "The case."},
        "note": {"type": "string", "maxLength": 400, "description": "What was said."},
        "cents": {"type": "integer", "minimum": 0, "maximum": 100_000, "description": "Amount."},
    },
    "required": ["case_id"],
    "additionalProperties": False,
}
POLICY = """
rules:
  - {id: large, tools: [save_note], when: call.cents > 60000, then: require_approval,
     approvers: 1, reason: Large amounts need a person.}
  - {id: odd, when: call.cents == 77, then: deny, reason: Not this amount.}
"""


def opened(folder: Path, name: str, **options: Any) -> Runtime:
    runtime = Runtime.open(f"sqlite:///{folder / name}.db", **options)
    fast = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}
    for tool, effect in (("read_case", "read_only"), ("save_note", "draft")):
        made = fake_tool(tool, input_schema=SCHEMA, effect=effect, runtime=fast)
        grant = Grant(agent="clerk", tool=tool, max_calls_per_run=10_000_000)
        runtime.register(made.tool, grants=[grant])
    return runtime


async def submit(runtime: Runtime, number: int, tool: str) -> None:
    arguments = {
        "case_id": f"case_{number}",
        "note": "The customer called about the invoice of last month, and asks for a copy.",
        "cents": number * 7919 % 100_000,
    }
    run_id = f"run_{number // PER_RUN}"
    seen = await runtime.submit(Proposal(tool=tool, arguments=arguments, run_id=run_id), CLERK)
    if not seen.ok:
        raise SystemExit(f"{tool} was answered with {seen.code}")


def submitting(runtime: Runtime, tool: str) -> Block:
    done = 0

    async def block() -> Turn:
        nonlocal done
        began = time.process_time()
        for number in range(done, done + CALLS):
            await submit(runtime, number, tool)
        await runtime.store.tenants()  # writes what was noted
        done += CALLS
        return Turn((time.process_time() - began) / CALLS, (), CALLS)

    return block


def constant(value: float) -> Block:
    async def block() -> Turn:
        return Turn(value)

    return block


async def first_calls(runtime: Runtime, tool: str) -> Sequence[RecordedCall]:
    """Return recorded calls of a tool."""
    async for batch in read_calls(runtime.store, runtime.vault, "acme", EventFilter(tool=tool)):
        return batch
    raise SystemExit(f"no call of {tool} is on record")


async def copy_record(
    runtime: Runtime, calls: Sequence[RecordedCall], stored: Mapping[str, bytes], number: int
) -> None:
    """Write so many copies of recorded calls, each with an id of its own."""
    store, batch = runtime.store, 1000
    raw = [
        runtime.vault.open("acme", call.call_id, stored[call.event.body["captured"]])
        for call in calls
    ]
    for begin in range(0, number, batch):
        events: list[Event] = []
        for index in range(begin, min(begin + batch, number)):
            event = calls[index % len(calls)].event
            call_id = f"call_{index:024x}"
            pointer = new_pointer(call_id, runtime.clock())
            kept = runtime.vault.seal("acme", call_id, raw[index % len(raw)])
            store.keep(VaultRow("acme", pointer, kept, None))
            caller = event.caller._replace(call_id=call_id)
            body = {**event.body, "captured": pointer}
            events.append(event._replace(caller=caller, body=body))
        await store.write(events)


def deciding(runtime: Runtime, rules: Rules, reports: list[ReplayReport]) -> Block:
    async def block() -> Turn:
        began = time.process_time()
        report = await replay(runtime.store, runtime.vault, "acme", rules, EventFilter())
        seconds = time.process_time() - began
        if report.not_judged:
            raise SystemExit(f"not judged: {report.not_judged}")
        if not report.changed:
            raise SystemExit("a stricter policy changed no decision")
        reports.append(report)
        return Turn(seconds / report.calls, (), report.calls)

    return block


def rows() -> list[Row]:
    def row(key: str, what: str, ours: str, theirs: str, reach: float) -> Row:
        return Row(
            key=f"replay/{key}", what=what, ours=ours, theirs=theirs, better="lower", reach=reach
        )

    return [
        row("kept-read", "A read whose proposal is kept, beside one that is not", *_K, 1.18),
        row("kept-write", "A change whose proposal is kept, beside one that is not", *_K, 1.18),
        row("size", "A capture, beside a kilobyte", SIZE, KILOBYTE, 1.0),
        row("decision", "A recorded decision made again, beside 100 µs", DECIDED, HUNDRED, 1.0),
    ]


_K = (KEPT, NOT_KEPT)


async def bench(house: House) -> None:
    reads, writes, size, decision = rows()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = await stack.enter_async_context(opened(folder, "kept"))
        bare = await stack.enter_async_context(opened(folder, "bare", keep_arguments_days=0))
        rounds = house.pick(15, 5)
        for tool, row in (("read_case", reads), ("save_note", writes)):
            parties = {KEPT: submitting(kept, tool), NOT_KEPT: submitting(bare, tool)}
            await house.compare(tool, parties, [row], rounds=rounds)
        calls = [
            *await first_calls(kept, "read_case"),
            *await first_calls(kept, "save_note"),
        ]
        pointers = [call.event.body["captured"] for call in calls]
        stored = await kept.store.fetch_all("acme", pointers)
        median = statistics.median(map(len, stored.values()))
        parties = {SIZE: constant(median), KILOBYTE: constant(1024)}
        await house.compare("size", parties, [size], rounds=1, unit="", warm=False)
        number = MANY if house.big else house.pick(SOME, FEW)
        house.doing(f"writing a record of {number:,} calls")
        recorded = await stack.enter_async_context(opened(folder, "recorded"))
        await copy_record(recorded, calls, stored, number)
        file = folder / "policy.yaml"
        file.write_text(POLICY)
        contracts = [record.contract for record in recorded.registry.records]
        gc.freeze()  # as the command does
        rules, reports = Rules(Policy.load(file), contracts, same=False), list[ReplayReport]()
        parties = {DECIDED: deciding(recorded, rules, reports), HUNDRED: constant(100e-6)}
        await house.compare(
            "replay", parties, [decision], rounds=1 if house.big else house.pick(5, 3), warm=False
        )
        house.doing(reports[-1].sentence())


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("replay", bench)
