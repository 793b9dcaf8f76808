"""`Principal`, on whose behalf a call is made, and `Proposal`, what a model asks for.

A principal comes from authentication, a proposal from a model; the two meet only in the runtime.
Nothing is parsed here: the parse gate reads the arguments, and its refusal is an answer, not an
exception.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

_NONE: Final[frozenset[str]] = frozenset()
_ONE_TEXT: Final = (str, bytes)
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_BLANK: Final = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS: Final = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))


class RiskLevel(StrEnum):
    """How risky the situation of a call is, as the host judges it."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


def text_set(name: str, value: Iterable[str]) -> frozenset[str]:
    """Return a set of non-empty strings. TypeError or ValueError names the field."""
    if isinstance(value, _ONE_TEXT):
        # A string is an iterable of letters: "admin" would pass as five scopes of one letter.
        raise TypeError(f"{name} must be a list of strings, got one string; write [{value!r}]")
    try:
        items = frozenset(value)
    except TypeError:
        raise TypeError(f"{name} must be a list of strings, got {type(value).__name__}") from None
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"{name} must contain strings only, got {type(item).__name__}")
        if not item.strip():
            raise ValueError(f"{name} must not contain an empty string")
        _check_storable(name, item)
    return items


def is_hidden(char: str) -> bool:
    """Return whether a reader could not see this character, ordinary spaces excepted."""
    category = unicodedata.category(char)
    if category in _HIDDEN or char in _BLANK or (category == "Zs" and char not in " \u3000"):
        return True
    return any(first <= ord(char) <= last for first, last in _SELECTORS)


def folded(name: str) -> str:
    """Return the form in which names of people are compared: `U_7` and `u_7` are one person.

    Case, the width of letters, invisible characters and spaces around the name do not count.
    """
    text = name.strip().lower()
    if text.isascii() and text.isprintable():
        return text
    for _ in range(4):  # one change can make another one possible
        shown = "".join(char for char in text if not is_hidden(char))
        text, before = unicodedata.normalize("NFKC", shown).casefold().strip(), text
        if text == before:
            break
    return text


def check_tenant(name: str, value: object) -> None:
    """Raise TypeError or ValueError for a text that can't be a tenant. `name` is its field.

    A name with a space or an invisible character could look like the name of another tenant.
    """
    _text(name, value)
    text = str(value)
    if text.isascii() and text.isprintable() and " " not in text:
        return
    wrong = next((char for char in text if char.isspace() or is_hidden(char)), None)
    if wrong is not None:
        what = "a space" if wrong in " \u3000" else f"the invisible character U+{ord(wrong):04X}"
        fix = "use letters, digits, - and _ instead"
        raise ValueError(f"{name} must not contain {what}, got {ascii(text)[:120]}; {fix}")


def _text(name: str, value: object) -> None:
    if type(value) is str and value.isascii() and value.isprintable() and value.strip():
        return
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{name} must not be empty")
    _check_storable(name, value)


def _check_storable(name: str, value: str) -> None:
    """Raise ValueError for a text that not every store could keep."""
    if value.encode(errors="replace").decode() != value:
        raise ValueError(f"{name} must not contain a lone surrogate")
    if "\0" in value:
        raise ValueError(f"{name} must not contain a NUL character")


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Principal:
    """On whose behalf a call is made. Roles and scopes take any iterable of strings."""

    tenant: str
    agent: str
    user: str | None = None
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    risk_level: RiskLevel = RiskLevel.LOW
    """Set by the host, for policy rules: how risky the caller's situation is."""
    parents: tuple[str, ...] = ()
    """The agents that this agent works for, outermost first. Each needs a grant of its own."""

    # Written by hand, so that type checkers accept a list where a frozenset is stored.
    def __init__(
        self,
        *,
        tenant: str,
        agent: str,
        user: str | None = None,
        roles: Iterable[str] = _NONE,
        scopes: Iterable[str] = _NONE,
        risk_level: RiskLevel | str = RiskLevel.LOW,
        parents: Iterable[str] = (),
    ) -> None:
        check_tenant("tenant", tenant)
        if tenant == "*":
            raise ValueError("tenant must not be *, which stands for all tenants")
        _text("agent", agent)
        if user is not None:
            _text("user", user)
        if roles is not _NONE:
            roles = text_set("roles", roles)
        if scopes is not _NONE:
            scopes = text_set("scopes", scopes)
        try:
            risk_level = RiskLevel(risk_level)
        except ValueError:
            levels = ", ".join(RiskLevel)
            raise ValueError(f"risk_level must be one of {levels}, got {risk_level!r}") from None
        if parents:
            text_set("parents", parents := parents if isinstance(parents, str) else tuple(parents))
        put = object.__setattr__
        put(self, "tenant", tenant)
        put(self, "agent", agent)
        put(self, "user", user)
        put(self, "roles", roles)
        put(self, "scopes", scopes)
        put(self, "risk_level", risk_level)
        put(self, "parents", parents or ())


