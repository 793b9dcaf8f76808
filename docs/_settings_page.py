"""The reference of `counterseal.toml`, from the records that it is read into."""

from __future__ import annotations

from typing import get_args

from _tables import fields, table
from pydantic import BaseModel

from counterseal.config.settings import Settings
from counterseal.config.tables import BudgetsTable, ClaimsTable, OAuthTable

ABOUT = {
    "tools": "Where contracts are.",
    "policy": "Rules about calls: see [policy](../policy.md).",
    "planning": "Rules about plans: see [plans](../plans.md).",
    "secrets": "Where credentials come from: see [execution](../execution.md#credentials).",
    "files": "Where tools keep files: see [execution](../execution.md#files).",
    "store": "Where everything is kept: see [the ledger](../ledger.md#where-it-is-kept).",
    "keys": "What signs and seals: see [audit](../audit.md#keys).",
    "observations": "What is kept of what models read: see [audit](../audit.md#what-is-recorded).",
    "retention": "How long what is on record is kept; what is left out is kept for ever.",
    "grants": "Who may use what, one table a grant: see [the registry](../registry.md#grants).",
    "agents": "Who an agent is, for `counterseal call`, `counterseal mcp` and `--anonymous-as`.",
    "approvers": "Who may decide [from a shell](../approvals.md#from-the-shell).",
    "notifications": "Who is told of requests: [notifications](../approvals.md#notifications).",
    "tenants": "What the operator says of a tenant, and what it may spend in a day (UTC).",
    "upstreams": "MCP servers behind [the gateway](../gateway.md).",
    "gateway": "Where `counterseal serve` listens, and whom it believes.",
}
WORDS: dict[str, dict[str, str]] = {
    "GrantTable": {
        "agent": "Who.",
        "tool": "What.",
        "version": "In which versions: `1.2.0`, or a range like `>=1.0,<2`.",
        "mode": "`read`, `draft` or `execute`: how far the tool's effect may go.",
        "max_calls_per_run": "In the place of the contract's `budget`.",
        "scopes": "Scopes that the caller needs beside the contract's.",
        "risk_limit": "The highest risk class.",
        "expires_at": "Until when, with its time zone.",
        "tenant": "For one tenant; left out: for every tenant.",
    },
    "AgentTable": {
        "tenant": "On whose behalf it acts.",
        "user": "For which user.",
        "roles": "With which roles.",
        "scopes": "With which scopes.",
    },
    "ApproverTable": {"roles": "Their roles."},
    "TenantTable": {"budgets": "See below."},
    "BudgetsTable": {
        "reads": "Calls that change nothing.",
        "writes": "Calls that change something.",
        "external": "Calls that reach people or systems outside.",
        "critical": "Critical mutations.",
        "money": "`cost_per_call` of the contracts.",
        "by_effect": "Calls by effect.",
    },
    "RetentionTable": {
        "vault_days": "Raw outputs, and what is kept of reads, in days.",
        "events_days": "What events say, in days; their hashes stay.",
    },
    "UpstreamTable": {
        "headers": "Sent with every request; `{secret:name}` is a credential.",
        "resources": "Whether its resources are passed on.",
        "prompts": "Whether its prompts are passed on.",
    },
    "GatewayTable": {"host": "Where it listens.", "oauth": "See below."},
    "OAuthTable": {
        "issuer": "The authorization server's URL, exactly as its tokens say it.",
        "algorithms": "How tokens may be signed.",
        "required_scopes": "What every token must hold.",
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
