"""A project: the runtime that `counterseal.toml` describes, and a check of everything it names.

`open_project` is the library's and the command line's way to a runtime. `check_project` goes the
same way without a store and without a call, and reports every problem instead of the first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from counterseal.config.build import (
    Project,
    missing_secrets,
    open_runtime,
    register_project,
    runtime_parts,
    secrets_of,
    upstream_settings,
)
from counterseal.config.discovery import Discovered, discover, pinned_contracts
from counterseal.config.settings import FILE_NAME, ConfigError, Settings, find_config, load_settings
from counterseal.config.upstream_contracts import register_without_connections
from counterseal.contract.sources.mcp.definition import read_listing
from counterseal.contract.sources.mcp.lock import Lock, PinState
from counterseal.errors import ContractError, CountersealError, Problem, Severity, Source
from counterseal.execution.secrets import Secrets
from counterseal.policy import PolicyError
from counterseal.registry import RegistryRecord, checks
from counterseal.registry.records import parse_version
from counterseal.storage import open_store
from counterseal.storage.memory import MemoryStore

_STATES: Final = {
    PinState.NEW: "is not accepted yet",
    PinState.CHANGED: "has changed since it was accepted",
    PinState.GONE: "is accepted, and the upstream does not list it any more",
}


T = TypeVar("T")


def settings_at(path: str | Path | None = None) -> Settings:
    """Return the settings of a file, of the file in a folder, or of the nearest file.

    Without a path, the search begins in the working folder and goes up.
    """
    if path is None:
        file = find_config(Path.cwd())
        if file is None:
            raise ConfigError(
                f"{FILE_NAME}: not in {Path.cwd()} or a folder above it; give open_project the path"
                " of one, or create one with `counterseal init`"
            )
        return load_settings(file)
    given = Path(path)
    if not given.exists():
        raise ConfigError(f"{given}: does not exist; give the path of {FILE_NAME} or its folder")
    return load_settings(given / FILE_NAME if given.is_dir() else given)


def open_project(
    path: str | Path | Settings | None = None,
    *,
    store: str | None = None,
    secrets: Secrets | None = None,
    progress: Callable[[Path], None] | None = None,
) -> Project:
    """Return the runtime of a project, to be used with `async with`.

    `path` is the configuration file or its folder; without it, the nearest one is used. `store`
    and `secrets` replace what the file says. An error names the file, the setting and the fix.
    Tools of upstreams can be decided on; only the gateway is connected to them and calls them.
    """
    settings = path if isinstance(path, Settings) else settings_at(path)
    url = store or _store_variable()
    project = open_runtime(settings, url, secrets=secrets, progress=progress)
    if settings.upstreams:
        register_without_connections(project, settings)
    return project


def _store_variable() -> str | None:
    """Return the store that the environment names in place of the configured one."""
    return os.environ.get("COUNTERSEAL_STORE")


# Checking ----------------------------------------------------------------------------------------


async def check_project(
    path: str | Path | None = None, *, secrets: Secrets | None = None
) -> tuple[Problem, ...]:
    """Return everything that would keep the project from working, and warnings, errors first.

    Reads the settings, the contracts (strictly), policies, plan rules, keys and grants, looks up
    every secret, and connects to the upstreams to compare their tools with the accepted ones. No
    tool is called, and the store is not opened.
    """
    found = _Findings()
    settings = found.result(lambda: settings_at(path))
    if settings is not None:
        source = found.result(lambda: secrets_of(settings)) if secrets is None else secrets
        _check_contracts(settings, found, source or {})
        found.result(lambda: _check_store(settings))
        if source is not None:
            found.problems += missing_secrets(settings, found.contracts, secrets)
        await _check_upstreams(settings, found, source)
    return found.sorted()


class _Findings:
    """The problems so far, and the contracts that could be read."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.contracts: list[Discovered] = []

    def result(self, make: Callable[[], T]) -> T | None:
        """Return what the function returns; None if it raises problems, which are added."""
        try:
            return make()
        except (ContractError, PolicyError) as error:
            self.problems += error.problems
        except CountersealError as error:
            self.problems += [
                Problem(rule="setting-invalid", message=line) for line in str(error).splitlines()
            ]
        return None

    def sorted(self) -> tuple[Problem, ...]:
        unique = dict.fromkeys(self.problems)
        return tuple(sorted(unique, key=lambda problem: problem.severity is not Severity.ERROR))


