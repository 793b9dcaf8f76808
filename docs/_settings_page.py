"""The reference of `counterseal.toml`, from the records that it is read into."""

from __future__ import annotations

from typing import get_args

from _tables import fields, table
from pydantic import BaseModel

from counterseal.config.settings import Settings
from counterseal.config.tables import BudgetsTable, ClaimsTable, OAuthTable

ABOUT = {
    "tools": "Files and folders of contracts.",
    "policy": "Rules about calls: see [policy](../policy.md).",
    "planning": "Rules about plans: see [plans](../plans.md).",
    "secrets": "The source of credentials: see [execution](../execution.md#credentials).",
    "files": "Files of tools: see [execution](../execution.md#files).",
    "store": "The database: see [the ledger](../ledger.md#where-it-is-kept).",
    "keys": "Keys that sign and encrypt: see [audit](../audit.md#keys).",
    "observations": "What is kept of observations: see [audit](../audit.md#what-is-recorded).",
    "retention": "How long data is kept. Without a value it is kept for ever.",
    "grants": "Which agent may use which tool: see [the registry](../registry.md#grants).",
    "agents": "Principals for `counterseal call`, `counterseal mcp` and `--anonymous-as`.",
    "approvers": "People who may decide [from a shell](../approvals.md#from-the-shell).",
    "notifications": "Messages about requests: see [notifications](../approvals.md#notifications).",
    "evaluation": "How `counterseal evaluate` tries a tool: see [evaluation](../evaluation.md).",
    "tenants": "Facts about a tenant, and its budgets per day (UTC).",
    "upstreams": "MCP servers behind [the gateway](../gateway.md).",
    "gateway": "Where `counterseal serve` listens, and which clients it accepts.",
}
WORDS: dict[str, dict[str, str]] = {
    "GrantTable": {
        "agent": "The agent.",
        "tool": "The tool.",
        "version": "A version, `1.2.0`, or a range, `>=1.0,<2`.",
        "mode": "`read`, `draft` or `execute`: how far the tool's effect may go.",
        "max_calls_per_run": "Replaces the contract's `budget`.",
        "scopes": "Scopes that the caller needs in addition to the contract's.",
        "risk_limit": "The highest risk class.",
        "expires_at": "When it expires, with a time zone.",
        "tenant": "Its tenant. Without a value: all tenants.",
    },
    "AgentTable": {
        "tenant": "Its tenant.",
        "user": "Its user.",
        "roles": "Its roles.",
        "scopes": "Its scopes.",
    },
    "ApproverTable": {"roles": "Their roles."},
    "TenantTable": {"budgets": "See below."},
    "BudgetsTable": {
        "reads": "Calls that change nothing.",
        "writes": "Calls that change something.",
        "external": "Calls that reach people or systems outside.",
        "critical": "Critical mutations.",
        "by_effect": "Calls by effect.",
    },
    "RetentionTable": {
        "vault_days": "Raw outputs and kept reads, in days.",
        "events_days": "Contents of events, in days; their hashes stay.",
    },
    "UpstreamTable": {
        "headers": "Sent with every request; `{secret:name}` is a credential.",
        "resources": "Whether its resources are passed on.",
        "prompts": "Whether its prompts are passed on.",
    },
    "GatewayTable": {"host": "Where it listens.", "oauth": "See below."},
    "OAuthTable": {
        "issuer": "The authorization server's URL, exactly as in its tokens.",
        "algorithms": "Allowed signature algorithms.",
        "required_scopes": "Scopes that every token must have.",
        "claims": "See below.",
    },
    "ClaimsTable": {
        "tenant": "The tenant.",
        "agent": "The agent.",
        "user": "The user.",
        "roles": "The roles.",
    },
}
KINDS: dict[str, dict[str, str]] = {
    "GrantTable": {"expires_at": "date and time", "risk_limit": "a risk class"},
    "TenantTable": {"facts": "table of anything"},
    "BudgetsTable": dict.fromkeys(("money", "cost"), "table of [limits](../money.md)"),
}
DEEPER = {
    "tenants": (("[tenants.NAME.budgets]", BudgetsTable),),
    "gateway": (("[gateway.oauth]", OAuthTable), ("[gateway.oauth.claims]", ClaimsTable)),
}


def page() -> str:
    parts: list[str] = []
    for name, info in Settings.model_fields.items():
        model = _model(info.annotation)
        called = _called(name, info.annotation)
        parts.append(f"## `{called}`\n\n{ABOUT[name]}\n\n{_table(model)}")
        for deeper, inner in DEEPER.get(name, ()):
            parts.append(f"### `{deeper}`\n\n{_table(inner)}")
    tables = "\n".join(parts)
    return f"""# Configuration

`counterseal.toml` is looked for in the working folder and above it. A key that is not listed here
is an error, and all that is wrong is told at once. Paths are seen from the file. What is left out
has its default, and without a store nothing is kept.

Two things come from the environment: credentials (`COUNTERSEAL_SECRET_<NAME>`, unless `[secrets]`
names a folder), and the store (`COUNTERSEAL_STORE`, in the place of `[store] url`).

{tables}"""


def _table(model: type[BaseModel]) -> str:
    rows = fields(model, WORDS.get(model.__name__, {}), KINDS.get(model.__name__, {}))
    return table(["key", "takes", "default", ""], rows)


def _model(annotation: object) -> type[BaseModel]:
    inner = [annotation, *get_args(annotation)]
    return next(one for one in inner if isinstance(one, type) and issubclass(one, BaseModel))


def _called(name: str, annotation: object) -> str:
    kind = getattr(annotation, "__origin__", None)
    if kind is tuple:
        return f"[[{name}]]"
    return f"[{name}.NAME]" if kind is dict else f"[{name}]"
