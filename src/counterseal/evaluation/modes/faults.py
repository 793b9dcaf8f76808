"""Retry: faults between the runtime and the tool's destination.

A proxy stands in front of the tool. It fails before the tool is reached, or after it has acted, so
that its answer is lost; the runtime can't tell one from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from counterseal.contract.model import OnUnknown
from counterseal.evaluation.cases import (
    Arguments,
    CaseKind,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    always,
    ended,
    expect,
)
from counterseal.evaluation.modes.duplicates import check_effects
from counterseal.evaluation.scratch import Inner, Proxy, Scratch, Subject
from counterseal.evaluation.wire import WIRE_FAULTS, WireFault, WireService
from counterseal.observation import Observation

RAW: Final = "raw text of an exception 7f3a9c"
"""The text of raised exceptions, which must not reach a model."""


class _UnavailableError(Exception):
    """An answer of 503, as HTTP clients raise it."""

    status_code = 503


class ProxyFault(NamedTuple):
    """A failure on the way to the tool, or on the way back."""

    name: str
    error: Callable[[], Exception]
    after: bool = False
    """Whether the tool has acted before the fault."""


_FAULTS: Final = (
    ProxyFault("a timeout", lambda: TimeoutError(RAW)),
    ProxyFault("an answer of 503", lambda: _UnavailableError(RAW)),
    ProxyFault("a refused connection", lambda: ConnectionRefusedError(RAW)),
    ProxyFault("a reset connection", lambda: ConnectionResetError(RAW)),
    ProxyFault("a lost answer", lambda: ConnectionResetError(RAW), after=True),
    ProxyFault("a timeout after it has acted", lambda: TimeoutError(RAW), after=True),
)


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    contract = subject.contract
    why = f"max_retries: {contract.runtime.max_retries}; on_unknown: {contract.on_unknown}"
    for fault in _FAULTS:
        for once in (True, False):
            yield GeneratedCase(
                name=f"{fault.name}, {'once' if once else 'every time'}",
                why=why,
                run=_fault(subject, fault, once=once),
                arguments=subject.good.arguments,
                kind=CaseKind.FAILURE,
            )

    for wire, once in product(WIRE_FAULTS if contract.http is not None else (), (True, False)):
        yield GeneratedCase(
            name=f"{wire.name}, {'once' if once else 'every time'}",
            why=f"http; {why}",
            run=_over_http(subject, wire, once=once),
            arguments=subject.good.arguments,
            kind=CaseKind.FAILURE,
        )


class Attempts:
    """Counts attempts, and lets some of them fail."""

    def __init__(self, fault: ProxyFault, *, once: bool) -> None:
        self.count = 0
        self._fault, self._once = fault, once

    async def __call__(self, _number: int, inner: Inner) -> Any:
        self.count += 1
        if self._once and self.count > 1:
            return await inner()
        if self._fault.after:
            await inner()
        raise self._fault.error()


def _fault(subject: Subject, fault: ProxyFault, *, once: bool) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        attempts = Attempts(fault, once=once)
        proxy: Proxy = attempts
        async with subject.scratch(proxy=proxy) as scratch:
            end = await scratch.carry_out(arguments)
            expect(attempts.count > 0, f"the tool was not reached: {ended(end)}")
            _judge(scratch, attempts.count, end, once=once)
            expect(RAW not in end.for_model(), "the text of the exception reached the model")
            if subject.contract.mutates:
                check_effects(scratch)

    return run


def _over_http(subject: Subject, fault: WireFault, *, once: bool) -> CaseRun:
    """Send the contract's own request to a service, through the real HTTP client."""

    async def run(arguments: Arguments) -> None:
        service = WireService(subject.contract, subject.good.output, fault, once=once)
        async with subject.scratch(wired=True, network=service.network) as scratch:
            end = await scratch.carry_out(arguments)
        expect(service.attempts > 0, f"the service was not reached: {ended(end)}")
        most = 1 + subject.contract.runtime.max_retries
        expect(service.attempts <= most, f"{service.attempts} attempts; {most} are allowed")
        acted = sum(service.effects.values())
        expect(
            acted <= 1 or not subject.contract.mutates,
            f"one call acted {acted} times at the service",
        )
        if not once:
            expect(not end.ok, "every attempt failed, and the call was called a success")
        elif not subject.contract.mutates and most > 1:
            expect(end.ok, f"a fault that passes was not retried: {ended(end)}")

    return run


def _judge(scratch: Scratch, attempts: int, end: Observation, *, once: bool) -> None:
    contract = scratch.subject.contract
    most = 1 + contract.runtime.max_retries
    expect(attempts <= most, f"{attempts} attempts; max_retries allows {most}")
    blind = contract.mutates and contract.on_unknown is not OnUnknown.RETRY_SAME_KEY
    if blind:
        expect(attempts == 1, f"{attempts} attempts at a change whose outcome was not known")
        return
    if once and most > 1:
        expect(end.ok, f"a fault that passes was not retried: {ended(end)}")
    elif not once:
        expect(not end.ok, "every attempt failed, and the call was called a success")
        expect(end.errors or end.warnings, "the failure has no reason for the agent")


MODE: Final = EvaluationMode(
    name="retry",
    purpose="Timeouts, 503, resets and lost answers are retried where it is safe, and only there.",
    why_not=always,
    cases=_cases,
)
