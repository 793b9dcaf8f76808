"""Read policy files, and layer their rules into a `Policy` with one version.

All problems of a file are reported at once, with their positions. Layers only add rules, and the
strictest verdict wins. A rule in an operator's policy file can stand `instead_of` rules before it
that require approval; contracts and overlays can't loosen anything. The default policy is the file
`default.yaml` in this folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import ValidationError

from counterseal.canonical import digest, pointer
from counterseal.contract.approval_terms import PATTERNS, ApprovalTerms, term_faults
from counterseal.contract.effects import Effect
from counterseal.contract.model import shape_problems
from counterseal.documents import Document, kind_of, read_document
from counterseal.errors import ContractError, ExpressionError, Problem, Source
from counterseal.expressions import Expression
from counterseal.policy.policy_rules import (
    FIELDS,
    FUNCTIONS,
    NAMES,
    RESERVED,
    CompiledPolicy,
    PolicyError,
    PolicyRule,
    PolicyVerdict,
    unknown_fields,
    uses,
)

# --- reading rules --------------------------------------------------------------------------------


_E = TypeVar("_E", bound=StrEnum)
Place = tuple[str | int, ...]
"""The path of a value in a document."""

_ID: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_RULE_FIELDS: Final = (
    *("id", "when", "then", "reason", "approvers", "including", "approval"),
    *("instead_of", "tools", "effects"),
)
_WORD: Final = re.compile(r"[A-Za-z]\w*")
MAX_REASON: Final = 500


class Section:
    """A mapping in a document: returns its fields, and reports what is wrong with them."""

    def __init__(
        self,
        file: Document,
        value: Any,
        what: str,
        known: Collection[str] = (),
        *,
        place: Place = (),
        problems: list[Problem] | None = None,
        rule: str = "policy-invalid",
    ) -> None:
        """Report fields that are not known, or that there is no mapping; then `data` is empty."""
        self.file = file
        self.place = place
        self.problems: list[Problem] = [] if problems is None else problems
        """The problems of the whole document."""
        self._rule = rule
        self._before = len(self.problems)
        self.data: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        if not isinstance(value, Mapping):
            self.problem(f"{what} must be a mapping, not {kind_of(value)}")
        for key in self.data if known else ():
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                fix = f"Did you mean {near[0]}?" if near else f"Known fields: {', '.join(known)}."
                self.problem(f"{key} is not a field of {what}", fix, key)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it so far."""
        return len(self.problems) == self._before

    @property
    def source(self) -> Source:
        return self.file.source(pointer(*self.place))

    def problem(self, message: str, fix: str = "", *at: str | int) -> None:
        """Report a problem of the section, or of a value in it."""
        where = pointer(*self.place, *at)
        self.problems.append(
            Problem(
                rule=self._rule,
                message=message,
                fix=fix,
                pointer=where,
                source=self.file.source(where),
            )
        )

    def section(self, field: str, known: Collection[str] = ()) -> Section:
        """Return a field that is a mapping; an empty one if it is missing."""
        return self._inner(self.data.get(field, {}), field, known, field)

    def sections(self, field: str, what: str, known: Collection[str]) -> Iterator[Section]:
        """Yield the mappings in a field that is a list of them."""
        value = self.data.get(field, [])
        if not isinstance(value, list):
            self.problem(f"{field} must be a list, not {kind_of(value)}", "", field)
            return
        for index, item in enumerate(value):
            section = self._inner(item, what, known, field, index)
            if isinstance(item, Mapping):
                yield section

    def _inner(self, value: Any, what: str, known: Collection[str], *at: str | int) -> Section:
        place, problems = (*self.place, *at), self.problems
        return Section(
            self.file, value, what, known, place=place, problems=problems, rule=self._rule
        )

    def text(self, field: str, fix: str = "") -> str:
        """Return a required text field."""
        value = self.data.get(field)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if field not in self.data:
            self.problem(f"{field} is missing", fix)
        else:
            self.problem(f"{field} must be a text, not {kind_of(value)}", fix, field)
        return ""

    def texts(self, field: str) -> tuple[str, ...]:
        """Return an optional field with a list of texts."""
        value = self.data.get(field)
        if isinstance(value, list) and value and all(isinstance(v, str) and v for v in value):
            return tuple(value)
        if field in self.data:
            self.problem(f"{field} must be a list with at least one text", "", field)
        return ()

    def one_of(self, kind: type[_E], value: Any, name: str, *at: str | int) -> _E | None:
        """Return a member of an enumeration, or None with a problem of the named value."""
        try:
            return kind(value)
        except ValueError:
            shown = repr(value) if isinstance(value, str) else kind_of(value)
            wanted = f"{name} must be one of {', '.join(kind)}, not {shown}"
            self.problem(wanted, "", *(at or (name,)))
            return None


