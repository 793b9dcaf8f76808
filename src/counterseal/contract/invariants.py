"""Rules that a tool declares about its own calls, and their deterministic fixes.

An invariant is data: an id, a rule in plain words (the model reads it too), a check, and optionally
a corrector that corrects the call or drops the step. Without a corrector a call that breaks the
rule is rejected.

`judge` runs a contract's invariants over one call. It does not look at schemas: the schema gate
validates a corrected call again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, signature
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from counterseal.canonical import exported, freeze, thaw
from counterseal.errors import ExpressionError
from counterseal.expressions import NOT_CODE, Expression

_STATE = re.compile(r"(?<![\w.])state\b")
_STATE_KEY = re.compile(r"(?<![\w.])state\s*\.\s*([A-Za-z_]\w*)(?!\w|\s*\()")
FACTS: Final = ("principal", "now", "target")
"""What a check can see beside call, run state and config: on whose behalf the call is made, the
time in UTC, and the state that the contract's probe has read."""
NAMES: Final = ("call", "state", "config", "earlier", *FACTS)
"""What a CEL check can see: also the plan's earlier steps."""
_GIVEN: Final = 3
"""Call, state and config: the arguments that a check in Python gets by position."""


class _Drop(Enum):
    DROP_STEP = "drop_step"

    def __repr__(self) -> str:
        return "DROP_STEP"


DROP_STEP: Final = _Drop.DROP_STEP
"""Returned by a corrector: do not take this step."""


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """One proposed use of a tool, as a check sees it. Reads like a mapping of its arguments."""

    tool: str
    arguments: Mapping[str, Any]
    earlier: tuple[ProposedCall, ...] = ()
    """The steps before this one, when the call is part of a plan."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arguments

    def __iter__(self) -> Iterator[str]:
        return iter(self.arguments)

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)

    def replace(self, **arguments: Any) -> ProposedCall:
        """Return the call with some arguments replaced."""
        return replace(self, arguments={**self.arguments, **arguments})

    def without(self, *names: str) -> ProposedCall:
        kept = {name: value for name, value in self.arguments.items() if name not in names}
        return replace(self, arguments=kept)


Check = Callable[..., bool]
Fixed = ProposedCall | _Drop | None
Corrector = Callable[
    [ProposedCall, Mapping[str, Any], Mapping[str, Any]], "Fixed | tuple[Fixed, bool]"
]


class SetArguments(BaseModel):
    """A corrector written as data: set these arguments to these values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    set: Annotated[dict[str, Any], Field(min_length=1), AfterValidator(freeze)]


