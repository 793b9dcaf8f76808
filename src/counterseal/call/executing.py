"""Carrying a call out: attempts within its deadline, and finding out what became of it.

Another attempt has the same payload and the same key, and is spent from the run's budgets. What may
have changed something is never tried again blindly: either it can't have begun, or its contract
says that the destination honours the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import inf
from random import random
from typing import Any

from counterseal.audit import EventType
from counterseal.call.deciding import Deciding
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.model import Contract, OnUnknown
from counterseal.contract.tool_context import Context
from counterseal.execution.attempt import AttemptRequest, Outcome
from counterseal.execution.executor import Runner
from counterseal.execution.failures import said_not_done
from counterseal.execution.probes import ProbeError, ProbeRequest, ask
from counterseal.gates.context import context_for
from counterseal.storage.base import Admit, Charge

__all__ = ["Executing"]

_SUCCESS = Code.SUCCESS  # found on its class anew each time, it would cost as much as a gate
_NO_CODE = Outcome(Code.DEPENDENCY_UNAVAILABLE, trace="this contract has no code here", began=False)
_NOT_BEGUN = Outcome(Code.TIMEOUT, began=False)
_GIVEN_UP = Outcome(Code.TIMEOUT, answered=False, interrupted=True)
_MAY_HAVE_HAPPENED = {Code.TIMEOUT, Code.DEPENDENCY_UNAVAILABLE, Code.UNKNOWN_ERROR}
"""A tool that breaks with an error which nobody knows may have broken after it had acted."""
_SAID_SO = "counterseal.errors.ToolFailedError"
_LONGEST_WAIT = 60.0


class Executing(Deciding):
    """The step between admission and the answer."""

    outcome = _NOT_BEGUN
    in_doubt = False
    """Whether an attempt under this key may have taken effect without saying so."""
    retry_blocked = False
    """Whether it was not tried again because that might have done it twice."""
    reconciled = False
    """Whether the outcome was found out by asking the destination."""
    gone: BaseException | None = None
    """What took the caller away while the tool ran."""
    _attempt_until = 0.0

    async def execute(self) -> None:
        """Run the tool. What it may have done is written down even when nobody waits any more."""
        compiled = self.ctx.compiled
        if compiled is None or compiled.runner is None:
            self.outcome = _NO_CODE
            return
        contract, runner = compiled.contract, compiled.runner
        try:
            while True:
                lost = self._slept() and not await self._ours()
                seconds = 0.0 if lost else self._seconds_left(runner)
                self.outcome = _GIVEN_UP if seconds > 0 else _NOT_BEGUN  # until it is known better
                if seconds > 0:
                    self.outcome = outcome = await runner.run(self._work(runner, seconds))
                    if outcome.code is _SUCCESS and not outcome.interrupted:
                        return
                self._note_doubt()
                if self.outcome.interrupted or not await self._may_retry(contract):
                    self._note_blocked(contract)
                    break
                self.attempt += 1
            if self.outcome.interrupted:
                self.gone = asyncio.CancelledError()
            elif self.unknown and contract.on_unknown is OnUnknown.READ_BACK:
                await self._find_out(contract)
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            self.gone = error  # the last attempt's outcome stands

    def _slept(self) -> bool:
        """Whether somebody else may have taken the call over; a read is always one's own."""
        return False

    async def _ours(self) -> bool:
        """Whether nobody has."""
        return True

    def _note_doubt(self) -> None:
        """Remember that an attempt may have acted, and what of it still runs."""
        self.in_doubt = self.in_doubt or self._unanswered()
        late = self.outcome.late
        if late is not None and self.key is not None:
            self.runtime.executor.leave_behind(self.ctx.principal.tenant, self.key, late)

    def _seconds_left(self, runner: Runner) -> float:
        """For one attempt, within what is left of everybody's time."""
        now, until, seconds = self.runtime.clock(), self._until, runner.seconds
        seconds = min(seconds, until - now)
        self._attempt_until = now + seconds
        return seconds

    def _given(self, runner: Runner) -> Mapping[str, Any]:
        """The arguments of one attempt. What a tool does to them must not reach the next one."""
        return thaw(self.ctx.arguments) if runner.nested else self.ctx.arguments

    def _work(self, runner: Runner, seconds: float) -> AttemptRequest:
        """One attempt."""
        return AttemptRequest(
            self._given(runner), self._about, seconds, self.progress and self._tell
        )

    def _about(self) -> Context:
        """What a tool, or a hook of its contract, may know of this attempt."""
        contract = self.ctx.compiled.contract if self.ctx.compiled else None
        return context_for(
            self.ctx, contract, until=self._attempt_until, key=self.key, attempt=self.attempt
        )

    @property
    def _until(self) -> float:
        """When everything must be over: the run's deadline, or the caller's."""
        run, until = self.ctx.run, self.ctx.until
        budget = run.budgets.seconds
        if run.deadline is not None and run.deadline < until:
            until = run.deadline
        if budget is not None and run.started_at + budget < until:
            until = run.started_at + budget
        return until

    @property
    def unknown(self) -> bool:
        """Whether something may have changed without an answer to say so."""
        if self.outcome.code is _SUCCESS:
            return False
        return self.in_doubt or self._unanswered()

    def _unanswered(self) -> bool:
        """Whether the last attempt may have changed something, and did not say."""
        outcome, compiled = self.outcome, self.ctx.compiled
        if compiled is None or not compiled.mutates or not outcome.began:
            return False
        if not outcome.answered:
            return True
        said_so = outcome.fault is not None and _SAID_SO in outcome.fault.kinds
        return outcome.code in _MAY_HAVE_HAPPENED and not said_so

    def _tell(self, report: Any) -> None:
        try:
            if self.progress is not None:
                self.progress(report)
        except Exception as error:  # noqa: BLE001 - the caller's own code; the call goes on
            self.runtime.report(self.ctx.call_id, "progress", error)

    async def _may_retry(self, contract: Contract) -> bool:
        """Whether to try again, after the wait that this takes."""
        if not self._repeatable(contract) or self.epoch != self.runtime.registry.epoch:
            return False
        wait = _backoff(self.attempt)
        if self.outcome.fault is not None and self.outcome.fault.retry_after is not None:
            wait = max(wait, self.outcome.fault.retry_after)
        if wait > _LONGEST_WAIT or self.runtime.clock() + wait >= self._until:
            return False
        if not await self._spend_retry(contract):
            return False
        await self.runtime.pause(wait)
        return self.epoch == self.runtime.registry.epoch  # a kill stops the next attempt too

    def _repeatable(self, contract: Contract) -> bool:
        compiled = self.ctx.compiled
        if compiled is None or self.attempt > contract.runtime.max_retries:
            return False
        if not compiled.profile.responses[self.outcome.code].retryable:
            return False
        if said_not_done(self.outcome.fault):
            return True
        if self.outcome.words:  # who has said no in words would only be asked once more
            return False
        if not compiled.mutates or not self.outcome.began:
            return True
        return self.unknown and contract.on_unknown is OnUnknown.RETRY_SAME_KEY

    def _note_blocked(self, contract: Contract) -> None:
        """Whether the only reason not to try again is that it may have taken effect."""
        compiled = self.ctx.compiled
        if compiled is not None and self.unknown:
            transient = compiled.profile.responses[self.outcome.code].retryable
            self.retry_blocked = transient and contract.on_unknown is not OnUnknown.RETRY_SAME_KEY

    async def _spend_retry(self, contract: Contract) -> bool:
        """Another attempt costs what a call costs, in money and in rate, and is counted."""
        ctx = self.ctx
        limit = ctx.run.budgets.retries
        charges = [charge for charge in ctx.charges if charge.budget.endswith(".money")]
        counted = Charge("run.retries", "retries", 1, inf if limit is None else limit, of_run=True)
        request = Admit(
            tenant=ctx.principal.tenant,
            run_id=ctx.run.run_id,
            tool=contract.name,
            version=contract.version,
            now=self.runtime.clock(),
            charges=[*charges, counted],
            rates=ctx.rates,
            entry=None,
            approval_id=None,
            epoch=self.runtime.registry.stored,
            events=(self.event(EventType.RETRIED, "retry", self._next_attempt()),),
        )
        try:
            return (await self.runtime.store.admit(request)).refused is None
        except Exception as error:  # noqa: BLE001 - what was done so far must still be settled
            self.runtime.report(ctx.call_id, "store", error)
            return False

    def _next_attempt(self) -> dict[str, Any]:
        """Which attempt comes, and what became of the one before."""
        return {"attempt": self.attempt + 1, "code": self.outcome.code.value}

    async def _find_out(self, contract: Contract) -> None:
        """Ask the destination whether it happened. Not finding it there yet proves nothing."""
        mask = self.outcome.mask
        try:
            found = await self.read_back(contract, self._until - self.runtime.clock())
        except ProbeError as error:
            self.runtime.report(self.ctx.call_id, "read_back", error.trace)
            return
        if found is not None:
            self.reconciled = True
            self.outcome = Outcome(Code.SUCCESS, found, mask=mask)

    async def read_back(self, contract: Contract, most: float = inf) -> Any:
        """What the destination did under this key; None when it did nothing. Else ProbeError."""
        seconds = min(contract.runtime.timeout_ms / 1000, most)
        if contract.read_back is None or seconds <= 0:
            raise ProbeError("there is nobody to ask, or no time left to ask")
        self._attempt_until = self.runtime.clock() + seconds
        ctx = self.ctx
        asked = ProbeRequest(
            contract, ctx.arguments, self._about, ctx.registry, ctx.executor, seconds
        )
        return await ask(contract.read_back, asked)


def _backoff(attempt: int) -> float:
    """Seconds to wait before another attempt: doubling, with jitter so that callers spread out."""
    return float(0.05 * 2**attempt * (0.5 + random()))  # noqa: S311 - spreading, not secrecy
