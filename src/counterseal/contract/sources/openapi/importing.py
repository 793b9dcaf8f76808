"""Builds a contract for each operation of an OpenAPI document, and checks it with lint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap
from typing import Any
from urllib.parse import quote, urlsplit

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from counterseal.canonical import pointer
from counterseal.contract.bindings import HttpBinding
from counterseal.contract.effects import EFFECTS
from counterseal.contract.egress import entry_for, kind, literal
from counterseal.contract.lint import examine
from counterseal.contract.schemas import is_scalar
from counterseal.contract.sources.effect_guess import propose_operation_effect
from counterseal.contract.sources.foreign_text import clean, one_line, tool_name, unique, words
from counterseal.contract.sources.openapi.arguments import (
    Arguments,
    credentials,
    output_schema,
    read_arguments,
)
from counterseal.contract.sources.openapi.document import (
    Notes,
    OpenApiDocument,
    Operation,
    Review,
    UnsupportedError,
    mapping,
)
from counterseal.contract.sources.openapi.schemas import Converter, drop_bad_defaults, size_of
from counterseal.errors import ContractError, Problem, Severity

_LARGEST_INPUT = 64 * 1024
_LONGEST_DESCRIPTION = 1_000
_LONGEST_SUMMARY = 160
_SAFE = "/%:@!$&'()*+,;=~"
"""Characters of a path that are not escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTool:
    """One operation as a contract: plain data in the form of `Contract.record()`."""

    name: str
    method: str
    path: str
    data: dict[str, Any]
    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    what: str
    """Like `POST /files`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    title: str
    tools: tuple[ImportedTool, ...]
    left_out: tuple[LeftOut, ...]


def contracts_from_openapi(
    document: Mapping[str, Any],
    *,
    base_url: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Return a contract for every supported operation, and the reasons for the others.

    `base_url` replaces the document's servers. `progress` is called with the number of operations
    that were read, and of all. Raise ContractError if it is no OpenAPI 3 document.
    """
    _check(document, base_url)
    read = OpenApiDocument(document, base_url.rstrip("/") if base_url else None)
    tools: list[ImportedTool] = []
    left_out: list[LeftOut] = []
    operations = list(read.operations())
    for number, operation in enumerate(operations):
        if progress is not None:
            progress(number, len(operations))
        try:
            tools.append(_import(read, operation, {tool.name.lower() for tool in tools}))
        except (UnsupportedError, UnicodeError, RecursionError) as error:
            reason = str(error)
            if not isinstance(error, UnsupportedError):
                deep = isinstance(error, RecursionError)
                reason = "its types are nested too deeply" if deep else "it holds half a character"
            what = f"{operation.method} {clean(operation.path, 200)}"
            left_out.append(LeftOut(what=what, reason=reason))
    left_out += [LeftOut(what=clean(what, 200), reason=why) for what, why in read.unread()]
    title = clean(read.title, 80) or "an API without a title"
    return Imported(title=title, tools=tuple(tools), left_out=tuple(left_out))


def _check(document: object, base_url: str | None) -> None:
    fault, fix = "", ""
    if "swagger" in mapping(document):
        fault, fix = "this is Swagger 2", "Convert it to OpenAPI 3 first."
    elif not re.match(r"3\.[0-9]", str(mapping(document).get("openapi", ""))):
        fault, fix = "not an OpenAPI 3 document", "It must have `openapi: 3.…`."
    elif base_url is not None:
        try:
            HttpBinding(url=base_url)
        except ValueError:
            fault = f"the base URL {base_url!r} can't be used"
            fix = "Write http(s)://host[:port][/path], without user, query or fragment."
    if fault:
        raise ContractError([Problem(rule="file-unreadable", message=fault, fix=fix)])