def _read_rule(rule: Section) -> PolicyRule | None:
    name = rule.text("id", "Give the rule an id; decisions refer to it.")
    if name and not _ID.fullmatch(name):
        fix = "Use letters, digits, '.', '_' and '-', and begin with a letter."
        rule.problem(f"{name!r} is not a valid id", fix, "id")
    if name in RESERVED:
        rule.problem(f"the id {name} is reserved", "", "id")
    then = rule.one_of(PolicyVerdict, rule.data.get("then"), "then")
    when = _read_condition(rule)
    effects = rule.texts("effects")
    for i, effect in enumerate(effects):
        rule.one_of(Effect, effect, "an effect", "effects", i)
    reason = rule.text("reason", "Say why: agents and approvers read it.")
    if len(reason) > MAX_REASON:
        rule.problem(f"reason must have at most {MAX_REASON} characters", "", "reason")
    if then in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
        for field in ("approval", "approvers", "including"):
            if field in rule.data:
                message = f"a rule with the verdict {then} needs no approval; remove it"
                rule.problem(message, "", field)
    approval = _read_approval(rule, then)
    approvers = _read_approvers(rule, then, approval)
    instead_of = rule.texts("instead_of")
    if instead_of and then is PolicyVerdict.DENY:
        message = "a rule that denies outranks the others anyway; remove instead_of"
        rule.problem(message, "", "instead_of")
    including, tools = rule.texts("including"), rule.texts("tools")
    if not rule.sound or then is None or when is None:
        return None
    return PolicyRule(
        id=name,
        when=when,
        then=then,
        reason=reason,
        approvers=approvers,
        approval=approval,
        including=including,
        instead_of=instead_of,
        tools=tools,
        effects=effects,
        source=rule.source,
    )


def _read_approval(rule: Section, then: PolicyVerdict | None) -> ApprovalTerms | None:
    """Return the approval section, which has the same form as in contracts."""
    if "approval" not in rule.data or then in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
        return None
    given = rule.section("approval", tuple(ApprovalTerms.model_fields))
    known = {key: value for key, value in given.data.items() if key in ApprovalTerms.model_fields}
    try:
        return ApprovalTerms.model_validate(known)
    except ValidationError as error:
        for problem in shape_problems(error):
            given.problem(problem.message, "", *problem.pointer.split("/")[1:2])
        return None


def _read_approvers(
    rule: Section, then: PolicyVerdict | None, approval: ApprovalTerms | None
) -> int | Literal["contract"]:
    if then in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
        return 0
    pattern = approval.pattern if approval else None
    value = rule.data.get("approvers", PATTERNS[pattern].approvers if pattern else 1)
    if value == "contract":
        return "contract"  # checked against each contract later
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        message = "approvers must be a number, 1 or more, or the word contract"
        rule.problem(message, "", "approvers")
        return 0
    for fault in term_faults(approval, value) if approval else ():
        if fault.field:
            rule.problem(fault.message, fault.fix, "approval", fault.field)
        else:
            rule.problem(f"approvers {fault.message}", fault.fix, "approvers")
    return value


def _read_condition(rule: Section) -> Expression | None:
    """Return the condition, or one that is always true if there is none."""
    if "when" not in rule.data:
        return Expression("true", names=NAMES)
    text = rule.text("when", "Leave it out for a rule that always applies.")
    if not text:
        return None
    try:
        expression = Expression(text, names=NAMES)
    except ExpressionError as error:
        rule.problem(f"the condition is refused: {error}", "", "when")
        return None
    for name, field in unknown_fields(uses(text)):
        fields = sorted(FIELDS[name])
        near = get_close_matches(field, fields, n=1)
        fix = f"Did you mean {name}.{near[0]}?" if near else f"Known: {', '.join(fields)}."
        rule.problem(f"{name} has no {field}", fix, "when")
    for function in sorted(expression.functions - FUNCTIONS):
        if _WORD.fullmatch(function):
            fix = f"Known functions: {', '.join(sorted(FUNCTIONS))}."
            rule.problem(f"unknown function {function}", fix, "when")
    return expression


