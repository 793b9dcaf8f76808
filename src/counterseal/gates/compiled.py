"""A contract made ready for calls: what registration worked out, so that no call has to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from counterseal.contract.model import Contract, KeepReads
from counterseal.contract.schemas import Validator
from counterseal.execution.executor import Runner
from counterseal.observation import Profile
from counterseal.policy import CompiledPolicy

__all__ = ["Compiled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A contract, ready for calls."""

    contract: Contract
    input: Validator
    output: Validator
    mutates: bool
    policy: CompiledPolicy
    facts: dict[str, Any]
    """The contract as policy conditions see it."""
    classes: tuple[str, ...]
    """The budgets that a call is charged to, beside those of its effect and its tool."""
    profile: Profile
    """What the contract says of its observations."""
    keyed: bool
    """Whether a call goes into the ledger."""
    recalls: bool
    """Whether anything stored bears on a call before it is decided on."""
    weighs: bool
    """Whether what was spent does, because a rule or a person may want to know."""
    announced: bool
    """Whether a call is put on record before it runs."""
    leaves_nothing: bool
    """Whether a call that succeeds leaves nothing but the event that ends it."""
    keeps: KeepReads
    """Which reads leave what the model saw of them."""
    waits: bool
    """Whether one of its gates asks the world."""
    runner: Runner | None
    """What carries it out; None where only the contract is known."""
    plans: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)
    """What the budget gate has worked out for grants and kinds of runs."""
    told: dict[str, Any]
    """What events tell of every call: whether it changes something, is announced, costs."""
    gates: tuple[tuple[Any, Any, Any], ...]
    """The gates after recall, in their order, as `base.prepared` has them."""
