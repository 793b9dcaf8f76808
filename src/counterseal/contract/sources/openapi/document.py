"""Reads an untrusted OpenAPI document: its references, operations and servers.

`Notes` collects what the person who reviews the imported contracts has to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import jiter

from counterseal.contract.schemas import resolve_local
from counterseal.errors import ContractError, Problem, Source

METHODS = ("get", "head", "post", "put", "patch", "delete")
_OTHER_METHODS = ("options", "trace", "query")
_MOST_HOPS = 32
_MOST_STEPS = 20_000_000


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> Sequence[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


class UnsupportedError(ValueError):
    """An operation can't be expressed as a contract; the message gives the reason."""


class Review(NamedTuple):
    """A guess, change or omission, with its place in the contract."""

    pointer: str
    """Empty for the contract as a whole."""
    text: str
    raised: bool = False
    """True if the effect was raised above the usual one."""


@dataclass(slots=True)
class Notes:
    """The notes on one operation, without repetitions."""

    reviews: dict[Review, None] = field(default_factory=dict)

    def add(self, pointer: str, text: str, *, raised: bool = False) -> None:
        self.reviews.setdefault(Review(pointer, text, raised))


class Operation(NamedTuple):
    method: str
    path: str
    item: Mapping[str, Any]
    """The path item of the operation."""
    data: Mapping[str, Any]


@dataclass(slots=True)
class OpenApiDocument:
    root: Mapping[str, Any]
    base_url: str | None = None
    steps_left: int = _MOST_STEPS
    """References let a few lines expand without limit."""
    flat: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Flattened types, by reference."""

    @property
    def title(self) -> object:
        return mapping(self.root.get("info")).get("title")

    def target(self, reference: object) -> Any:
        """Return the target of a reference. Raise UnsupportedError if it is not in the document."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnsupportedError(f"it refers to {str(reference)[:80]!r}, outside the document")
        target = resolve_local(self.root, reference)
        if target is None:
            raise UnsupportedError(f"it refers to {reference[:80]}, which is not there")
        return target

    def resolve(self, value: object) -> Mapping[str, Any]:
        """Return a parameter, body or response, with its references followed."""
        for _ in range(_MOST_HOPS):
            data = mapping(value)
            if "$ref" not in data:
                return data
            value = self.target(data["$ref"])
        raise UnsupportedError("its references lead in a circle")

    def operations(self) -> Iterator[Operation]:
        """Yield the operations, in the document's order."""
        for path, raw in mapping(self.root.get("paths")).items():
            if not str(path).startswith("/"):
                continue
            item = self._item(raw)
            for method in METHODS:
                if isinstance(item.get(method), Mapping):
                    yield Operation(method.upper(), str(path), item, item[method])

    def _item(self, raw: object) -> Mapping[str, Any]:
        try:
            return self.resolve(raw)
        except UnsupportedError:
            return {}  # reported by `unread`

    def unread(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the document that are no request of a tool, with the reason."""
        for path, raw in mapping(self.root.get("paths")).items():
            if raw and not self._item(raw):
                yield str(path), "it refers to something that is not in the document"
            for method in _OTHER_METHODS:
                if method in mapping(raw):
                    yield f"{method.upper()} {path}", f"{method.upper()} requests are not made"
        for name in mapping(self.root.get("webhooks")):
            yield f"webhook {name}", "it is a request that comes in, not one that goes out"

    def server(self, operation: Operation, notes: Notes) -> str:
        """Return the URL to which the operation's path is appended."""
        if self.base_url is not None:
            return self.base_url
        for place in (operation.data, operation.item, self.root):
            servers = [mapping(server) for server in listed(place.get("servers"))]
            urls = [_filled(server, notes) for server in servers if server.get("url")]
            if not urls:
                continue
            absolute = [f"https:{url}" if url.startswith("//") else url for url in urls]
            absolute = [url for url in absolute if re.match(r"https?://", url)]
            if not absolute:
                named = f"{urls[0][:60]!r}, which names no host"
                raise UnsupportedError(f"the document's server is {named}; give --base-url")
            if len(absolute) > 1:
                text = f"the document names {len(absolute)} servers; is this the one?"
                notes.add("/http/url", text)
            return next((url for url in absolute if url.startswith("https:")), absolute[0])
        raise UnsupportedError("the document does not say where its server is; give --base-url")


def _filled(server: Mapping[str, Any], notes: Notes) -> str:
    variables = mapping(server.get("variables"))

    def value(match: re.Match[str]) -> str:
        default = str(mapping(variables.get(match[1])).get("default", ""))
        notes.add("/http/url", f"{match[1]} is taken as {default!r}, the document's default")
        return default

    return re.sub(r"\{([^{}]*)\}", value, str(server["url"]))


# --- reading a document ---------------------------------------------------------------------------


MAX_BYTES = 16 * 1024 * 1024
_DEEPEST = 200
_MOST_VALUES = 4_000_000


def read_openapi(path: str | Path) -> dict[str, Any]:
    """Return the document's data. Raise ContractError if it can't be read."""
    path = Path(path)
    try:
        raw = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    except OSError as error:
        raise _unreadable(path, f"can't be opened: {error.strerror}") from None
    if raw is None:
        raise _unreadable(path, f"longer than {MAX_BYTES:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
        is_json = path.suffix.lower() == ".json" or text.lstrip()[:1] == "{"
        parsed = (
            jiter.from_json(text.encode(), catch_duplicate_keys=True) if is_json else _yaml(text)
        )
        plain = _Plain().of(parsed, 0)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise _unreadable(path, f"can't be read: {reason}") from None
    if not isinstance(plain, dict):
        raise _unreadable(path, "the document must be a mapping")
    return plain


def _unreadable(path: Path, message: str) -> ContractError:
    source = Source(file=str(path))
    return ContractError([Problem(rule="file-unreadable", message=message, source=source)])


def _yaml(text: str) -> Any:
    from ruamel.yaml import YAML  # noqa: PLC0415 - slow to import, and JSON does without
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415 - as above

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(f"not valid YAML: {error}") from None


class _Plain:
    """Converts YAML data to JSON data: keys and dates become strings."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        # Aliases let a few lines expand to more than fits in memory.
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError("too many values, or nested too deeply")
        if isinstance(value, Mapping):
            return {str(key): self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(item, depth + 1) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return value.isoformat() if isinstance(value, date) else str(value)
