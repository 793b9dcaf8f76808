"""Which contracts live, and for whom: records, versions, grants, rollout, kill switch.

Knows contracts and principals; knows no store, no gate and no wire format.
"""

from counterseal.registry.changes import Change
from counterseal.registry.grants import Grant, Mode
from counterseal.registry.records import (
    Deprecation,
    Kill,
    Quarantine,
    Reason,
    Refusal,
    RegistryRecord,
    Why,
)
from counterseal.registry.registry import Registry

__all__ = [
    "Change",
    "Deprecation",
    "Grant",
    "Kill",
    "Mode",
    "Quarantine",
    "Reason",
    "Refusal",
    "Registry",
    "RegistryRecord",
    "Why",
]
