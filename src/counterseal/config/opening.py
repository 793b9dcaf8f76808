"""From settings to a runtime that holds what they name: tools, grants, policy, tenants.

Apart from `settings` and `discovery`, because looking at contracts should not wait for the runtime
to be imported. Runs no tool.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterseal.config.discovery import Discovered, discover
from counterseal.config.settings import ConfigError, Settings
from counterseal.config.tables import TenantTable
from counterseal.errors import ContractError, Problem, SecretUnavailableError, Severity
from counterseal.execution.secrets import Secrets, from_environment, from_files, secret_variable
from counterseal.execution.webhook import Webhook
from counterseal.keys import KeyRing, KeysError
from counterseal.plans import load_plan_rules
from counterseal.policy import Policy
from counterseal.registry import Grant
from counterseal.runtime import Runtime, Tenant

__all__ = ["key_ring", "later_grants", "open_runtime", "secrets_of"]


def open_runtime(
    settings: Settings,
    url: str | None = None,
    *,
    secrets: Secrets | None = None,
    progress: Callable[[Path], None] | None = None,
) -> Runtime:
    """A runtime on the store that the URL names, else the settings, else one in memory.

    Secrets and keys come from where the settings say. ConfigError, ContractError, PolicyError or
    StoreError when something that the settings name can't be used.
    """
    found = discover(settings.tool_paths(settings.file), progress=progress)
    _refuse(problem for item in found for problem in item.problems)
    source = secrets_of(settings) if secrets is None else secrets
    lease = settings.store.lease_seconds
    options: dict[str, Any] = {} if lease is None else {"lease": lease}
    runtime = Runtime.open(
        url or settings.store_url() or "memory:",
        policy=_policy(settings),
        plan_rules=load_plan_rules(*settings.planning_paths(settings.file)),
        secrets=source,
        tenants={name: _tenant(table) for name, table in settings.tenants.items()},
        pii=settings.policy.pii,
        keep_reads=settings.observations.keep_reads,
        keep_reads_bytes=settings.observations.keep_reads_bytes,
        files=settings.files_path(),
        keys=key_ring(settings),
        webhook=_webhook(settings, source),
        **options,
    )
    _register(runtime, settings, found)
    return runtime


def later_grants(settings: Settings, registered: Collection[str]) -> list[Grant]:
    """The grants for tools that are not registered yet, because upstreams bring them.

    Without upstreams there are none: what a grant names has to be among the project's own tools.
    """
    if not settings.upstreams:
        return []
    grants = [table.grant() for table in settings.grants]
    return [grant for grant in grants if grant.tool not in registered]


def key_ring(settings: Settings) -> KeyRing | None:
    """The keys in the folder that the settings name; None when they name none."""
    folder = settings.keys_path()
    if folder is None:
        return None
    try:
        return KeyRing.load(folder)
    except KeysError as error:
        raise ConfigError(f"{settings.file}: keys.path: {error}") from None


def _refuse(problems: Iterable[Problem]) -> None:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ContractError(errors)


def _policy(settings: Settings) -> Policy:
    paths = settings.policy_paths(settings.file)
    return Policy.load(*paths, overlays=settings.overlay_paths())


def _register(runtime: Runtime, settings: Settings, found: Sequence[Discovered]) -> None:
    declared = [one for item in found if (one := item.tool or item.contract) is not None]
    grants = [table.grant() for table in settings.grants]
    later = set(later_grants(settings, {item.name for item in found}))
    try:
        runtime.register(*declared, grants=[one for one in grants if one not in later])
    except ContractError as error:
        # The contracts were looked at before, so what is refused now are the grants.
        lines = [f"{settings.file}: grants: {problem.message}" for problem in error.problems]
        raise ConfigError("\n".join(lines)) from None


def secrets_of(settings: Settings) -> Secrets:
    """Where the settings say that secrets are."""
    folder = settings.secrets_path()
    return from_environment if folder is None else from_files(folder)


def _webhook(settings: Settings, source: Secrets) -> Webhook | None:
    told = settings.notifications
    if told.webhook is None or told.secret is None:
        return None
    where = f"{settings.file}: notifications"
    try:
        secret = _common(source, told.secret)
        return Webhook(url=told.webhook, secret=secret, console=told.console)
    except SecretUnavailableError as error:
        raise ConfigError(f"{where}.secret: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from None


def _common(source: Secrets, name: str) -> str:
    """A secret that is no tenant's, but the operator's own."""
    value: object
    if source is from_environment:
        variable = secret_variable(name)
        value, fix = os.environ.get(variable), f"set {variable}"
    elif isinstance(source, Mapping):
        value, fix = source.get(name), "add it to secrets="
    else:
        value, fix = source("-", name), "its source has to answer at once, with a text"
        if inspect.iscoroutine(value):
            value.close()
    if not isinstance(value, str):
        raise SecretUnavailableError(f"the secret {name} is not available; {fix}")
    return value


def _tenant(table: TenantTable) -> Tenant:
    budgets = None if table.budgets is None else table.budgets.budgets()
    return Tenant(budgets=budgets, facts=table.facts)
