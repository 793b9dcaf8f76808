"""Which contracts are live, and for whom: records, versions, grants, rollout, kill switch.

Pure: knows contracts and principals, and no store, gate or wire format.
"""

from counterseal.registry.changes import RegistryChange
from counterseal.registry.records import (
    Deprecation,
    Grant,
    Kill,
    Mode,
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
