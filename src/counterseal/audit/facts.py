"""What an event counts as: the code that a call was answered with, and what is told by numbers.

A store keeps these beside the event, in columns of their own, so that calls are found and counted
by index. They say nothing that the event does not say; which of its words they come from is here
and nowhere else. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntFlag
from functools import lru_cache
from typing import Any, Final

from counterseal.audit.events import EventType

__all__ = ["COUNTED", "Fact", "Filed", "filed", "read_tally"]


class Fact(IntFlag):
    """One bit each; all of them together are a number in the event's tally."""

    PROPOSAL = 1
    """It answers an agent's proposal."""
    MUTATES = 2
    """The tool changes something."""
    AGAIN = 4
    """Refusals of this tool stood open in its run: not the first try."""
    UNSHAPED = 8
    """Refused for its shape, by *parse* or *schema*."""
    ASKED_TO_MEND = 16
    """The agent was told to repair or to think over, where no refusal stood open: a loop began."""
    MENDED = 32
    """It succeeded, and so ended such a loop."""
    EXHAUSTED = 64
    """The last that such a loop may have; a person should look."""
    EXECUTED = 128
    """The tool was called."""
    ANNOUNCED = 256
    """Its start was put on record before."""
    KEY_MATCHED = 512
    """Something was in the ledger under its key."""
    REPLAYED = 1024
    """It was answered from there."""
    RETRIED = 2048
    """It took more than one attempt."""
    RETRY_BLOCKED = 4096
    """It was not tried again, because that might have done it twice."""
    TO_VERIFY = 8192
    """Somebody has to look whether it took effect."""
    UNAPPROVED = 16384
    """It came without an approval that stands for it, and not for the first time."""
    COMPLETE = 32768
    """What became of it is known, and on record."""


Filed = tuple[str | None, str | None, float | None]
"""The code that a call was answered with, the tally that it belongs to, and what it cost.

None: it ends no call, it is not counted, it cost nothing.
"""
Counted = tuple[str | None, int, float | None]

# As plain numbers: every event that is written goes through here, and flags are slow to add up.
(
    _PROPOSAL,
    _MUTATES,
    _AGAIN,
    _UNSHAPED,
    _ASKED_TO_MEND,
    _MENDED,
    _EXHAUSTED,
    _EXECUTED,
    _ANNOUNCED,
    _KEY_MATCHED,
    _REPLAYED,
    _RETRIED,
    _RETRY_BLOCKED,
    _TO_VERIFY,
    _UNAPPROVED,
    _COMPLETE,
) = (fact.value for fact in Fact)

_NOT: Final[Filed] = (None, None, None)
_PLAIN: Final[Counted] = (None, 0, None)
_SHAPE: Final = ("parse", "schema")
_MENDING: Final = ("repair", "replan")
_SAID: Final = ("happened", "did_not_happen")
"""An operator's word for what became of a call."""

Body = Mapping[str, Any]


def filed(kind: str, decision: str, body: Body) -> Filed:
    """What an event counts as, from its type, its decision and its body."""
    told = COUNTED.get(kind)
    counted = None if told is None else told(decision, body)
    if counted is None:
        return _NOT
    code, facts, cost = counted
    return code, _tally(kind, code, facts), cost


@lru_cache(maxsize=1024)  # there are few, and every event that is counted needs one
def _tally(kind: str, code: str | None, facts: int) -> str:
    return f"{kind} {code or '-'} {facts}"


def read_tally(tally: str) -> tuple[str, str | None, Fact]:
    """The type of event, the code, and the facts that a tally stands for."""
    kind, code, facts = tally.split(" ")
    return kind, None if code == "-" else code, Fact(int(facts))


def _plain(_decision: str, _body: Body) -> Counted:
    return _PLAIN


def _kind_of(body: Body) -> int:
    """What all answers to proposals have in common."""
    facts = 0 if "system" in body or "resumed" in body else _PROPOSAL
    if "mutates" in body:
        facts |= _MUTATES
    if "again" in body:
        facts |= _AGAIN
    elif body.get("path") in _MENDING:
        facts |= _ASKED_TO_MEND
    return facts


def _denied(_decision: str, body: Body) -> Counted:
    gate, code = body.get("gate"), body.get("code")
    facts = _kind_of(body)
    if gate in _SHAPE:
        facts |= _UNSHAPED
    elif gate == "approval":
        facts |= _UNAPPROVED
    elif gate == "ledger" and code != "DEPENDENCY_UNAVAILABLE":
        facts |= _KEY_MATCHED
        if code == "IDEMPOTENCY_CONFLICT":
            facts |= _RETRY_BLOCKED
    return (str(code) if code else "UNKNOWN_ERROR", facts, None)


def _held(_decision: str, body: Body) -> Counted:
    return ("CONFIRMATION_MISSING", _kind_of(body), None)


def _replayed(decision: str, body: Body) -> Counted:
    return (decision, _kind_of(body) | _KEY_MATCHED | _REPLAYED, None)


def _succeeded(decision: str, body: Body) -> Counted:
    facts = _executed(body) | _COMPLETE
    if "again" in body:
        facts |= _MENDED
    if "verify" in body:
        facts |= _TO_VERIFY
    return (decision, facts, _cost(body))


def _failed(decision: str, body: Body) -> Counted:
    facts = _executed(body)
    if "began" in body:  # it says so only where it did not
        return (decision, (facts & ~_EXECUTED) | _COMPLETE, None)
    if "unknown" not in body:
        facts |= _COMPLETE
    if "retry_blocked" in body:
        facts |= _RETRY_BLOCKED
    return (decision, facts, _cost(body))


def _executed(body: Body) -> int:
    facts = _kind_of(body) | _EXECUTED
    if "announced" in body:
        facts |= _ANNOUNCED
    if "attempts" in body:
        facts |= _RETRIED
    return facts


def _cost(body: Body) -> float | None:
    cost = body.get("cost")
    return None if cost is None else float(cost) * int(body.get("attempts", 1))


def _reconciled(decision: str, body: Body) -> Counted | None:
    if decision in _SAID:  # the call stays its agent's, under the code that the agent was given
        return (None, _MUTATES | _ANNOUNCED | _COMPLETE, None)
    if not decision.isupper():
        return None  # what an operator did about it, and no outcome
    ended = _succeeded if decision in ("SUCCESS", "PARTIAL_SUCCESS") else _failed
    return ended(decision, body)


def _escalated(_decision: str, body: Body) -> Counted | None:
    if "looks" in body:  # whoever made the call is gone, and nobody could find out
        return ("UNKNOWN_ERROR", 0, None)
    return (None, _EXHAUSTED, None) if "exhausted" in body else None


COUNTED: Final[Mapping[str, Callable[[str, Body], Counted | None]]] = {
    EventType.DENIED: _denied,
    EventType.APPROVAL_REQUIRED: _held,
    EventType.REPLAYED: _replayed,
    EventType.SUCCEEDED: _succeeded,
    EventType.FAILED: _failed,
    EventType.RECONCILED: _reconciled,
    EventType.ESCALATED: _escalated,
    EventType.STARTED: _plain,
    EventType.RETRIED: _plain,
    EventType.APPROVAL_REJECTED: _plain,
    EventType.COMPENSATED: _plain,
    EventType.COMPENSATION_FAILED: _plain,
}
"""The types of events that are counted, and how."""
