"""The reference of the HTTP API, from the OpenAPI document that every gateway serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from _tables import table

from counterseal.web.api.app import api_document

WHO = {"agent": "agents", "person": "people", "session": "people"}
SUBJECTS = {
    "calls": "Calls",
    "approvals": "Approvals",
    "tools": "Tools and quarantine",
    "grants": "Grants",
    "kills": "The kill switch",
    "concerns": "Needs attention",
    "record": "The record",
    "runs": "Runs and budgets",
    "metrics": "Metrics",
    "me": "Who am I",
}
KNOWN = {
    "Code": "[a code](codes.md)",
    "EventType": "[an event's type](events.md)",
    "RiskClass": "[a risk class](effects.md)",
    "Effect": "[an effect](effects.md)",
}


def page() -> str:
    told = api_document()
    by_subject: dict[str, list[str]] = {}
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            made = "\n".join(_operation(told, method.upper(), path, operation))
            by_subject.setdefault(operation["tags"][0], []).append(made)
    subjects = "\n".join(
        f"## {SUBJECTS[subject]}\n\n" + "\n".join(made) for subject, made in by_subject.items()
    )
    schemas = told["components"]["schemas"]
    shapes = "\n".join(_shape(schemas, name) for name in sorted(set(_shapes_needed(told))))
    problems = [
        (f"`{name.removeprefix('Problem')}`", f"{one['description']}.")
        for name, one in told["components"]["responses"].items()
    ]
    return f"""# HTTP

Every operation under `/v1`, as `/v1/openapi.json` of a gateway tells them; the shapes of answers
stand there too. [The HTTP API](../http-api.md) says how to use it: credentials, keys, waiting,
pages, problems.

{subjects}
## What is sent

{shapes}
## Refusals

Each is `application/problem+json`; what else may be answered is the code's, see [codes](codes.md).

{table(["status", "when"], problems)}"""


def _operation(
    told: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> Iterator[str]:
    yield f"### `{method} {path}`\n"
    yield f"{operation['description'].strip()}\n"
    who = dict.fromkeys(WHO[name] for one in operation["security"] for name in one if name in WHO)
    yield f"For {' and '.join(who)}. {_answers(operation)}\n"
    rows = [
        (
            f"`{one['name']}`",
            one["in"],
            _type(told["components"]["schemas"], one["schema"]),
            _about(one, one["schema"]),
        )
        for one in operation.get("parameters", ())
    ]
    body = operation.get("requestBody")
    if body:
        schema = body["content"]["application/json"]["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        about = told["components"]["schemas"].get(name, {}).get("description", "")
        link = f"[{name}](#{name.lower()})"
        rows.append(("body", "body", link, about.partition("\n")[0]))
    if rows:
        yield table(["name", "in", "takes", ""], rows)


def _answers(operation: Mapping[str, Any]) -> str:
    good = {
        status: one
        for status, one in operation["responses"].items()
        if status.isdigit() and int(status) < 300
    }
    said = [f"`{status}`{_as(one)}" for status, one in good.items()]
    return f"Answers {', '.join(said)}."


def _as(answer: Mapping[str, Any]) -> str:
    for kind, one in answer.get("content", {}).items():
        name = one.get("schema", {}).get("$ref", "").rpartition("/")[2].strip("_")
        word, _, inside = name.rpartition("_")
        if inside:
            return f" ({HOW_MANY[word]}`{inside}`)"
        if kind != "application/json":
            return f" (`{kind}`)"
    return ""


HOW_MANY = {"": "", "Items": "all `items`, each ", "Page": "a page of `items`, each "}


def _shapes_needed(told: Mapping[str, Any]) -> Iterator[str]:
    for operations in told["paths"].values():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            for one in content.values():
                if "$ref" in one["schema"]:
                    yield one["schema"]["$ref"].rpartition("/")[2]


def _shape(schemas: Mapping[str, Any], name: str) -> str:
    schema = schemas[name]
    needed = schema.get("required", ())
    rows = [
        (f"`{key}`", _type(schemas, one), "required" if key in needed else "", _about(one))
        for key, one in schema.get("properties", {}).items()
    ]
    about = schema.get("description", "").partition("\n")[0]
    head = f"### {name}\n\n{about}\n\n" if about else f"### {name}\n\n"
    return head + table(["field", "takes", "", ""], rows)


def _about(*told: Mapping[str, Any]) -> str:
    said = next((one["description"] for one in told if one.get("description")), "")
    default = told[-1].get("default")
    if default in (None, [], {}, "", False):
        return str(said)
    return f"{said} (default: {default})".strip()


def _type(schemas: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return KNOWN.get(name) or _type(schemas, schemas[name])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    for word in ("anyOf", "oneOf"):
        if word in schema:
            kinds = [_type(schemas, one) for one in schema[word] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    kind = str(schema.get("type") or "anything")
    if kind == "array":
        return f"list of {_type(schemas, schema.get('items', {}))}"
    return "date and time" if schema.get("format") == "date-time" else PLAIN.get(kind, kind)


PLAIN = {"string": "text", "integer": "whole number", "boolean": "true or false"}
