"""What the project declares, for operators: its own tools, and the accepted ones of upstreams.

Whatever can't be read is left out: a project that is half broken can still be stopped.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from counterseal.cli.output import Progress, fail, note

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.registry import Registry

__all__ = ["declared_tools"]


def declared_tools(settings: Settings) -> Registry:
    """A registry with everything that can be read. Nobody is connected to."""
    from counterseal.config import ConfigError, discover
    from counterseal.errors import ContractError
    from counterseal.registry import Registry

    progress, registry = Progress(), Registry()
    try:
        found = discover(settings.tool_paths(settings.file), progress=progress)
    except ConfigError as error:
        fail(str(error))
    finally:
        progress.done()
    declared = [one for item in found if (one := item.tool or item.contract) is not None]
    whole = _take_upstreams(settings, registry) if settings.upstreams else True
    grants = [table.grant() for table in settings.grants]
    if settings.upstreams:  # some may be for tools that nobody has accepted yet
        known = {record.name for record in registry.records} | {item.name for item in found}
        grants = [grant for grant in grants if grant.tool in known]
    try:
        registry.register(*declared, grants=grants)
    except ContractError:
        whole = False
        for one in declared:
            with suppress(ContractError):
                registry.register(one)
    if not whole:
        note("Not all tools can be read; `counterseal lint` says why. Going on with the others.")
    return registry


def _take_upstreams(settings: Settings, registry: Registry) -> bool:
    """Whether all of them could be taken in."""
    from counterseal.config.pinned import pinned_contracts
    from counterseal.errors import ContractError, CountersealError

    try:
        found, problems = pinned_contracts(settings)
    except CountersealError as error:
        note(str(error))
        return False
    whole = not problems
    for server, contracts in found.items():
        tenants = settings.upstreams[server].tenants or ()
        for contract in contracts:
            try:
                registry.register(contract, allowed_tenants=tenants)
            except ContractError:
                whole = False
    return whole
