"""An OpenAPI document as data that may be odd: references inside it, operations, servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from counterseal.contract.schemas import resolve_local
from counterseal.contract.sources.openapi.notes import Notes, UnsupportedError

__all__ = ["METHODS", "Document", "Operation", "Work", "listed", "mapping"]

METHODS = ("get", "head", "post", "put", "patch", "delete")
_OTHER_METHODS = ("options", "trace", "query")
_MOST_HOPS = 32
_MOST_STEPS = 20_000_000


def mapping(value: object) -> Mapping[str, Any]:
    """The value, or nothing where a mapping should be and is not."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> Sequence[Any]:
    """The value, or nothing where a list should be and is not."""
    return value if isinstance(value, list | tuple) else ()


class Operation(NamedTuple):
    method: str
    path: str
    item: Mapping[str, Any]
    """The path item that it stands in."""
    data: Mapping[str, Any]


@dataclass(slots=True)
class Work:
    """What reading a document has come to. A few lines of one can stand for any amount of it."""

    left: int = _MOST_STEPS
    flat: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Types that were laid flat already, by reference."""


@dataclass(frozen=True, slots=True)
class Document:
    root: Mapping[str, Any]
    base_url: str | None = None
    work: Work = field(default_factory=Work, repr=False, compare=False)

    @property
    def title(self) -> object:
        return mapping(self.root.get("info")).get("title")

    def target(self, reference: object) -> Any:
        """What a reference leads to. Nothing is fetched: outside the document is nowhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnsupportedError(f"it refers to {str(reference)[:80]!r}, outside the document")
        found = resolve_local(self.root, reference)
        if found is None:
            raise UnsupportedError(f"it refers to {reference[:80]}, which is not there")
        return found

    def resolve(self, value: object) -> Mapping[str, Any]:
        """A parameter, body or response, with its references followed."""
        for _ in range(_MOST_HOPS):
            found = mapping(value)
            if "$ref" not in found:
                return found
            value = self.target(found["$ref"])
        raise UnsupportedError("its references lead in a circle")

    def operations(self) -> Iterator[Operation]:
        """In the document's order."""
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
            return {}  # said by `unread`

    def unread(self) -> Iterator[tuple[str, str]]:
        """What stands in the document and is no request that a tool could make, with the reason."""
        for path, raw in mapping(self.root.get("paths")).items():
            if raw and not self._item(raw):
                yield str(path), "it refers to something that is not in the document"
            for method in _OTHER_METHODS:
                if method in mapping(raw):
                    yield f"{method.upper()} {path}", f"{method.upper()} requests are not made"
        for name in mapping(self.root.get("webhooks")):
            yield f"webhook {name}", "it is a request that comes in, not one that goes out"

    def server(self, operation: Operation, notes: Notes) -> str:
        """The address that the operation's path is appended to."""
        if self.base_url is not None:
            return self.base_url
        for place in (operation.data, operation.item, self.root):
            servers = [mapping(server) for server in listed(place.get("servers"))]
            urls = [_filled(server, notes) for server in servers if server.get("url")]
            if urls:
                return _chosen(urls, notes)
        raise UnsupportedError("the document does not say where its server is; give --base-url")


def _filled(server: Mapping[str, Any], notes: Notes) -> str:
    variables = mapping(server.get("variables"))

    def value(found: re.Match[str]) -> str:
        default = str(mapping(variables.get(found[1])).get("default", ""))
        notes.add("/http/url", f"{found[1]} is taken as {default!r}, the document's default")
        return default

    return re.sub(r"\{([^{}]*)\}", value, str(server["url"]))


def _chosen(urls: list[str], notes: Notes) -> str:
    absolute = [f"https:{url}" if url.startswith("//") else url for url in urls]
    absolute = [url for url in absolute if re.match(r"https?://", url)]
    if not absolute:
        raise UnsupportedError(
            f"the document's server is {urls[0][:60]!r}, which names no host; give --base-url"
        )
    secure = [url for url in absolute if url.startswith("https:")]
    if len(absolute) > 1:
        notes.add("/http/url", f"the document names {len(absolute)} servers; is this the one?")
    return (secure or absolute)[0]
