"""A tool without Python: what carries it out instead, as a contract file writes it.

`HttpBinding` is a request, `McpBinding` a tool of an MCP server behind the gateway.

Templates name arguments as `{case_id}`, credentials as `{secret:api_token}` and the call's key as
`{call:key}`; `{{` and `}}` are plain braces. A value of the body that is one placeholder and
nothing else keeps its JSON type. Data only: what sends it is `execution.http`, what judges it is
`lint.http`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from counterseal.canonical import freeze, thaw
from counterseal.codes import FAILURES, Code

__all__ = ["CALL_KEY", "HttpBinding", "McpBinding", "Placeholder", "Template", "template", "texts"]


_PIECES = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]|[^{}]+")
_SECRET = "secret:"  # noqa: S105 - the prefix of a placeholder, not a credential
_CALL = "call:"
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>/.*)?"
)
_PATH = re.compile(r"(?:[A-Za-z0-9/._~!$&'()*+,;=:@{}-]|%[0-9A-Fa-f]{2})*")
_PORTS = {"http": 80, "https": 443}


class Placeholder(NamedTuple):
    """A name in a template: of an argument, of a credential, or of something of the call's own."""

    name: str
    secret: bool = False
    call: bool = False

    @property
    def argument(self) -> bool:
        return not self.secret and not self.call

    def __str__(self) -> str:
        prefix = _SECRET if self.secret else _CALL if self.call else ""
        return f"{{{prefix}{self.name}}}"


CALL_KEY = Placeholder("key", call=True)
"""The idempotency key of the call: with it a read_back asks what became of that call."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders, taken apart."""

    parts: tuple[str | Placeholder, ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @property
    def alone(self) -> Placeholder | None:
        """The placeholder that is all of the template."""
        first = self.parts[0] if len(self.parts) == 1 else None
        return first if isinstance(first, Placeholder) else None


def template(text: str) -> Template:
    """Take a template apart. ValueError says what can't be read in it."""
    parts: list[str | Placeholder] = []
    for piece in _PIECES.finditer(text):
        name = piece["name"]
        if name is not None:
            parts.append(_placeholder(name))
        elif piece[0] in ("{", "}"):
            raise ValueError(f"a lone {piece[0]}; a plain brace is written {piece[0] * 2}")
        else:
            plain = piece[0][0] if piece[0] in ("{{", "}}") else piece[0]
            joined = f"{parts.pop()}{plain}" if parts and isinstance(parts[-1], str) else plain
            parts.append(joined)
    return Template(tuple(parts))


def _placeholder(written: str) -> Placeholder:
    if written in ("", _SECRET, _CALL):
        raise ValueError(f"{{{written}}} names nothing")
    if written.startswith(_CALL):
        if written != f"{_CALL}{CALL_KEY.name}":
            raise ValueError(f"{{{written}}} is not known; of a call there is {CALL_KEY}")
        return CALL_KEY
    return Placeholder(written.removeprefix(_SECRET), written.startswith(_SECRET))


def _failure(value: Code) -> Code:
    if value not in FAILURES:
        raise ValueError(f"{value.value} is no failure")
    return value


def _readable(value: Any) -> Any:
    for _, text in texts(value):
        template(text)
    return value


def _address(url: str) -> str:
    """The URL, when it says plainly who is asked: nothing of that is an argument's to say."""
    match = _URL.fullmatch(url)
    if match is None:
        if "{" in url.partition("://")[2].partition("/")[0]:
            raise ValueError("placeholders stand in the path only, never in the host or the port")
        raise ValueError("write http(s)://host[:port]/path, without user, query or fragment")
    if int(match["port"] or 0) > 65_535:
        raise ValueError(f"{match['port']} is no port")
    path = match["path"] or ""
    for part in template(path).parts:
        if isinstance(part, str) and not _PATH.fullmatch(part):
            raise ValueError(
                "the path holds a character that must be percent-encoded, or a query; "
                "put a query into `query`"
            )
    if {".", ".."} & set(path.split("/")):
        raise ValueError("the path holds a segment . or ..; write the path that is meant")
    return url


Frozen = (AfterValidator(freeze), PlainSerializer(thaw))
Readable = Annotated[str, AfterValidator(_readable)]
Templates = Annotated[dict[str, Readable], *Frozen]
Statuses = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[1-5]([0-9]{2}|xx)$")],
        Annotated[Code, AfterValidator(_failure)],
    ],
    *Frozen,
]


