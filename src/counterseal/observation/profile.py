"""What a contract says about its observations, worked out once for each contract.

The response vectors as the contract's error lists refine them, the places where its output names
sources, and whether its output is wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from counterseal.canonical import pointer
from counterseal.codes import FINAL, RESPONSES, Code, Response
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Schema, resolve_local

__all__ = ["SOURCE_MARK", "Profile", "profile", "refine"]

SOURCE_MARK = "x-source-ref"
"""Annotation on a property of an output schema: its value names where something comes from."""

_OF_THE_PAYLOAD = frozenset(
    {
        Code.SYNTACTIC_PARSE_FAIL,
        Code.STRUCTURAL_VIOLATION,
        Code.TYPE_MISMATCH,
        Code.OUT_OF_BOUNDS,
        Code.SEMANTIC_INVALIDITY,
    }
)
"""What the same payload would only repeat: listed as retryable, it takes another payload."""
_EACH = "*"
_MOST_PROFILES = 4096
_DEEPEST = 16

Step = str | tuple[str]
"""A property's name, or `("*",)` for every item."""
Place = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    tool: str
    version: str
    trust: Trust
    responses: Mapping[Code, Response]
    sources: tuple[Place, ...]
    wrapped: bool
    """The declared output is no object, so whatever comes back is put under `result`."""
    max_bytes: int
    redacted: tuple[tuple[str, ...], ...]
    """The steps to what the contract has taken out."""
    verified: bool
    """An action that took effect is to be checked afterwards."""

    def sourceless(self, data: Mapping[str, Any]) -> list[str]:
        """Pointers to source references that name nothing."""
        return [at for place in self.sources for at in _empty(data, place, ())]


_PROFILES: dict[str, Profile] = {}


def profile(contract: Contract) -> Profile:
    """A contract's profile; made once, found by the contract's hash."""
    known = _PROFILES.get(contract.hash)
    if known is None:
        if len(_PROFILES) >= _MOST_PROFILES:
            _PROFILES.clear()
        known = _PROFILES[contract.hash] = _profile(contract)
    return known


def refine(code: Code, contract: Contract | None) -> Response:
    """A code's response vector as this contract has it."""
    return RESPONSES[code] if contract is None else profile(contract).responses[code]


def _profile(contract: Contract) -> Profile:
    schema = contract.affordance.output_schema
    return Profile(
        tool=contract.name,
        version=contract.version,
        trust=contract.trust,
        responses={code: _refined(response, contract) for code, response in RESPONSES.items()},
        sources=tuple(dict.fromkeys(_sources(schema, schema, (), 0))),
        wrapped=list(schema.get("properties", ())) == ["result"]
        and list(schema.get("required", ())) == ["result"],
        max_bytes=contract.max_output_bytes,
        redacted=tuple(_steps(place) for place in contract.redact),
        verified=contract.transactional.post_action_verification_required,
    )


def _steps(place: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in place.split("/")[1:])


def _refined(response: Response, contract: Contract) -> Response:
    """The contract's lists spell out every error, so what they leave out is not so.

    One way on at most, however many lists name a code: the one that asks most of people.
    """
    if response.code in (Code.SUCCESS, Code.PARTIAL_SUCCESS):
        return response
    lists, code = contract.error_contract, response.code
    escalate = code in lists.escalation_errors
    alone = not escalate and code not in FINAL and not response.requires_approval
    retryable = alone and code in lists.retryable_errors and code not in _OF_THE_PAYLOAD
    another = {*lists.repairable_errors, *(set(lists.retryable_errors) & _OF_THE_PAYLOAD)}
    flagged = replace(
        response,
        repairable=alone and not retryable and code in another,
        retryable=retryable,
        fail_closed=code in lists.fail_closed_errors,
        escalate=escalate,
    )
    return response if flagged == response else replace(flagged, next_action=_action(flagged))


def _action(response: Response) -> str:
    """A next action that does not contradict the flags beside it."""
    usual = RESPONSES[response.code]
    kept = (
        (usual.retryable and response.retryable)
        or (usual.repairable and response.repairable)
        or usual.requires_approval
    )
    if kept:
        return usual.next_action
    if response.retryable:
        return "retry_later"
    if response.repairable:
        return "repair_arguments"
    if response.escalate:
        return "escalate"
    return "stop" if usual.retryable or usual.repairable or usual.escalate else usual.next_action


def _sources(root: Schema, node: Any, place: Place, depth: int) -> Iterator[Place]:
    if not isinstance(node, Mapping) or depth > _DEEPEST:
        return
    if node.get(SOURCE_MARK) is True:
        yield place
    if isinstance(node.get("$ref"), str):
        yield from _sources(root, resolve_local(root, node["$ref"]), place, depth + 1)
    for word in ("allOf", "anyOf", "oneOf"):
        for inner in node.get(word, ()):
            yield from _sources(root, inner, place, depth + 1)
    for name, inner in node.get("properties", {}).items():
        yield from _sources(root, inner, (*place, name), depth + 1)
    for inner in (
        node.get("items"),
        node.get("additionalProperties"),
        *node.get("prefixItems", ()),
    ):
        yield from _sources(root, inner, (*place, (_EACH,)), depth + 1)


def _empty(value: Any, place: Place, path: tuple[str | int, ...]) -> Iterator[str]:
    if not place:
        for at, reference in _each(value) if isinstance(value, list) else [((), value)]:
            if not _names_source(reference):
                yield pointer(*path, *at)
        return
    step, rest = place[0], place[1:]
    if isinstance(step, tuple):
        for at, item in _each(value):
            yield from _empty(item, rest, (*path, *at))
    elif isinstance(value, Mapping) and step in value:
        yield from _empty(value[step], rest, (*path, step))


def _each(value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, Mapping):
        yield from (((key,), item) for key, item in value.items())
    elif isinstance(value, list):
        yield from (((index,), item) for index, item in enumerate(value))


def _names_source(value: Any) -> bool:
    reference = value.get("ref") if isinstance(value, Mapping) else value
    return isinstance(reference, str) and bool(reference.strip())
