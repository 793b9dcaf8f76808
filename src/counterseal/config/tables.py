"""The tables of `counterseal.toml`, as records that refuse what they don't know.

What a wrong value is called, and where it stands, is `settings`' to say.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from counterseal.contract.effects import Effect
from counterseal.contract.model import KeepReads
from counterseal.errors import GrantError
from counterseal.registry import Grant
from counterseal.storage.base import Budgets

__all__ = [
    "AgentTable",
    "ApproverTable",
    "BudgetsTable",
    "FilesTable",
    "GrantTable",
    "KeysTable",
    "Name",
    "NotificationsTable",
    "ObservationsTable",
    "PlanningTable",
    "PolicyTable",
    "RetentionTable",
    "SecretsTable",
    "StoreTable",
    "Table",
    "TenantTable",
    "ToolsTable",
]


class Table(BaseModel):
    """Frozen, and without keys of its own making."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolsTable(Table):
    paths: tuple[str, ...] = Field(default=(".",), min_length=1)
    """Contract files, Python files and folders of them, as seen from the configuration file."""


PersonalData = Literal["email", "phone", "iban", "credit_card", "ssn", "ip_address"]


class PolicyTable(Table):
    paths: tuple[str, ...] = ()
    """Policy files, as seen from the configuration file. They lie upon the default policy."""
    pii: tuple[PersonalData, ...] = ()
    """Kinds of personal data that are taken out of observations."""


class ObservationsTable(Table):
    """What models see, as far as it is kept beside the ledger."""

    keep_reads: KeepReads = KeepReads.REDACTED
    """Which reads leave what the model saw in the vault: none, all, or those that something was
    taken out of. A contract's own `keep_reads` comes first."""
    keep_reads_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] = 16_384
    """How much of the text is kept; a longer one is cut, and says so."""


class PlanningTable(Table):
    paths: tuple[str, ...] = ()
    """Files of plan rules, as seen from the configuration file."""


class GrantTable(Table):
    """A grant as it is written in the file. What its values may be is `Grant`'s to say."""

    agent: str
    tool: str
    version: str = "*"
    mode: str = "execute"
    max_calls_per_run: Annotated[int, Field(strict=True)] | None = None
    scopes: tuple[str, ...] = ()
    risk_limit: str | None = None
    expires_at: Annotated[datetime, Field(strict=True)] | None = None
    tenant: str | None = None

    @model_validator(mode="after")
    def _usable(self) -> GrantTable:
        try:
            self.grant()
        except GrantError as error:
            raise ValueError(str(error)) from None
        return self

    def grant(self) -> Grant:
        return Grant(**dict(self))


Name = Annotated[str, Field(pattern=r"\S")]


class AgentTable(Table):
    """On whose behalf an agent acts when somebody tries a call from the shell."""

    tenant: Name | None = None
    user: Name | None = None
    roles: tuple[Name, ...] = ()
    scopes: tuple[Name, ...] = ()


class ApproverTable(Table):
    """A person who may decide on requests from the shell."""

    roles: tuple[Name, ...] = ()
    tenants: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """Whose requests; left out: everybody's."""

    def sees(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


class NotificationsTable(Table):
    """Who is told that somebody is asked."""

    webhook: Name | None = None
    """A notice of each request is posted there."""
    secret: Name | None = None
    """The name of the secret that notices are signed with."""
    console: Name | None = None
    """Where people decide: the beginning of the links in notices."""

    @model_validator(mode="after")
    def _usable(self) -> NotificationsTable:
        for name in ("webhook", "console"):
            given = getattr(self, name)
            if given is not None and not _is_web_address(given):
                raise ValueError(f"{name}: {given!r} is no http or https address")
        if self.webhook is not None and self.secret is None:
            raise ValueError("secret: a webhook is signed; name the secret to sign with")
        if self.webhook is None and (self.secret or self.console):
            raise ValueError("webhook: nobody is told without one; say where to")
        return self


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


Count = Annotated[int, Field(strict=True, ge=0)]


class BudgetsTable(Table):
    """A tenant's limits for a day; only those that are kept by tenant."""

    reads: Count | None = None
    writes: Count | None = None
    external: Count | None = None
    critical: Count | None = None
    money: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    by_effect: dict[Effect, Count] = Field(default_factory=dict)
    ask: StrictBool = False
    """Whether people may be asked for one call more when it is spent."""

    def budgets(self) -> Budgets:
        return Budgets(**dict(self))


class TenantTable(Table):
    budgets: BudgetsTable | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    """For policy, which sees them as `tenant`."""


class SecretsTable(Table):
    path: str | None = None
    """A folder with a file for each secret; without one, secrets come from the environment."""


class FilesTable(Table):
    path: str | None = None
    """The folder that tools keep their files in; without one, a temporary one is used."""


class StoreTable(Table):
    url: Name | None = None
    """Where everything is kept; `sqlite:///` and a relative path is seen from this file."""
    lease_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """For how long a worker has what it is at work on, unless it says that it still is."""


class KeysTable(Table):
    path: str | None = None
    """The folder of key files; without one, nothing is signed, and the vault is not sealed."""


Days = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RetentionTable(Table):
    """How many days what is on record is kept; what is left out is kept for ever."""

    vault_days: Days | None = None
    events_days: Days | None = None