class HttpBinding(BaseModel):
    """One request. Its key goes into the header that `idempotency.key_header` names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    url: Annotated[str, AfterValidator(_address)]
    """With placeholders in its path only: `https://api.example.org/cases/{case_id}`."""
    query: Templates = Field(default_factory=lambda: freeze({}))
    """A list is sent as one pair an item. What an absent argument would fill is left out."""
    headers: Templates = Field(default_factory=lambda: freeze({}))
    body: Annotated[Any, *Frozen, AfterValidator(_readable)] = None
    """A JSON value with placeholders; null sends none."""
    form: Templates = Field(default_factory=lambda: freeze({}))
    """A body of URL-encoded pairs, for who takes no JSON."""
    response: str = Field(default="", pattern=r"^(/([^~]|~[01])*)?$")
    """JSON Pointer into the response: where the output stands in it."""
    statuses: Statuses = Field(default_factory=lambda: freeze({}))
    """What an HTTP status means, where it is not what the table says: `404` or `5xx` to a code."""
    absent: tuple[Annotated[int, Field(strict=True, ge=200, le=499)], ...] = ()
    """Statuses that mean that there is nothing: the output is null then. For what reads only."""

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if self.body is not None and self.form:
            raise ValueError("body and form contradict each other; give one")
        twice = [status for status in self.absent if str(status) in self.statuses]
        if twice:
            raise ValueError(f"absent and statuses contradict each other about {twice[0]}")
        return self

    def code_for(self, status: int) -> Code | None:
        """The failure that the binding calls a status, the exact one before its hundred."""
        own = self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}xx")
        return None if own is None else Code(own)

    @property
    def secure(self) -> bool:
        return self._part("scheme") == "https"

    @property
    def host(self) -> str:
        """In lower case; an IPv6 address without its brackets."""
        return self._part("host").lower().strip("[]")

    @property
    def port(self) -> int:
        return int(self._part("port") or _PORTS[self._part("scheme")])

    @property
    def origin(self) -> str:
        """The URL up to its path."""
        return self.url[: len(self.url) - len(self._part("path"))]

    def segments(self) -> tuple[Template, ...]:
        """The path's segments, without the slashes between them."""
        segments: list[list[str | Placeholder]] = []
        for part in template(self._part("path")).parts:
            if isinstance(part, Placeholder):
                segments[-1].append(part)
                continue
            first, *others = part.split("/")
            if first:
                segments[-1].append(first)
            segments += [[other] if other else [] for other in others]
        return tuple(Template(tuple(segment)) for segment in segments)

    def placeholders(self) -> Iterator[tuple[tuple[str | int, ...], Placeholder]]:
        """Every placeholder, with its path in the binding."""
        for field in ("url", "query", "headers", "body", "form"):
            for path, text in texts(getattr(self, field), (field,)):
                for found in template(text).placeholders:
                    yield path, found

    @property
    def arguments(self) -> frozenset[str]:
        """The arguments that the request carries."""
        return frozenset(found.name for _, found in self.placeholders() if found.argument)

    @property
    def secrets(self) -> frozenset[str]:
        """The credentials that the request carries."""
        return frozenset(found.name for _, found in self.placeholders() if found.secret)

    @property
    def carries_key(self) -> bool:
        """Whether a template asks for the key of the call."""
        return any(found == CALL_KEY for _, found in self.placeholders())

    def _part(self, name: str) -> str:
        match = _URL.fullmatch(self.url)
        return (match[name] if match else None) or ""


class McpBinding(BaseModel):
    """What of which upstream carries it out. Made by the gateway; no contract file names one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    tool: str = ""
    """By the name that the upstream has for it."""
    kind: Literal["tool", "resource", "prompt"] = "tool"
    definition: str = ""
    """The hash of the definition that a person accepted."""


def texts(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text in a JSON value with its place, keys aside."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))
