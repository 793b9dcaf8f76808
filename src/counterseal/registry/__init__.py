"""Which contracts live, and for whom: records, versions, grants, rollout, kill switch.

Knows contracts and principals; knows no store, no gate and no wire format.
"""

from counterseal.registry.changes import Change
from counterseal.registry.grants import Grant, Mode
from counterseal.registry.kills import Kill
from counterseal.registry.quarantine import Quarantine, Why
from counterseal.registry.records import Deprecation, Reason, Refusal, RegistryRecord
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
