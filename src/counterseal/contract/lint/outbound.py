"""Rules on outbound requests: an HTTP tool sends what it declares, to allowed hosts only.

Host names are not resolved here. Every connection is checked again when the tool runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from counterseal.contract.bindings import Placeholder, template
from counterseal.contract.egress import EgressEntry, entry_for, kind, literal, parse_entry
from counterseal.contract.lint.rule import Breach, not_an_argument, rule
from counterseal.contract.model import Contract, EgressPolicy, Isolation
from counterseal.contract.schemas import listed, properties_of, types_of, without_refs, word_set


def entries(contract: Contract) -> Iterator[EgressEntry]:
    """Yield the valid egress entries of a contract."""
    for entry in contract.egress:
        try:
            yield parse_entry(entry)
        except ValueError:
            continue  # reported by egress-unreadable


def _allowed(contract: Contract, host: str, port: int) -> bool:
    """Return whether egress allows a host, as far as this is known before resolving it."""
    address = literal(host)
    if address is not None:
        return any(entry.declares(address, port) for entry in entries(contract))
    return any(entry.names(host.rstrip(".").lower(), port) for entry in entries(contract))


@rule("egress-unreadable", "egress entries are host names, addresses or networks")
def egress_unreadable(contract: Contract) -> Iterator[Breach]:
    for index, entry in enumerate(contract.egress):
        try:
            parse_entry(entry)
        except ValueError as error:
            reason = str(error).partition(": ")[2].partition("; ")[0]
            fault = f"{ascii(entry)[:80]}: {reason}"
            fix = "Write api.example.org, *.example.org, api.example.org:8443 or 10.1.0.0/16."
            yield Breach(("egress", index), fault, fix)


@rule("egress-contradictory", "egress agrees with its egress policy")
def egress_contradictory(contract: Contract) -> Iterator[Breach]:
    if contract.egress and contract.security.egress_policy is EgressPolicy.NONE:
        fault = f"egress_policy is none, but egress lists {contract.egress[0]}"
        fix = "Set it to allowlisted_domains, or remove egress."
        yield Breach("/security/egress_policy", fault, fix)


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")
_CONNECTION_HEADERS = word_set(
    "connection content-length expect host keep-alive proxy-authenticate proxy-authorization "
    "proxy-connection te trailer transfer-encoding upgrade"
)
"""Headers of the connection, which a tool may not set: framing, routing and hop-by-hop ones."""
_LOOPBACK = ("127.0.0.1", "::1")
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_INCONCLUSIVE = (401, 403, 407, 408, 423, 425, 429)
"""Statuses that do not say whether the resource exists."""


@rule("http-unreachable", "request goes to a host that its egress allows")
def http_unreachable(contract: Contract) -> Iterator[Breach]:
    binding, policy = contract.http, contract.security.egress_policy
    if binding is None:
        return
    entry = entry_for(binding.host, binding.port)
    if policy is EgressPolicy.NONE:
        fault = "the egress policy is none, so the request can't be sent"
        yield Breach("/http/url", fault, f"Allow the host: egress: [{entry}].")
    elif policy is EgressPolicy.ALLOWLISTED_DOMAINS:
        if not _allowed(contract, binding.host, binding.port):
            yield Breach("/http/url", f"{entry} is not in egress", "Add it, or correct the URL.")
        elif binding.host == "localhost" and not any(
            _allowed(contract, near, binding.port) for near in _LOOPBACK
        ):
            fault = "localhost is a loopback address, which egress must list as an address"
            yield Breach("/egress", fault, f"Add {entry_for('127.0.0.1', binding.port)}.")
    elif policy is EgressPolicy.PRIVATE_NETWORK_ONLY:
        address = literal(binding.host)
        if address is not None and kind(address) == "public":
            fault = f"{entry} is a public address, but egress_policy is private_network_only"
            yield Breach("/http/url", fault)


@rule("http-isolation", "request is sent by this process")
def http_isolation(contract: Contract) -> Iterator[Breach]:
    apart = (Isolation.PROCESS, Isolation.SANDBOX)
    if contract.http is not None and contract.isolation in apart:
        fault = f"isolation is {contract.isolation}, but an HTTP tool has no code to isolate"
        yield Breach("/isolation", fault, "Remove `isolation`.")


@rule("http-argument-unknown", "request uses declared arguments")
def http_argument_unknown(contract: Contract) -> Iterator[Breach]:
    known = properties_of(contract.affordance.input_schema)
    for place, placeholder in _placeholders(contract):
        if placeholder.argument and placeholder.name not in known:
            yield not_an_argument(contract, place, placeholder)


def _placeholders(contract: Contract) -> Iterator[tuple[tuple[str | int, ...], Placeholder]]:
    for place, placeholder in contract.http.placeholders() if contract.http else ():
        yield ("http", *place), placeholder


@rule("http-path-optional", "path uses required arguments only")
def http_path_optional(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    required = listed(schema, "required")
    for place, placeholder in _placeholders(contract):
        known = placeholder.argument and placeholder.name in properties_of(schema)
        if place == ("http", "url") and known and placeholder.name not in required:
            fault = f"{placeholder} is used in the path, but the argument is optional"
            yield Breach(place, fault, f"Add {placeholder.name} to the input schema's required.")


@rule("http-argument-misfit", "path, query, form and headers use plain values")
def http_argument_misfit(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    for place, placeholder in _placeholders(contract):
        part = str(place[1])
        if not placeholder.argument or part == "body":
            continue
        types = types_of(without_refs(schema, properties_of(schema).get(placeholder.name)))
        templates = getattr(contract.http, part)
        in_pairs = part in ("query", "form")
        repeated = in_pairs and template(templates[str(place[2])]).alone is not None
        for word in ("object", "array"):
            if word in types and not (word == "array" and repeated):
                fault = f"{placeholder} is an {word}, which can't be written into {part}"
                fix = "Move it to the body. In query and form, a list may be a value of its own."
                yield Breach(place, fault, fix)


@rule("http-argument-unsent", "arguments are all used by the request", warning=True)
def http_argument_unsent(contract: Contract) -> Iterator[Breach]:
    if contract.http is None:
        return
    used = {*contract.http.arguments, *contract.business_key, contract.tenant_argument}
    for name in properties_of(contract.affordance.input_schema):
        if name not in used:
            fault = f"{name} is an argument, but the request does not use it"
            fix = "Use it in the http section, or remove it."
            yield Breach(("affordance", "input_schema", "properties", name), fault, fix)


@rule("http-secret-mismatch", "request uses exactly the declared secrets")
def http_secret_mismatch(contract: Contract) -> Iterator[Breach]:
    for place, placeholder in _placeholders(contract):
        if placeholder.secret and placeholder.name not in contract.secrets:
            fix = f"Add it: secrets: [{placeholder.name}]."
            yield Breach(place, f"{placeholder} is not declared", fix)
    if contract.http is not None:
        for index, name in enumerate(contract.secrets):
            if name not in contract.http.secrets:
                fault = f"the secret {name} is declared, but the request does not use it"
                yield Breach(("secrets", index), fault, "Remove it, or use it in the http section.")


@rule("http-secret-plain", "secrets are sent encrypted")
def http_secret_plain(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    if binding is None or not binding.secrets or binding.secure:
        return
    address = literal(binding.host)
    if address is None:
        near = binding.host == "localhost" or binding.host.endswith(".localhost")
    else:  # on this machine, or in a network that egress lists
        declared = any(entry.network and address in entry.network for entry in entries(contract))
        near = address.is_loopback or (address.is_private and declared)
    if not near:
        fault = f"{', '.join(sorted(binding.secrets))} would be sent to {binding.host} unencrypted"
        fix = "Use https. Plain http is allowed for loopback and for private addresses in egress."
        yield Breach("/http/url", fault, fix)


@rule("http-secret-in-url", "secrets are sent in headers, not in URLs", warning=True)
def http_secret_in_url(contract: Contract) -> Iterator[Breach]:
    for place, placeholder in _placeholders(contract):
        if placeholder.secret and place[1] in ("url", "query"):
            fault = f"{placeholder} becomes part of the URL, which servers and proxies log"
            yield Breach(place, fault, "Send it in a header, if the API accepts that.")


@rule("http-key-unsent", "key is sent to the destination")
def http_key_unsent(contract: Contract) -> Iterator[Breach]:
    keyed = contract.idempotency
    if contract.http is not None and contract.mutates and keyed.required and not keyed.key_header:
        fault = "key_header is null, so the destination can't tell a retry from a second call"
        fix = "Name a header, like Idempotency-Key. A destination that does not know it ignores it."
        yield Breach("/idempotency/key_header", fault, fix)


@rule("http-header-invalid", "headers are ones that a tool may set")
def http_header_invalid(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    if binding is None:
        return
    key = contract.idempotency.key_header
    named = [*binding.headers, *([key] if key else [])]
    times = Counter(name.lower() for name in named)
    for name in named:
        place = ("http", "headers", name) if name in binding.headers else "/idempotency/key_header"
        if not _TOKEN.fullmatch(name):
            yield Breach(place, f"{ascii(name)[:80]} is not a valid header name")
        elif name.lower() in _CONNECTION_HEADERS:
            yield Breach(place, f"{name} is set by the connection", "Remove it.")
        elif times[name.lower()] > 1:
            fix = "Header names are case-insensitive; remove one."
            yield Breach(place, f"{name} is set twice", fix)
    for name, text in binding.headers.items():
        # The value of a placeholder is checked when the request is sent.
        plain = "".join(part if isinstance(part, str) else "x" for part in template(text).parts)
        if not _VALUE.fullmatch(plain):
            fault = "the value has line breaks, non-ASCII characters, or spaces at its ends"
            yield Breach(("http", "headers", name), fault)


@rule("http-body-misplaced", "GET and HEAD requests have no body")
def http_body_misplaced(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    for name in ("body", "form"):
        if binding and binding.method in ("GET", "HEAD") and getattr(binding, name):
            fault = f"a {binding.method} request has no body"
            yield Breach(("http", name), fault, "Use query, or POST.")


@rule("http-absent-misplaced", "absent statuses belong to a read-only request")
def http_absent_misplaced(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    if binding is None or not binding.absent:
        return
    if binding.method in _CHANGING or contract.mutates:
        what = binding.method if binding.method in _CHANGING else contract.effect
        fault = f"{what} changes something; status {binding.absent[0]} would count as success"
        yield Breach("/http/absent", fault, "Remove it, and map the status in `statuses`.")
    for index, status in enumerate(binding.absent):
        if status in _INCONCLUSIVE:
            fault = f"status {status} does not say that the resource does not exist"
            fix = "Remove it: an unknown answer must not count as absent."
            yield Breach(("http", "absent", index), fault, fix)


@rule("http-effect-low", "effect is as strong as its HTTP method, or the reason is given")
def http_effect_low(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    changing = binding is not None and binding.method in _CHANGING
    if changing and not contract.mutates and not (contract.risk_justification or "").strip():
        fault = f"the effect is {contract.effect}, but the HTTP method changes something"
        fix = "Declare the actual effect. For a search by POST, say so in risk_justification."
        yield Breach("/effect", fault, fix)
