"""The tools of upstreams as a person accepted them: from the lock and the overlays alone.

For whoever has to know these tools without connecting to anybody: an operator who stops one. What
is served to agents is the gateway's to say.
"""

from __future__ import annotations

from counterseal.config.settings import Settings
from counterseal.contract.model import Contract
from counterseal.contract.sources.mcp import Lock, contract_of, read_overlay
from counterseal.errors import ContractError, Problem

__all__ = ["pinned_contracts"]


def pinned_contracts(settings: Settings) -> tuple[dict[str, list[Contract]], list[Problem]]:
    """By upstream the contracts of its accepted tools, without the hidden ones; and what is wrong.

    ConfigError or LockError when a file is not there or can't be read at all.
    """
    lock = Lock.load(settings.lock_path())
    found: dict[str, list[Contract]] = {}
    problems: list[Problem] = []
    for server in settings.upstreams:
        contracts, wrong = _of(settings, server, lock)
        found[server] = contracts
        problems += wrong
    return found, problems


def _of(settings: Settings, server: str, lock: Lock) -> tuple[list[Contract], list[Problem]]:
    table, path = settings.upstreams[server], settings.overlay_path(server)
    contracts: list[Contract] = []
    problems: list[Problem] = []
    try:
        overlay = None if path is None else read_overlay(path)
    except ContractError as error:
        return [], list(error.problems)
    for pin in lock.servers.get(server, {}).values():
        try:
            contract = contract_of(
                pin.definition,
                overlay,
                server=server,
                prefix=table.prefix,
                unlisted=table.unlisted,
                revision=pin.revision,
            )
        except ContractError as error:
            problems += error.problems
            continue
        contracts += [] if contract is None else [contract]
    return contracts, problems
