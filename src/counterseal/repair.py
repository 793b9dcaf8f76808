"""A loop that lets a model repair its own proposals, within fixed bounds.

The runtime counts refusals itself, so that agents without this loop are bounded as well. The loop
adds what a driver needs: when to ask the model, when to stop, and hooks to watch it. It follows the
repair path only: it never retries, never replans, and never answers for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from pydantic_core import from_json

from counterseal.canonical import at
from counterseal.codes import FINAL, Path
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal, names_arguments

Model = Callable[[dict[str, Any]], Awaitable[object]]
Stopped = Literal["path", "attempts", "model"]
"""Why a loop ended without success: the answer's path is not repair, no attempt is left, or the
model proposed nothing."""
_NOTE: Final = (
    "The last answer was not a proposal, so nothing was submitted. Answer with one tool and its "
    'arguments: {"tool": "…", "arguments": {…}}.'
)


class Submitter(Protocol):
    """The part of the runtime that a repair loop uses."""

    async def submit(self, proposal: Proposal, principal: Principal) -> Observation: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One proposal of a loop that was refused or failed."""

    number: int
    """Starts at 1."""
    proposal: Proposal
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """How a loop ended."""

    observation: Observation
    """The last observation. Its `path` says how to go on, if it is not repair."""
    proposal: Proposal
    """The last proposal: the one that was executed, if the loop succeeded."""
    attempts: int
    """Number of proposals that were submitted, the first included."""
    stopped: Stopped | None
    """None if the loop succeeded."""

    @property
    def ok(self) -> bool:
        return self.observation.ok


class RepairLoop:
    """Calls `async model(feedback) -> proposal` until a proposal succeeds, or the loop must end.

    The model receives the refusal's feedback. It answers with a `Proposal`, with `{"tool": …,
    "arguments": …}` (the same tool if none is named), with a provider's tool call, or with None to
    give up. It chooses tool and arguments; principal, run and keys stay those of the first
    proposal. Any other answer is not submitted, and uses up an attempt.
    """

    def __init__(
        self,
        model: Model,
        *,
        attempts: int = 5,
        seconds: float | None = None,
        on_refusal: Callable[[Attempt], None] | None = None,
        on_end: Callable[[Repaired], None] | None = None,
    ) -> None:
        """`seconds` is the model's time limit for an answer; None sets no limit."""
        if attempts < 1:
            raise ValueError(f"attempts must be 1 or more, got {attempts!r}")
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds must be more than 0, or None for no limit, got {seconds!r}")
        self._model = model
        self._attempts = attempts
        self._seconds = seconds
        self._on_refusal = on_refusal
        self._on_end = on_end

    async def run(self, runtime: Submitter, proposal: Proposal, principal: Principal) -> Repaired:
        """Submit a proposal, and let the model repair it when it is refused."""
        current, number, left = proposal, 0, self._attempts
        while True:
            observation = await runtime.submit(current, principal)
            number, left = number + 1, left - 1
            if not observation.ok and self._on_refusal is not None:
                attempt = Attempt(number=number, proposal=current, observation=observation)
                self._on_refusal(attempt)
            stopped: Stopped | None = None
            if not observation.ok:
                on_path = observation.code not in FINAL and observation.path is Path.REPAIR
                stopped = "path" if not on_path else "attempts" if left < 1 else None
            end = Repaired(
                observation=observation, proposal=current, attempts=number, stopped=stopped
            )
            if observation.ok or stopped is not None:
                return self._ended(end)
            end = replace(end, stopped="model")
            try:
                repaired, left = await self._ask(observation.feedback(), proposal, left)
            except Exception:
                self._ended(end)
                raise
            if repaired is None:
                return self._ended(end)
            current = repaired

    async def _ask(
        self, feedback: dict[str, Any], first: Proposal, left: int
    ) -> tuple[Proposal | None, int]:
        """Return the model's next proposal, if it has one, and how many attempts are left."""
        question = feedback
        while left > 0:
            answer: object = None  # also after its time limit
            try:
                async with asyncio.timeout(self._seconds) as limit:
                    answer = await self._model(question)
            except TimeoutError:
                if not limit.expired():
                    raise  # the model's own timeout
            if answer is None:
                break
            proposal = _next(first, answer)
            if proposal is not None:
                return proposal, left
            question, left = {**feedback, "note": _NOTE}, left - 1
        return None, left

    def _ended(self, end: Repaired) -> Repaired:
        if self._on_end is not None:
            self._on_end(end)
        return end


def _next(first: Proposal, answer: object) -> Proposal | None:
    """Return the first proposal with the model's tool and arguments; None if it gave none."""
    if isinstance(answer, Proposal):
        tool, arguments = answer.tool, answer.arguments
    elif isinstance(answer, Mapping) and answer.keys() <= {"tool", "arguments"}:
        if "arguments" not in answer:
            return None
        tool, arguments = answer.get("tool", first.tool), answer["arguments"]
    else:
        call = Proposal.from_call(answer)
        if not call.tool or not names_arguments(answer):
            return None
        tool, arguments = call.tool, call.arguments
    # A repaired call is another call: it has its own id, and its key stands for other arguments.
    origins = _origins(first, arguments)
    fresh: dict[str, Any] = {"call_id": None, "proposed": None, "origins": origins}
    if tool != first.tool:  # both belong to the first tool and its target
        fresh |= {"version": None, "expected_version": None}
    return replace(first, tool=tool, arguments=arguments, **fresh)


def _origins(first: Proposal, arguments: object) -> Any:
    """Return the origins without those of arguments that the model took away or rewrote.

    What was untrusted stays so while it is there. Wrong origins stay, for the first gate to refuse.
    """
    if not isinstance(first.origins, Mapping):
        return first.origins
    before, now = _read(first.arguments), _read(arguments)

    def stays(place: object, word: object) -> bool:
        was = at(before, place) if isinstance(place, str) else None
        if was is None:
            return True
        value = at(now, str(place))
        return bool(value == was) or (word == "untrusted" and value is not None)

    return {place: word for place, word in first.origins.items() if stays(place, word)}


def _read(arguments: object) -> object:
    """Return arguments as an object, also if they came as text; None if they are not JSON."""
    if not isinstance(arguments, str | bytes):
        return arguments
    try:
        return from_json(arguments)
    except ValueError:
        return None