def _check_contracts(settings: Settings, found: _Findings, secrets: Secrets) -> None:
    """Check contracts, grants, and each part that the runtime is made of."""
    contracts = found.result(lambda: discover(settings.tool_paths(), strict=True)) or ()
    pinned = found.result(lambda: pinned_contracts(settings)) if settings.upstreams else None
    found.contracts = [*contracts, *(item for items in (pinned or {}).values() for item in items)]
    found.problems += [problem for item in found.contracts for problem in item.problems]
    parts = {name: found.result(make) for name, make in runtime_parts(settings, secrets).items()}
    found.problems += _grant_problems(settings, found.contracts)
    if not any(problem.severity is Severity.ERROR for problem in found.problems):
        project = Project(MemoryStore(), settings=settings, secrets=secrets, strict=True, **parts)
        found.result(lambda: register_project(project, contracts))


def _grant_problems(settings: Settings, contracts: Sequence[Discovered]) -> Iterator[Problem]:
    """Yield grants that no contract fits. Tools in files that can't be read may be the missing."""
    records: dict[str, list[RegistryRecord]] = {}
    for item in contracts:
        if item.contract is not None and parse_version(item.contract.version) is not None:
            records.setdefault(item.name, []).append(RegistryRecord(contract=item.contract))
    if any(item.contract is None for item in contracts):
        return
    grants = [table.grant() for table in settings.grants]
    now = datetime.now(UTC)
    for problem in checks.grant_problems(grants, lambda name: records.get(name, []), now):
        yield problem.at(Source(file=str(settings.file)))


def _check_store(settings: Settings) -> None:
    """Raise if the store's URL can't be used. An SQLite file is not created."""
    url = _store_variable() or settings.store_url()
    if url is None:
        return
    try:
        if url.startswith("sqlite:"):
            from counterseal.storage.sqlite.file import path_of  # noqa: PLC0415 - as open_store

            path_of(url)
        else:
            open_store(url)
    except CountersealError as error:
        raise ConfigError(f"{settings.file}: store.url: {error}") from None


async def _check_upstreams(settings: Settings, found: _Findings, secrets: Secrets | None) -> None:
    if not settings.upstreams:
        return
    try:
        from counterseal.upstream import Upstreams  # noqa: PLC0415 - the MCP library is an extra
    except ImportError:
        fix = "pip install 'counterseal[gateway]'"
        missing = "upstreams need the MCP library"
        found.problems.append(Problem(rule="upstream-down", message=missing, fix=fix))
        return
    wanted = [
        found.result(partial(upstream_settings, settings, name)) for name in settings.upstreams
    ]
    connections = [connection for one in wanted for connection in one or ()]
    lock = found.result(lambda: Lock.load(settings.lock_path())) or Lock()
    async with Upstreams(connections, secrets=secrets) as upstreams:
        await upstreams.settle()
        listings = (_listed(name, upstreams[name], lock) for name in upstreams)
        for problems in await asyncio.gather(*listings):
            found.problems += problems


async def _listed(name: str, upstream: Any, lock: Lock) -> list[Problem]:
    """Return the problem of an upstream that is down, or what differs from the accepted tools."""
    definitions: Mapping[str, Any] = {}
    trouble = upstream.trouble
    if upstream.ready:
        try:
            definitions = read_listing(await upstream.definitions())[0]
        except Exception as error:  # noqa: BLE001 - one broken upstream must not hide the others
            trouble = upstream.trouble or str(error)
    if trouble:
        fix = f"Start it, or correct [upstreams.{name}]."
        text = f"the upstream {name} can't be used: {trouble}"
        return [Problem(rule="upstream-down", message=text, fix=fix)]
    return [
        Problem(
            rule="upstream-changed",
            severity=Severity.WARNING,
            tool=finding.tool,
            message=f"{finding.tool} of the upstream {name} {_STATES[finding.state]}",
            fix="Look at the difference and accept it: `counterseal diff --accept`.",
        )
        for finding in lock.compare(name, definitions.values())
        if finding.state in _STATES
    ]
