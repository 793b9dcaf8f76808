"""The day's tasks in order, and the decisions of the scripted approvers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from counterseal.views.approvals import ApprovalPage
from crew.model import Task

__all__ = ["LANGUAGE", "SCRIPTED", "judge"]

TOLD: Final = {
    "intake-agent": "Look at case {case_id} and take it under review.",
    "risk-agent": "Look at the evidence of case {case_id}, draft a notice, ask for its review.",
    "notice-agent": "Send the notice that was drafted in case {case_id}, update the case's status.",
}
"""Instructions for the agents."""
TITLES: Final = {
    "intake-agent": "Taking in",
    "risk-agent": "Assessing",
    "notice-agent": "Notifying",
}


class Matter(NamedTuple):
    """A case of the day: its parts in order, and its facts."""

    case_id: str
    company: str
    parts: Mapping[str, str]
    """The agent for each part."""
    given: Mapping[str, str]
    loses: str = ""
    mail_fault: bool = False


def _whole(case_id: str, company: str, query: str, template: str, **more: Any) -> Matter:
    """A case under review: a notice is drafted and sent."""
    parts = {"risk-agent": "propose", "notice-agent": "send"}
    return Matter(case_id, company, parts, {"query": query, "template": template}, **more)


def _intake(case_id: str, company: str, query: str) -> Matter:
    return Matter(case_id, company, {"intake-agent": "take_in_reading"}, {"query": query})


MATTERS: Final = (
    Matter(
        "case_100002",
        "Brightwater Dairy",
        {"intake-agent": "take_in", "risk-agent": "assess", "notice-agent": "send"},
        {"query": "cooling vans inspection", "template": "hearing"},
        mail_fault=True,
    ),
    _whole("case_100004", "Saltmarsh Fish Processing", "waste water readings", "decision"),
    _intake("case_100007", "Tideway Timber", "extraction cleaned saws"),
    _whole("case_100009", "Seaglass Recycling", "batteries penalty", "penalty"),
    _intake("case_100011", "Oyster Quay Restaurants", "delivery notes supplier"),
    _whole("case_100013", "Brightwater Dairy", "labels yoghurt batch", "information_request"),
    Matter("case_100014", "Lantern Pier Hotel", {"notice-agent": "close"}, {}),
    _intake("case_100015", "Gullwing Cold Storage", "noise readings window"),
    Matter(
        "case_100017",
        "Moorings Fuel Depot",
        {"risk-agent": "revoke"},
        {"register_no": "NS-1270", "permit": "storage of diesel, tanks 1 to 6"},
    ),
    Matter(
        "case_100012",
        "Breakwater Scaffolding",
        {"risk-agent": "enter"},
        {"register_no": "NS-1302", "text": "A complaint about a scaffold is being looked into."},
    ),
    _whole(
        "case_200005",
        "Hillcrest Care Homes",
        "repair call system",
        "information_request",
        loses="send_approved_notice",
    ),
    _whole("case_200008", "Ridgeway Coaches", "penalty rest periods", "penalty"),
    _intake("case_200010", "Larkfield Poultry", "flock house lorry"),
    _whole("case_200012", "Old Mill Paper", "readings boiler", "information_request"),
)
REJECTED: Final = {"case_100004": "Their readings of this month are still to come. Wait for them."}
"""Requests that approvers reject, with the reasons."""
OFFICES: Final = {"1": "northshore", "2": "eastvale"}


def _tasks() -> Iterator[Task]:
    for matter in MATTERS:
        before = ""
        for agent, part in matter.parts.items():
            sends = agent == "notice-agent"
            name = f"{matter.case_id}-{agent}"
            yield _task(
                matter.case_id,
                matter.company,
                agent,
                script=part,
                after=before,
                given=matter.given,
                loses=matter.loses if sends else "",
                mail_fault=matter.mail_fault and sends,
            )
            before = name


def _task(case_id: str, company: str, agent: str, **more: Any) -> Task:
    return Task(
        name=f"{case_id}-{agent}",
        title=f"{TITLES[agent]}: {company}",
        tenant=OFFICES[case_id.removeprefix("case_")[0]],
        agent=agent,
        case_id=case_id,
        words=TOLD[agent].format(case_id=case_id),
        **more,
    )


SCRIPTED: Final = tuple(_tasks())
LANGUAGE: Final = (
    _task("case_100006", "Gullwing Cold Storage", "intake-agent"),
    _task("case_100004", "Saltmarsh Fish Processing", "risk-agent"),
    _task("case_200008", "Ridgeway Coaches", "notice-agent"),
)
"""The tasks for a real language model, instead of the scripted day."""


def judge(packet: ApprovalPage) -> tuple[Literal["approve", "reject"], str]:
    """Return a scripted approver's decision on a packet."""
    case_id = (packet.before or {}).get("case_id")
    if case_id in REJECTED:
        return "reject", REJECTED[case_id]
    return "approve", "Read and agreed."
