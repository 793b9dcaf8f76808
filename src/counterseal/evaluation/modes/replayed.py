"""Replay: calls are decided again from what was recorded of them, and the decision is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from counterseal.evaluation.cases import (
    Arguments,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    expect,
)
from counterseal.evaluation.recording import read_calls
from counterseal.evaluation.replay import Rules, judge
from counterseal.evaluation.scratch import Scratch, Subject
from counterseal.evaluation.values import single_violations
from counterseal.ledger.requests import EventFilter

Calls = Callable[[Scratch, Arguments], Awaitable[None]]


def _why_not(subject: Subject) -> str:
    kept = subject.contract.keep_arguments_days != 0
    return "" if kept else "the contract says that its arguments are not kept"


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    for name, calls in (
        ("a call that is carried out", _carried_out),
        ("a repeated call", _repeated),
        ("a call with wrong arguments", _wrong),
        ("a call without a grant", _stranger),
    ):
        yield GeneratedCase(
            name=f"{name} is decided the same again",
            why="the record of its calls",
            run=_decided_again(subject, calls),
            arguments=subject.good.arguments,
        )


async def _carried_out(scratch: Scratch, arguments: Arguments) -> None:
    await scratch.carry_out(arguments)


async def _repeated(scratch: Scratch, arguments: Arguments) -> None:
    await scratch.carry_out(arguments, key="evaluation")
    await scratch.submit(arguments, key="evaluation")


async def _wrong(scratch: Scratch, arguments: Arguments) -> None:
    schema = scratch.subject.contract.affordance.input_schema
    wrong = (one.value for one in single_violations(schema, arguments))
    await scratch.submit(next(one for one in wrong if isinstance(one, Mapping)))


async def _stranger(scratch: Scratch, arguments: Arguments) -> None:
    await scratch.submit(arguments, replace(scratch.subject.caller, agent="evaluation-stranger"))


def _decided_again(subject: Subject, calls: Calls) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            await calls(scratch, arguments)
            runtime, judged = scratch.runtime, 0
            rules = Rules(runtime.policy, [one.contract for one in runtime.registry.records])
            tenant, search = subject.caller.tenant, EventFilter(tool=subject.name)
            async for batch in read_calls(runtime.store, runtime.vault, tenant, search):
                for call in batch:
                    again = judge(call, rules)
                    if again.now is None:
                        raise NotTriedError(again.why)
                    gate, then, now = again.differs or ("", "", "")
                    expect(again.differs is None, f"the gate {gate} decided {then}, and now {now}")
                    judged += 1
        expect(judged, "nothing of the call is on record")

    return run


MODE: Final = EvaluationMode(
    name="replay",
    purpose="A recorded call, decided again with the same rules, is decided the same.",
    why_not=_why_not,
    cases=_cases,
)
