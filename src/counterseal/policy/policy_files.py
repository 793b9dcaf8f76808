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
from counterseal.documents import Document, read_document
from counterseal.errors import ContractError, ExpressionError, Problem
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


class Reader:
    """Reads fields of a document, and collects the problems."""

    def __init__(self, file: Document) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def problem(self, place: Place, message: str, fix: str = "") -> None:
        where = pointer(*place)
        self.problems.append(
            Problem(
                rule="policy-invalid",
                message=message,
                fix=fix,
                pointer=where,
                source=self.file.source(where),
            )
        )

    def mapping(
        self, value: Any, place: Place, what: str, known: Collection[str] = ()
    ) -> Mapping[str, Any]:
        """Return a mapping and report unknown fields; empty if it is not a mapping."""
        if not isinstance(value, Mapping):
            self.problem(place, f"{what} must be a mapping, not {_kind(value)}")
            return {}
        for key in value if known else ():
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                fix = f"Did you mean {near[0]}?" if near else f"Known fields: {', '.join(known)}."
                self.problem((*place, key), f"{key} is not a field of {what}", fix)
        return value

    def items(self, value: Any, place: Place, what: str) -> list[Any]:
        if not isinstance(value, list):
            self.problem(place, f"{what} must be a list, not {_kind(value)}")
            return []
        return value

    def text(self, data: Mapping[str, Any], place: Place, field: str, fix: str = "") -> str:
        """Return a required text field."""
        value = data.get(field)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if field not in data:
            self.problem(place, f"{field} is missing", fix)
        else:
            self.problem((*place, field), f"{field} must be a text, not {_kind(value)}", fix)
        return ""

    def texts(self, data: Mapping[str, Any], place: Place, field: str) -> tuple[str, ...]:
        """Return an optional field with a list of texts."""
        if field not in data:
            return ()
        value = data[field]
        if isinstance(value, list) and value and all(isinstance(v, str) and v for v in value):
            return tuple(value)
        self.problem((*place, field), f"{field} must be a list with at least one text")
        return ()

    def one_of(self, kind: type[_E], value: Any, place: Place, field: str) -> _E | None:
        """Return a member of an enumeration, or None with a problem."""
        try:
            return kind(value)
        except ValueError:
            shown = repr(value) if isinstance(value, str) else _kind(value)
            self.problem(place, f"{field} must be one of {', '.join(kind)}, not {shown}")
            return None


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false"}
    empty = value is None or (isinstance(value, str) and not value.strip())
    return "empty" if empty else names.get(type(value), "a number")


def read_rules(reader: Reader) -> list[PolicyRule]:
    """Return the valid rules of a document; the others are reported."""
    document = reader.mapping(reader.file.data, (), "a policy", ("rules", "tests"))
    if isinstance(reader.file.data, Mapping) and "rules" not in document:
        reader.problem((), "the policy has no rules", "Begin with `rules:`.")
    return _listed_rules(reader, document)


def read_overlay_rules(reader: Reader, server: str) -> list[PolicyRule]:
    """Return the rules in an upstream's overlay; they apply to that upstream's tools only."""
    document = reader.mapping(reader.file.data, (), "an overlay")
    return [replace(rule, server=server) for rule in _listed_rules(reader, document)]


def _listed_rules(reader: Reader, document: Mapping[str, Any]) -> list[PolicyRule]:
    listed = reader.items(document.get("rules", []), ("rules",), "rules")
    rules = [_read_rule(reader, item, ("rules", i)) for i, item in enumerate(listed)]
    return [rule for rule in rules if rule is not None]


def _read_rule(reader: Reader, item: Any, place: Place) -> PolicyRule | None:
    before = len(reader.problems)
    data = reader.mapping(item, place, "a rule", _RULE_FIELDS)
    if not data:
        return None
    name = _read_id(reader, data, place)
    then = reader.one_of(PolicyVerdict, data.get("then"), (*place, "then"), "then")
    when = _read_condition(reader, data, place)
    effects = reader.texts(data, place, "effects")
    for i, effect in enumerate(effects):
        reader.one_of(Effect, effect, (*place, "effects", i), "an effect")
    reason = reader.text(data, place, "reason", "Say why: agents and approvers read it.")
    if len(reason) > MAX_REASON:
        reader.problem((*place, "reason"), f"reason must have at most {MAX_REASON} characters")
    approval = _read_approval(reader, data, place, then)
    approvers = _read_approvers(reader, data, place, then, approval)
    tools = reader.texts(data, place, "tools")
    including = reader.texts(data, place, "including")
    if including and then in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
        message = f"a rule with the verdict {then} needs no approval; remove it"
        reader.problem((*place, "including"), message)
    instead_of = reader.texts(data, place, "instead_of")
    if instead_of and then is PolicyVerdict.DENY:
        message = "a rule that denies outranks the others anyway; remove instead_of"
        reader.problem((*place, "instead_of"), message)
    if len(reader.problems) > before or then is None or when is None:
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
        source=reader.file.source(pointer(*place)),
    )


