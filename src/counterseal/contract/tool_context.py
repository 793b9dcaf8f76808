"""Values that a tool receives besides its arguments, and how its output changes run state.

`ConfigParam`, `StateRead` and `StateEffect` are the records that a contract declares. `Config`,
`State`, `Secret` and the type `Context` mark a parameter of a typed function: a marked parameter is
injected and never part of the schema that a model sees. `AgentClient` is the MCP client that made
the call, which a tool can ask for a person's or a model's answer. An answer of the client is never
an approval: approvals come from people who have signed in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import to_jsonable_python

from counterseal.canonical import freeze, thaw
from counterseal.contract.invariants import named_code, require_sync
from counterseal.errors import CountersealError
from counterseal.proposal import Principal

if TYPE_CHECKING:
    import httpx

Normalizer = Callable[[Any], Any]
Merge = Literal["replace", "append", "merge_dict"]


def _text(change: Callable[[str], str]) -> Normalizer:
    return lambda value: change(value) if isinstance(value, str) else value


NORMALIZERS: Final[dict[str, Normalizer]] = {
    "strip": _text(str.strip),
    "lower": _text(str.lower),
    "upper": _text(str.upper),
    "empty_to_null": lambda value: None if value == "" else value,
}
"""Normalizers that a contract file can name. They change text and leave other values alone."""
_NAMED: Final = {"enum": list(NORMALIZERS)}
_NORMALIZER_SCHEMA: Final = {
    "anyOf": [_NAMED, {"type": "array", "items": _NAMED}, {"type": "null"}]
}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ConfigParam(_Record):
    """A setting of a deployment. `normalizer` is a function or a list of `NORMALIZERS` names."""

    key: str = Field(min_length=1)
    default: Annotated[Any, AfterValidator(freeze)] = None
    normalizer: Annotated[
        tuple[str, ...] | Normalizer | None,
        PlainSerializer(named_code),
        WithJsonSchema(_NORMALIZER_SCHEMA, mode="validation"),
    ] = None

    @field_validator("normalizer", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        names = (value,) if isinstance(value, str) else value
        if isinstance(names, list | tuple):
            unknown = [name for name in names if name not in NORMALIZERS]
            if unknown:
                known = ", ".join(NORMALIZERS)
                raise ValueError(f"unknown normalizer {unknown[0]!r}; known are {known}")
            return tuple(names)
        require_sync("a normalizer", names)
        return names

    def normalize(self, value: Any) -> Any:
        if self.normalizer is None:
            return value
        if callable(self.normalizer):
            return self.normalizer(thaw(value))  # a copy, so that it can't change run state
        for name in self.normalizer:
            value = NORMALIZERS[name](value)
        return value


class StateRead(_Record):
    """A key of run state that is passed to the tool."""

    key: str = Field(min_length=1)


class StateEffect(_Record):
    """A key of run state that the tool's output is merged into when the call settles."""

    key: str = Field(min_length=1)
    type_hint: Literal["object", "array", "string", "number", "integer", "boolean"] = "object"
    merge: Merge = "replace"
    preserve_across_turns: bool = False
    prompt_template_var: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")


