"""The tables of `counterseal.toml`, as models that refuse unknown keys.

Each table checks its own values. `settings` adds file, table and key to an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from ipaddress import ip_network
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, model_validator

from counterseal.contract.bindings import template
from counterseal.contract.effects import Effect
from counterseal.contract.egress import kind, literal
from counterseal.contract.model import KeepReads
from counterseal.errors import GrantError
from counterseal.ledger.records import Budgets
from counterseal.proposal import RiskLevel, check_tenant
from counterseal.registry import Grant


def _check_tenant(name: str) -> str:
    check_tenant("a tenant's name", name)
    return name


Name = Annotated[str, Field(pattern=r"\S")]
TenantName = Annotated[str, AfterValidator(_check_tenant)]
Count = Annotated[int, Field(strict=True, ge=0)]
Days = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PersonalData = Literal["email", "phone", "iban", "credit_card", "ssn", "ip_address"]


class Table(BaseModel):
    """A table of the file: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        """Yield what is wrong with the values together, each fault after its field's name."""
        return iter(())


# What the project has ----------------------------------------------------------------------------


class ToolsTable(Table):
    paths: tuple[str, ...] = ()
    """Contract files, Python files and folders, relative to the configuration file. Python files
    that are named or in a named folder are imported, that is executed; no others are."""
    strict: StrictBool = False
    """Whether tools whose parameters have no description are refused. Otherwise lint and
    registration warn of them."""


class PolicyTable(Table):
    paths: tuple[str, ...] = ()
    """Policy files, relative to the configuration file. Added to the default policy."""
    pii: tuple[PersonalData, ...] = ()
    """Kinds of personal data that are removed from observations."""


class PlanningTable(Table):
    paths: tuple[str, ...] = ()
    """Files of plan rules, relative to the configuration file."""


class ObservationsTable(Table):
    """What is kept of observations beside the ledger."""

    keep_reads: KeepReads = KeepReads.REDACTED
    """Which reads keep in the vault what the model saw: none, all, or those with redactions. A
    contract's own `keep_reads` has priority."""
    keep_reads_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] = 16_384
    """How many bytes of the text are kept. A longer text is cut and marked as cut."""
    keep_arguments_days: Annotated[int, Field(strict=True, ge=0)] | None = None
    """How many days the arguments of proposals are kept; 0: not at all. Without a value, as long
    as `retention.vault_days`. A contract or a tenant can set fewer days."""


class SecretsTable(Table):
    path: str | None = None
    """A folder with a file for each secret. Without it, secrets come from the environment."""


class FilesTable(Table):
    path: str | None = None
    """The folder for files of tools. Without it, a temporary folder is used."""


class StoreTable(Table):
    url: Name | None = None
    """URL of the store. The path after `sqlite:///` is relative to the configuration file."""
    lease_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    """How long a worker owns a call without renewing its lease."""


class KeysTable(Table):
    path: str | None = None
    """The folder of key files. Without it, nothing is signed, and the vault is not encrypted."""


class RetentionTable(Table):
    """How many days data is kept. Without a value, it is kept for ever."""

    vault_days: Days | None = None
    events_days: Days | None = None


# Who may do what ---------------------------------------------------------------------------------


class GrantTable(Table):
    """A grant. `Grant` checks its values."""

    agent: str
    tool: str
    version: str = "*"
    mode: str = "execute"
    max_calls_per_run: Annotated[int, Field(strict=True)] | None = None
    scopes: tuple[str, ...] = ()
    risk_limit: str | None = None
    expires_at: Annotated[datetime, Field(strict=True)] | None = None
    tenant: TenantName | None = None
    max_effect: str | None = None
    """The highest effect that it is given for; a version that does more is refused."""

    def _faults(self) -> Iterator[str]:
        try:
            self.grant()
        except GrantError as error:
            yield str(error)

    def grant(self) -> Grant:
        return Grant(**dict(self))


class AgentTable(Table):
    """Tenant, user, roles and scopes of an agent that is used from the shell or over stdio."""

    tenant: TenantName | None = None
    user: Name | None = None
    roles: tuple[Name, ...] = ()
    scopes: tuple[Name, ...] = ()
    risk_level: RiskLevel = RiskLevel.LOW
    """How risky the agent's situation is, for policy rules."""


