"""Permission boundaries: calls without the grant, tenant, scope or role are refused.

Each case changes one thing about the caller of the good call, or about its grant. A tool that only
one tenant may use is not known to another one; every other refusal is a permission that is denied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from counterseal.codes import Code
from counterseal.contract.effects import RiskClass
from counterseal.evaluation.cases import (
    Arguments,
    CaseKind,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    always,
    ended,
    expect,
)
from counterseal.evaluation.scratch import RUN, Scratch, Subject
from counterseal.policy.policy_rules import PolicyVerdict
from counterseal.proposal import Principal, Proposal, RiskLevel
from counterseal.registry import Grant

_STRANGER: Final = "evaluation-stranger"
_DENIED: Final = (Code.PERMISSION_DENIED,)
_UNKNOWN: Final = (Code.STRUCTURAL_VIOLATION, Code.PERMISSION_DENIED)
_STRICTNESS: Final = tuple(PolicyVerdict)


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    caller, record = subject.caller, subject.record
    yield _denied(subject, "an agent without a grant", replace(caller, agent=_STRANGER), "grants")
    for scope in sorted(record.scopes):
        less = replace(caller, scopes=caller.scopes - {scope})
        yield _denied(subject, f"without the scope {scope}", less, "security.required_scopes")
    if record.allowed_agent_roles:
        yield _denied(
            subject, "without its role", replace(caller, roles=frozenset()), "the record's roles"
        )
    if record.allowed_tenants:
        other = replace(caller, tenant=_STRANGER)
        yield _denied(subject, "in another tenant", other, "the record's tenants", _UNKNOWN)
    yield from _limited(subject)
    argument = subject.contract.tenant_argument
    if argument is not None:
        yield _case(
            subject,
            "another tenant in the arguments",
            "tenant_argument",
            _tenant_argument(subject, argument),
            kind=CaseKind.DENIAL,
        )
    yield _case(subject, "another tenant sees nothing of it", "tenants", _apart(subject))
    yield _case(
        subject, "a riskier caller is not judged more leniently", "policy", _risk_levels(subject)
    )
    if len(_tenants(subject)) > 1:
        yield _case(subject, "the policy covers every tenant", "policy", _every_tenant(subject))


def _case(
    subject: Subject,
    name: str,
    why: str,
    run: CaseRun,
    kind: CaseKind | None = None,
) -> GeneratedCase:
    return GeneratedCase(name=name, why=why, run=run, arguments=subject.good.arguments, kind=kind)


def _denied(
    subject: Subject,
    name: str,
    caller: Principal,
    why: str,
    codes: tuple[Code, ...] = _DENIED,
    grants: tuple[Grant, ...] | None = None,
) -> GeneratedCase:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch(grants=grants) as scratch:
            end = await scratch.submit(arguments, caller)
            expect(not scratch.executions, f"executed, with the code {end.code.value}")
        expect(end.code in codes, f"ended with {ended(end)}; expected {codes[0].value}")

    return _case(subject, name, why, run, CaseKind.DENIAL)


def _limited(subject: Subject) -> Iterator[GeneratedCase]:
    """Yield cases with grants that do not allow the call."""
    grant = subject.grant
    own: dict[str, Any] = {"agent": grant.agent, "tool": grant.tool}
    past = datetime.fromtimestamp(subject.now, UTC) + timedelta(seconds=60)
    if subject.contract.mutates:
        reading = Grant(**own, mode="read")
        yield _denied(subject, "with a grant to read", subject.caller, "grant", grants=(reading,))
    if subject.record.risk > RiskClass.READ_ONLY:
        low = Grant(**own, risk_limit=RiskClass.READ_ONLY)
        yield _denied(subject, "above the grant's risk", subject.caller, "grant", grants=(low,))

    async def expired(arguments: Arguments) -> None:
        async with subject.scratch(grants=[Grant(**own, expires_at=past)]) as scratch:
            scratch.clock.advance(3600)
            end = await scratch.submit(arguments)
            expect(not scratch.executions, f"executed, with the code {end.code.value}")
        expect(end.code is Code.PERMISSION_DENIED, f"ended with {ended(end)}")

    yield _case(subject, "with an expired grant", "grant", expired, CaseKind.DENIAL)


def _tenant_argument(subject: Subject, name: str) -> Any:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            end = await scratch.submit({**arguments, name: _STRANGER})
            expect(not scratch.executions, f"executed for the tenant {_STRANGER}")
        expect(not end.ok, f"ended with {ended(end)}")

    return run


def _apart(subject: Subject) -> Any:
    """Carry a call out in one tenant; the same call in another one must not be answered by it."""

    async def run(arguments: Arguments) -> None:
        others = [one for one in _tenants(subject) if one != subject.caller.tenant]
        other = replace(subject.caller, tenant=others[0] if others else _STRANGER)
        async with subject.scratch() as scratch:
            first = await scratch.carry_out(arguments, key="evaluation")
            second = await scratch.submit(arguments, other, key="evaluation")
            expect(not second.idempotency_hit, "the answer of one tenant was given to another")
            reads = subject.real and not subject.contract.mutates
            shown = reads and first.ok and second.ok and bool(first.data)
            same = shown and subject.contract.resource and second.data == first.data
            expect(
                not (same and subject.contract.security.tenant_scoped),
                f"the tenant {other.tenant} was shown what belongs to {subject.caller.tenant}",
            )

    return run


def _tenants(subject: Subject) -> list[str]:
    """Return the project's tenants in which the call can be made."""
    grant, record = subject.grant, subject.record
    return [
        name
        for name in subject.source.tenants
        if record.allows_tenant(name) and grant.tenant in (None, name)
    ]