def duplicates(rules: Iterable[PolicyRule]) -> list[Problem]:
    """Return a problem for each id that is used twice, in one file or in two."""
    first: dict[str, PolicyRule] = {}
    problems = []
    for rule in rules:
        earlier = first.setdefault(rule.id, rule)
        if earlier is not rule:
            problems.append(
                Problem(
                    rule="policy-invalid",
                    message=f"the id {rule.id} is already used at {earlier.source}",
                    fix="Give each rule a unique id.",
                    source=rule.source,
                )
            )
    return problems


def _replacement_problems(rules: Sequence[PolicyRule]) -> Iterator[Problem]:
    """Yield what is wrong with rules that stand instead of others."""
    earlier: dict[str, PolicyRule] = {}
    for rule in rules:
        for name in rule.instead_of:
            other = earlier.get(name)
            if rule.server:
                fault = "an overlay can't stand instead of other rules"
                fix = "Write the rule into a policy file of the project."
            elif other is None:
                fault = f"instead_of: there is no rule {name!r} before this one"
                near = get_close_matches(name, earlier, n=1)
                fix = (
                    f"Did you mean {near[0]}?" if near else "`counterseal policy show` lists them."
                )
            elif other.then is not PolicyVerdict.REQUIRE_APPROVAL:
                fault = f"instead_of: {name} does not require approval"
                fix = "Name rules that require approval. A denial can't be lifted."
            else:
                continue
            yield Problem(rule="policy-invalid", message=fault, fix=fix, source=rule.source)
        earlier[rule.id] = rule


DEFAULT: Final = Path(__file__).with_name("default.yaml")
"""The default policy: the effect table as rules."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules, in the order of the files."""

    rules: tuple[PolicyRule, ...]

    @classmethod
    def load(
        cls,
        *paths: str | Path,
        default: bool = True,
        overlays: Mapping[str, str | Path] | None = None,
    ) -> Policy:
        """Read the rules of these files, added to the default ones. PolicyError lists all problems.

        `overlays` are the overlay files of upstreams by the upstream's name; their rules apply to
        that upstream's tools only.
        """
        files: list[tuple[str, Document]] = []
        problems: list[Problem] = []
        for server, path in (*(("", path) for path in paths), *(overlays or {}).items()):
            try:
                files.append((server, read_document(path)))
            except ContractError as error:
                problems.extend(error.problems)
        return _layer(files, problems, default=default)

    @classmethod
    def from_data(
        cls,
        data: Mapping[str, Any],
        *,
        name: str = "policy",
        default: bool = True,
        overlays_of: Policy | None = None,
    ) -> Policy:
        """Read rules from data; `name` is used in errors.

        `overlays_of` is a policy whose rules from overlays are kept behind them.
        """
        read = _layer([("", Document(name=name, data=data, places={}))], [], default=default)
        kept = () if overlays_of is None else (rule for rule in overlays_of.rules if rule.server)
        return cls(rules=(*read.rules, *kept))

    @staticmethod
    def default() -> Policy:
        """Return the policy that applies without any file."""
        return _default()

    @cached_property
    def version(self) -> str:
        """The hash of the rules. It does not depend on where the files are."""
        return digest([rule.record() for rule in self.rules])

    def compile_for(self, contract: Mapping[str, Any]) -> CompiledPolicy:
        """Prepare the policy for calls of one contract, given its facts. Used at registration."""
        return CompiledPolicy(self.rules, contract, version=self.version)


@cache
def _default() -> Policy:
    return _layer([("", read_document(DEFAULT))], [], default=False)


def _layer(
    files: Iterable[tuple[str, Document]], problems: list[Problem], *, default: bool
) -> Policy:
    rules = list(_default().rules) if default else []
    for server, file in files:
        if server:  # an overlay's rules apply to the tools of its upstream only
            document = Section(file, file.data, "an overlay")
        else:
            document = Section(file, file.data, "a policy", ("rules", "tests"))
            if document.sound and "rules" not in document.data:
                document.problem("the policy has no rules", "Begin with `rules:`.")
        read = map(_read_rule, document.sections("rules", "a rule", _RULE_FIELDS))
        rules += [replace(rule, server=server) for rule in read if rule is not None]
        problems += document.problems
    problems += duplicates(rules)
    problems += _replacement_problems(rules)
    if problems:
        raise PolicyError(problems)
    return Policy(rules=tuple(rules))
