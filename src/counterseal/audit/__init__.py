"""Audit events, the hash chain over them, signed checkpoints, verification and export. Pure."""

from __future__ import annotations

from counterseal.audit.chain import GENESIS, Columns, Head, Link, columns_of, event_of, extend
from counterseal.audit.events import CallFields, Event, EventType

__all__ = [
    "GENESIS",
    "CallFields",
    "Columns",
    "Event",
    "EventType",
    "Head",
    "Link",
    "columns_of",
    "event_of",
    "extend",
]
