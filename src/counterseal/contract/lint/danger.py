"""Rules on raw power: inputs that are commands, code or credentials, not business arguments.

What sounds like code is told in `code`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from counterseal.contract.lint.base import Breach, breach, rule
from counterseal.contract.lint.code import Sounds, argument_sounds, tool_sounds
from counterseal.contract.lint.inputs import INPUT, fields
from counterseal.contract.lint.patterns import is_bounded
from counterseal.contract.lint.words import words_of
from counterseal.contract.model import Contract, Isolation
from counterseal.contract.schemas import listed, properties_of, types_of, without_refs

_URL = {"url", "uri", "href", "endpoint", "webhook"}
_PATH = {"path", "filepath", "filename", "directory", "dir"}
_SQL_WORDS = re.compile(r"\bSQL\b")
_CREDENTIAL = re.compile(
    r"(^|_)(password|passwd|passphrase|api_?key|secret|access_token|auth_token|bearer|private_key|"
    r"refresh_token|session_token|credentials?)$"
)
_AUTHORITY = re.compile(
    r"^(roles?|scopes?|permissions?|is_admin|acting_as|on_behalf_of|tenant(_id)?|as_user)$"
)


def is_credential(name: str) -> bool:
    """Whether a name is one that credentials have."""
    return _CREDENTIAL.search("_".join(words_of(name))) is not None


def _kinds(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    words = words_of(name)
    last = words[-1] if words else ""
    if "sql" in words or _SQL_WORDS.search(str(schema.get("description", ""))):
        yield "SQL"
    if last in _URL or schema.get("format") in ("uri", "uri-reference", "iri"):
        yield "a URL"
    if last in _PATH:
        yield "a file path"


def _texts(contract: Contract) -> Iterator[tuple[tuple[str | int, ...], str, Mapping[str, Any]]]:
    """Every field that takes a text, or texts, of the model's own making."""
    schema = contract.affordance.input_schema
    for path, name, value in fields(schema):
        full = without_refs(schema, value)
        for part in (full, *_parts(schema, full)):
            if "string" in types_of(part):
                yield (*INPUT, *path), name, {**full, **part}
                break


def _parts(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a value may be instead, or hold: the branches of a union, the items of a list."""
    for word in ("anyOf", "oneOf"):
        for branch in listed(schema, word):
            yield without_refs(root, branch)
    if isinstance(schema.get("items"), Mapping):
        yield without_refs(root, schema["items"])


def _closed(schema: Mapping[str, Any]) -> bool:
    """Whether the author, not the model, decides what can be written."""
    pattern = schema.get("pattern")
    bounded = isinstance(pattern, str) and is_bounded(pattern) and ".{" not in pattern
    return bounded or "enum" in schema or "const" in schema


_Found = tuple[tuple[str | int, ...], str, Sounds]


def _code(contract: Contract) -> list[_Found]:
    """Every place that sounds like code, and what is said there."""
    texts = [(place, name, schema) for place, name, schema in _texts(contract)]
    free = [(place, name, schema) for place, name, schema in texts if not _closed(schema)]
    found: list[_Found] = [
        (place, f"{name} takes {sounds.what} as the model writes it", sounds)
        for place, name, schema in free
        if (sounds := argument_sounds(name, str(schema.get("description", ""))))
    ]
    # Without a text of the model's own making there is nothing that it could have run.
    if free and not any(sounds.certain for _, _, sounds in found):
        affordance = contract.affordance
        for place, sounds in tool_sounds(
            contract.name, affordance.model_description, [name for _, name, _ in free]
        ):
            found.append((place, f"the tool says that it runs {sounds.what}", sounds))
    return found


@rule("code-unsandboxed", "tools that run somebody's code run it in a sandbox")
def code_unsandboxed(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX or contract.runs_code is False:
        return
    found = [(place, what) for place, what, sounds in _code(contract) if sounds.certain]
    if contract.runs_code and not found:
        found = [(("runs_code",), "runs code")]
    for place, what in found:
        yield breach(
            place,
            f"{what}, and isolation is {contract.isolation}",
            "Set isolation to sandbox; or, if nothing of it is ever run, runs_code to false.",
        )


@rule("code-suspected", "tools that may run somebody's code say whether they do", warning=True)
def code_suspected(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX or contract.runs_code is not None:
        return
    found = _code(contract)
    if any(sounds.certain for _, _, sounds in found):
        return  # code-unsandboxed says so
    for place, what, _ in found:
        yield breach(
            place,
            f"{what}; is it run?",
            "Set runs_code to true, and isolation to sandbox; or runs_code to false.",
        )


@rule("raw-power", "inputs name business things, not SQL, shell, code, URLs or paths", warning=True)
def raw_power(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX:
        return
    found = [
        (place, f"{name} takes {kind} as the model writes it")
        for place, name, schema in _texts(contract)
        for kind in (() if _closed(schema) else _kinds(name, schema))
    ]
    if contract.runs_code is False:  # otherwise code-unsandboxed says so
        found += [(place, what) for place, what, sounds in _code(contract) if sounds.certain]
    for place, what in found:
        yield breach(
            place,
            what,
            "Offer the business operation instead, bound it with an enum or a pattern, "
            "or set isolation to sandbox.",
        )


@rule("credential-argument", "credentials are injected, never argued")
def credential_argument(contract: Contract) -> Iterator[Breach]:
    for place, name, _ in _texts(contract):
        if is_credential(name):
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
