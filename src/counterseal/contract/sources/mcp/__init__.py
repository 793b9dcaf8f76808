"""Contracts for the tools of MCP servers. Opens no connections.

A *definition* is the upstream's description of a tool, an *overlay* is the operator's, and a *pin*
is a definition that an operator accepted. `contract_of` makes a contract of a definition and an
overlay.
"""

from counterseal.contract.sources.effect_guess import propose_mcp_effect, strictest
from counterseal.contract.sources.foreign_text import visible
from counterseal.contract.sources.mcp.definition import (
    Change,
    ChangeKind,
    Definition,
    describe,
    instructions,
    read_listing,
)
from counterseal.contract.sources.mcp.lock import Lock, LockError, LockFinding, Pin, PinState
from counterseal.contract.sources.mcp.overlay import contract_of, overlay_text, shown_name
from counterseal.contract.sources.mcp.overlay_files import Overlay, OverlayEntry, read_overlay

__all__ = [
    "Change",
    "ChangeKind",
    "Definition",
    "Lock",
    "LockError",
    "LockFinding",
    "Overlay",
    "OverlayEntry",
    "Pin",
    "PinState",
    "contract_of",
    "describe",
    "instructions",
    "overlay_text",
    "propose_mcp_effect",
    "read_listing",
    "read_overlay",
    "shown_name",
    "strictest",
    "visible",
]
