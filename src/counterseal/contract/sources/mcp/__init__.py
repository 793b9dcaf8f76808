"""Tools of MCP servers: what an upstream says of them, what we say, and what a person accepted.

Knows nothing of connections. A *definition* is the upstream's, an *overlay* is ours, a *pin* is a
definition that somebody accepted; `contract_of` lays the overlay over the definition and makes a
contract like any other.
"""

from counterseal.contract.sources.mcp.changes import Change, Kind, describe, visible
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.overlay import (
    Entry,
    Overlay,
    contract_of,
    read_overlay,
    shown_name,
)
from counterseal.contract.sources.mcp.pins import Finding, Lock, LockError, Pin, State
from counterseal.contract.sources.mcp.posture import propose, strictest
from counterseal.contract.sources.mcp.writing import overlay_text

__all__ = [
    "Change",
    "Definition",
    "Entry",
    "Finding",
    "Kind",
    "Lock",
    "LockError",
    "Overlay",
    "Pin",
    "State",
    "contract_of",
    "describe",
    "overlay_text",
    "propose",
    "read_overlay",
    "shown_name",
    "strictest",
    "visible",
]
