"""What has to be known of a tool before its calls may go the short way. Found out once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.shared.inbound import X_MCP_HEADER_KEY

from counterseal.canonical import thaw
from counterseal.contract.model import Contract
from counterseal.registry import Registry

__all__ = ["Tools"]

_ASKED: Final = ("elicitation", "sampling", "roots")


class _Known(NamedTuple):
    plain: bool
    asks: bool


class Tools:
    """The tools of a registry, looked at anew when it changes."""

    def __init__(self, registry: Registry, asks: Callable[[str], bool]) -> None:
        self._registry = registry
        self._asks = asks
        self._known: dict[str, _Known] = {}
        self._epoch = -1

    def is_plain(self, name: str) -> bool:
        """Whether there is such a tool, and none of its arguments is to be repeated in a header."""
        known = self._of(name)
        return known is not None and known.plain

    def may_ask(self, name: str, can: types.ClientCapabilities | None) -> bool:
        """Whether a call may ask a client of 2025-11-25 that could answer; unknown ones may."""
        known = self._of(name)
        if known is None:
            return True
        return (
            known.asks and can is not None and any(getattr(can, one) is not None for one in _ASKED)
        )

    def _of(self, name: str) -> _Known | None:
        if self._epoch != self._registry.epoch:
            self._epoch = self._registry.epoch
            self._known = {}
        known = self._known.get(name)
        if known is None:
            line = self._registry.versions(name)
            if not line:
                return None
            plain = not any(_wants_headers(record.contract) for record in line)
            known = self._known[name] = _Known(plain, self._asks(name))
        return known


def _wants_headers(contract: Contract) -> bool:
    schema: Any = thaw(contract.affordance.input_schema)
    return f'"{X_MCP_HEADER_KEY}"' in json.dumps(schema)