async def _verdict(scratch: Scratch, arguments: Any, caller: Principal) -> tuple[int, str]:
    """Return how strictly the gates decide about a call, and their reason."""
    proposal = Proposal(tool=scratch.subject.name, arguments=arguments, run_id=RUN)
    preview = await scratch.runtime.preview(proposal, caller)
    return _STRICTNESS.index(PolicyVerdict(preview.verdict)), preview.reason


def _risk_levels(subject: Subject) -> Any:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            before, level_before = 0, ""
            for level in RiskLevel:
                caller = replace(subject.caller, risk_level=level)
                strict, _ = await _verdict(scratch, arguments, caller)
                expect(
                    strict >= before,
                    f"at the risk level {level} the call is {_STRICTNESS[strict]};"
                    f" at {level_before} it is {_STRICTNESS[before]}",
                )
                before, level_before = strict, level

    return run


def _every_tenant(subject: Subject) -> Any:
    """Compare the verdicts of all tenants: one that is more lenient was forgotten by a rule."""

    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            verdicts = {
                name: await _verdict(scratch, arguments, replace(subject.caller, tenant=name))
                for name in _tenants(subject)
            }
        own = verdicts.get(subject.caller.tenant)
        strict = max(verdicts, key=lambda name: verdicts[name][0])
        lenient = min(verdicts, key=lambda name: verdicts[name][0])
        (most, reason), (least, _) = verdicts[strict], verdicts[lenient]
        denied = _STRICTNESS.index(PolicyVerdict.DENY)
        if own is not None and most == denied and own[0] != denied:
            # The arguments belong to one tenant, and another one refuses them.
            raise NotTriedError(f"the good call is refused in the tenant {strict}: {reason}")
        expect(
            most == least,
            f"in the tenant {lenient} the call is {_STRICTNESS[least]}; in {strict} it is"
            f" {_STRICTNESS[most]}: {reason}",
        )

    return run


MODE: Final = EvaluationMode(
    name="permissions",
    purpose="Other agents, users, tenants, scopes and risk levels get no further than declared.",
    why_not=always,
    cases=_cases,
)
