"""Modes of evaluation, and the cases that a mode generates from one contract.

A mode says why it does not apply to a tool, or yields cases. A case that fails raises
`CaseFailedError` with a sentence for the tool's author.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from counterseal.errors import CountersealError
from counterseal.evaluation.scratch import Subject
from counterseal.observation import Observation

Arguments = Mapping[str, Any]
CaseRun = Callable[[Arguments], Awaitable[None]]
"""Carries a case out with these arguments; raises CaseFailedError or NotTriedError."""


class CaseKind(StrEnum):
    """The four kinds of case that every exposed tool should pass."""

    SUCCESS = "success"
    DENIAL = "denial"
    BAD_ARGUMENT = "bad argument"
    FAILURE = "failure"


class CaseFailedError(CountersealError):
    """A case did not go as the contract says."""


class NotTriedError(CountersealError):
    """A case could not be carried out, for a reason that says nothing about the tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCase:
    """One call, or several, that must go as the contract says."""

    name: str
    why: str
    """The part of the contract that the case comes from."""
    run: CaseRun
    arguments: Arguments
    kind: CaseKind | None = None
    shrinks: bool = True
    """Whether optional arguments may be left out to make a failure shorter."""


class EvaluationMode(NamedTuple):
    """One kind of test, such as idempotency, with the cases that it generates for a tool."""

    name: str
    purpose: str
    why_not: Callable[[Subject], str]
    """Returns why the mode does not apply to a tool; empty if it does."""
    cases: Callable[[Subject], Iterator[GeneratedCase]]
    needs_good_call: bool = True


def expect(holds: object, otherwise: str) -> None:
    """Fail the case with a sentence, unless the condition holds."""
    if not holds:
        raise CaseFailedError(otherwise)


def ended(observation: Observation) -> str:
    """Return how a call ended, in a few words for a message."""
    errors = "; ".join(error.message for error in observation.errors[:2])
    return f"{observation.code.value}{f' ({errors})' if errors else ''}"


def always(_subject: Subject) -> str:
    """Return no reason: the mode applies to every tool."""
    return ""
