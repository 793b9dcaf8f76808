"""What a tool is given besides its arguments, and what it leaves behind: config, state, secrets.

The records (`ConfigParam`, `StateRead`, `StateEffect`) are what a contract declares. The markers
(`Config`, `State`, `Secret`, and the type `Context`) are how a typed function says the same of its
parameters; a marked parameter is injected, and is never part of the schema that a model sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, field_validator

from counterseal.canonical import freeze
from counterseal.contract.invariants import code_name

__all__ = [
    "NORMALIZERS",
    "Config",
    "ConfigParam",
    "Context",
    "Merge",
    "Secret",
    "State",
    "StateEffect",
    "StateRead",
    "resolve_config",
]

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
        return names

    @field_validator("default")
    @classmethod
    def _frozen(cls, value: Any) -> Any:
        return freeze(value)

    def normalize(self, value: Any) -> Any:
        if self.normalizer is None:
            return value
        if callable(self.normalizer):
            return self.normalizer(value)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a running tool may know of its call. A parameter of this type receives it."""

    tenant: str
    user: str | None = None
    agent: str
    run_id: str
    call_id: str
    key: str | None = None
    """The idempotency key, to hand to the destination."""
    deadline: datetime | None = None
    expected_version: str | int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
