"""From settings to what they name: a runtime, its keys and secrets, connections to upstreams.

A module of its own, because commands that only read contracts should not import the runtime. Runs
no tool and connects to no upstream.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterseal.call.call import Tenant
from counterseal.config.discovery import Discovered, discover
from counterseal.config.settings import ConfigError, Settings
from counterseal.errors import ContractError, Problem, SecretUnavailableError, Severity
from counterseal.execution.secrets import (
    Secrets,
    from_environment,
    from_files,
    secret_variable,
    why_unconfigured,
)
from counterseal.execution.webhook import Webhook
from counterseal.keys import KeyRing, KeysError
from counterseal.plans import load_plan_rules
from counterseal.policy import Policy
from counterseal.proposal import Principal
from counterseal.registry import Grant, RegistryRecord
from counterseal.runtime import Runtime
from counterseal.storage.store import Store

if TYPE_CHECKING:
    from counterseal import upstream

_OF_GRANTS = ("grant-", "meta-granted")
"""How the rules of problems with grants begin."""

# The runtime -------------------------------------------------------------------------------------


class Project(Runtime):
    """A runtime made from a configuration file, which it keeps as `settings`."""

    def __init__(self, store: Store, *, settings: Settings, **options: Any) -> None:
        super().__init__(store, **options)
        self.settings = settings

    def principal(self, agent: str, **instead: Any) -> Principal:
        """Return the principal of `[agents.NAME]`, with the given fields instead of its own."""
        return self.settings.principal(agent, **instead)


def open_runtime(
    settings: Settings,
    url: str | None = None,
    *,
    secrets: Secrets | None = None,
    progress: Callable[[Path], None] | None = None,
    contracts: Sequence[Discovered] | None = None,
) -> Project:
    """Return a runtime on the store of the URL, else of the settings, else one in memory.

    `contracts` are those of the settings if they were discovered before. Raises ConfigError,
    ContractError, PolicyError or StoreError if something that the settings name can't be used.
    """
    if contracts is None:
        contracts = discover(
            settings.tool_paths(),
            strict=settings.tools.strict,
            progress=progress or (lambda _: None),
        )
    problems = (problem for item in contracts for problem in item.problems)
    if errors := [problem for problem in problems if problem.severity is Severity.ERROR]:
        raise ContractError(errors)
    source = secrets_of(settings) if secrets is None else secrets
    lease = settings.store.lease_seconds
    options: dict[str, Any] = {} if lease is None else {"lease": lease}
    project = Project.open(
        url or settings.store_url() or "memory:",
        settings=settings,
        secrets=source,
        strict=settings.tools.strict,
        tenants={
            name: Tenant(
                budgets=None if table.budgets is None else table.budgets.budgets(),
                facts=table.facts,
                keep_arguments_days=table.keep_arguments_days,
            )
            for name, table in settings.tenants.items()
        },
        pii=settings.policy.pii,
        keep_reads=settings.observations.keep_reads,
        keep_reads_bytes=settings.observations.keep_reads_bytes,
        keep_arguments_days=settings.observations.keep_arguments_days,
        files=settings.files_path(),
        **{name: make() for name, make in runtime_parts(settings, source).items()},
        **options,
    )
    register_project(project, contracts)
    return project


def runtime_parts(settings: Settings, secrets: Secrets) -> dict[str, Callable[[], Any]]:
    """Return what makes each part of a runtime that is read from files, or needs a secret."""
    return {
        "policy": lambda: Policy.load(*settings.policy_paths(), overlays=settings.overlay_paths()),
        "plan_rules": lambda: load_plan_rules(*settings.planning_paths()),
        "keys": lambda: key_ring(settings),
        "webhook": lambda: _webhook(settings, secrets),
    }


def grants_for_upstream_tools(settings: Settings, registered: Collection[str]) -> list[Grant]:
    """Return the grants for tools that upstreams bring and that are not registered yet.

    A project without upstreams has none: its grants must name its own tools.
    """
    if not settings.upstreams:
        return []
    grants = [table.grant() for table in settings.grants]
    return [grant for grant in grants if grant.tool not in registered]


def register_project(project: Project, contracts: Sequence[Discovered]) -> None:
    """Register the project's contracts, with the grants for them."""
    settings = project.settings
    declared = [tool for item in contracts if (tool := item.tool or item.contract) is not None]
    grants = [table.grant() for table in settings.grants]
    later = set(grants_for_upstream_tools(settings, {item.name for item in contracts}))
    try:
        project.register(*declared, grants=[grant for grant in grants if grant not in later])
    except ContractError as error:
        if not all(problem.rule.startswith(_OF_GRANTS) for problem in error.problems):
            raise
        lines = [f"{settings.file}: grants: {problem.message}" for problem in error.problems]
        raise ConfigError("\n".join(lines)) from None


