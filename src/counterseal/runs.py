"""Runs: opening one, using its tools, reading its state, rendering prompts from it.

Everything is in the store; a `Run` only names the run and its principal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from pydantic_core import to_json

from counterseal.canonical import freeze, thaw
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.contract.money import RUN_WINDOWS
from counterseal.errors import CountersealError
from counterseal.ledger.records import Budgets, RunRecord, token_counts
from counterseal.observation import Observation
from counterseal.observation.envelope import fence
from counterseal.observation.observe import summarise
from counterseal.plans import Plan
from counterseal.proposal import Principal, Proposal, text_set
from counterseal.registry import Registry
from counterseal.storage.store import Store

_VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_MAX_BYTES: Final = 65_536
"""Limit for one value in a prompt; a larger one is summarised."""
_MAX_OBJECTIVE: Final = 10_000


class RunError(CountersealError):
    """A run can't be opened, or does not exist."""


class RunServices(Protocol):
    """The part of the runtime that a run uses."""

    store: Store
    registry: Registry

    async def submit(self, *args: Any, **options: Any) -> Observation: ...
    async def plan(self, *args: Any, **options: Any) -> Plan: ...


class Run:
    """One agent run, opened or found by `Runtime.run`."""

    def __init__(self, services: RunServices, principal: Principal, record: RunRecord) -> None:
        self._services = services
        self.principal = principal
        self.record = record
        """As it was when this object was made, or last refreshed."""

    @property
    def id(self) -> str:
        return self.record.run_id

    async def contracts(self) -> tuple[Contract, ...]:
        """Return the contracts that may be used in this run, in the versions that the run gets."""
        run = await self.refresh()
        usable = self._services.registry.catalogue(self.principal, run.run_id, run.pins)
        allowed = run.allowed_tools
        return tuple(
            record.contract for record in usable if allowed is None or record.name in allowed
        )

    async def submit(
        self, tool: str, arguments: str | bytes | Mapping[str, Any] | None = None, **more: Any
    ) -> Observation:
        """Submit a proposal in this run. Takes the fields of `Proposal` and `submit`'s options."""
        options = {name: more.pop(name) for name in ("timeout", "wait", "progress") if name in more}
        arguments = {} if arguments is None else arguments
        proposal = Proposal(tool=tool, arguments=arguments, run_id=self.id, **more)
        return await self._services.submit(proposal, self.principal, **options)

    async def report_tokens(self, tokens: int, *, repair: bool = False) -> int:
        """Count tokens that the model used beside its proposals. Returns the run's total."""
        counts = token_counts(tokens, repair=repair)
        totals = await self._services.store.count(self.principal.tenant, self.id, counts)
        return totals["tokens"]

    async def plan(self, steps: Iterable[Proposal | Mapping[str, Any]]) -> Plan:
        """Return what would become of these steps in this run."""
        return await self._services.plan(steps, self.principal, run_id=self.id)

    async def refresh(self) -> RunRecord:
        """Read the run from the store and return its record."""
        record = await self._services.store.find_run(self.principal.tenant, self.id)
        return self._update(record)

    async def state(self) -> dict[str, Any]:
        """Return a copy of the run's state, as its tools have left it so far."""
        state: dict[str, Any] = thaw((await self.refresh()).state)
        return state

    async def new_turn(self) -> RunRecord:
        """Begin another turn: state that no contract preserves across turns is removed."""
        tenant = self.principal.tenant
        keep = kept_keys(self._services.registry, tenant)
        return self._update(await self._services.store.new_turn(tenant, self.id, keep))

    async def render(self, prompt: str) -> str:
        """Return a prompt with the state's values in place of the declared `{{VARIABLES}}`."""
        return render_state(prompt, await self.refresh(), self._services.registry)

    def _update(self, record: RunRecord | None) -> RunRecord:
        if record is None:
            raise RunError(f"there is no run {self.id}")
        self.record = record
        return record


