"""What the configuration says of each upstream's tools: which overlay, which names, for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from counterseal.config import Settings
from counterseal.contract.mcp import Definition, Overlay, contract_of, read_overlay
from counterseal.contract.model import Contract

__all__ = ["Plan", "plans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one upstream's tools are put under contract."""

    server: str
    overlay: Overlay | None = None
    prefix: str = ""
    unlisted: Literal["hidden", "gated"] = "hidden"
    tenants: tuple[str, ...] = ()
    resources: bool = False
    prompts: bool = False

    def contract(self, definition: Definition, revision: int) -> Contract | None:
        """None: the tool is hidden. ContractError when there is no sound contract for it."""
        return contract_of(
            definition,
            self.overlay,
            server=self.server,
            prefix=self.prefix,
            unlisted=self.unlisted,
            revision=revision,
        )


def plans(settings: Settings) -> dict[str, Plan]:
    """What the configuration says of each upstream. ContractError when an overlay can't be used."""
    found = {}
    for server, table in settings.upstreams.items():
        path = settings.overlay_path(server)
        found[server] = Plan(
            server=server,
            overlay=None if path is None else read_overlay(path),
            prefix=table.prefix,
            unlisted=table.unlisted,
            tenants=table.tenants or (),
            resources=table.resources,
            prompts=table.prompts,
        )
    return found
