"""A loop that lets a model mend its own proposals, within bounds that it can't move.

The runtime counts refusals by itself, so agents that never heard of this loop are bounded as well.
The loop adds what a driver needs: whom to ask, when to stop, and hooks to watch it by. It goes on
down one path only; it never retries, never replans, and never answers for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from counterseal.codes import FINAL, Path
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal, names_arguments

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Attempt", "RepairLoop", "Repaired", "Stopped"]

Model = Callable[[dict[str, Any]], Awaitable[object]]
Stopped = Literal["path", "attempts", "model"]
"""Why a loop ended without success: the way on is not repair, no attempt is left, or the model had
nothing to propose."""
_NOTE: Final = (
    "The last answer was no proposal, so nothing was submitted. Answer with one tool and its "
    'arguments: {"tool": "…", "arguments": {…}}.'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One proposal of a loop that was refused or failed."""

    number: int
    """From one on."""
    proposal: Proposal
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """How a loop ended."""

    observation: Observation
    """The last one. Its `path` says how to go on, if it is not repair."""
    proposal: Proposal
    """The last one: what was executed, if it succeeded."""
    attempts: int
    """Proposals that were submitted, the first included."""
    stopped: Stopped | None
    """None when it succeeded."""

    @property
    def ok(self) -> bool:
        return self.observation.ok


class RepairLoop:
    """Drives `async model(feedback) -> proposal` until a proposal is fit, or it should end.

    The model is given the refusal's feedback. It answers with a `Proposal`, with `{"tool": …,
    "arguments": …}` (of the same tool where none is named), with a provider's tool call, or with
    None when it gives up. It chooses tool and arguments; whose call it is, its run and its keys
    stay the first proposal's. Any other answer is never submitted, and uses up an attempt.
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
        """`seconds` is how long the model has for an answer; None is as long as it takes."""
        if attempts < 1:
            raise ValueError("attempts: at least one proposal is submitted")
        if seconds is not None and not seconds > 0:
            raise ValueError("seconds: a model needs some time; None sets no limit")
        self._model = model
        self._attempts = attempts
        self._seconds = seconds
        self._on_refusal = on_refusal
        self._on_end = on_end

    async def run(self, runtime: Runtime, proposal: Proposal, principal: Principal) -> Repaired:
        """Submit, and let the model mend what was refused."""
        current, number, left = proposal, 0, self._attempts
        while True:
            seen = await runtime.submit(current, principal)
            number, left = number + 1, left - 1
            if not seen.ok and self._on_refusal is not None:
                self._on_refusal(Attempt(number=number, proposal=current, observation=seen))
            stopped = self._stops(seen, left)
            end = Repaired(observation=seen, proposal=current, attempts=number, stopped=stopped)
            if seen.ok or stopped is not None:
                return self._ended(end)
            end = replace(end, stopped="model")
            try:
                mended, left = await self._ask(seen.feedback(), proposal, left)
            except Exception:
                self._ended(end)
                raise
            if mended is None:
                return self._ended(end)
            current = mended

    def _stops(self, seen: Observation, left: int) -> Stopped | None:
        if seen.ok:
            return None
        if seen.code in FINAL or seen.path is not Path.REPAIR:
            return "path"
        return "attempts" if left < 1 else None

    async def _ask(
        self, feedback: dict[str, Any], first: Proposal, left: int
    ) -> tuple[Proposal | None, int]:
        """The model's next proposal, if it has one, and how many attempts are left with it."""
        asked = feedback
        while left > 0:
            answer = await self._answer(asked)
            if answer is None:
                break
            mended = _next(first, answer)
            if mended is not None:
                return mended, left
            asked, left = {**feedback, "note": _NOTE}, left - 1
        return None, left

    async def _answer(self, feedback: dict[str, Any]) -> object:
        """What the model says; None when it takes too long."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._model(feedback)
        except TimeoutError:
            if not limit.expired():
                raise  # its own
            return None

    def _ended(self, end: Repaired) -> Repaired:
        if self._on_end is not None:
            self._on_end(end)
        return end


def _next(first: Proposal, answer: object) -> Proposal | None:
    """The model's proposal in the first one's place. It has no say in whose call this is."""
    said = _said(first, answer)
    if said is None:
        return None
    tool, arguments = said
    # A call id names one call; the mended one is another. So is what its key is bound to.
    mended = replace(first, tool=tool, arguments=arguments, call_id=None, proposed=None)
    if tool == first.tool:
        return mended
    # These were said of the first tool, and of what that one acts on.
    return replace(mended, version=None, expected_version=None)


def _said(first: Proposal, answer: object) -> tuple[str, Any] | None:
    """Tool and arguments, where an answer says both. Nothing is made up for it."""
    if isinstance(answer, Proposal):
        return answer.tool, answer.arguments
    if isinstance(answer, Mapping) and answer.keys() <= {"tool", "arguments"}:
        said = answer.get("tool", first.tool), answer.get("arguments")
        return said if "arguments" in answer else None
    call = Proposal.from_call(answer)
    return (call.tool, call.arguments) if call.tool and names_arguments(answer) else None