def settings_of(
    *,
    objective: str | None,
    allowed_tools: Iterable[str] | None,
    deadline: float | None,
    budgets: Budgets | None,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the settings that are not None, checked. RunError names the field that is wrong."""
    settings: dict[str, Any] = {}
    if objective is not None:
        settings["objective"] = _objective(objective)
    if allowed_tools is not None:
        settings["allowed_tools"] = text_set("allowed_tools", allowed_tools)
    if deadline is not None:
        settings["deadline"] = _moment(deadline)
    if budgets is not None:
        if not isinstance(budgets, Budgets):
            raise RunError(f"budgets must be Budgets(…), got {type(budgets).__name__}")
        windows = {*budgets.money, *budgets.cost} - {*RUN_WINDOWS}
        if windows:
            raise RunError(
                f"budgets: {min(windows)} is a limit of a tenant; a run limits money and cost by"
                f" {' and '.join(RUN_WINDOWS)}"
            )
        settings["budgets"] = budgets
    if config is not None:
        if not isinstance(config, Mapping):
            raise RunError(f"config must be a mapping, got {type(config).__name__}")
        try:
            # A plain copy: the caller can't change it later, and every store returns it alike.
            settings["config"] = thaw(freeze(dict(config)))
        except ValueError as error:
            raise RunError(f"config can't be stored: {error}") from None
    return settings


def _objective(text: Any) -> str:
    if not isinstance(text, str):
        raise RunError(f"objective must be a text, got {type(text).__name__}")
    if len(text) > _MAX_OBJECTIVE:
        most = f"at most {_MAX_OBJECTIVE:,} characters"
        raise RunError(f"objective must have {most}, got {len(text):,}")
    if text.encode(errors="replace").decode() != text:
        raise RunError("objective must not contain a lone surrogate")
    if "\0" in text:
        raise RunError("objective must not contain a NUL character")
    return text


def _moment(deadline: Any) -> float:
    number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
    if number and math.isfinite(deadline):
        return float(deadline)
    raise RunError("deadline must be seconds since the epoch, such as time.time() + 600")


def check_settings(run: RunRecord, settings: Mapping[str, Any]) -> RunRecord:
    """Return the run. Raises RunError if it was opened with other settings than these."""
    for name, value in settings.items():
        if getattr(run, name) != value:
            raise RunError(
                f"{name}: the run {run.run_id} was opened with another value; leave {name} out to"
                " go on with the run as it is, or open a new run"
            )
    return run


def kept_keys(registry: Registry, tenant: str) -> frozenset[str]:
    """Return the keys that live across turns: all contracts of the tenant that write them agree."""
    preserved: dict[str, bool] = {}
    for record in registry.records:
        for effect in record.contract.state_effects if record.allows_tenant(tenant) else ():
            others = preserved.get(effect.key, True)
            preserved[effect.key] = others and effect.preserve_across_turns
    return frozenset(key for key, keep in preserved.items() if keep)


def render_state(prompt: str, run: RunRecord, registry: Registry) -> str:
    """Return a prompt with state in place of variables; undeclared ones stay, empty ones vanish.

    In one pass, so that a value is never read as a template. An untrusted value stands on lines of
    its own, between markers that it can't end.
    """
    keys = {  # where versions differ, the newest counts
        effect.prompt_template_var: effect.key
        for record in reversed(registry.records)
        if record.allows_tenant(run.tenant)
        for effect in record.contract.state_effects
        if effect.prompt_template_var is not None
    }

    def value(variable: re.Match[str]) -> str:
        key = keys.get(variable[1])
        if key is None:
            return variable[0]
        if key not in run.state:
            return ""
        text = _text(key, run.state[key])
        if key not in run.untrusted or isinstance(run.state[key], bool | int | float | None):
            return text  # a number can't carry instructions
        lines = fence(text, f"{run.run_id}/{key}", Trust.UNTRUSTED)
        return "\n".join(("", *lines, ""))

    return _VARIABLE.sub(value, prompt)


def _text(key: str, value: Any) -> str:
    text = to_json(value)
    if len(text) > _MAX_BYTES:
        # State was redacted before it was stored.
        text = to_json(summarise({key: value}, len(text), _MAX_BYTES, lambda clean: clean))
    return text.decode()
