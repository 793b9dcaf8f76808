"""How a document wants callers to prove who they are: as secrets in headers and queries."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from counterseal.contract.sources.openapi.document import Document, Operation, listed, mapping
from counterseal.contract.sources.openapi.notes import Notes, UnsupportedError
from counterseal.contract.sources.openapi.texts import clean

__all__ = ["Credentials", "credentials", "secret_name"]


@dataclass(slots=True)
class Credentials:
    """What a request carries for it."""

    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)


_LONGEST_NAME = 100


def secret_name(host: str, name: str) -> str:
    """A secret of this host. Named after what a document calls itself, anybody's could ask for it.

    Host and name are written to be read, and two hosts may come out alike; the end tells them
    apart. Only the host makes it: a document is free to choose the name.
    """
    told = "_".join(filter(None, re.split(r"[^a-z0-9]+", f"{host}_{name}".lower())))
    mark = hashlib.sha256(host.lower().encode()).hexdigest()[:8]
    return f"{told[:_LONGEST_NAME].rstrip('_')}_{mark}".lstrip("_")


def credentials(document: Document, operation: Operation, host: str, notes: Notes) -> Credentials:
    """Of the alternatives that the document offers, the first that can be expressed."""
    wanted = operation.data.get("security", document.root.get("security"))
    alternatives = [mapping(one) for one in listed(wanted)]
    reasons: list[str] = []
    for alternative in alternatives:
        try:
            found = _all_of(document, alternative, host, notes)
        except UnsupportedError as error:
            reasons.append(str(error))
            continue
        if len(alternatives) > 1:
            notes.add("/http/headers", f"one of {len(alternatives)} ways to authenticate")
        return found
    if reasons:
        raise UnsupportedError(reasons[0])
    return Credentials()


def _all_of(
    document: Document, alternative: Mapping[str, Any], host: str, notes: Notes
) -> Credentials:
    made = Credentials()
    schemes = mapping(mapping(document.root.get("components")).get("securitySchemes"))
    for name, scopes in alternative.items():
        scheme = document.resolve(schemes.get(name))
        secret = secret_name(host, name)
        place, key, text = _placed(name, scheme, secret)
        target = made.headers if place == "header" else made.query
        if key.lower() in {known.lower() for known in target}:
            raise UnsupportedError(f"it authenticates twice in {key}")
        target[key] = text
        made.secrets.append(secret)
        notes.add("/secrets", f"{secret}: {_told(name, scheme, scopes)}")
    return made


def _placed(name: str, scheme: Mapping[str, Any], secret: str) -> tuple[str, str, str]:
    """Where a credential goes: header or query, under which name, in which form."""
    kind = scheme.get("type")
    way = str(scheme.get("scheme", "")).lower()
    value = f"{{secret:{secret}}}"
    if kind == "apiKey" and scheme.get("in") in ("header", "query") and scheme.get("name"):
        return str(scheme["in"]), str(scheme["name"]), value
    if kind in ("oauth2", "openIdConnect") or (kind == "http" and way == "bearer"):
        return "header", "Authorization", f"Bearer {value}"
    if kind == "http" and way == "basic":
        return "header", "Authorization", f"Basic {value}"
    shown = " ".join(str(part) for part in (kind, way or scheme.get("in")) if part)
    raise UnsupportedError(f"it authenticates by {clean(shown, 40) or clean(name, 40)}")


def _told(name: str, scheme: Mapping[str, Any], scopes: object) -> str:
    """What the operator has to put into the secret."""
    if str(scheme.get("scheme", "")).lower() == "basic":
        return "the base64 form of user:password, as one value"
    kind = "an access token" if scheme.get("type") in ("oauth2", "openIdConnect") else "the value"
    needed = ", ".join(clean(str(scope), 60) for scope in listed(scopes)[:8])
    return f"{kind} of {clean(name, 60)}" + (f" with the scopes {needed}" if needed else "")
