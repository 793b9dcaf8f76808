"""The desk: everything that a signed-in person can look at or do, in one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterseal.desk.approvals import ApprovalsDesk
from counterseal.desk.concerns import ConcernsDesk
from counterseal.desk.metrics import MetricsDesk
from counterseal.desk.quarantine import Quarantines
from counterseal.desk.record import RecordDesk
from counterseal.desk.runs import RunsDesk
from counterseal.desk.tools import ToolsDesk
from counterseal.people.model import Person, Role

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
