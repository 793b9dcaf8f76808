"""What a mode of evaluation is made of: cases that are generated from one contract.

A case is carried out with its arguments, and raises `CaseFailedError` with a sentence for the
tool's author. A mode says why it does not apply to a tool, or yields cases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from counterseal.errors import CountersealError
from counterseal.evaluation.scratch import Subject
from counterseal.observation import Observation


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
    """One thing to try."""

    name: str
    why: str
    """The part of the contract that it comes from."""
    run: Callable[[Mapping[str, Any]], Awaitable[None]]
    arguments: Mapping[str, Any]
    kind: CaseKind | None = None
    shrinks: bool = True
    """Whether optional arguments may be left out to make a failure shorter."""


class EvaluationMode(NamedTuple):
    """One of the twelve modes."""

    name: str
    title: str
    purpose: str
    why_not: Callable[[Subject], str]
    """Returns why it does not apply to a tool; empty if it does."""
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
    """Apply to every tool."""
    return ""
