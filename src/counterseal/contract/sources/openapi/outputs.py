"""What an operation returns: the schema of its first successful answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterseal.contract.schemas import subschemas, types_of
from counterseal.contract.sources.openapi.document import Document, Operation, mapping
from counterseal.contract.sources.openapi.notes import Notes, UnsupportedError
from counterseal.contract.sources.openapi.schemas import Converter, size_of

__all__ = ["output_schema"]

_HERE = "/affordance/output_schema"
_LARGEST = 32 * 1024


def output_schema(document: Document, operation: Operation, notes: Notes) -> dict[str, Any]:
    """An open object; what is none stands under `result`. Any object where nothing is said."""
    responses = mapping(operation.data.get("responses"))
    for status in sorted(str(status).upper() for status in responses):
        if not status.startswith("2"):
            continue
        content = mapping(document.resolve(_of(responses, status)).get("content"))
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


def _of(responses: Mapping[Any, Any], status: str) -> Any:
    return next(value for key, value in responses.items() if str(key).upper() == status)


def _json(document: Document, schema: object, notes: Notes) -> dict[str, Any]:
    converter = Converter(document, output=True)
    try:
        made = converter.convert(schema)
        definitions = converter.definitions()
    except UnsupportedError as error:
        notes.add(_HERE, f"any object is taken, because {error}")
        return {"type": "object"}
    if set(made) <= {"$ref", "description"} and "$ref" in made:
        made = {**definitions[made["$ref"].rpartition("/")[2]]}
    made.pop("description", None)
    if not made:
        return {"type": "object"}
    if types_of(made) != ("object",):
        made = {"type": "object", "properties": {"result": made}, "required": ["result"]}
    made |= _in_use(made, definitions)
    if size_of(made) > _LARGEST:
        notes.add(_HERE, "any object is taken, because the document describes it at great length")
        return {"type": "object"}
    notes.add(_HERE, "as the document promises it; further fields are let through")
    return made


def _in_use(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions that a schema leads to."""
    used: dict[str, Any] = {}
    waiting: list[Any] = [schema]
    while waiting:
        for _, inner in subschemas(waiting.pop()):
            name = str(inner.get("$ref", "")).rpartition("/")[2]
            if name in definitions and name not in used:
                used[name] = definitions[name]
                waiting.append(definitions[name])
    return {"$defs": used} if used else {}
