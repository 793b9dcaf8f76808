"""What a model fills in: an operation's parameters and body as arguments, and where they go."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from counterseal.canonical import pointer
from counterseal.contract.sources.openapi.document import Document, Operation, listed, mapping
from counterseal.contract.sources.openapi.keywords import is_credential
from counterseal.contract.sources.openapi.notes import Notes, UnsupportedError
from counterseal.contract.sources.openapi.schemas import MAX_LENGTH, Converter
from counterseal.contract.sources.openapi.security import secret_name
from counterseal.contract.sources.openapi.texts import argument_name, clean, unique

__all__ = ["Arguments", "read_arguments"]

_NOT_PARAMETERS = ("accept", "content-type", "authorization")
"""By the specification these are said elsewhere."""
_KEY_HEADER = re.compile(r"(?:x-)?idempotency-key", re.IGNORECASE)
_NOT_IN_A_PATH = r"^[^/\\]+$"
_SEPARATORS = {"spaceDelimited": "spaces", "pipeDelimited": "|"}
_FORM = "application/x-www-form-urlencoded"


@dataclass(slots=True)
class Arguments:
    """The arguments of one operation, and the templates that send them."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    path: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    form: dict[str, str] = field(default_factory=dict)
    body: Any = None
    secrets: list[str] = field(default_factory=list)
    key_header: str | None = None


def read_arguments(
    document: Document, operation: Operation, host: str, converter: Converter, notes: Notes
) -> Arguments:
    """Everything that the operation takes. UnsupportedError for what it needs and can't be had."""
    reader = _Reader(document, operation, host, converter, notes)
    for parameter in _parameters(document, operation):
        reader.parameter(parameter)
    for name in re.findall(r"\{([^{}]*)\}", operation.path):
        if name not in reader.made.path:
            notes.add("", f"{name} stands in the path, but the document does not describe it")
            reader.parameter({"name": name, "in": "path", "schema": {"type": "string"}})
    reader.body()
    return reader.made


