"""The repair loop: wrong arguments can be repaired from the feedback, within fixed bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from counterseal.codes import Path
from counterseal.evaluation.cases import (
    Arguments,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    always,
    ended,
    expect,
)
from counterseal.evaluation.scratch import RUN, Subject
from counterseal.evaluation.values import single_violations
from counterseal.observation import Observation
from counterseal.proposal import Proposal
from counterseal.repair import RepairLoop

_KINDS: Final = 8
"""Violations that are repaired."""
_LOOPS: Final = 12
"""Proposals after which an agent that never learns must have been stopped."""


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    good = subject.good.arguments
    wrong = single_violations(subject.contract.affordance.input_schema, good)
    objects = [one for one in wrong if isinstance(one.value, Mapping)]
    for variant in islice(objects, _KINDS):
        yield GeneratedCase(
            name=f"{variant.name}: repaired",
            why=f"input_schema{variant.place}",
            run=_repaired(subject, variant.value),
            arguments=good,
            shrinks=False,
        )
    if objects:
        payloads = [one.value for one in objects]
        for name, run in (
            ("the same wrong arguments again and again", _same(subject, payloads[0])),
            ("other wrong arguments every time", _others(subject, payloads)),
            ("a model that never repairs", _never(subject, payloads)),
        ):
            yield GeneratedCase(
                name=name, why="bounds of a run", run=run, arguments=good, shrinks=False
            )


def _repaired(subject: Subject, wrong: Arguments) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        asked: list[Mapping[str, Any]] = []

        async def model(feedback: dict[str, Any]) -> object:
            asked.append(feedback)
            return {"arguments": dict(arguments)}

        proposal = Proposal(tool=subject.name, arguments=wrong, run_id=RUN)
        async with subject.scratch() as scratch:
            end = await RepairLoop(model).run(scratch.runtime, proposal, subject.caller)
        seen = end.observation
        expect(asked, f"the model was not asked to repair {dict(wrong)}: {ended(seen)}")
        expect(asked[0]["field_errors"], f"the feedback on {dict(wrong)} names no error")
        expect(seen.ok or seen.path is not Path.REPAIR, f"repaired, it ended with {ended(seen)}")

    return run


def _stopped(seen: Observation) -> bool:
    return not seen.ok and seen.path not in (Path.REPAIR, Path.RETRY)


def _same(subject: Subject, wrong: Arguments) -> CaseRun:
    """Send one payload in several spellings: its fingerprint must stay the same."""

    async def run(_arguments: Arguments) -> None:
        spellings: list[Any] = [
            dict(wrong),
            json.dumps(wrong),
            json.dumps({name: wrong[name] for name in reversed(list(wrong))}, indent=1),
        ]
        async with subject.scratch() as scratch:
            for spelling in spellings:
                end = await scratch.submit(spelling)
                expect(not scratch.executions, "executed")
                if _stopped(end):
                    return
        expect(False, f"{dict(wrong)} may be sent {len(spellings)} times, and is still repairable")

    return run


def _others(subject: Subject, payloads: list[Arguments]) -> CaseRun:
    async def run(_arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            for number in range(_LOOPS):
                end = await scratch.submit(payloads[number % len(payloads)])
                expect(not scratch.executions, "executed")
                if _stopped(end):
                    return
        expect(False, f"after {_LOOPS} wrong proposals the agent may still repair")

    return run


def _never(subject: Subject, payloads: list[Arguments]) -> CaseRun:
    async def run(_arguments: Arguments) -> None:
        count = 0

        async def model(_feedback: dict[str, Any]) -> object:
            nonlocal count
            count += 1
            return {"arguments": dict(payloads[count % len(payloads)])}

        proposal = Proposal(tool=subject.name, arguments=payloads[0], run_id=RUN)
        async with subject.scratch() as scratch:
            end = await RepairLoop(model, attempts=_LOOPS).run(
                scratch.runtime, proposal, subject.caller
            )
            expect(not scratch.executions, "executed")
        expect(end.attempts < _LOOPS, f"the loop went on for {end.attempts} proposals")

    return run


MODE: Final = EvaluationMode(
    name="repair",
    purpose="Wrong arguments can be repaired from the feedback; an agent that never learns stops.",
    why_not=always,
    cases=_cases,
)