class ApproverTable(Table):
    """A person who may decide on requests from the shell."""

    roles: tuple[Name, ...] = ()
    tenants: tuple[TenantName, ...] | None = Field(default=None, min_length=1)
    """Tenants whose requests the person may decide on. Without a value: all."""

    def sees(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


class BudgetsTable(Table):
    """Daily limits of a tenant."""

    reads: Count | None = None
    writes: Count | None = None
    external: Count | None = None
    critical: Count | None = None
    money: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What calls may spend, by what and by currency: `day = {EUR = 5000}`."""
    cost: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What calls may cost (`cost_per_call`), in the same form."""
    by_effect: dict[Effect, Count] = Field(default_factory=dict)
    ask: StrictBool = False
    """Whether a call beyond the budget may be approved by a person."""

    def _faults(self) -> Iterator[str]:
        try:
            self.budgets()
        except ValueError as error:
            yield str(error)

    def budgets(self) -> Budgets:
        return Budgets(**dict(self))


class TenantTable(Table):
    budgets: BudgetsTable | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    """Facts for policy rules, as `tenant`."""
    keep_arguments_days: Annotated[int, Field(strict=True, ge=0)] | None = None
    """How many days the arguments of this tenant's proposals are kept; 0: not at all."""


class EvaluationTable(Table):
    """How `counterseal evaluate` tries one tool."""

    run: Literal["stub", "real"] = "stub"
    """What is executed: a stub that answers from the output schema, or the tool's own function. A
    function that changes something also needs `--allow-effects`."""
    arguments: dict[str, Any] | None = None
    """Arguments of a good call. Without a value: the contract's first example, else generated."""
    target: dict[str, Any] | None = None
    """What the stub's probe finds. Without a value: a state that the contract's rules accept."""
    output: Any = None
    """A recorded output, which the stub returns. Without a value: generated."""
    fixture: str | None = None
    """A YAML or JSON file with `arguments`, `target` and `output`, relative to this file."""


class NotificationsTable(Table):
    """Who is notified of requests for approval."""

    webhook: Name | None = None
    """URL that gets a notification of each request."""
    secret: Name | None = None
    """Name of the secret that signs notifications."""
    console: Name | None = None
    """URL of the console: the start of links in notifications."""

    def _faults(self) -> Iterator[str]:
        for name in ("webhook", "console"):
            url = getattr(self, name)
            if url is not None and (fault := url_fault(url)):
                yield f"{name}: {fault}"
        if self.webhook is not None and self.secret is None:
            yield "secret: a webhook is signed; name the secret to sign with"
        if self.webhook is None and (self.secret or self.console):
            yield "webhook: missing; without it no notifications are sent"


# [upstreams.NAME] --------------------------------------------------------------------------------

_SERVER: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{0,32}")
_SECRET: Final = re.compile(r"[A-Za-z0-9]+(?:[-._][A-Za-z0-9]+)*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OBJECT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

_TRANSPORTS: Final = ("command", "url", "python")
_ONLY_WITH: Final = {"env": "command", "cwd": "command", "headers": "url", "insecure": "url"}
"""Settings that make sense with one transport only."""


def _check_server_name(name: str) -> str:
    if not _SERVER.fullmatch(name):
        raise ValueError(
            "the name of an upstream must be 1 to 32 lower-case letters, digits, _ and -, and begin"
            " with a letter"
        )
    return name


ServerName = Annotated[str, AfterValidator(_check_server_name)]


class UpstreamTable(Table):
    """An MCP server behind the gateway, with exactly one of `command`, `url` and `python`."""

    command: tuple[str, ...] | None = None
    """A program that speaks MCP over its standard input and output."""
    url: Name | None = None
    """URL of a server that speaks streamable HTTP."""
    python: Name | None = None
    """`package.module:name` of a server object of the MCP SDK that lives in this process."""
    cwd: Name | None = None
    """Working folder of the command, relative to the configuration file. Default: its folder."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the command, added to a short list of harmless inherited variables."""
    headers: dict[str, str] = Field(default_factory=dict)
    insecure: StrictBool = False
    """Allows a `url` with http that is not on this machine."""
    overlay: Name | None = None
    """The file that says what its tools may do."""
    prefix: str = ""
    """Prefix of the names of its tools."""
    unlisted: Literal["hidden", "gated"] = "hidden"
    """What happens to tools that the overlay does not name; `gated`: visible, with approval."""
    relay: tuple[Literal["elicitation", "sampling", "roots"], ...] = ()
    """Requests of the server that are passed on to the client."""
    connections: Annotated[int, Field(strict=True, ge=1, le=256)] = 4
    """Maximum number of connections; per tenant if a secret differs between tenants."""
    tenants: tuple[TenantName, ...] | None = Field(default=None, min_length=1)
    """Tenants that may use it. Without a value: all."""
    resources: StrictBool = False
    prompts: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_foreign_form(cls, given: Any) -> Any:
        """Refuse `command` as a text, which other programs' configurations use."""
        if isinstance(given, Mapping) and isinstance(given.get("command"), str):
            form = '["program", "argument"]'
            raise ValueError(f"command: must be one list of program and arguments: {form}")
        return given

    @property
    def secrets(self) -> frozenset[str]:
        """Names of the secrets in its environment and headers."""
        texts = (*self.env.values(), *self.headers.values())
        return frozenset(one.name for text in texts for one in template(text).placeholders)

    def _faults(self) -> Iterator[str]:
        given = [name for name in _TRANSPORTS if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} contradict each other" if given else "missing"
            first = given[0] if given else "command"
            yield f"{first}: {what}; give one of {', '.join(_TRANSPORTS)}"
            return
        for field, transport in _ONLY_WITH.items():
            if getattr(self, field) and transport != given[0]:
                yield f"{field}: only for an upstream with {transport}; this one has {given[0]}"
        yield from self._command_faults()
        if self.url is not None:
            yield from _upstream_url_faults(self.url, insecure=self.insecure)
        if self.python is not None and not _OBJECT.fullmatch(self.python):
            yield f"python: must have the form package.module:name, got {self.python!r}"
        yield from _pair_faults("env", self.env, _VARIABLE)
        yield from _pair_faults("headers", self.headers, _HEADER)
        if not _PREFIX.fullmatch(self.prefix):
            allowed = "at most 32 letters, digits, _, . and -"
            yield f"prefix: must be {allowed}, got {self.prefix!r}"

    def _command_faults(self) -> Iterator[str]:
        if self.command is None:
            return
        if not self.command or not self.command[0].strip():
            yield "command: must name a program"
        for word in self.command:
            if "\0" in word:
                yield "command: must not contain a NUL character"
            if "{secret:" in word:
                yield "command: every user of the machine can see arguments; put secrets into env"


INSECURE: Final = "`insecure = true`"
"""The setting that allows an upstream without encryption. A command names its option instead."""


def _upstream_url_faults(url: str, *, insecure: bool) -> Iterator[str]:
    if "{" in url:
        yield "url: must not have placeholders, because URLs are logged; put secrets into headers"
        return
    fault = url_fault(url)
    if fault:
        yield f"url: {fault}"
    elif not insecure and urlsplit(url).scheme == "http" and not is_loopback(url):
        yield (
            f"url: {url!r} is not encrypted; write https, or {INSECURE} if the network "
            "between is your own"
        )


def url_fault(url: str) -> str:
    """Return why a text is no web URL for a configuration file; empty if it is one."""
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        return f"must be an http or https URL, got {url!r}"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user or password; use a secret"
    if parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", url):
        return f"must not contain a fragment or white space, got {url!r}"
    return ""


def is_loopback(url: str) -> bool:
    """Return whether a URL leads to this machine."""
    parts = _split(url)
    host = (parts.hostname or "") if parts else ""
    address = literal(host)
    return host == "localhost" or (address is not None and kind(address) == "loopback")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if the port is invalid
    except ValueError:
        return None
    return parts


def _pair_faults(field: str, pairs: Mapping[str, str], names: re.Pattern[str]) -> Iterator[str]:
    for name, text in pairs.items():
        if not names.fullmatch(name):
            yield f"{field}: invalid name {name!r}"
        if re.search(r"[\x00\r\n]", text):
            yield f"{field}.{name}: must not contain a line break or a NUL character"
        try:
            placeholders = template(text).placeholders
        except ValueError as error:
            yield f"{field}.{name}: {error}"
            continue
        for one in placeholders:
            if not one.secret or not _SECRET.fullmatch(one.name):
                yield f"{field}.{name}: {one} is no secret; write {{secret:name}}, or {{{{ for {{"


# [gateway] ---------------------------------------------------------------------------------------

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signature algorithms with a public key: the gateway can verify tokens and can't make them."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_ALLOWED_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?")


class ClaimsTable(Table):
    """Names of the claims of a token. Scopes come from `scope` or `scp`."""

    tenant: Name = "tenant"
    agent: Name = "client_id"
    user: Name = "sub"
    roles: Name = "roles"
    risk_level: Name | None = None
    """The claim with the caller's risk level. With it, a token without that claim is refused."""


class OAuthTable(Table):
    """The issuer whose bearer tokens are accepted."""

    issuer: Name
    audience: Name | None = None
    """Required audience of a token. Default: the URL of the endpoint."""
    jwks_url: Name | None = None
    """URL of the issuer's keys. Default: as in its metadata."""
    algorithms: tuple[str, ...] = Field(default=("RS256", "ES256", "EdDSA"), min_length=1)
    required_scopes: tuple[Name, ...] = ()
    claims: ClaimsTable = ClaimsTable()

    def _faults(self) -> Iterator[str]:
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is None:
                continue
            if fault := url_fault(url):
                yield f"{name}: {fault}"
            elif urlsplit(url).scheme == "http" and not is_loopback(url):
                yield f"{name}: must be an https URL, because keys are fetched, got {url!r}"
        if urlsplit(self.issuer).query:
            yield f"issuer: must not have a query, got {self.issuer!r}"
        for name in self.algorithms:
            if name not in ALGORITHMS:
                yield f"algorithms: unknown {name!r}; allowed: {', '.join(ALGORITHMS)}"


class GatewayTable(Table):
    """Where `counterseal serve` listens, and which clients it accepts."""

    host: Name = "127.0.0.1"
    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 8787
    """0 takes a free port."""
    public_url: Name | None = None
    """URL for clients and people. Default: the host and port that it listens on."""
    tls_cert: Name | None = None
    """Certificate chain for https: a file in PEM form, relative to the configuration file."""
    tls_key: Name | None = None
    """Private key of the certificate: a file in PEM form, without a password."""
    behind_proxy: StrictBool = False
    """Whether a proxy in front of it encrypts. Otherwise `serve` warns if it listens without https
    on an address that other machines can reach."""
    allowed_hosts: tuple[Name, ...] = ()
    """Allowed `Host` headers, beside this machine's own names and that of `public_url`."""
    allowed_origins: tuple[Name, ...] = ()
    """Origins of web pages that may call it."""
    trusted_proxies: tuple[Name, ...] = ()
    """Addresses or networks of proxies whose forwarding headers are trusted."""
    approval_wait_seconds: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 20
    """How long a call waits for an approval before it answers."""
    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 500
    """Requests to the API that a credential may send each second; five times as many at once."""
    connections_per_address: Annotated[int, Field(strict=True, ge=1, le=1000)] = 256
    """Connections from one address that may wait for a request; beyond it the oldest is closed."""
    lock: Name = "counterseal.lock"
    """The file of accepted definitions, relative to the configuration file."""
    evaluation: Name = "evaluation.json"
    """The file to which `counterseal evaluate --record` writes, and which the console shows."""
    oauth: OAuthTable | None = None

    def _faults(self) -> Iterator[str]:
        if not _HOST.fullmatch(self.host) and literal(self.host) is None:
            yield f"host: must be a name or an address without a port, got {self.host!r}"
        yield from self._address_faults()
        for name in self.allowed_hosts:
            if not _ALLOWED_HOST.fullmatch(name):
                yield f"allowed_hosts: must have the form host, host:port or host:*, got {name!r}"
        for name in self.allowed_origins:
            parts = None if url_fault(name) else urlsplit(name)
            if parts is None or parts.path or parts.query:
                yield f"allowed_origins: must have the form https://host[:port], got {name!r}"
        for name in filter(_is_no_network, self.trusted_proxies):
            form = "an address or a network such as 10.0.0.0/8"
            yield f"trusted_proxies: must be {form}, got {name!r}"

    def _address_faults(self) -> Iterator[str]:
        if self.public_url is not None:
            if fault := url_fault(self.public_url):
                yield f"public_url: {fault}"
            elif urlsplit(self.public_url).query:
                yield f"public_url: must not have a query, got {self.public_url!r}"
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            yield f"{missing}: missing; {given} needs it"


def _is_no_network(name: str) -> bool:
    try:
        ip_network(name)
    except ValueError:
        return True
    return False
