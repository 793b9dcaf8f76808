"""A run in an agent's hands: what it has seen, what it may still do, what it has written down.

Everything is in the store; a `Run` only says which one, and for whom.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from counterseal.canonical import freeze, thaw
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError
from counterseal.observation import Observation
from counterseal.observation.observe import summarise
from counterseal.observation.render import fence
from counterseal.plans import Plan
from counterseal.proposal import Principal, Proposal, text_set
from counterseal.registry import Registry
from counterseal.storage.base import Budgets, RunRecord

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Run", "RunError", "kept_keys", "opened", "render_state", "settings_of"]

_VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_MOST_BYTES: Final = 65_536
"""How much of one value goes into a prompt; of more, a summary."""


_LONGEST_OBJECTIVE: Final = 10_000


class RunError(CountersealError):
    """A run can't be opened, or is not there."""


class Run:
    """One agent run. Made by `Runtime.run`, which opens it or finds it as it was opened."""

    def __init__(self, runtime: Runtime, principal: Principal, record: RunRecord) -> None:
        self._runtime = runtime
        self.principal = principal
        self.record = record
        """As it was when this was made, or last refreshed."""

    @property
    def id(self) -> str:
        return self.record.run_id

    async def contracts(self) -> tuple[Contract, ...]:
        """What may be used in this run, by name, each in the version that the run gets."""
        run = await self.refresh()
        usable = self._runtime.registry.catalogue(self.principal, run.run_id, run.pins)
        allowed = run.allowed_tools
        return tuple(one.contract for one in usable if allowed is None or one.name in allowed)

    async def submit(
        self, tool: str, arguments: str | bytes | Mapping[str, Any] | None = None, **more: Any
    ) -> Observation:
        """Submit a proposal in this run. Takes what `Proposal` takes, and `submit`'s own."""
        waiting = {name: more.pop(name) for name in ("timeout", "wait", "progress") if name in more}
        given = {} if arguments is None else arguments
        proposal = Proposal(tool=tool, arguments=given, run_id=self.id, **more)
        return await self._runtime.submit(proposal, self.principal, **waiting)

    async def plan(self, steps: Iterable[Proposal | Mapping[str, Any]]) -> Plan:
        """What would become of these steps, in this run."""
        return await self._runtime.plan(steps, self.principal, run_id=self.id)

    async def refresh(self) -> RunRecord:
        """The run as it is now."""
        found = await self._runtime.store.find_run(self.principal.tenant, self.id)
        return self._now(found)

    async def state(self) -> dict[str, Any]:
        """What its tools have left in its state so far, as a copy."""
        state: dict[str, Any] = thaw((await self.refresh()).state)
        return state

    async def new_turn(self) -> RunRecord:
        """Begin another turn: what is not declared to be preserved across turns is forgotten."""
        tenant = self.principal.tenant
        keep = kept_keys(self._runtime.registry, tenant)
        return self._now(await self._runtime.store.new_turn(tenant, self.id, keep))

    async def render(self, prompt: str) -> str:
        """A prompt with what state holds in the place of `{{VARIABLES}}` that contracts declare."""
        return render_state(prompt, await self.refresh(), self._runtime.registry)

    def _now(self, found: RunRecord | None) -> RunRecord:
        if found is None:
            raise RunError(f"there is no run {self.id}")
        self.record = found
        return found


def settings_of(
    *,
    objective: str | None,
    allowed_tools: Iterable[str] | None,
    deadline: float | None,
    budgets: Budgets | None,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What is given of a run's settings, as its record keeps them. The error names the field."""
    given: dict[str, Any] = {}
    if objective is not None:
        given["objective"] = _objective(objective)
    if allowed_tools is not None:
        given["allowed_tools"] = text_set("allowed_tools", allowed_tools)
    if deadline is not None:
        given["deadline"] = _moment(deadline)
    if budgets is not None:
        if not isinstance(budgets, Budgets):
            raise RunError(f"budgets: takes Budgets(…), got {type(budgets).__name__}")
        given["budgets"] = budgets
    if config is not None:
        if not isinstance(config, Mapping):
            raise RunError(f"config: takes a mapping, got {type(config).__name__}")
        try:
            # A copy, so that nobody changes it afterwards, and plain, as any store gives it back.
            given["config"] = thaw(freeze(dict(config)))
        except ValueError as error:
            raise RunError(f"config: can't be kept: {error}") from None
    return given


def _objective(text: Any) -> str:
    if not isinstance(text, str):
        raise RunError(f"objective: takes a text, got {type(text).__name__}")
    if len(text) > _LONGEST_OBJECTIVE:
        raise RunError(
            f"objective: is at most {_LONGEST_OBJECTIVE:,} characters, not {len(text):,}"
        )
    if text.encode(errors="replace").decode() != text:
        raise RunError("objective: a lone surrogate is not text")
    if "\0" in text:
        raise RunError("objective: a NUL is not text")
    return text


def _moment(deadline: Any) -> float:
    number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
    if number and math.isfinite(deadline):
        return float(deadline)
    raise RunError("deadline: takes seconds since the epoch, such as time.time() + 600")


def opened(found: RunRecord, given: Mapping[str, Any]) -> RunRecord:
    """The run that was found, if it is the one that was asked for."""
    for name, value in given.items():
        if getattr(found, name) != value:
            raise RunError(
                f"{name}: the run {found.run_id} was opened with another; leave it out to go on"
                " with the run as it is, or open a new one"
            )
    return found


def kept_keys(registry: Registry, tenant: str) -> frozenset[str]:
    """The keys that live across turns: every contract of the tenant that writes them says so."""
    declared: dict[str, bool] = {}
    for record in registry.records:
        for effect in record.contract.state_effects if record.allows_tenant(tenant) else ():
            kept = declared.get(effect.key, True)
            declared[effect.key] = kept and effect.preserve_across_turns
    return frozenset(key for key, kept in declared.items() if kept)


def render_state(prompt: str, run: RunRecord, registry: Registry) -> str:
    """Variables that no contract of this tenant declares stay as they are; empty ones vanish.

    One pass: what a value says is never read as a template. A value that came from outside stands
    on lines of its own, between markers that it can't end.
    """
    keys = _variables(registry, run.tenant)

    def value(found: re.Match[str]) -> str:
        key = keys.get(found[1])
        if key is None:
            return found[0]
        if key not in run.state:
            return ""
        text = _text(key, run.state[key])
        if key not in run.untrusted or isinstance(run.state[key], bool | int | float | None):
            return text  # a number has nothing to say, wherever it comes from
        lines = fence(text, f"{run.run_id}/{key}", Trust.UNTRUSTED)
        return "\n".join(("", *lines, ""))

    return _VARIABLE.sub(value, prompt)


def _text(key: str, value: Any) -> str:
    text = to_json(value)
    if len(text) > _MOST_BYTES:
        # What a state holds was redacted before it was kept.
        text = to_json(summarise({key: value}, len(text), _MOST_BYTES, lambda clean: clean))
    return text.decode()


def _variables(registry: Registry, tenant: str) -> dict[str, str]:
    """Which key each variable stands for; where versions differ, the newest says."""
    return {
        effect.prompt_template_var: effect.key
        for record in reversed(registry.records)
        if record.allows_tenant(tenant)
        for effect in record.contract.state_effects
        if effect.prompt_template_var is not None
    }
