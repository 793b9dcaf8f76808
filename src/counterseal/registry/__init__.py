"""Which contracts live, and for whom: records, versions, grants, rollout, kill switch.

Knows contracts and principals; knows no store, no gate and no wire format.
"""

from counterseal.registry.changes import RegistryChange
from counterseal.registry.grants import Grant, Mode
from counterseal.registry.records import (
    Deprecation,
    Kill,
    Quarantine,
    QuarantineReason,
    Reason,
    Refusal,
    RegistryRecord,
)
from counterseal.registry.registry import Registry

__all__ = [
    "Deprecation",
    "Grant",
    "Kill",
    "Mode",
    "Quarantine",
    "QuarantineReason",
    "Reason",
    "Refusal",
    "Registry",
    "RegistryChange",
    "RegistryRecord",
]
