"""The approval gate: only an approval of exactly this call, in time and by others, counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from counterseal.approvals.terms import Demand, Voter
from counterseal.approvals.tokens import Claims, issue
from counterseal.codes import Code
from counterseal.contract.approval_terms import Pattern
from counterseal.evaluation.cases import (
    Arguments,
    CaseKind,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    ended,
    expect,
)
from counterseal.evaluation.samples import other_arguments
from counterseal.evaluation.scratch import Scratch, Subject, voters_for
from counterseal.keys import Key, KeyRing, Purpose
from counterseal.ledger.records import Held
from counterseal.operations.approver import ApprovalError

Step = Callable[[Scratch, Held, Arguments], Awaitable[None]]


def _why_not(subject: Subject) -> str:
    return "" if subject.asks else "its good call needs no approval"


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    steps: list[tuple[str, Step, CaseKind | None]] = [
        ("without an approval it is held", _held_only, CaseKind.DENIAL),
        ("a forged token is refused", _forged, CaseKind.DENIAL),
        ("an approval that has expired is refused", _expired, CaseKind.DENIAL),
        ("an approval of other arguments is refused", _other_payload, None),
        ("the wrong person can't approve it", _wrong_person, None),
        ("after a rejection it is not executed", _rejected, CaseKind.DENIAL),
        ("an approval is used once", _used_once, CaseKind.SUCCESS),
    ]
    for name, step, kind in steps:
        yield GeneratedCase(
            name=name,
            why="approval terms of contract and policy",
            run=_run(subject, step),
            arguments=subject.good.arguments,
            kind=kind,
        )


def _run(subject: Subject, step: Step) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch(keys=_ring("evaluation")) as scratch:
            end = await scratch.submit(arguments)
            waits = end.code is Code.CONFIRMATION_MISSING and end.approval_id is not None
            expect(waits and not scratch.executions, f"not held: it ended with {ended(end)}")
            tenant, approval_id = subject.caller.tenant, str(end.approval_id)
            held = await scratch.runtime.approvals.find(tenant, approval_id)
            await step(scratch, held, arguments)

    return run


@lru_cache(maxsize=4)
def _ring(name: str) -> KeyRing:
    """Return a ring with one key for approvals, which lasts as long as this process."""
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - slow to load

    private = ed25519.Ed25519PrivateKey.generate()
    key = Key(
        purpose=Purpose.APPROVAL,
        key_id=name,
        file=Path(f"approval-{name}.pem"),
        created=datetime.now(UTC),
        private=private,
        public=private.public_key(),
    )
    return KeyRing([key])


async def _refused_vote(scratch: Scratch, held: Held, voter: Voter, who: str) -> None:
    """Fail unless this vote is refused."""
    try:
        await scratch.runtime.approvals.decide(
            held.approval_id, voter, "approve", justification="Evaluated."
        )
    except ApprovalError:
        return
    expect(False, f"the vote of {who} counts")


async def _held_only(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    again = await scratch.submit(arguments)
    expect(not scratch.executions, f"executed without an approval: {ended(again)}")
    named = await scratch.submit(arguments, approval=held.approval_id)
    expect(not scratch.executions, f"the id of the request was taken for approval: {ended(named)}")


async def _forged(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    now = scratch.clock()
    claims = Claims(
        approval_id=held.approval_id,
        trace_id=held.trace_id,
        tenant=held.tenant,
        tool_name=held.tool,
        tool_version=held.version,
        contract_hash=held.contract_hash,
        payload_hash=held.approval_hash,
        approver_ids=tuple(voter.user for voter in voters_for(held)),
        approved_at=now,
        expires_at=held.expires_at,
    )
    for ring in ("forger", "evaluation"):  # by another key, and by ours without any vote
        end = await scratch.submit(arguments, approval=issue(claims, _ring(ring)))
        expect(not scratch.executions, f"executed with a forged token: {ended(end)}")


async def _expired(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    await scratch.approve(held.approval_id)
    scratch.clock.advance(held.expires_at - scratch.clock() + 1)
    end = await scratch.submit(arguments)
    expect(not scratch.executions, f"executed after its expiry: {ended(end)}")


async def _other_payload(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    other = other_arguments(scratch.subject.contract, arguments)
    if other is None:
        raise NotTriedError("its arguments have no other valid value")
    await scratch.approve(held.approval_id)
    end = await scratch.submit(other)
    expect(not scratch.executions, f"{other} was executed with the approval of {dict(arguments)}")
    expect(not end.ok, f"ended with {ended(end)}")


async def _wrong_person(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    demand = Demand.from_record(held.demand)
    fit = voters_for(held)[0]
    caller = scratch.subject.caller
    if demand.pattern is Pattern.USER_CONSENT:
        await _refused_vote(scratch, held, replace(fit, user="someone-else"), "another user")
    elif caller.user is not None:
        await _refused_vote(scratch, held, replace(fit, user=caller.user), "the requester")
    if demand.roles:
        await _refused_vote(scratch, held, replace(fit, roles=frozenset()), "a person without role")
    other = replace(fit, tenant="evaluation-stranger")
    await _refused_vote(scratch, held, other, "a person of another tenant")
    if demand.approvers > 1:
        decide = scratch.runtime.approvals.decide
        await decide(held.approval_id, fit, "approve", justification="Evaluated.")
        await _refused_vote(scratch, held, fit, "one person twice")
    end = await scratch.submit(arguments)
    expect(not scratch.executions, f"executed: {ended(end)}")


async def _rejected(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    voter = voters_for(held)[0]
    await scratch.runtime.approvals.decide(held.approval_id, voter, "reject", comment="No.")
    end = await scratch.submit(arguments)
    expect(not scratch.executions, f"executed after a rejection: {ended(end)}")


async def _used_once(scratch: Scratch, held: Held, arguments: Arguments) -> None:
    await scratch.approve(held.approval_id)
    end = await scratch.submit(arguments)
    expect(end.ok, f"the approved call ended with {ended(end)}")
    await scratch.submit(arguments)
    await scratch.submit(arguments, run_id="run_evaluation_2", key="evaluation-2")
    expect(scratch.executions == 1, f"one approval led to {scratch.executions} executions")


MODE: Final = EvaluationMode(
    name="approval",
    purpose="A missing, forged, expired or foreign approval does not count, nor the requester's.",
    why_not=_why_not,
    cases=_cases,
)
