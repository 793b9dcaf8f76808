"""Rules on requests: an HTTP tool sends what it declares, to where it may, and nothing else.

Judged as written: no name is looked up here. What a name leads to is seen by the guard on every
connection, when the tool runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from counterseal.contract.bindings import HttpBinding, Placeholder, template
from counterseal.contract.egress import EgressEntry, kind, literal, parse_entry
from counterseal.contract.lint.rule import Breach, breach, rule
from counterseal.contract.model import Contract, EgressPolicy, Isolation
from counterseal.contract.schemas import listed, properties_of, types_of, without_refs

# --- egress ---


def covers(entry: EgressEntry, host: str, port: int) -> bool:
    """Whether an entry lets a host be reached, as far as that can be said before looking it up."""
    address = literal(host)
    if address is not None:
        return entry.declares(address, port)
    return entry.names(host.rstrip(".").lower(), port)


def written(host: str, port: int) -> str:
    """The entry that covers a host and a port, and no more."""
    if port in (80, 443):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def entries(contract: Contract) -> Iterator[EgressEntry]:
    """Those of a contract that can be read."""
    for entry in contract.egress:
        try:
            yield parse_entry(entry)
        except ValueError:
            continue  # reported by egress-unreadable


@rule("egress-unreadable", "egress lists names, addresses and networks")
def egress_unreadable(contract: Contract) -> Iterator[Breach]:
    for index, entry in enumerate(contract.egress):
        try:
            parse_entry(entry)
        except ValueError as error:
            told = str(error).partition(": ")[2].partition("; ")[0]
            yield breach(
                ("egress", index),
                f"{ascii(entry)[:80]}: {told}",
                "Write api.example.org, *.example.org, api.example.org:8443 or 10.1.0.0/16.",
            )


@rule("egress-contradictory", "egress is empty when its policy lets nothing out")
def egress_contradictory(contract: Contract) -> Iterator[Breach]:
    if contract.egress and contract.security.egress_policy is EgressPolicy.NONE:
        yield breach(
            "/security/egress_policy",
            f"is none, but egress names {contract.egress[0]}",
            "Set it to allowlisted_domains, or take egress out.",
        )


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")
_NOT_OURS = {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te"}
_NOT_OURS |= {"trailer", "upgrade", "expect", "proxy-authenticate", "proxy-authorization"}
_NOT_OURS |= {"proxy-connection"}
"""What the connection decides, not a tool: framing, routing, and what ends at the next hop."""
_LOOPBACK = ("127.0.0.1", "::1")
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_UNSAID = (401, 403, 407, 408, 423, 425, 429)
"""Answers that refuse to say whether anything is there."""


# Where to ----------------------------------------------------------------------------------------


@rule("http-unreachable", "request goes where its egress policy lets it")
def http_unreachable(contract: Contract) -> Iterator[Breach]:
    binding, policy = contract.http, contract.security.egress_policy
    if binding is None:
        return
    entry = written(binding.host, binding.port)
    if policy is EgressPolicy.NONE:
        yield breach(
            "/http/url",
            "the egress policy is none, so the request can't leave",
            f"Name the host: egress: [{entry}].",
        )
    elif policy is EgressPolicy.ALLOWLISTED_DOMAINS:
        if not any(covers(known, binding.host, binding.port) for known in entries(contract)):
            yield breach("/http/url", f"{entry} is not in egress", "Add it, or mend the URL.")
        elif binding.host == "localhost" and not _loopback_named(contract, binding.port):
            yield breach(
                "/egress",
                "localhost is a loopback address, and these are reached only if written out",
                f"Add {written('127.0.0.1', binding.port)}.",
            )
    elif policy is EgressPolicy.PRIVATE_NETWORK_ONLY:
        address = literal(binding.host)
        if address is not None and kind(address) == "public":
            yield breach("/http/url", f"{entry} is a public address, but the policy is private")


def _loopback_named(contract: Contract, port: int) -> bool:
    return any(covers(entry, near, port) for entry in entries(contract) for near in _LOOPBACK)


@rule("http-isolation", "request is made here: no other process could make it")
def http_isolation(contract: Contract) -> Iterator[Breach]:
    apart = (Isolation.PROCESS, Isolation.SANDBOX)
    if contract.http is not None and contract.isolation in apart:
        yield breach(
            "/isolation",
            f"is {contract.isolation}, but there is no code to isolate",
            "Leave isolation out.",
        )


# What travels ------------------------------------------------------------------------------------


@rule("http-argument-unknown", "request uses arguments that exist")
def http_argument_unknown(contract: Contract) -> Iterator[Breach]:
    known = set(properties_of(contract.affordance.input_schema))
    for place, found in _placeholders(contract):
        if found.argument and found.name not in known:
            yield breach(
                place,
                f"{found} is not an argument of {contract.name}",
                f"Use one of: {', '.join(sorted(known)) or 'none are declared'}.",
            )


def _placeholders(contract: Contract) -> Iterator[tuple[tuple[str | int, ...], Placeholder]]:
    for place, found in contract.http.placeholders() if contract.http else ():
        yield ("http", *place), found


@rule("http-path-optional", "path is filled by arguments that are always there")
def http_path_optional(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    required = listed(schema, "required")
    for place, found in _placeholders(contract):
        known = found.argument and found.name in properties_of(schema)
        if place == ("http", "url") and known and found.name not in required:
            yield breach(
                place,
                f"{found} stands in the path, but the argument may be missing",
                f"Add {found.name} to the input schema's required.",
            )


@rule("http-argument-misfit", "path, query, form and headers are filled by plain values")
def http_argument_misfit(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    for place, found in _placeholders(contract):
        part = str(place[1])
        if not found.argument or part == "body":
            continue
        types = types_of(without_refs(schema, properties_of(schema).get(found.name)))
        repeated = part in ("query", "form") and _stands_alone(contract, place)
        unfit = [word for word in ("object", "array") if word in types]
        for word in unfit:
            if not (word == "array" and repeated):
                yield breach(
                    place,
                    f"{found} is an {word}, which has no place in {part}",
                    "Put it into the body. A list may stand alone in query or form.",
                )


def _stands_alone(contract: Contract, place: tuple[str | int, ...]) -> bool:
    templates: dict[str, Any] = getattr(contract.http, str(place[1]))
    return template(templates[str(place[2])]).alone is not None


@rule("http-argument-unsent", "arguments are all sent", warning=True)
def http_argument_unsent(contract: Contract) -> Iterator[Breach]:
    if contract.http is None:
        return
    used = {*contract.http.arguments, *contract.business_key, contract.tenant_argument}
    for name in properties_of(contract.affordance.input_schema):
        if name not in used:
            yield breach(
                ("affordance", "input_schema", "properties", name),
                f"{name} is asked of the model, but the request does not carry it",
                "Use it in the http section, or take it out.",
            )


@rule("http-secret-mismatch", "request carries the secrets that are declared, and no others")
def http_secret_mismatch(contract: Contract) -> Iterator[Breach]:
    for place, found in _placeholders(contract):
        if found.secret and found.name not in contract.secrets:
            yield breach(place, f"{found} is not declared", f"Add it: secrets: [{found.name}].")
    if contract.http is not None:
        for index, name in enumerate(contract.secrets):
            if name not in contract.http.secrets:
                yield breach(
                    ("secrets", index),
                    f"{name} is declared, but the request does not carry it",
                    "Take it out, or use it in the http section.",
                )


@rule("http-secret-plain", "secrets travel encrypted")
def http_secret_plain(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    if binding is not None and binding.secrets and not binding.secure and not _near(contract):
        yield breach(
            "/http/url",
            f"{', '.join(sorted(binding.secrets))} would travel to {binding.host} in the open",
            "Use https. Plain http is for loopback, and for private addresses in egress.",
        )


def _near(contract: Contract) -> bool:
    """Whether the request stays on this machine, or in a network that egress names."""
    host = contract.http.host if contract.http else ""
    address = literal(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    named = any(entry.network and address in entry.network for entry in entries(contract))
    return address.is_loopback or (address.is_private and named)


@rule("http-secret-in-url", "secrets stand in headers, not in URLs that are logged", warning=True)
def http_secret_in_url(contract: Contract) -> Iterator[Breach]:
    for place, found in _placeholders(contract):
        if found.secret and place[1] in ("url", "query"):
            yield breach(
                place,
                f"{found} becomes part of the URL, which servers and proxies write down",
                "Send it in a header, if the API takes it there.",
            )


# How it travels ----------------------------------------------------------------------------------


@rule("http-key-unsent", "key reaches the destination of a change")
def http_key_unsent(contract: Contract) -> Iterator[Breach]:
    keyed = contract.idempotency
    if contract.http is not None and contract.mutates and keyed.required and not keyed.key_header:
        yield breach(
            "/idempotency/key_header",
            "is null, so the destination can't tell a retry from a second call",
            "Name a header, like Idempotency-Key; who does not know it ignores it.",
        )


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
            yield breach(place, f"{ascii(name)[:80]} is no name of a header")
        elif name.lower() in _NOT_OURS:
            yield breach(place, f"{name} belongs to the connection", "Take it out.")
        elif times[name.lower()] > 1:
            yield breach(place, f"{name} is set twice", "Headers differ in more than their case.")
    yield from _bad_values(binding)


def _bad_values(binding: HttpBinding) -> Iterator[Breach]:
    for name, text in binding.headers.items():
        # A placeholder's own value is looked at when it is known.
        plain = "".join(part if isinstance(part, str) else "x" for part in template(text).parts)
        if not _VALUE.fullmatch(plain):
            yield breach(
                ("http", "headers", name),
                "holds what a header can't: line breaks, other than ASCII, or spaces at its ends",
            )


@rule("http-body-misplaced", "GET and HEAD requests have no body")
def http_body_misplaced(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    if binding is None or binding.method not in ("GET", "HEAD"):
        return
    for name in ("body", "form"):
        if getattr(binding, name):
            yield breach(("http", name), f"a {binding.method} carries none", "Use query, or POST.")


@rule("http-absent-misplaced", "answer that nothing is there comes from a request that reads")
def http_absent_misplaced(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    if binding is None or not binding.absent:
        return
    if binding.method in _CHANGING or contract.mutates:
        what = binding.method if binding.method in _CHANGING else contract.effect
        yield breach(
            "/http/absent",
            f"{what} changes something, and an answer of {binding.absent[0]} would pass for done",
            "Take it out; say what the status means in statuses.",
        )
    for index, status in enumerate(binding.absent):
        if status in _UNSAID:
            yield breach(
                ("http", "absent", index),
                f"{status} does not say that there is nothing, only that it is not told",
                "Take it out: what is not known must not pass for absent.",
            )


@rule("http-effect-low", "effect is as strong as its method, or a reason is written down")
def http_effect_low(contract: Contract) -> Iterator[Breach]:
    binding = contract.http
    changing = binding is not None and binding.method in _CHANGING
    if changing and not contract.mutates and not (contract.risk_justification or "").strip():
        yield breach(
            "/effect",
            f"is {contract.effect}, but {binding.method if binding else ''} changes something",
            "Declare what it changes. For a search by POST, say so in risk_justification.",
        )
