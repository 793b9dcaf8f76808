"""The table `[upstreams.NAME]`: an MCP server behind the gateway, and how it is reached.

Says only what was written. Connecting is `execution.mcp`'s business, and what the server's tools
may do stands in its overlay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, StrictBool, model_validator

from counterseal.config.tables import Name, Table
from counterseal.contract.bindings import template
from counterseal.contract.egress import kind, literal

__all__ = ["ServerName", "UpstreamTable", "is_loopback", "web_fault"]

_SERVER: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{0,32}")
_SECRET: Final = re.compile(r"[A-Za-z0-9]+(?:[-._][A-Za-z0-9]+)*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OBJECT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

_WAYS: Final = ("command", "url", "python")
_BELONGS: Final = {"env": "command", "cwd": "command", "headers": "url", "insecure": "url"}
"""What makes sense only for one way to reach it."""


def _server_name(name: str) -> str:
    if not _SERVER.fullmatch(name):
        raise ValueError(
            "a server's name is made of small letters, digits, _ and -, begins with a letter, "
            "and has at most 32"
        )
    return name


ServerName = Annotated[str, AfterValidator(_server_name)]


class UpstreamTable(Table):
    """One MCP server. Exactly one of `command`, `url` and `python` says how it is reached."""

    command: tuple[str, ...] | None = None
    """A program that speaks MCP over its standard input and output."""
    url: Name | None = None
    """Where it speaks streamable HTTP."""
    python: Name | None = None
    """`package.module:name` of a server object of the MCP SDK that lives in this process."""
    cwd: Name | None = None
    """Where the command runs, as seen from the configuration file, which is also the default."""
    env: dict[str, str] = Field(default_factory=dict)
    """Beside it the command inherits a short list of harmless variables only."""
    headers: dict[str, str] = Field(default_factory=dict)
    insecure: StrictBool = False
    """Whether a `url` that is neither https nor of this machine is meant."""
    overlay: Name | None = None
    """The file that says what its tools may do."""
    prefix: str = ""
    """Put before the name of each of its tools."""
    unlisted: Literal["hidden", "gated"] = "hidden"
    """What becomes of tools that the overlay does not name; `gated`: visible, with approval."""
    relay: tuple[Literal["elicitation", "sampling", "roots"], ...] = ()
    """What it may ask of the client in front."""
    connections: Annotated[int, Field(strict=True, ge=1, le=256)] = 4
    """At most so many at once; where a secret is a tenant's own, so many for each tenant."""
    tenants: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """For whom; left out: for everybody."""
    resources: StrictBool = False
    prompts: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _pasted(cls, given: Any) -> Any:
        """What other programs' configurations look like, told apart with our own form."""
        if isinstance(given, Mapping) and isinstance(given.get("command"), str):
            form = '["program", "argument"]'
            raise ValueError(f"command: takes the program and its arguments as one list: {form}")
        return given

    @model_validator(mode="after")
    def _usable(self) -> UpstreamTable:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    @property
    def secrets(self) -> frozenset[str]:
        """The names of the credentials that it is reached with."""
        texts = (*self.env.values(), *self.headers.values())
        return frozenset(one.name for text in texts for one in template(text).placeholders)

    def _faults(self) -> Iterator[str]:
        given = [way for way in _WAYS if getattr(self, way) is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} contradict each other" if given else "is missing"
            yield f"{given[0] if given else 'command'}: {what}; give one of {', '.join(_WAYS)}"
            return
        for field, way in _BELONGS.items():
            if getattr(self, field) and way != given[0]:
                yield f"{field}: is for an upstream with {way}, and this one has {given[0]}"
        yield from self._command_faults()
        if self.url is not None:
            yield from _url_faults(self.url, insecure=self.insecure)
        if self.python is not None and not _OBJECT.fullmatch(self.python):
            yield f"python: {self.python!r} is not of the form package.module:name"
        yield from _pair_faults("env", self.env, _VARIABLE)
        yield from _pair_faults("headers", self.headers, _HEADER)
        if not _PREFIX.fullmatch(self.prefix):
            yield f"prefix: {self.prefix!r} is not made of at most 32 letters, digits, _, . and -"

    def _command_faults(self) -> Iterator[str]:
        if self.command is None:
            return
        if not self.command or not self.command[0].strip():
            yield "command: names no program"
        for word in self.command:
            if "\0" in word:
                yield "command: holds a NUL character"
            if "{secret:" in word:
                fix = "put the secret into env"
                yield f"command: everybody on the machine can see a command's arguments; {fix}"


def _url_faults(url: str, *, insecure: bool) -> Iterator[str]:
    if "{" in url:
        yield "url: takes no placeholders, because addresses are logged; put secrets into headers"
        return
    fault = web_fault(url)
    if fault:
        yield f"url: {fault}"
    elif not insecure and urlsplit(url).scheme == "http" and not is_loopback(url):
        yield (
            f"url: {url!r} would be spoken to in the open; write https, or `insecure = true` if "
            "the network between is your own"
        )


def web_fault(url: str) -> str:
    """Why a text is no web address that a configuration can name; empty when it is one."""
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url!r} is no http or https address"
    if parts.username is not None or parts.password is not None:
        return "holds a user or a password; credentials are secrets, and stand elsewhere"
    if parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", url):
        return f"{url!r} holds a fragment or white space"
    return ""


def is_loopback(url: str) -> bool:
    """Whether an address leads to this machine and nowhere else."""
    parts = _split(url)
    host = (parts.hostname or "") if parts else ""
    address = literal(host)
    return host == "localhost" or (address is not None and kind(address) == "loopback")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # a port that is none is found only when it is asked for
    except ValueError:
        return None
    return parts


def _pair_faults(field: str, pairs: Mapping[str, str], names: re.Pattern[str]) -> Iterator[str]:
    for name, text in pairs.items():
        if not names.fullmatch(name):
            yield f"{field}: {name!r} can't be a name there"
        if re.search(r"[\x00\r\n]", text):
            yield f"{field}.{name}: holds a line break or a NUL character"
        try:
            found = template(text).placeholders
        except ValueError as error:
            yield f"{field}.{name}: {error}"
            continue
        for one in found:
            if not one.secret or not _SECRET.fullmatch(one.name):
                yield f"{field}.{name}: {one} is no secret; write {{secret:name}}, or {{{{ for {{"