def _import(document: OpenApiDocument, operation: Operation, taken: set[str]) -> ImportedTool:
    notes = Notes()
    server = document.server(operation, notes)
    converter = Converter(document)
    host = urlsplit(server).hostname or ""
    arguments = read_arguments(document, operation, host, converter, notes)
    security = credentials(document, operation, host, notes)
    effect, reasons = propose_operation_effect(operation.method, operation.path, operation.data)
    for reason, raised in reasons.items():
        notes.add("/effect", reason, raised=raised)
    name = unique(
        tool_name(operation.data.get("operationId"), operation.method, operation.path), taken
    )
    notes.add("/identity/owner", "name the team that answers for this tool")
    retired = operation.data.get("deprecated") is True
    deprecated = {"lifecycle": {"status": "deprecated"}} if retired else {}
    http = _request(server, operation, arguments, security)
    governance: dict[str, Any] = {}
    if EFFECTS[effect].mutates:
        governance["consequence"] = _consequence(operation, arguments, http)
        if arguments.key_header is not None:
            governance["idempotency"] = {"key_header": arguments.key_header}
    data: dict[str, Any] = {
        "effect": effect.value,
        "identity": {"name": name, "owner": "unassigned", **deprecated},
        "affordance": {
            "model_description": _description(document, operation, notes),
            "input_schema": _input_schema(arguments, converter, notes),
            "output_schema": output_schema(document, operation, notes),
        },
        "usage": f"When asked to do this: {_summary(operation)}.",
        **governance,
        "secrets": list(dict.fromkeys([*arguments.secrets, *security.secrets])),
        "egress": _egress(http["url"], document, notes),
        "http": http,
    }
    notes.add("/usage", "say when a model should call it, and when not")
    for callback in mapping(operation.data.get("callbacks")):
        notes.add("", f"the callback {clean(callback, 60)} comes in, and was left out")
    checked = _checked({key: value for key, value in data.items() if value != []}, notes)
    return ImportedTool(
        name=name,
        method=operation.method,
        path=operation.path,
        data=checked,
        reviews=tuple(notes.reviews),
    )


