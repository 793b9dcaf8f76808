"""A loop that lets a model mend its own proposals, within bounds that it can't move.

The runtime counts refusals by itself, so agents that never heard of this loop are bounded as well.
The loop adds what a driver needs: whom to ask, when to stop, and hooks to watch it by. It goes on
down one path only; it never retries, never replans, and never answers for a person.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from counterseal.codes import FINAL, Path
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Attempt", "RepairLoop", "Repaired", "Stopped"]

Model = Callable[[dict[str, Any]], Awaitable["Proposal | Mapping[str, Any] | None"]]
Stopped = Literal["path", "attempts", "model"]
"""Why a loop ended without success: the way on is not repair, no attempt is left, or the model gave
up."""


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
    "arguments": …}` (of the same tool where none is named), or with None when it gives up. It
    chooses tool and arguments; whose call it is, its run and its keys stay the first proposal's.
    """

    def __init__(
        self,
        model: Model,
        *,
        attempts: int = 5,
        on_refusal: Callable[[Attempt], None] | None = None,
        on_end: Callable[[Repaired], None] | None = None,
    ) -> None:
        if attempts < 1:
            raise ValueError("attempts: at least one proposal is submitted")
        self._model = model
        self._attempts = attempts
        self._on_refusal = on_refusal
        self._on_end = on_end

    async def run(self, runtime: Runtime, proposal: Proposal, principal: Principal) -> Repaired:
        """Submit, and let the model mend what was refused."""
        current, number = proposal, 1
        while True:
            seen = await runtime.submit(current, principal)
            if not seen.ok and self._on_refusal is not None:
                self._on_refusal(Attempt(number=number, proposal=current, observation=seen))
            stopped = self._stops(seen, number)
            answer = None if seen.ok or stopped else await self._model(seen.feedback())
            if answer is None:
                stopped = stopped or (None if seen.ok else "model")
                return self._ended(seen, current, number, stopped)
            current, number = _next(proposal, answer), number + 1

    def _stops(self, seen: Observation, number: int) -> Stopped | None:
        if seen.ok:
            return None
        if seen.code in FINAL or seen.path is not Path.REPAIR:
            return "path"
        return "attempts" if number >= self._attempts else None

    def _ended(
        self, seen: Observation, proposal: Proposal, attempts: int, stopped: Stopped | None
    ) -> Repaired:
        end = Repaired(observation=seen, proposal=proposal, attempts=attempts, stopped=stopped)
        if self._on_end is not None:
            self._on_end(end)
        return end


def _next(first: Proposal, answer: Proposal | Mapping[str, Any]) -> Proposal:
    """The model's proposal in the first one's place. It has no say in whose call this is."""
    if isinstance(answer, Proposal):
        tool, arguments = answer.tool, answer.arguments
    elif isinstance(answer, Mapping):
        tool, arguments = answer.get("tool", first.tool), answer.get("arguments", {})
    else:
        raise TypeError(f"a model answers with a proposal, not {type(answer).__name__}")
    # A call id names one call; the mended one is another.
    mended = replace(first, tool=tool, arguments=arguments, call_id=None)
    if tool == first.tool:
        return mended
    # These were said of the first tool, and of what that one acts on.
    return replace(mended, version=None, expected_version=None)