def code_name(function: Callable[..., Any]) -> str:
    """Return `module:qualname`, the name of code in a record."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or 'builtins'}:{named.__qualname__}"


def named_code(value: Any) -> Any:
    """Return code as `{"python": "module:qualname"}`, and any other value as it is."""
    return {"python": code_name(value)} if callable(value) else value


def require_sync(what: str, function: Any) -> None:
    """Raise ValueError for an async function: checks and correctors are called synchronously."""
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004 - its code is meant
        if iscoroutinefunction(one) or isasyncgenfunction(one):
            raise ValueError(f"{what} must be a plain function; {code_name(function)} is async")


def _describe(value: Any) -> Any:
    if isinstance(value, SetArguments):
        return {"set": thaw(value.set)}
    return value.value if isinstance(value, _Drop) else named_code(value)


def _read_corrector(value: Any) -> SetArguments | _Drop | Corrector | None:
    if value is None or isinstance(value, _Drop | SetArguments):
        return value
    if value == DROP_STEP.value:
        return DROP_STEP
    if isinstance(value, Mapping) and set(value) == {"set"} and isinstance(value["set"], Mapping):
        return SetArguments(set=dict(value["set"]))
    if callable(value):
        require_sync("a corrector", value)
        return value  # type: ignore[no-any-return]
    raise ValueError('a corrector must be a function, "drop_step" or {"set": {name: value}}')


class Invariant(BaseModel):
    """One rule about the calls of a tool.

    `check` is a function of (call, state, config), or a CEL text over these and `earlier`. Both can
    also see `principal`, `now` and `target` (`FACTS`); a function names those that it wants as
    further parameters. A check of the target runs after the probe has read it, and can't have a
    corrector.

    `otherwise` says what happens to a call that breaks the rule and can't be corrected: it is
    rejected, or it needs the approval of so many `approvers`.

    `correct` is a function of (call, state, config) that returns a fixed call, `DROP_STEP`, or None
    when it can't help, or a pair of one of these and whether it helped. The data forms are
    `{"set": {…}}` and `"drop_step"`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    id: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$")
    rule: str = Field(min_length=1, max_length=1000)
    check: Annotated[str | Check, PlainSerializer(_describe)]
    correct: Annotated[Any, BeforeValidator(_read_corrector), PlainSerializer(_describe)] = None
    otherwise: Literal["reject", "require_approval"] = "reject"
    approvers: Annotated[int, Field(strict=True, ge=1, le=100)] = 1

    _expression: Expression | None = PrivateAttr(default=None)
    _facts: frozenset[str] = PrivateAttr(default=frozenset())
    """Those of `FACTS` that the check reads."""
    _state_keys: tuple[str, ...] | None = PrivateAttr(default=None)
    """The keys of run state that the expression reads; None when it may read any key."""

    @field_validator("check")
    @classmethod
    def _compiles(cls, value: str | Check) -> str | Check:
        if not isinstance(value, str):
            require_sync("a check", value)
            return value
        try:
            Expression(value, names=NAMES)
        except ExpressionError as error:
            raise ValueError(f"the expression is refused: {error}") from None
        return value

    def model_post_init(self, context: Any, /) -> None:
        if not isinstance(self.check, str):
            self._facts = _named_facts(self.check)
        else:
            self._expression = Expression(self.check, names=NAMES)
            self._facts = self._expression.variables & frozenset(FACTS)
            code = NOT_CODE.sub("''", self.check)
            named = _STATE_KEY.findall(code)
            if len(_STATE.findall(code)) == len(named):
                self._state_keys = tuple(named)

    @model_validator(mode="after")
    def _consistent(self) -> Invariant:
        if self.of_target and self.correct is not None:
            raise ValueError("a check of the target can't have a corrector; remove `correct`")
        if self.approvers > 1 and not self.asks:
            raise ValueError("approvers: needs `otherwise: require_approval`")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the record without the fields of approval where a rule rejects.

        The hash of a contract that was written before there were such fields stays as it is.
        """
        record: dict[str, Any] = serialise(self)
        if not self.asks:
            del record["otherwise"], record["approvers"]
        return record

    @property
    def of_target(self) -> bool:
        """Whether the check needs the state that the probe reads."""
        return "target" in self._facts

    @property
    def asks(self) -> bool:
        """Whether a call that breaks the rule needs approval, instead of being rejected."""
        return self.otherwise == "require_approval"

    @property
    def in_python(self) -> bool:
        """Whether the check is Python code, which could change its arguments."""
        return self._expression is None

    def holds(
        self,
        call: ProposedCall,
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> bool:
        """Return whether the call satisfies the rule. An evaluation error counts as False.

        `facts` are those of `FACTS` that are known; the principal as a `Principal`.
        """
        wanted = {name: facts[name] for name in self._facts if name in facts}
        if self._expression is None:
            return callable(self.check) and self.check(call, state, config, **wanted) is True
        if "principal" in wanted:
            wanted["principal"] = exported(wanted["principal"])
        keys = state if self._state_keys is None else self._state_keys
        earlier = [{"tool": step.tool, "arguments": dict(step.arguments)} for step in call.earlier]
        values = {
            "call": dict(call.arguments),
            "state": {key: state[key] for key in keys if key in state},
            "config": config,
            "earlier": earlier,
            **wanted,
        }
        try:
            return self._expression.holds(values)
        except ExpressionError:
            return False

    def fix(self, call: ProposedCall, state: Mapping[str, Any], config: Mapping[str, Any]) -> Fixed:
        """Return the corrector's result for a call that breaks the rule; None if it can't help."""
        corrector: SetArguments | _Drop | Corrector | None = self.correct
        if corrector is None or isinstance(corrector, _Drop):
            return corrector
        if isinstance(corrector, SetArguments):
            return call.replace(**thaw(corrector.set))
        fixed = corrector(call, state, config)
        if isinstance(fixed, tuple):
            fixed, helped = fixed
            fixed = fixed if helped is True else None
        if fixed is None or isinstance(fixed, ProposedCall | _Drop):
            return fixed
        raise TypeError(f"the corrector of {self.id} returned {type(fixed).__name__}, not a call")


def _named_facts(check: Callable[..., Any]) -> frozenset[str]:
    """Return the facts that a check names as parameters after call, state and config."""
    try:
        parameters = list(signature(check).parameters.values())
    except (TypeError, ValueError):
        return frozenset()
    named = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    by_place = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    return frozenset(FACTS) & {*named, *by_place[_GIVEN:]}


class CheckableRule(Protocol):
    """The part of an invariant that `judge` uses; callers may wrap invariants to observe them."""

    @property
    def id(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def asks(self) -> bool: ...
    def holds(
        self, call: ProposedCall, state: Mapping[str, Any], config: Mapping[str, Any], /
    ) -> bool: ...
    def fix(
        self, call: ProposedCall, state: Mapping[str, Any], config: Mapping[str, Any], /
    ) -> Fixed: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    invariant: str
    rule: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of the invariants. `call` is the corrected call, or None when it was dropped."""

    call: ProposedCall | None
    corrections: tuple[Correction, ...] = ()
    violations: tuple[CheckableRule, ...] = ()
    asking: tuple[CheckableRule, ...] = ()
    """Rules that the call breaks, and that need approval for that."""
    dropped_by: CheckableRule | None = None

    @property
    def ok(self) -> bool:
        return self.call is not None and not self.violations


