"""Agents with API keys, and people with passwords and personal keys.

`admit` creates them once per home, through the product's operator. `decide` plays the approvers:
each reads the waiting requests and votes over the HTTP API with their own key.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from project import ROLES, TENANTS

from counterseal import Principal
from counterseal.accounts import EVERYWHERE, Accounts
from counterseal.client import Client, ProblemError
from counterseal.config import Settings, open_runtime
from counterseal.views.approvals import ApprovalPage

__all__ = ["EAST", "NORTH", "PEOPLE", "READER", "Judge", "SignIns", "admit", "decide"]

NORTH, EAST = "northshore", "eastvale"
PEOPLE: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ada": {NORTH: ["approver", "case-officer", "supervisor"], EVERYWHERE: ["operator"]},
    "ben": {NORTH: ["approver", "case-officer", "compliance"]},
    "eva": {EAST: ["approver", "case-officer", "supervisor"]},
    "ike": {EAST: ["approver", "case-officer"]},
    "vera": {NORTH: ["viewer"], EAST: ["viewer"]},
}
"""The console's users, with their roles by office.

Ada sees in one place all that waits for people in northshore, and she is the operator. Eastvale has
its own approvers, who decide by themselves, also where you decide in northshore.
"""
READER: Final = "vera"
"""A viewer: the story and the summary are read with her keys."""
WHY: Final = "the case assistant's demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIns:
    """Credentials, kept in the home and readable by its owner only."""

    password: str
    """The password of every user, because this is a demo."""
    agents: Mapping[str, str]
    """API keys, by `tenant/agent`."""
    people: Mapping[str, str]
    """Personal keys, by `tenant/name`."""


def admit(settings: Settings, store: str, file: Path) -> SignIns:
    """Create keys and users, unless the home has them already."""
    if not file.exists():
        made = asyncio.run(_admit(settings, store))
        begun = file.with_suffix(".new")
        begun.touch(mode=0o600)
        begun.write_text(json.dumps(asdict(made), indent=2), encoding="utf-8")
        begun.replace(file)
    return SignIns(**json.loads(file.read_text(encoding="utf-8")))


async def _admit(settings: Settings, store: str) -> SignIns:
    password = "-".join(secrets.token_hex(2) for _ in range(3))
    agents, people = {}, {}
    async with open_runtime(settings, store) as runtime:
        operator = runtime.operator("demo")
        for tenant in TENANTS:
            for agent, role in ROLES.items():
                who = Principal(tenant=tenant, agent=agent, scopes=role.scopes)
                agents[f"{tenant}/{agent}"], _ = await operator.issue_key(who, reason=WHY)
        accounts = Accounts(operator)
        for name, roles in PEOPLE.items():
            if any(
                user.name == name for user in runtime.registry.users
            ):  # left by an interrupted start
                await accounts.remove(name, reason=WHY)
            await accounts.add(name, password, roles, reason=WHY)
            for tenant in roles.keys() - {EVERYWHERE}:
                people[f"{tenant}/{name}"], _ = await accounts.issue_key(name, tenant, reason=WHY)
    return SignIns(password=password, agents=agents, people=people)


Judge = Callable[[ApprovalPage], tuple[Literal["approve", "reject"], str]]
"""A decision on a request, with its comment."""


async def decide(
    offices: Mapping[str, Sequence[Client]], judge: Judge, tenant: str, approval_id: str
) -> None:
    """Have the approvers of an office vote on a request, one by one, until it is decided."""
    for client in offices[tenant]:
        packet = await client.approvals.get(approval_id)
        if isinstance(packet, ApprovalPage) and packet.status == "waiting":
            await _vote(client, packet, judge)


async def _vote(client: Client, packet: ApprovalPage, judge: Judge) -> None:
    """Return whether the vote was accepted; it is refused without the role, or a second time."""
    decision, comment = judge(packet)
    said = {"comment": comment, "justification": comment}
    if packet.confirmation is not None and decision == "approve":
        said["typed"] = packet.confirmation
    try:
        await client.approvals.decide(packet.approval_id, decision, **said)
    except ProblemError as refused:
        if refused.status not in (403, 409):
            raise