class System(Principal):
    """Counterseal itself, as it reverses a call on behalf of its user.

    Only the reconciler makes one. No caller can authenticate as it, whatever their name is.
    """

    __slots__ = ("covered", "reverses")
    covered: bool
    """True if the approval of the reversed call covers its reversal."""
    reverses: Mapping[str, str | None] | None
    """The reversed call, for approvers: `call_id`, `tool` and `external_ref`."""

    def __init__(
        self, *, covered: bool, reverses: Mapping[str, str | None] | None = None, **fields: Any
    ) -> None:
        super().__init__(**fields)
        object.__setattr__(self, "covered", covered)
        object.__setattr__(self, "reverses", reverses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A call that a model asks for: tool and arguments, as they came. It carries no authority.

    Arguments and approval are left out of `repr`: one may hold personal data, the other is a
    credential, and proposals end up in logs.
    """

    tool: str
    arguments: str | bytes | Mapping[str, Any] = field(repr=False)
    run_id: str | None = None
    version: str | None = None
    key: str | None = None
    call_id: str | None = None
    """The caller's own id of the call, such as a provider's tool call id. It is kept beside the
    id that Counterseal gives the call, and need not be unique."""
    workflow_id: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None
    """The caller's ids of what the call belongs to: on every event of the call, and searched for.
    Only the workflow is part of a derived key."""
    operation_id: str | None = None
    approval: str | None = field(default=None, repr=False)
    """An approval token, passed on by the caller; a model never sees one."""
    trace: str | None = None
    """A W3C traceparent."""
    expected_version: str | int | None = None
    """The version of the resource that the proposal was made against."""
    configurable: Mapping[str, Any] | None = field(default=None, repr=False)
    """Call-time values for the contract's config params."""
    tokens: int | None = None
    """Tokens that the model used for this proposal, as the host reports them."""
    origins: Mapping[str, str] | None = None
    """Where arguments came from, for approvers: JSON Pointer to user, trusted or untrusted."""
    proposed: Mapping[str, Any] | None = field(default=None, repr=False)
    """The arguments as first proposed, where a plan corrected them; the key is bound to them."""

    @classmethod
    def from_call(
        cls, call: object, *, name_of: Callable[[str], str] | None = None, **more: Any
    ) -> Self:
        """Return a provider's tool call, a dict or an SDK object, as a proposal.

        Reads the forms of OpenAI (chat and responses), Anthropic and MCP. `name_of` turns the
        provider's name of a tool into the contract's. Nothing is checked here: the gates refuse a
        call without a tool or with invalid arguments.
        """
        inner = part(call, "function", call)
        name = part(inner, "name", "")
        arguments = part(inner, "arguments", None)
        if arguments is None:
            arguments = part(inner, "input", {})
        call_id = part(call, "call_id", None) or part(call, "id", None)
        tool = name if isinstance(name, str) else ""
        return cls(
            tool=name_of(tool) if name_of and tool else tool,
            arguments=arguments,
            **{"call_id": call_id if isinstance(call_id, str) else None, **more},
        )


def names_arguments(call: object) -> bool:
    """Return True if a provider's tool call has an arguments field, even an empty one."""
    inner = part(call, "function", call)
    return any(part(inner, name, None) is not None for name in ("arguments", "input"))


def part(source: object, name: str, default: Any) -> Any:
    """Return a key of a mapping, or an attribute of an object."""
    if isinstance(source, Mapping):
        return source.get(name, default)
    return getattr(source, name, default)
