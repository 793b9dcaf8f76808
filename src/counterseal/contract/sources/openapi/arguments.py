"""Converts an operation's parameters, body, credentials and responses to parts of a contract."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from counterseal.canonical import pointer
from counterseal.contract.lint.dangerous_inputs import is_credential
from counterseal.contract.schemas import subschemas, types_of
from counterseal.contract.sources.foreign_text import argument_name, clean, unique
from counterseal.contract.sources.openapi.document import (
    Notes,
    OpenApiDocument,
    Operation,
    UnsupportedError,
    listed,
    mapping,
)
from counterseal.contract.sources.openapi.schemas import MAX_LENGTH, Converter, size_of


@dataclass(slots=True)
class Arguments:
    """The arguments or credentials of one operation, and the templates that send them."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    path: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    form: dict[str, str] = field(default_factory=dict)
    body: Any = None
    secrets: list[str] = field(default_factory=list)
    """The names of the credentials."""
    key_header: str | None = None


def secret_name(host: str, name: str) -> str:
    """Return the name of a secret for this host.

    It does not depend on the document's title, so another document cannot claim it. Hosts can have
    the same readable part; the suffix is a hash of the host, because a document chooses `name`.
    """
    readable = "_".join(filter(None, re.split(r"[^a-z0-9]+", f"{host}_{name}".lower())))
    suffix = hashlib.sha256(host.lower().encode()).hexdigest()[:8]
    return f"{readable[:100].rstrip('_')}_{suffix}".lstrip("_")


def credentials(
    document: OpenApiDocument, operation: Operation, host: str, notes: Notes
) -> Arguments:
    """Return the first of the document's authentication alternatives that is supported."""
    wanted = operation.data.get("security", document.root.get("security"))
    alternatives = [mapping(alternative) for alternative in listed(wanted)]
    reasons: list[str] = []
    for alternative in alternatives:
        try:
            supported = _all_of(document, alternative, host, notes)
        except UnsupportedError as error:
            reasons.append(str(error))
            continue
        if len(alternatives) > 1:
            notes.add("/http/headers", f"one of {len(alternatives)} ways to authenticate")
        return supported
    if reasons:
        raise UnsupportedError(reasons[0])
    return Arguments()


def _all_of(
    document: OpenApiDocument, alternative: Mapping[str, Any], host: str, notes: Notes
) -> Arguments:
    result = Arguments()
    schemes = mapping(mapping(document.root.get("components")).get("securitySchemes"))
    for name, scopes in alternative.items():
        scheme = document.resolve(schemes.get(name))
        secret = secret_name(host, name)
        place, key, text = _placed(name, scheme, secret)
        target = result.headers if place == "header" else result.query
        if key.lower() in {known.lower() for known in target}:
            raise UnsupportedError(f"it authenticates twice in {key}")
        target[key] = text
        result.secrets.append(secret)
        kind = "the value"
        if scheme.get("type") in ("oauth2", "openIdConnect"):
            kind = "an access token"
        needed = ", ".join(clean(str(scope), 60) for scope in listed(scopes)[:8])
        note = f"{kind} of {clean(name, 60)}" + (f" with the scopes {needed}" if needed else "")
        if text.startswith("Basic "):
            note = "the base64 form of user:password, as one value"
        notes.add("/secrets", f"{secret}: {note}")
    return result


def _placed(name: str, scheme: Mapping[str, Any], secret: str) -> tuple[str, str, str]:
    """Return the place of a credential (header or query), its name there, and its template."""
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


_IGNORED_HEADERS = ("accept", "content-type", "authorization")
"""Header parameters that the specification ignores."""
_KEY_HEADER = re.compile(r"(?:x-)?idempotency-key", re.IGNORECASE)
_NOT_IN_A_PATH = r"^[^/\\]+$"
_SEPARATORS = {"spaceDelimited": "spaces", "pipeDelimited": "|"}
_FORM = "application/x-www-form-urlencoded"


def read_arguments(
    document: OpenApiDocument, operation: Operation, host: str, converter: Converter, notes: Notes
) -> Arguments:
    """Return the operation's arguments. Raise UnsupportedError if a required one is unsupported."""
    reader = _ParameterReader(document, operation, host, converter, notes)
    parameters: dict[tuple[str, str], Mapping[str, Any]] = {}
    for place in (operation.item, operation.data):  # an operation overrides those of its path
        for raw in listed(place.get("parameters")):
            parameter = document.resolve(raw)
            parameters[str(parameter.get("name")), str(parameter.get("in"))] = parameter
    for parameter in parameters.values():
        reader.parameter(parameter)
    for name in re.findall(r"\{([^{}]*)\}", operation.path):
        if name not in reader.arguments.path:
            notes.add("", f"{name} stands in the path, but the document does not describe it")
            reader.parameter({"name": name, "in": "path", "schema": {"type": "string"}})
    reader.body()
    return reader.arguments