def _parameters(document: Document, operation: Operation) -> Iterator[Mapping[str, Any]]:
    """The operation's own, and those of its path that it does not describe anew."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for place in (operation.item, operation.data):
        for raw in listed(place.get("parameters")):
            parameter = document.resolve(raw)
            found[str(parameter.get("name")), str(parameter.get("in"))] = parameter
    return iter(found.values())


@dataclass(slots=True)
class _Reader:
    document: Document
    operation: Operation
    host: str
    converter: Converter
    notes: Notes
    made: Arguments = field(default_factory=Arguments)

    # Parameters ----------------------------------------------------------------------------------

    def parameter(self, given: Mapping[str, Any]) -> None:
        name, place = str(given.get("name", "")), str(given.get("in"))
        required = given.get("required") is True or place == "path"
        if place == "header" and name.lower() in _NOT_PARAMETERS:
            return
        if place == "header" and _KEY_HEADER.fullmatch(name):
            self.made.key_header = name
            return
        try:
            self._parameter(given, name, place, required=required)
        except UnsupportedError as error:
            if required:
                raise
            self.notes.add("", f"the parameter {clean(name, 60)} was left out: {error}")

    def _parameter(
        self, given: Mapping[str, Any], name: str, place: str, *, required: bool
    ) -> None:
        if place not in ("path", "query", "header"):
            raise UnsupportedError(f"it takes {clean(name, 60)} in a {clean(place, 20)}")
        templates = getattr(self.made, "headers" if place == "header" else place)
        if place != "path" and is_credential(name):
            templates[name] = self._secret(name)
            return
        schema = self._parameter_schema(given, place)
        described = clean(given.get("description"), 300)
        templates[name] = self._argument(name, place, schema, described, required=required)

    def _parameter_schema(self, given: Mapping[str, Any], place: str) -> dict[str, Any]:
        """Its schema, or that of a text where a list is written as one."""
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
        made = self.converter.convert(given.get("schema"))
        open_text = made.get("type") == "string" and made.keys().isdisjoint(
            ("enum", "const", "pattern", "format")
        )
        if place == "path" and open_text:
            made["pattern"] = _NOT_IN_A_PATH
        return made

    def _secret(self, name: str) -> str:
        secret = secret_name(self.host, name)
        if secret not in self.made.secrets:
            self.made.secrets.append(secret)
            self.notes.add("/secrets", f"{secret}: {clean(name, 60)} sounds like a credential")
        return f"{{secret:{secret}}}"

    def _argument(
        self, key: str, place: str, schema: dict[str, Any], described: str, *, required: bool
    ) -> str:
        """Add an argument. Returns the placeholder for it."""
        known = {name.lower() for name in self.made.properties}
        name = argument_name(key)
        if name.lower() in known:
            name = unique(f"{place}_{name}", known)
        here = pointer("affordance", "input_schema", "properties", name)
        texts = [text for text in (described, schema.pop("description", "")) if text]
        if not texts:
            texts = [f"{clean(key, 60)}, as the API takes it."]
            self.notes.add(here, "the document does not describe it")
        for said in self.converter.said:
            self.notes.add(here, said)
        self.converter.said.clear()
        self.made.properties[name] = {**schema, "description": " ".join(dict.fromkeys(texts))}
        if required:
            self.made.required.append(name)
        return f"{{{name}}}"

    # The body ------------------------------------------------------------------------------------

    def body(self) -> None:
        given = self.document.resolve(self.operation.data.get("requestBody"))
        content = mapping(given.get("content"))
        if not content:
            return
        required = given.get("required") is True
        try:
            self._content(content, required=required)
        except UnsupportedError as error:
            if required or self.operation.method not in ("GET", "HEAD", "DELETE"):
                raise
            self.notes.add("", f"the body was left out: {error}")

    def _content(self, content: Mapping[str, Any], *, required: bool) -> None:
        if self.operation.method in ("GET", "HEAD"):
            raise UnsupportedError(f"a {self.operation.method} carries none")
        kinds = {str(kind): str(kind).partition(";")[0].strip().lower() for kind in content}
        for kind, plain in kinds.items():
            if plain.endswith(("/json", "+json")) or plain == "*/*":
                if plain not in ("application/json", "*/*"):
                    self.made.headers["Content-Type"] = quote(plain, safe="/+.-")
                self._json(mapping(content[kind]).get("schema"), required=required)
                return
        for kind, plain in kinds.items():
            if plain == _FORM:
                self._fields(mapping(content[kind]).get("schema"), self.made.form, form=True)
                return
        raise UnsupportedError(f"it takes a body of {clean(', '.join(content), 60)}")

    def _json(self, schema: object, *, required: bool) -> None:
        flat = self.converter.flat(schema)
        alternatives = flat.get("anyOf") or flat.get("oneOf")
        whole = alternatives or isinstance(flat.get("additionalProperties"), Mapping)
        if whole or not mapping(flat.get("properties")):
            made = self.converter.convert(schema)
            described = "" if "description" in made else "What is sent, as a whole."
            self.made.body = self._argument("body", "whole", made, described, required=required)
            return
        self.made.body = {}
        self._fields(schema, self.made.body, form=False)

    def _fields(self, schema: object, templates: dict[str, str], *, form: bool) -> None:
        """One argument for each field of the body."""
        flat = self.converter.flat(schema)
        required = listed(flat.get("required"))
        for name, value in self.converter.fields(flat):
            if form and "object" in self.converter.kinds(value):
                raise UnsupportedError(f"it takes an object, {clean(name, 60)}, in a form")
            if not is_credential(name):
                made = self.converter.convert(value)
                needed = name in required
                templates[name] = self._argument(name, "body", made, "", required=needed)
            elif name in required:
                templates[name] = self._secret(name)
            else:
                self.notes.add("", f"{clean(name, 60)} was left out: it sounds like a credential")
        if form and not templates:
            raise UnsupportedError("it takes a form without fields")
