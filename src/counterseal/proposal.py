"""Who asks, and what is asked: `Principal` and `Proposal`.

A principal comes from authentication, a proposal from a model. The two meet in the runtime and
nowhere before it. Nothing is parsed here: the arguments are kept as they arrived, because reading
them is the first gate's work and a refusal there is an answer, not an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

__all__ = ["Principal", "Proposal", "System", "names_arguments", "text_set"]


_NONE: Final[frozenset[str]] = frozenset()
_ONE_TEXT: Final = (str, bytes)


def text_set(name: str, value: Iterable[str]) -> frozenset[str]:
    """`value` as a set of non-empty strings; the error names the field."""
    if isinstance(value, _ONE_TEXT):
        # A string is an iterable of its letters: "admin" would pass as five scopes of one letter.
        raise TypeError(f"{name}: takes several strings, got one; write [{value!r}]")
    try:
        items = frozenset(value)
    except TypeError:
        raise TypeError(f"{name}: takes several strings, got {type(value).__name__}") from None
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"{name}: takes strings, got {type(item).__name__}")
        if not item.strip():
            raise ValueError(f"{name}: an empty string names nothing")
        _keepable(name, item)
    return items


def _text(name: str, value: object) -> None:
    if type(value) is str and value.isascii() and value.isprintable() and value.strip():
        return
    if not isinstance(value, str):
        raise TypeError(f"{name}: takes a string, got {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{name}: is empty")
    _keepable(name, value)


def _keepable(name: str, value: str) -> None:
    """ValueError when not every store could keep a text."""
    if value.encode(errors="replace").decode() != value:
        raise ValueError(f"{name}: a lone surrogate is not text")
    if "\0" in value:
        raise ValueError(f"{name}: a NUL is not text")


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Principal:
    """On whose behalf a call is made. Roles and scopes are taken from any iterable of strings."""

    tenant: str
    agent: str
    user: str | None = None
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    _hash: int = field(init=False, repr=False, compare=False)
    """Worked out once: every call looks up what its principal may do."""

    # Written out, so that type checkers let a caller pass a list where a frozenset is kept.
    def __init__(
        self,
        *,
        tenant: str,
        agent: str,
        user: str | None = None,
        roles: Iterable[str] = _NONE,
        scopes: Iterable[str] = _NONE,
    ) -> None:
        _text("tenant", tenant)
        if tenant == "*":
            raise ValueError("tenant: * stands for all of them, and can't be one")
        _text("agent", agent)
        if user is not None:
            _text("user", user)
        if roles is not _NONE:
            roles = text_set("roles", roles)
        if scopes is not _NONE:
            scopes = text_set("scopes", scopes)
        put = object.__setattr__
        put(self, "tenant", tenant)
        put(self, "agent", agent)
        put(self, "user", user)
        put(self, "roles", roles)
        put(self, "scopes", scopes)
        put(self, "_hash", hash((tenant, agent, user, roles, scopes)))

    def __hash__(self) -> int:
        return self._hash


class System(Principal):
    """Counterseal itself, acting on somebody's behalf: it reverses what a call of theirs did.

    Only the reconciler makes one. Nobody can authenticate as it, whatever they are called.
    """

    __slots__ = ("covered",)
    covered: bool
    """Whether the approval of the call that is reversed covers its reversal."""

    def __init__(self, *, covered: bool, **who: Any) -> None:
        super().__init__(**who)
        object.__setattr__(self, "covered", covered)


@dataclass(frozen=True, kw_only=True, init=False)
class Proposal:
    """What a model asks: a tool and arguments, as they came. It has no authority of its own.

    Arguments and approval are left out of `repr`: one may hold personal data, the other is a
    credential, and proposals end up in logs.
    """

    tool: str
    arguments: str | bytes | Mapping[str, Any] = field(repr=False)
    run_id: str | None = None
    version: str | None = None
    key: str | None = None
    call_id: str | None = None
    workflow_id: str | None = None
    operation_id: str | None = None
    approval: str | None = field(default=None, repr=False)
    """An approval token. It is the caller's to pass on; a model never sees one."""
    trace: str | None = None
    """A W3C traceparent."""
    expected_version: str | int | None = None
    """The version of the resource that the proposal was made against."""
    configurable: Mapping[str, Any] | None = field(default=None, repr=False)
    """Call-time values for the contract's config params."""
    origins: Mapping[str, str] | None = None
    """Where arguments came from, for approvers: JSON Pointer to user, trusted or untrusted."""
    proposed: Mapping[str, Any] | None = field(default=None, repr=False)
    """The arguments as first proposed, where a plan corrected them: what the key is bound to."""

    # Written out, so that all fields are set at once: every call makes a proposal, and a frozen
    # record that is filled field by field takes longer than most gates.
    def __init__(
        self,
        *,
        tool: str,
        arguments: str | bytes | Mapping[str, Any],
        run_id: str | None = None,
        version: str | None = None,
        key: str | None = None,
        call_id: str | None = None,
        workflow_id: str | None = None,
        operation_id: str | None = None,
        approval: str | None = None,
        trace: str | None = None,
        expected_version: str | int | None = None,
        configurable: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
        proposed: Mapping[str, Any] | None = None,
    ) -> None:
        given = {
            "tool": tool,
            "arguments": arguments,
            "run_id": run_id,
            "version": version,
            "key": key,
            "call_id": call_id,
            "workflow_id": workflow_id,
            "operation_id": operation_id,
            "approval": approval,
            "trace": trace,
            "expected_version": expected_version,
            "configurable": configurable,
            "origins": origins,
            "proposed": proposed,
        }
        object.__setattr__(self, "__dict__", given)

    @classmethod
    def plain(
        cls,
        tool: str,
        arguments: str | bytes | Mapping[str, Any],
        key: str | None = None,
        trace: str | None = None,
    ) -> Self:
        """The same as with these alone, for less: for whoever makes one for every request."""
        given = _BLANK.copy()
        given["tool"], given["arguments"], given["key"], given["trace"] = (
            tool,
            arguments,
            key,
            trace,
        )
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", given)
        return made

    @classmethod
    def from_call(
        cls, call: object, *, name_of: Callable[[str], str] | None = None, **more: Any
    ) -> Self:
        """A provider's tool call, as a dict or as its SDK's object, as a proposal.

        Reads the forms of OpenAI (chat and responses), Anthropic and MCP. `name_of` turns the name
        that the provider was given back into the contract's. Nothing is checked here: a call that
        names no tool, or whose arguments make no sense, is the gates' to refuse.
        """
        inner = _part(call, "function", call)
        name = _part(inner, "name", "")
        arguments = _part(inner, "arguments", None)
        if arguments is None:
            arguments = _part(inner, "input", {})
        known = _part(call, "call_id", None) or _part(call, "id", None)
        named = name if isinstance(name, str) else ""
        return cls(
            tool=name_of(named) if name_of and named else named,
            arguments=arguments,
            **{"call_id": known if isinstance(known, str) else None, **more},
        )


_BLANK: Final[dict[str, Any]] = dict.fromkeys(one.name for one in fields(Proposal))
"""What a proposal holds, before it is said what that is."""


def names_arguments(call: object) -> bool:
    """Whether a provider's tool call says with which arguments, be they none at all."""
    inner = _part(call, "function", call)
    return any(_part(inner, name, None) is not None for name in ("arguments", "input"))


def _part(thing: object, name: str, otherwise: Any) -> Any:
    if isinstance(thing, Mapping):
        return thing.get(name, otherwise)
    return getattr(thing, name, otherwise)
