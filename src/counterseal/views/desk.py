"""The desk: everything that a signed-in person can look at or do, in one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterseal.accounts.users import Person, Role
from counterseal.views.approvals import ApprovalsDesk
from counterseal.views.concerns import ConcernsDesk
from counterseal.views.metrics import MetricsDesk
from counterseal.views.quarantine import Quarantines
from counterseal.views.record import RecordDesk
from counterseal.views.runs import RunsDesk
from counterseal.views.tools import ToolsDesk

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Desk"]


class Desk(ApprovalsDesk, RunsDesk, ToolsDesk, ConcernsDesk, RecordDesk, MetricsDesk):
    """NotAllowed at once for somebody who may not even look."""

    def __init__(
        self, runtime: Runtime, person: Person, *, upstreams: Quarantines | None = None
    ) -> None:
        super().__init__(runtime, person)
        self.quarantines = upstreams
        self.needs(Role.VIEWER)
