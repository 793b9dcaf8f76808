"""An upstream's resources and prompts as contracts, so that they go the way of every call.

They are no tools: no list shows them, and a grant for `NAME.resources` or `NAME.prompts` lets an
agent use what the upstream has of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from counterseal.contract.model import Contract

if TYPE_CHECKING:
    from counterseal.gateway.plans import Plan

__all__ = ["pass_through"]

_MOST_BYTES: Final = 10 * 1024 * 1024
_URI: Final = {"type": "string", "maxLength": 4096, "description": "Which resource."}
_INPUTS: Final[dict[str, dict[str, Any]]] = {
    "resource": {
        "type": "object",
        "additionalProperties": False,
        "required": ["uri"],
        "properties": {"uri": _URI},
    },
    "prompt": {
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 256, "description": "Which prompt."},
            "arguments": {
                "type": "object",
                "description": "What is filled in.",
                "maxProperties": 100,
                "additionalProperties": {"type": "string", "maxLength": 100_000},
            },
        },
    },
}


def pass_through(plan: Plan) -> Iterator[Contract]:
    """The contracts of what is passed on, beside the tools."""
    for kind, wanted in (("resource", plan.resources), ("prompt", plan.prompts)):
        if wanted:
            yield _contract(plan.server, kind)


def _contract(server: str, kind: str) -> Contract:
    return Contract.model_validate(
        {
            "identity": {"name": f"{server}.{kind}s", "version": "1.0.0"},
            "effect": "retrieve",
            "usage": f"When a client asks for a {kind} of {server}.",
            "affordance": {
                "model_description": f"Get a {kind} of {server}. Changes nothing.",
                "input_schema": _INPUTS[kind],
                "output_schema": {"type": "object"},
            },
            "max_output_bytes": _MOST_BYTES,
            "mcp": {"server": server, "kind": kind},
        }
    )