def _read_id(reader: Reader, data: Mapping[str, Any], place: Place) -> str:
    name = reader.text(data, place, "id", "Give the rule an id; decisions refer to it.")
    if name and not _ID.fullmatch(name):
        fix = "Use letters, digits, '.', '_' and '-', and begin with a letter."
        reader.problem((*place, "id"), f"{name!r} is not a valid id", fix)
    if name in RESERVED:
        reader.problem((*place, "id"), f"the id {name} is reserved")
    return name


def _read_approval(
    reader: Reader, data: Mapping[str, Any], place: Place, then: PolicyVerdict | None
) -> ApprovalTerms | None:
    """Return the approval section, which has the same form as in contracts."""
    if "approval" not in data:
        return None
    here = (*place, "approval")
    if then is not None and then is not PolicyVerdict.REQUIRE_APPROVAL:
        reader.problem(here, f"a rule with the verdict {then} needs no approval; remove it")
        return None
    given = reader.mapping(data["approval"], here, "approval", tuple(ApprovalTerms.model_fields))
    known = {key: value for key, value in given.items() if key in ApprovalTerms.model_fields}
    try:
        return ApprovalTerms.model_validate(known)
    except ValidationError as error:
        for problem in shape_problems(error):
            parts = problem.pointer.split("/")[1:]
            reader.problem((*here, *parts[:1]), problem.message)
        return None


def _read_approvers(
    reader: Reader,
    data: Mapping[str, Any],
    place: Place,
    then: PolicyVerdict | None,
    approval: ApprovalTerms | None,
) -> int | Literal["contract"]:
    required = then is PolicyVerdict.REQUIRE_APPROVAL
    pattern = approval.pattern if approval else None
    fewest = PATTERNS[pattern].approvers if pattern else 1
    value = data.get("approvers", fewest if required else 0)
    if "approvers" in data and then is not None and not required:
        reader.problem(
            (*place, "approvers"), f"a rule with the verdict {then} needs no approval; remove it"
        )
    elif value == "contract":
        return "contract"  # checked against each contract later
    elif not isinstance(value, int) or isinstance(value, bool) or value < required:
        message = "approvers must be a number, 1 or more, or the word contract"
        reader.problem((*place, "approvers"), message)
    elif approval is not None:
        for fault in term_faults(approval, value):
            where = ("approval", fault.field) if fault.field else ("approvers",)
            what = "" if fault.field else "approvers "
            reader.problem((*place, *where), f"{what}{fault.message}", fault.fix)
    return value if isinstance(value, int) else 0


def _read_condition(reader: Reader, data: Mapping[str, Any], place: Place) -> Expression | None:
    """Return the condition, or one that is always true if there is none."""
    if "when" not in data:
        return Expression("true", names=NAMES)
    here = (*place, "when")
    text = reader.text(data, place, "when", "Leave it out for a rule that always applies.")
    if not text:
        return None
    try:
        expression = Expression(text, names=NAMES)
    except ExpressionError as error:
        reader.problem(here, f"the condition is refused: {error}")
        return None
    for name, field in unknown_fields(uses(text)):
        fields = sorted(FIELDS[name])
        near = get_close_matches(field, fields, n=1)
        fix = f"Did you mean {name}.{near[0]}?" if near else f"Known: {', '.join(fields)}."
        reader.problem(here, f"{name} has no {field}", fix)
    for function in sorted(expression.functions - FUNCTIONS):
        if _WORD.fullmatch(function):
            fix = f"Known functions: {', '.join(sorted(FUNCTIONS))}."
            reader.problem(here, f"unknown function {function}", fix)
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
        cls, data: Mapping[str, Any], *, name: str = "policy", default: bool = True
    ) -> Policy:
        """Read rules from data; `name` is used in errors."""
        return _layer([("", Document(name=name, data=data, places={}))], [], default=default)

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
        reader = Reader(file)
        rules += read_overlay_rules(reader, server) if server else read_rules(reader)
        problems += reader.problems
    problems += duplicates(rules)
    problems += _replacement_problems(rules)
    if problems:
        raise PolicyError(problems)
    return Policy(rules=tuple(rules))
