"""How a tool without Python is carried out, as data in its contract.

`HttpBinding` is an HTTP request, `McpBinding` a tool of an MCP server behind the gateway.

Templates refer to arguments as `{case_id}`, to credentials as `{secret:api_token}` and to the
call's idempotency key as `{call:key}`; `{{` and `}}` are plain braces. A body value that consists
of one placeholder keeps its JSON type. `execution` sends the requests; `lint.outbound` checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from counterseal.canonical import freeze, thaw
from counterseal.codes import FAILURES, Code

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
    """A placeholder of a template: an argument, a credential, or a value of the call itself."""

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
"""The idempotency key of the call; a read_back uses it to ask for the outcome of that call."""


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: plain texts and placeholders."""

    parts: tuple[str | Placeholder, ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @property
    def alone(self) -> Placeholder | None:
        """The placeholder, if the template consists of nothing else."""
        first = self.parts[0] if len(self.parts) == 1 else None
        return first if isinstance(first, Placeholder) else None


@lru_cache(maxsize=4096)
def template(text: str) -> Template:
    """Parse a template. ValueError says what is wrong with it."""
    parts: list[str | Placeholder] = []
    for piece in _PIECES.finditer(text):
        name = piece["name"]
        if name in ("", _SECRET, _CALL):
            raise ValueError(f"{{{name}}} has no name")
        if name is not None and name.startswith(_CALL):
            if name != f"{_CALL}{CALL_KEY.name}":
                raise ValueError(f"{{{name}}} is unknown; the only value of the call is {CALL_KEY}")
            parts.append(CALL_KEY)
        elif name is not None:
            parts.append(Placeholder(name.removeprefix(_SECRET), name.startswith(_SECRET)))
        elif piece[0] in ("{", "}"):
            raise ValueError(f"a single {piece[0]}; write {piece[0] * 2} for a plain brace")
        else:
            plain = piece[0][0] if piece[0] in ("{{", "}}") else piece[0]
            joined = f"{parts.pop()}{plain}" if parts and isinstance(parts[-1], str) else plain
            parts.append(joined)
    return Template(tuple(parts))


def _failure(value: Code) -> Code:
    if value not in FAILURES:
        raise ValueError(f"{value.value} is not the code of a failure")
    return value


def _readable(value: Any) -> Any:
    for _, text in texts(value):
        template(text)
    return value


def _address(url: str) -> str:
    """Check that a URL fixes scheme, host and port, so that no argument can change them."""
    match = _URL.fullmatch(url)
    if match is None:
        if "{" in url.partition("://")[2].partition("/")[0]:
            raise ValueError("placeholders are allowed in the path only, not in host or port")
        raise ValueError("write http(s)://host[:port]/path, without user, query or fragment")
    if int(match["port"] or 0) > 65_535:
        raise ValueError(f"{match['port']} is not a port; the highest is 65535")
    path = match["path"] or ""
    for part in template(path).parts:
        if isinstance(part, str) and not _PATH.fullmatch(part):
            raise ValueError(
                "the path has a query or a character that must be percent-encoded; "
                "move a query to `query`"
            )
    if {".", ".."} & set(path.split("/")):
        raise ValueError("the path has a segment . or ..; write the resolved path")
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
    """One HTTP request. The call's key is sent in the header `idempotency.key_header`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    url: Annotated[str, AfterValidator(_address)]
    """Placeholders in the path only: `https://api.example.org/cases/{case_id}`."""
    query: Templates = Field(default_factory=lambda: freeze({}))
    """A list is sent as one pair per item. Pairs with an absent argument are left out."""
    headers: Templates = Field(default_factory=lambda: freeze({}))
    body: Annotated[Any, *Frozen, AfterValidator(_readable)] = None
    """A JSON value with placeholders; null sends no body."""
    form: Templates = Field(default_factory=lambda: freeze({}))
    """A URL-encoded body, for APIs that do not accept JSON."""
    response: str = Field(default="", pattern=r"^(/([^~]|~[01])*)?$")
    """JSON Pointer to the output in the response."""
    statuses: Statuses = Field(default_factory=lambda: freeze({}))
    """HTTP statuses (`404`, `5xx`) with the code that each means, where the default differs."""
    absent: tuple[Annotated[int, Field(strict=True, ge=200, le=499)], ...] = ()
    """Statuses that mean "does not exist": the output is null. For read-only tools."""

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if self.body is not None and self.form:
            raise ValueError("body and form are both set; a request has one body")
        twice = [status for status in self.absent if str(status) in self.statuses]
        if twice:
            raise ValueError(f"status {twice[0]} is in both absent and statuses; remove one")
        return self

    def code_for(self, status: int) -> Code | None:
        """Return the code that the binding gives to a status: `404` wins over `4xx`."""
        own = self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}xx")
        return None if own is None else Code(own)

    @property
    def secure(self) -> bool:
        return self._part("scheme") == "https"

    @property
    def host(self) -> str:
        """The host in lower case; an IPv6 address without its brackets."""
        return self._part("host").lower().strip("[]")

    @property
    def port(self) -> int:
        return int(self._part("port") or _PORTS[self._part("scheme")])

    @property
    def origin(self) -> str:
        """The URL up to its path."""
        return self.url[: len(self.url) - len(self._part("path"))]

    def segments(self) -> tuple[Template, ...]:
        """Return the segments of the path, without the slashes between them."""
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
        """Yield every placeholder with its path in the binding."""
        for field in ("url", "query", "headers", "body", "form"):
            for path, text in texts(getattr(self, field), (field,)):
                for placeholder in template(text).placeholders:
                    yield path, placeholder

    @property
    def arguments(self) -> frozenset[str]:
        return frozenset(item.name for _, item in self.placeholders() if item.argument)

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(item.name for _, item in self.placeholders() if item.secret)

    @property
    def carries_key(self) -> bool:
        """Whether a template uses the key of the call."""
        return any(item == CALL_KEY for _, item in self.placeholders())

    def _part(self, name: str) -> str:
        match = _URL.fullmatch(self.url)
        return (match[name] if match else None) or ""


class McpBinding(BaseModel):
    """The upstream tool that carries this one out. Set by the gateway, never by a contract file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    tool: str = ""
    """The tool's name at the upstream."""
    kind: Literal["tool", "resource", "prompt"] = "tool"
    definition: str = ""
    """The hash of the definition that a person accepted."""


def texts(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text in a JSON value with its path; keys of objects are not included."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))
