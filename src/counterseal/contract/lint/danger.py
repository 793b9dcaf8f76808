"""Rules on raw power: inputs that are commands, code or credentials, not business arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from counterseal.contract.lint.base import Breach, breach, rule
from counterseal.contract.lint.inputs import INPUT, fields, properties_of, without_refs
from counterseal.contract.model import Contract, Isolation
from counterseal.contract.schemas import types_of

_RAW = {
    "SQL": re.compile(r"(^|_)(sql|sql_query|where_clause)$|^query_text$"),
    "a shell command": re.compile(r"(^|_)(shell|bash|cmd|command|command_line|argv)$"),
    "code": re.compile(r"(^|_)(code|script|source_code|python|javascript|eval)$"),
    "a URL": re.compile(r"(^|_)(url|uri|href|endpoint)$"),
    "a file path": re.compile(r"(^|_)(path|filepath|file_path|filename|directory|dir)$"),
}
_SQL_WORDS = re.compile(r"\bSQL\b")
_CREDENTIAL = re.compile(
    r"(^|_)(password|passwd|passphrase|api_?key|secret|access_token|auth_token|bearer|private_key|"
    r"credentials?)$"
)
_AUTHORITY = re.compile(
    r"^(roles?|scopes?|permissions?|is_admin|acting_as|on_behalf_of|tenant(_id)?|as_user)$"
)


def _texts(contract: Contract) -> Iterator[tuple[tuple[str | int, ...], str, Mapping[str, Any]]]:
    """Every field that takes a text of the model's own making."""
    schema = contract.affordance.input_schema
    for path, name, value in fields(schema):
        full = without_refs(schema, value)
        closed = any(word in full for word in ("enum", "const", "pattern"))
        if "string" in types_of(full) and not closed:
            yield (*INPUT, *path), name.lower(), full


@rule("raw-power", "inputs name business things, not SQL, shell, code, URLs or paths", warning=True)
def raw_power(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX:
        return
    for place, name, schema in _texts(contract):
        kinds = [kind for kind, words in _RAW.items() if words.search(name)]
        if not kinds and _SQL_WORDS.search(str(schema.get("description", ""))):
            kinds = ["SQL"]
        for kind in kinds:
            yield breach(
                place,
                f"{name} takes {kind} as the model writes it",
                "Offer the business operation instead, bound it with an enum or a pattern, "
                "or set isolation to sandbox.",
            )


@rule("credential-argument", "credentials are injected, never argued")
def credential_argument(contract: Contract) -> Iterator[Breach]:
    for place, name, _ in _texts(contract):
        if _CREDENTIAL.search(name):
            yield breach(
                place,
                f"{name} would put a credential into a model's hands",
                'Inject it: Annotated[str, Secret("name")].',
            )


@rule("authority-argument", "authority comes from the principal, not from arguments", warning=True)
def authority_argument(contract: Contract) -> Iterator[Breach]:
    for path, name, _ in fields(contract.affordance.input_schema):
        if _AUTHORITY.match(name.lower()) and name != contract.tenant_argument:
            yield breach(
                (*INPUT, *path),
                f"{name} lets the model say whose authority it acts with",
                "Take it from the context; mark a tenant with tenant_argument.",
            )


@rule("identifier-ambiguous", "identifiers say what they identify", warning=True)
def identifier_ambiguous(contract: Contract) -> Iterator[Breach]:
    for name in properties_of(contract.affordance.input_schema):
        if name in ("id", "ids", "uuid", "key"):
            yield breach(
                (*INPUT, "properties", name),
                f"{name} does not say what it identifies",
                "Name the thing: case_id, invoice_id.",
            )