@dataclass(slots=True)
class _ParameterReader:
    document: OpenApiDocument
    operation: Operation
    host: str
    converter: Converter
    notes: Notes
    arguments: Arguments = field(default_factory=Arguments)

    def parameter(self, given: Mapping[str, Any]) -> None:
        name, place = str(given.get("name", "")), str(given.get("in"))
        required = given.get("required") is True or place == "path"
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            return
        if place == "header" and _KEY_HEADER.fullmatch(name):
            self.arguments.key_header = name
            return
        try:
            templates = self._templates(name, place)
            if place != "path" and is_credential(name):
                templates[name] = self._secret(name)
                return
            schema, described = (
                self._parameter_schema(given, place),
                clean(given.get("description"), 300),
            )
            templates[name] = self._argument(name, place, schema, described, required=required)
        except UnsupportedError as error:
            if required:
                raise
            self.notes.add("", f"the parameter {clean(name, 60)} was left out: {error}")

    def _templates(self, name: str, place: str) -> dict[str, str]:
        known = {"path": self.arguments.path, "query": self.arguments.query}
        if place not in (*known, "header"):
            raise UnsupportedError(f"it takes {clean(name, 60)} in a {clean(place, 20)}")
        return known.get(place, self.arguments.headers)

    def _parameter_schema(self, given: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Return the parameter's schema; a string's for a list that is sent as one value."""
        name, style = clean(given.get("name"), 60), given.get("style")
        if "content" in given:
            raise UnsupportedError(f"it takes {name} as a document of its own")
        kinds = self.converter.kinds(given.get("schema"))
        usual = "form" if place == "query" else "simple"
        if "object" in kinds or style == "deepObject":
            raise UnsupportedError(f"it takes an object, {name}, in the {place}")
        if place != "query" and style not in (None, usual):
            raise UnsupportedError(f"it takes {name} in the style {clean(style, 20)}")
        exploded = given.get("explode", style in (None, "form")) and place == "query"
        if "array" in kinds and not exploded:
            between = _SEPARATORS.get(str(style), "commas")
            return {
                "type": "string",
                "maxLength": MAX_LENGTH,
                "description": f"Several values are separated by {between}.",
            }
        result = self.converter.convert(given.get("schema"))
        open_text = result.get("type") == "string" and result.keys().isdisjoint(
            ("enum", "const", "pattern", "format")
        )
        if place == "path" and open_text:
            result["pattern"] = _NOT_IN_A_PATH
        return result

    def _secret(self, name: str) -> str:
        secret = secret_name(self.host, name)
        if secret not in self.arguments.secrets:
            self.arguments.secrets.append(secret)
            self.notes.add("/secrets", f"{secret}: {clean(name, 60)} sounds like a credential")
        return f"{{secret:{secret}}}"

    def _argument(
        self, key: str, place: str, schema: dict[str, Any], described: str, *, required: bool
    ) -> str:
        """Add an argument. Return its placeholder."""
        known = {name.lower() for name in self.arguments.properties}
        name = argument_name(key)
        if name.lower() in known:
            name = unique(f"{place}_{name}", known)
        here = pointer("affordance", "input_schema", "properties", name)
        texts = [text for text in (described, schema.pop("description", "")) if text]
        if not texts:
            texts = [f"{clean(key, 60)}, as the API takes it."]
            self.notes.add(here, "the document does not describe it")
        for note in self.converter.notes:
            self.notes.add(here, note)
        self.converter.notes.clear()
        self.arguments.properties[name] = {**schema, "description": " ".join(dict.fromkeys(texts))}
        if required:
            self.arguments.required.append(name)
        return f"{{{name}}}"

    def body(self) -> None:
        given = self.document.resolve(self.operation.data.get("requestBody"))
        content, required = mapping(given.get("content")), given.get("required") is True
        try:
            if content:
                self._content(content, required=required)
        except UnsupportedError as error:
            if required or self.operation.method not in ("GET", "HEAD", "DELETE"):
                raise
            self.notes.add("", f"the body was left out: {error}")

    def _content(self, content: Mapping[str, Any], *, required: bool) -> None:
        if self.operation.method in ("GET", "HEAD"):
            raise UnsupportedError(f"a {self.operation.method} carries none")
        schemas = {
            str(kind).partition(";")[0].strip().lower(): mapping(media).get("schema")
            for kind, media in content.items()
        }
        for kind, schema in schemas.items():
            if kind.endswith(("/json", "+json")) or kind == "*/*":
                if kind not in ("application/json", "*/*"):
                    self.arguments.headers["Content-Type"] = quote(kind, safe="/+.-")
                self._json(schema, required=required)
                return
        if _FORM not in schemas:
            raise UnsupportedError(f"it takes a body of {clean(', '.join(content), 60)}")
        self._fields(schemas[_FORM], self.arguments.form, form=True)

    def _json(self, schema: object, *, required: bool) -> None:
        flat = self.converter.flat(schema)
        alternatives = flat.get("anyOf") or flat.get("oneOf")
        whole = alternatives or isinstance(flat.get("additionalProperties"), Mapping)
        if whole or not mapping(flat.get("properties")):
            result = self.converter.convert(schema)
            described = "" if "description" in result else "What is sent, as a whole."
            self.arguments.body = self._argument(
                "body", "whole", result, described, required=required
            )
            return
        self.arguments.body = {}
        self._fields(schema, self.arguments.body, form=False)

    def _fields(self, schema: object, templates: dict[str, str], *, form: bool) -> None:
        """Add an argument for each field of the body."""
        flat = self.converter.flat(schema)
        required = listed(flat.get("required"))
        for name, value in self.converter.fields(flat):
            if form and "object" in self.converter.kinds(value):
                raise UnsupportedError(f"it takes an object, {clean(name, 60)}, in a form")
            if not is_credential(name):
                result = self.converter.convert(value)
                needed = name in required
                templates[name] = self._argument(name, "body", result, "", required=needed)
            elif name in required:
                templates[name] = self._secret(name)
            else:
                self.notes.add("", f"{clean(name, 60)} was left out: it sounds like a credential")
        if form and not templates:
            raise UnsupportedError("it takes a form without fields")


# --- outputs --------------------------------------------------------------------------------------


_HERE = "/affordance/output_schema"
_LARGEST = 32 * 1024


def output_schema(document: OpenApiDocument, operation: Operation, notes: Notes) -> dict[str, Any]:
    """Return the schema of the response: an open object, with other types under `result`.

    Without a described JSON response it is any object.
    """
    responses = mapping(operation.data.get("responses"))
    by_status = {str(status).upper(): response for status, response in responses.items()}
    for status in sorted(by_status):
        if not status.startswith("2"):
            continue
        content = mapping(document.resolve(by_status[status]).get("content"))
        for kind, media in content.items():
            plain = str(kind).partition(";")[0].strip().lower()
            if plain.endswith(("/json", "+json")) or plain == "*/*":
                return _json(document, mapping(media).get("schema"), notes)
        if any(str(kind).lower().startswith("text/") for kind in content):
            notes.add(_HERE, "the answer is a text")
            text = {"type": "string", "description": "The answer as it came."}
            return {"type": "object", "properties": {"text": text}, "required": ["text"]}
        if content:
            notes.add(_HERE, "the answer is no JSON, and may not be readable")
    return {"type": "object"}


def _json(document: OpenApiDocument, schema: object, notes: Notes) -> dict[str, Any]:
    converter = Converter(document, output=True)
    try:
        result = converter.convert(schema)
        definitions = converter.definitions()
    except UnsupportedError as error:
        notes.add(_HERE, f"any object is taken, because {error}")
        return {"type": "object"}
    if set(result) <= {"$ref", "description"} and "$ref" in result:
        result = {**definitions[result["$ref"].rpartition("/")[2]]}
    result.pop("description", None)
    if not result:
        return {"type": "object"}
    if types_of(result) != ("object",):
        result = {"type": "object", "properties": {"result": result}, "required": ["result"]}
    parts = (result, *definitions.values())
    used = {str(inner.get("$ref")) for part in parts for _, inner in subschemas(part)}
    kept = {name: one for name, one in definitions.items() if f"#/$defs/{name}" in used}
    result |= {"$defs": kept} if kept else {}
    if size_of(result) > _LARGEST:
        notes.add(_HERE, "any object is taken, because the document describes it at great length")
        return {"type": "object"}
    notes.add(_HERE, "as the document promises it; further fields are let through")
    return result
