"""Tools of MCP servers: what an upstream says of them, what we say, and what a person accepted.

Knows nothing of connections. A *definition* is the upstream's, an *overlay* is ours, a *pin* is a
definition that somebody accepted; `contract_of` lays the overlay over the definition and makes a
contract like any other.
"""

from counterseal.contract.sources.effect_guess import propose_mcp_effect, strictest
from counterseal.contract.sources.mcp.definition import (
    Change,
    ChangeKind,
    Definition,
    describe,
    visible,
)
from counterseal.contract.sources.mcp.lock import Lock, LockError, LockFinding, Pin, PinState
from counterseal.contract.sources.mcp.overlay import (
    Overlay,
    OverlayEntry,
    contract_of,
    overlay_text,
    read_overlay,
    shown_name,
)

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
    "overlay_text",
    "propose_mcp_effect",
    "read_overlay",
    "shown_name",
    "strictest",
    "visible",
]