def _checked(data: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return a contract that passes lint. Raise UnsupportedError if there is none."""
    more: dict[str, Any] = {}
    for more in ({}, {"runs_code": False}):
        found = examine({**more, **data})[1]
        errors = [problem for problem in found if problem.severity is Severity.ERROR]
        if not any(problem.rule == "code-unsandboxed" for problem in errors):
            break
    if more:
        # The request runs no code in this process; whether the API does is unknown.
        notes.add("/runs_code", "it carries what looks like code; does the other side run it?")
    if errors:
        place = errors[0].pointer.removeprefix("/")
        raise UnsupportedError(f"{clean(errors[0].message, 200)} ({clean(place, 100)})")
    return {**more, **data}


def _summary(operation: Operation) -> str:
    given = clean(operation.data.get("summary"), _LONGEST_SUMMARY)
    named = " ".join(words(operation.data.get("operationId")))
    return (given or named or f"{operation.method} {clean(operation.path, 100)}").rstrip(". ")


def _description(document: OpenApiDocument, operation: Operation, notes: Notes) -> str:
    summary = clean(operation.data.get("summary"), _LONGEST_SUMMARY).rstrip(". ")
    longer = clean(operation.data.get("description"), _LONGEST_DESCRIPTION)
    parts = [summary] if summary and not longer.lower().startswith(summary.lower()) else []
    parts += [longer.rstrip(". ")] if longer else []
    here = "/affordance/model_description"
    if not parts:
        notes.add(here, "the document does not describe it")
        title = clean(document.title, 80) or "the API"
        return f"{_summary(operation)}: {operation.method} {clean(operation.path, 100)} of {title}."
    notes.add(here, "the document's words; a model will read them")
    return ". ".join(parts)[:_LONGEST_DESCRIPTION] + "."


def _input_schema(arguments: Arguments, converter: Converter, notes: Notes) -> dict[str, Any]:
    required, definitions = arguments.required, converter.definitions()
    schema: dict[str, Any] = {
        "type": "object",
        "properties": arguments.properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **({"$defs": definitions} if definitions else {}),
    }
    for note in converter.notes:
        notes.add("/affordance/input_schema/$defs", note)
    drop_bad_defaults(schema)
    size = size_of(schema)
    if size > _LARGEST_INPUT:
        raise UnsupportedError(f"its input takes {size:,} bytes to describe")
    return schema


def _request(
    server: str, operation: Operation, arguments: Arguments, security: Arguments
) -> dict[str, Any]:
    if set("?#") & set(operation.path):
        raise UnsupportedError("its path holds a query")
    path = re.sub(
        r"\{([^{}]*)\}|[^{}]+",
        lambda match: arguments.path[match[1]] if match[1] is not None else quote(match[0], _SAFE),
        operation.path,
    )
    reserved = {name.lower() for name in security.headers}
    others = {key: text for key, text in arguments.headers.items() if key.lower() not in reserved}
    result = {
        "method": operation.method,
        "url": f"{server.rstrip('/')}{path}",
        "query": {**arguments.query, **security.query},
        "headers": {**others, **security.headers},
        "body": arguments.body,
        "form": arguments.form,
    }
    return {key: value for key, value in result.items() if value not in (None, {})}


def _egress(url: str, document: OpenApiDocument, notes: Notes) -> list[str]:
    try:
        binding = HttpBinding(url=url)
    except ValueError:
        raise UnsupportedError(f"its address {clean(url, 100)!r} can't be used") from None
    address = literal(binding.host)
    if document.base_url is None and address is not None and kind(address) != "public":
        notes.add("/egress", "no public address; should a tool reach it?")
    # A private address is only reachable if the contract lists the address itself.
    near = ("127.0.0.1", "::1") if binding.host == "localhost" else ()
    return [entry_for(host, binding.port) for host in (binding.host, *near)]


def _consequence(operation: Operation, arguments: Arguments, http: Mapping[str, Any]) -> str:
    target = str(http["url"]).partition("://")[2]
    named = [
        f"{name} {{{name}}}"
        for name in arguments.required
        if f"{{{name}}}" not in target and is_scalar(arguments.properties[name])
    ]
    with_these = f" with {', '.join(named[:4])}" if named else ""
    summary = _summary(operation).replace("{", "{{").replace("}", "}}")
    return f"{summary}: {operation.method} {target}{with_these}."


# --- writing contracts for review -----------------------------------------------------------------


_WIDTH = 100
_INDENT = 2


def to_yaml(tool: ImportedTool, *, source: str) -> str:
    """Return the text of a contract file for review. `source` names the document's origin."""
    yaml = YAML()
    yaml.width = _WIDTH
    yaml.indent(mapping=_INDENT, sequence=_INDENT + 2, offset=_INDENT)
    yaml.representer.ignore_aliases = lambda *_: True  # contract files have no anchors
    reviews: dict[str, list[str]] = {}
    for review in tool.reviews:
        reviews.setdefault(review.pointer, []).append(review.text)
    stream = StringIO()
    yaml.dump(_node(tool.data, (), reviews), stream)
    lines = [
        f"Imported from {source}: {tool.method} {tool.path}",
        "What was guessed is marked with `review:`. Take a mark out when you have looked.",
        *(f"review: {note}" for note in reviews.get("", [])),
    ]
    head = [f"# {part}\n" for line in lines for part in _wrapped(line, 0)]
    return "".join(head) + stream.getvalue()


def _wrapped(text: str, indent: int) -> list[str]:
    return wrap(one_line(text), max(40, _WIDTH - 2 - indent), break_long_words=False)


def _node(value: Any, path: tuple[str | int, ...], reviews: dict[str, list[str]]) -> Any:
    if isinstance(value, dict):
        result = CommentedMap()
        for key, item in value.items():
            here = (*path, key)
            result[_text(key)] = _node(item, here, reviews)
            indent, texts = _INDENT * len(path), "; ".join(reviews.get(pointer(*here), []))
            if texts:
                lines = "\n".join(_wrapped(f"review: {texts}", indent))
                result.yaml_set_comment_before_after_key(key, before=lines, indent=indent)
        return result
    if isinstance(value, list | tuple):
        sequence = CommentedSeq(_node(item, (*path, i), reviews) for i, item in enumerate(value))
        if all(not isinstance(item, dict | list) for item in value):
            sequence.fa.set_flow_style()
        return sequence
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """Return the text, quoted if a plain scalar might be read differently.

    In a list, `?` or `: ` at the start of a plain scalar begins a key or a value.
    """
    plain = text.isprintable() and not text.startswith(("?", ": "))
    return text if plain else DoubleQuotedScalarString(text)
