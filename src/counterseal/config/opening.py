"""From settings to a runtime that holds what they name: tools, grants, policy, tenants.

Apart from `settings` and `discovery`, because looking at contracts should not wait for the runtime
to be imported. Runs no tool.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from counterseal.config.discovery import Discovered, discover
from counterseal.config.settings import ConfigError, Settings, TenantTable
from counterseal.errors import ContractError, Problem, SecretUnavailableError, Severity
from counterseal.execution.local import Secrets
from counterseal.policy import Policy
from counterseal.runtime import Runtime, Tenant

__all__ = ["open_runtime", "secret_from_environment", "secret_variable"]


def open_runtime(
    settings: Settings,
    url: str = "memory:",
    *,
    secrets: Secrets | None = None,
    progress: Callable[[Path], None] | None = None,
) -> Runtime:
    """A runtime on the store that the URL names. Secrets come from the environment unless given.

    ConfigError, ContractError or PolicyError when something that the settings name can't be used.
    """
    found = discover(settings.tool_paths(settings.file), progress=progress)
    _refuse(problem for item in found for problem in item.problems)
    runtime = Runtime.open(
        url,
        policy=Policy.load(*settings.policy_paths(settings.file)),
        secrets=secret_from_environment if secrets is None else secrets,
        tenants={name: _tenant(table) for name, table in settings.tenants.items()},
        pii=settings.policy.pii,
    )
    _register(runtime, settings, found)
    return runtime


def _refuse(problems: Iterable[Problem]) -> None:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ContractError(errors)


def _register(runtime: Runtime, settings: Settings, found: Iterable[Discovered]) -> None:
    declared = [item.tool or item.contract for item in found]
    grants = [table.grant() for table in settings.grants]
    try:
        runtime.register(*(one for one in declared if one is not None), grants=grants)
    except ContractError as error:
        # The contracts were looked at before, so what is refused now are the grants.
        lines = [f"{settings.file}: grants: {problem.message}" for problem in error.problems]
        raise ConfigError("\n".join(lines)) from None


def _tenant(table: TenantTable) -> Tenant:
    budgets = None if table.budgets is None else table.budgets.budgets()
    return Tenant(budgets=budgets, facts=table.facts)


# Secrets -----------------------------------------------------------------------------------------


def secret_variable(name: str) -> str:
    """The environment variable that holds a secret."""
    return f"COUNTERSEAL_SECRET_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"


def secret_from_environment(tenant: str, name: str) -> str:
    """The same for every tenant. What is not there is as unavailable as a vault that is down."""
    del tenant
    variable = secret_variable(name)
    if variable not in os.environ:
        raise SecretUnavailableError(f"the secret {name} is not configured; set {variable}")
    return os.environ[variable]