# Keys and secrets --------------------------------------------------------------------------------


def key_ring(settings: Settings) -> KeyRing | None:
    """Return the keys in the configured folder; None if the settings name no folder."""
    folder = settings.keys_path()
    if folder is None:
        return None
    try:
        return KeyRing.load(folder)
    except KeysError as error:
        raise ConfigError(f"{settings.file}: keys.path: {error}") from None


def secrets_of(settings: Settings) -> Secrets:
    """Return the configured source of secrets: a folder, or the environment."""
    folder = settings.secrets_path()
    return from_environment if folder is None else from_files(folder)


def missing_secrets(
    settings: Settings, contracts: Iterable[Discovered | RegistryRecord], given: Secrets | None
) -> Iterator[Problem]:
    """Yield a problem for each secret of a tool or an upstream that no tenant has."""
    needed_by: dict[str, set[str]] = {}
    for item in contracts:
        for name in item.contract.secrets if item.contract is not None else ():
            needed_by.setdefault(name, set()).add(item.name)
    for server, table in settings.upstreams.items():
        for name in table.secrets:
            needed_by.setdefault(name, set()).add(f"the upstream {server}")
    for name, owners in needed_by.items():
        if given is None:
            why = why_unconfigured(name, settings.secrets_path())
        else:
            absent = isinstance(given, Mapping) and name not in given
            why = f"the secret {name} is not in secrets=; add it" if absent else ""
        if why:
            text = f"{', '.join(sorted(owners))} can't be called yet: {why}"
            yield Problem(rule="secret-missing", message=text)


def _webhook(settings: Settings, source: Secrets) -> Webhook | None:
    table = settings.notifications
    if table.webhook is None or table.secret is None:
        return None
    where = f"{settings.file}: notifications"
    try:
        secret = _operators_secret(source, table.secret)
        return Webhook(url=table.webhook, secret=secret, console=table.console)
    except SecretUnavailableError as error:
        raise ConfigError(f"{where}.secret: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from None


def _operators_secret(source: Secrets, name: str) -> str:
    """Return a secret that belongs to the operator and to no tenant."""
    value: object
    if source is from_environment:
        variable = secret_variable(name)
        value, fix = os.environ.get(variable), f"set {variable}"
    elif isinstance(source, Mapping):
        value, fix = source.get(name), "add it to secrets="
    else:
        value, fix = source("-", name), "the source must return a text and not a coroutine"
        if inspect.iscoroutine(value):
            value.close()
    if not isinstance(value, str):
        raise SecretUnavailableError(f"the secret {name} is not available; {fix}")
    return value


# Upstreams ---------------------------------------------------------------------------------------


def upstream_settings(settings: Settings, *names: str) -> list[upstream.UpstreamSettings]:
    """Return how to connect to the named upstreams, or to all of them.

    Raises ConfigError if a folder or a Python server object does not exist.
    """
    from counterseal import upstream  # noqa: PLC0415 - the MCP library is an extra

    connections = []
    for name in names or settings.upstreams:
        table = settings.upstreams[name]
        connections.append(
            upstream.UpstreamSettings(
                name=name,
                command=table.command or (),
                url=table.url or "",
                python=table.python and _server_object(settings, name, table.python),
                env=table.env,
                headers=table.headers,
                cwd=settings.cwd_path(name) if table.command else None,
                relay=frozenset(table.relay),
                connections=table.connections,
                tenants=table.tenants or (),
            )
        )
    return connections


def _server_object(settings: Settings, name: str, reference: str) -> Any:
    """Return the object of `package.module:name`. Modules of the project are found first."""
    root = str(settings.file.parent.absolute())
    if root not in sys.path:
        sys.path.insert(0, root)
    module, _, attribute = reference.partition(":")
    try:
        with redirect_stdout(sys.stderr):  # stdout may carry the MCP protocol
            return attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # noqa: BLE001 - importing runs the project's code
        fault = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{settings.file}: upstreams.{name}.python: can't import {reference}: {fault}"
        ) from None