def judge(
    invariants: Sequence[CheckableRule],
    call: ProposedCall,
    state: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Judgement:
    """Check a call, correct it, and check again until nothing changes.

    When one rule rejects a call and another one drops it, the rule that is declared first decides.
    The rounds are bounded: correctors that undo each other end in a violation.
    """
    current = call
    corrections: list[Correction] = []
    broken: list[CheckableRule] = []
    for _ in range(len(invariants) + 1):
        broken = [rule for rule in invariants if not rule.holds(current, state, config)]
        if not broken:
            return Judgement(call=current, corrections=tuple(corrections))
        beyond_help: list[CheckableRule] = []
        before_round = current
        for invariant in broken:
            if invariant.holds(current, state, config):
                continue  # an earlier correction of this round fixed it too
            fixed = invariant.fix(current, state, config)
            if isinstance(fixed, _Drop) and not beyond_help:
                return Judgement(call=None, dropped_by=invariant)
            if fixed is None or isinstance(fixed, _Drop) or fixed == current:
                if not invariant.asks:
                    beyond_help.append(invariant)
            else:
                before, after = current.arguments, fixed.arguments
                corrections.append(
                    Correction(
                        invariant=invariant.id, rule=invariant.rule, before=before, after=after
                    )
                )
                current = fixed
        if beyond_help:
            return Judgement(call=call, violations=tuple(beyond_help))
        if current is before_round:  # only rules that ask are broken, and nothing corrects them
            done = tuple(corrections)
            return Judgement(call=current, corrections=done, asking=tuple(broken))
    return Judgement(call=call, violations=tuple(broken))
