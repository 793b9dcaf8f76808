"""What a tool is given besides its arguments, and what it leaves behind: config, state, secrets.

The records (`ConfigParam`, `StateRead`, `StateEffect`) are what a contract declares. The markers
(`Config`, `State`, `Secret`, and the type `Context`) are how a typed function says the same of its
parameters; a marked parameter is injected, and is never part of the schema that a model sees.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, field_validator
from pydantic_core import to_jsonable_python

from counterseal.canonical import freeze, thaw
from counterseal.contract.invariants import code_name, must_not_wait
from counterseal.errors import CountersealError
from counterseal.proposal import Principal

if TYPE_CHECKING:
    import httpx

__all__ = [
    "ASKER",
    "CLIENT",
    "NORMALIZERS",
    "AgentClient",
    "Config",
    "ConfigParam",
    "Context",
    "Merge",
    "RefusedError",
    "Secret",
    "Services",
    "State",
    "StateEffect",
    "StateRead",
    "ToolFiles",
    "UnusableConfigError",
    "client",
    "left_in_state",
    "resolve_config",
    "shown_config",
]


# --- client ---


class RefusedError(CountersealError):
    """The client can't be asked that, or would not answer. `missing` names what it can't do."""

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class AgentClient(Protocol):
    """What the client in front can be asked for, while a call of its own runs."""

    @property
    def traceparent(self) -> str | None: ...

    def can(self, capability: str) -> bool:
        """Whether it does `elicitation`, `elicitation.url`, `sampling` or `roots`."""

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        """Its answer to `elicitation/create`, `sampling/createMessage` or `roots/list`.

        `name` tells this question from others of the same call. RefusedError when there is none.
        """

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Tell it something on the way, if it wants to know."""


CLIENT: Final[ContextVar[AgentClient | None]] = ContextVar("counterseal_client", default=None)
"""Set around a call by whoever serves clients."""


ASKER: Final[ContextVar[str]] = ContextVar("counterseal_asker", default="")
"""Whose question it is, where it is not the tool's own: people are told who wants to know."""


class _Nobody:
    """Stands where there is no client."""

    traceparent: str | None = None

    def can(self, capability: str) -> bool:
        return False

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        raise RefusedError("there is no client in front of this call that could be asked")

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        pass


_NOBODY: Final = _Nobody()


def client() -> AgentClient:
    """The client of the call that is running here."""
    return CLIENT.get() or _NOBODY


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
"""Normalizers that a contract file can name. Text is changed; anything else passes as it is."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def _name_code(value: Any) -> Any:
    return {"python": code_name(value)} if callable(value) else value


class ConfigParam(_Record):
    """A knob of a deployment. `normalizer` is a function, or names from `NORMALIZERS` in order."""

    key: str = Field(min_length=1)
    default: Any = None
    normalizer: Annotated[tuple[str, ...] | Normalizer | None, PlainSerializer(_name_code)] = None

    @field_validator("normalizer", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        names = (value,) if isinstance(value, str) else value
        if isinstance(names, list | tuple):
            unknown = [name for name in names if name not in NORMALIZERS]
            if unknown:
                raise ValueError(
                    f"no normalizer {unknown[0]!r}; there are {', '.join(NORMALIZERS)}"
                )
            return tuple(names)
        must_not_wait("a normalizer", names)
        return names

    @field_validator("default")
    @classmethod
    def _frozen(cls, value: Any) -> Any:
        return freeze(value)

    def normalize(self, value: Any) -> Any:
        if self.normalizer is None:
            return value
        if callable(self.normalizer):
            return self.normalizer(thaw(value))  # a copy: what it was given is the run's, or ours
        for name in self.normalizer:
            value = NORMALIZERS[name](value)
        return value


class StateRead(_Record):
    """A key of run state that the tool is given."""

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
    """Every declared param: the call's value, else the run's, else the default; normalized once.

    A key that is present wins even when its value is None: "explicitly nothing" is an answer.
    """
    sources = [source for source in (configurable, run_config) if source]
    resolved = {}
    for param in params:
        given = (source[param.key] for source in sources if param.key in source)
        resolved[param.key] = param.normalize(next(given, param.default))
    return resolved


class UnusableConfigError(ValueError):
    """A config value that no record could keep. The text is its key."""


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Config as JSON: what CEL checks look at, approvals are bound to, and events tell.

    Objects are named by their type. UnusableConfigError where no JSON can be made of a value.
    """
    return {key: _shown(key, value) for key, value in config.items()}


def _shown(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool) or (type(value) is str and value.isascii()):
        return value
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)  # the same set has one form, in every process
    try:
        plain = to_jsonable_python(value, fallback=lambda other: f"<{type(other).__name__}>")
        return thaw(freeze(_finite(plain)))
    # A value may be an object of any kind, whose own code is asked here.
    except Exception:  # noqa: BLE001 - whatever it raises, there is no JSON
        raise UnusableConfigError(key) from None


def _finite(value: Any) -> Any:
    """The same with infinities and NaN as text."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def left_in_state(
    effects: tuple[StateEffect, ...],
    output: Mapping[str, Any],
    declared: Collection[str],
    *,
    wrapped: bool,
) -> list[tuple[str, str, Any]]:
    """(key, merge, value) of every effect: the output's field of that name, else all of it.

    `declared` are the fields of the output's schema; one that was left out this time leaves
    nothing. `wrapped` says that the tool returned no object, and `result` holds what it did return.
    """
    whole = output.get("result") if wrapped else output
    left: list[tuple[str, str, Any]] = []
    for effect in effects:
        if effect.key in declared and effect.key not in output:
            continue
        value = output.get(effect.key, whole)
        if effect.merge != "merge_dict" or isinstance(value, Mapping):
            left.append((effect.key, effect.merge, value))
    return left


@dataclass(frozen=True, slots=True)
class Secret:
    """`Annotated[str, Secret("name")]`: a credential, resolved after every gate has passed."""

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
    """What the executor provides to a tool during one call. Each part is made on first use."""

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
    """What a running tool may know of its call. A parameter of this type receives it."""

    principal: Principal
    run_id: str
    call_id: str
    key: str | None = None
    """The idempotency key, to hand to the destination."""
    attempt: int = 1
    deadline: datetime | None = None
    """When this attempt must be over; nobody waits for it any longer."""
    expected_version: str | int | None = None
    """The version of the resource that was decided on, for compare-and-set."""
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
        """A client that connects only where the contract's egress policy lets it."""
        return self._lent.http

    @property
    def sync_http(self) -> httpx.Client:
        """The same for functions that are not async."""
        return self._lent.sync_http

    @property
    def files(self) -> ToolFiles:
        """A directory of this run and this tool; no path leads out of it."""
        return self._lent.files

    @property
    def log(self) -> logging.LoggerAdapter[Any]:
        """A logger that knows the call, and puts a name in the place of every secret."""
        return self._lent.log

    @property
    def client(self) -> AgentClient:
        """The client in front of this call. It can be asked for a person's answer, or a model's."""
        return client()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this call any more. A long loop looks here and stops."""
        return self.services is not None and self.services.cancelled

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell the caller how far the call is."""
        if self.services is not None:
            self.services.progress(done, total, message)

    @property
    def _lent(self) -> Services:
        if self.services is None:
            raise RuntimeError(
                "this context was made by hand, so it lends nothing; "
                "counterseal.testing.context() makes one that does"
            )
        return self.services