def resolve_config(
    params: tuple[ConfigParam, ...],
    configurable: Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return every declared param: the call's value, else the run's, else the default.

    A key that is present wins even when its value is None: an explicit null is a value. Each value
    is normalized once.
    """
    sources = [source for source in (configurable, run_config) if source]
    resolved = {}
    for param in params:
        values = (source[param.key] for source in sources if param.key in source)
        resolved[param.key] = param.normalize(next(values, param.default))
    return resolved


class UnusableConfigError(ValueError):
    """A config value that has no JSON form. The text of the exception is its key."""


def config_as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config as JSON, for CEL checks, approvals and events.

    Objects are shown by the name of their type. Raises UnusableConfigError for a value without JSON
    form.
    """
    shown: dict[str, Any] = {}
    for key, value in config.items():
        shown[key] = value
        if value is None or isinstance(value, bool) or (type(value) is str and value.isascii()):
            continue
        # Equal sets have one form in every process.
        given = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        try:
            plain = to_jsonable_python(given, fallback=lambda other: f"<{type(other).__name__}>")
            shown[key] = thaw(freeze(_finite(plain)))
        except Exception:  # noqa: BLE001 - a value can be any object, whose code can raise anything
            raise UnusableConfigError(key) from None
    return shown


def _finite(value: Any) -> Any:
    """Return the value with infinities and NaN replaced by text."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def state_updates(
    effects: tuple[StateEffect, ...],
    output: Mapping[str, Any],
    declared: Collection[str],
    *,
    wrapped: bool,
) -> list[tuple[str, str, Any]]:
    """Return (key, merge, value) of each effect: the output's field of that name, else all of it.

    `declared` are the fields of the output schema; a declared field that this output leaves out
    changes nothing. With `wrapped`, the tool returned something else than an object, and it is in
    the output's field `result`.
    """
    whole = output.get("result") if wrapped else output
    updates: list[tuple[str, str, Any]] = []
    for effect in effects:
        if effect.key in declared and effect.key not in output:
            continue
        value = output.get(effect.key, whole)
        if effect.merge != "merge_dict" or isinstance(value, Mapping):
            updates.append((effect.key, effect.merge, value))
    return updates


@dataclass(frozen=True, slots=True)
class Secret:
    """`Annotated[str, Secret("name")]`: a credential, resolved after all gates have passed."""

    name: str


@dataclass(frozen=True, slots=True)
class Config:
    """`Annotated[str, Config("key", default=…)]`: the value of a config param."""

    key: str
    default: Any = None
    normalizer: str | tuple[str, ...] | Normalizer | None = None


@dataclass(frozen=True, slots=True)
class State:
    """`Annotated[list, State("key")]`: the value of a key of run state."""

    key: str


class RefusedError(CountersealError):
    """The client refused a question or does not support it. `missing` is the capability."""

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class AgentClient:
    """The MCP client that made the running call. Methods and params are MCP's, as plain JSON.

    This class itself stands for the client of a call that has none: library use, resumed calls.
    """

    @property
    def traceparent(self) -> str | None:
        return None

    @property
    def protocol_version(self) -> str:
        """The revision of MCP that it speaks; empty where there is no client."""
        return ""

    def can(self, capability: str) -> bool:
        """Return whether it supports `elicitation`, `elicitation.url`, `sampling` or `roots`."""
        return False

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        """Return the answer to `elicitation/create`, `sampling/createMessage` or `roots/list`.

        `name` distinguishes the questions of one call. RefusedError when there is no answer.
        """
        raise RefusedError("this call has no client that could be asked")

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send a log message, if the client wants messages of this level."""


CLIENT: Final[ContextVar[AgentClient | None]] = ContextVar("counterseal_client", default=None)
"""Set by the gateway while a call runs."""


ASKER: Final[ContextVar[str]] = ContextVar("counterseal_asker", default="")
"""The upstream that asks a question through a tool; the person who answers is shown its name."""


_NO_CLIENT: Final = AgentClient()


def client() -> AgentClient:
    """Return the client of the running call."""
    return CLIENT.get() or _NO_CLIENT


class ToolFiles(Protocol):
    """The directory of one tool in one run. Paths are relative and never lead out of it."""

    def read_bytes(self, path: str) -> bytes: ...
    def read_text(self, path: str, encoding: str = "utf-8") -> str: ...
    def write_bytes(self, path: str, data: bytes) -> None: ...
    def write_text(self, path: str, text: str, encoding: str = "utf-8") -> None: ...
    def open(self, path: str, mode: str = "rb", *, encoding: str = "utf-8") -> IO[Any]: ...
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def list(self, prefix: str = "") -> Sequence[str]: ...
    def delete(self, path: str) -> None: ...


class Services(Protocol):
    """The executor's services for a tool during one call. Each part is made on first use."""

    cancelled: bool

    @property
    def http(self) -> httpx.AsyncClient: ...
    @property
    def sync_http(self) -> httpx.Client: ...
    @property
    def files(self) -> ToolFiles: ...
    @property
    def log(self) -> logging.LoggerAdapter[Any]: ...
    def progress(self, done: float, total: float | None, message: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The call that a tool runs in. A parameter of this type receives it."""

    principal: Principal
    run_id: str
    call_id: str
    conversation_id: str | None = None
    session_id: str | None = None
    """The caller's ids of what the call belongs to, as in its proposal."""
    key: str | None = None
    """The idempotency key, to hand to the destination."""
    attempt: int = 1
    deadline: datetime | None = None
    """When this attempt times out."""
    expected_version: str | int | None = None
    """The version of the resource at the time of the decision, for compare-and-set."""
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    services: Services | None = field(default=None, repr=False, compare=False)

    @property
    def tenant(self) -> str:
        return self.principal.tenant

    @property
    def user(self) -> str | None:
        return self.principal.user

    @property
    def agent(self) -> str:
        return self.principal.agent

    @property
    def http(self) -> httpx.AsyncClient:
        """An HTTP client that connects only where the contract's egress policy allows."""
        return self._provided.http

    @property
    def sync_http(self) -> httpx.Client:
        """An HTTP client for functions that are not async; the egress policy applies to it too."""
        return self._provided.sync_http

    @property
    def files(self) -> ToolFiles:
        """The directory of this tool in this run; no path leads out of it."""
        return self._provided.files

    @property
    def log(self) -> logging.LoggerAdapter[Any]:
        """A logger that adds the call's ids and replaces secrets by their names."""
        return self._provided.log

    @property
    def client(self) -> AgentClient:
        """The client that made this call. It can be asked for a person's or a model's answer."""
        return client()

    @property
    def cancelled(self) -> bool:
        """True once the caller has stopped waiting. Long loops should check it and stop."""
        return self.services is not None and self.services.cancelled

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report to the caller how far the call is."""
        if self.services is not None:
            self.services.progress(done, total, message)

    @property
    def _provided(self) -> Services:
        if self.services is None:
            raise RuntimeError(
                "this context was built by hand and provides no services; "
                "build it with counterseal.testing.context()"
            )
        return self.services
