"""Rolling a version out: what that would change for new runs first, then why, and one step back."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from counterseal.errors import RegistryError
from counterseal.web.console.problems import understood
from counterseal.web.console.rendering import address
from counterseal.web.console.tools import back, card, done
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]


def routes(house: House) -> list[Route]:
    """Its preview, and its form."""
    return [
        house.get("/tools/{name}/rollout", preview),
        house.post("/tools/{name}/rollout", roll_out),
    ]


async def preview(visit: Visit) -> Response:
    """The tool's card, with what would become of new runs."""
    version, percentage = visit.asked("version"), visit.asked("percentage")
    if version is None or percentage is None:
        return await back(visit)
    name: str = visit.request.path_params["name"]
    with understood():
        share = _whole(percentage)
    try:
        shares = await visit.view.tools.preview_rollout(name, version, share)
    except RegistryError as error:
        return await card(visit, str(error), 422, wrong="rollout")
    told = {"version": version, "percentage": share, "shares": shares}
    shows = address("v1", "tools", name, "rollout", version=version, percentage=str(share))
    return await card(visit, rollout=told, shows=shows)


async def roll_out(visit: Visit) -> Response:
    """Have it so."""
    name: str = visit.request.path_params["name"]
    try:
        share = _whole(visit.said("percentage"))
        reason = visit.said("reason")
        await visit.view.tools.set_rollout(name, visit.said("version"), share, reason=reason)
    except (RegistryError, ValueError) as error:
        return await card(visit, str(error), 422, wrong="rollout")
    return done(visit, "rolled_out")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len("100")):
        raise ValueError("percentage: takes a whole number from 0 to 100")
    return int(text)
