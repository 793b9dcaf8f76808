"""Counterseal: tool contracts for AI agents. The model proposes; Counterseal decides.

The names here are the public ones; everything else may move. They are loaded when first used, so
that importing the package costs nothing that is not needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterseal import sync
    from counterseal.approvals.terms import Voter
    from counterseal.call.call import Tenant
    from counterseal.codes import Code, Path
    from counterseal.config.build import Project
    from counterseal.config.project import open_project
    from counterseal.contract.declare import Tool, tool
    from counterseal.contract.effects import Effect, RiskClass, Trust
    from counterseal.contract.files import load_contracts
    from counterseal.contract.invariants import DROP_STEP, Invariant, ProposedCall
    from counterseal.contract.lint import lint
    from counterseal.contract.model import Contract
    from counterseal.contract.outputs import Blocks, Partial
    from counterseal.contract.tool_context import (
        Config,
        ConfigParam,
        Context,
        Secret,
        State,
        StateEffect,
        StateRead,
    )
    from counterseal.conversation import Conversation
    from counterseal.errors import (
        ContractError,
        CountersealError,
        GrantError,
        NotDoneError,
        NotSentError,
        Problem,
        StoreError,
    )
    from counterseal.execution.attempt import Progress
    from counterseal.execution.webhook import Webhook
    from counterseal.keys import KeyRing
    from counterseal.ledger.records import Budgets
    from counterseal.observation import Observation
    from counterseal.operations.approver import ApprovalError
    from counterseal.operations.attention import NeedsAttention
    from counterseal.plans import Plan, PlanRule
    from counterseal.policy import Policy
    from counterseal.proposal import Principal, Proposal
    from counterseal.reconcile import Reconciler
    from counterseal.registry import Grant, Registry
    from counterseal.repair import RepairLoop
    from counterseal.runs import Run, RunError
    from counterseal.runtime import Runtime

_HOMES = {
    "approvals.terms": "Voter",
    "call.call": "Tenant",
    "codes": "Code Path",
    "config.build": "Project",
    "config.project": "open_project",
    "contract.declare": "Tool tool",
    "contract.effects": "Effect RiskClass Trust",
    "contract.files": "load_contracts",
    "contract.invariants": "DROP_STEP ProposedCall Invariant",
    "contract.lint": "lint",
    "contract.model": "Contract",
    "contract.outputs": "Blocks Partial",
    "contract.tool_context": "Config ConfigParam Context Secret State StateEffect StateRead",
    "conversation": "Conversation",
    "errors": "ContractError CountersealError GrantError NotDoneError NotSentError Problem "
    "StoreError",
    "execution.attempt": "Progress",
    "execution.webhook": "Webhook",
    "keys": "KeyRing",
    "ledger.records": "Budgets",
    "observation": "Observation",
    "operations.approver": "ApprovalError",
    "operations.attention": "NeedsAttention",
    "plans": "Plan PlanRule",
    "policy": "Policy",
    "proposal": "Principal Proposal",
    "reconcile": "Reconciler",
    "registry": "Grant Registry",
    "repair": "RepairLoop",
    "runs": "Run RunError",
    "runtime": "Runtime",
}
"""The public names of each module."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "DROP_STEP", "ApprovalError", "Blocks", "Budgets", "Code", "Config", "ConfigParam", "Context",
    "Contract", "ContractError", "Conversation", "CountersealError", "Effect", "Grant",
    "GrantError", "Invariant", "KeyRing", "NeedsAttention", "NotDoneError", "NotSentError",
    "Observation", "Partial", "Path", "Plan", "PlanRule", "Policy", "Principal", "Problem",
    "Progress", "Project", "Proposal", "ProposedCall", "Reconciler", "Registry", "RepairLoop",
    "RiskClass", "Run", "RunError", "Runtime", "Secret", "State", "StateEffect",
    "StateRead", "StoreError", "Tenant", "Tool", "Trust", "Voter", "Webhook", "__version__", "lint",
    "load_contracts", "open_project", "sync", "tool",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("counterseal.sync")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'counterseal' has no attribute {name!r}")
    value = getattr(import_module(f"counterseal.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
