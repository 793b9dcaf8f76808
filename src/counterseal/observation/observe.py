"""Turns a tool's output into what an agent may see: valid JSON, checked, redacted, bounded.

Pure: the caller stores `Observed.raw` in the vault, and `observation` makes the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from counterseal.canonical import pointer, steps, thaw
from counterseal.codes import FINAL, RESPONSES, Code, Response
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.contract.outputs import Partial
from counterseal.contract.schemas import Schema, Validator, resolve_local
from counterseal.masking import NO_MASK, Mask
from counterseal.observation.envelope import FieldError, sentence_for
from counterseal.observation.invisible import neutralise
from counterseal.observation.redact import Redaction, Redactor

# --- summaries of large outputs -------------------------------------------------------------------


_MOST_KEYS = 40
_LONGEST_KEY = 80
_LONGEST_PREVIEW = 2048
_OUTLINE_DEPTH = 6

Clean = Callable[[Any], Any]


def summarise(data: Mapping[str, Any], size: int, limit: int, clean: Clean) -> dict[str, Any]:
    """Return a summary whose JSON has at most `limit` bytes; empty if `limit` is below two."""
    outline = clean({_short(key): _kind(item) for key, item in list(data.items())[:_MOST_KEYS]})
    summary = {"truncated": True, "type": "object", "bytes": size, "fields": len(data)}
    for attempt in (
        summary | {"outline": outline},
        summary,
        {"truncated": True, "bytes": size},
        {"truncated": True},
    ):
        room = limit - len(to_json(attempt)) - len(b',"preview":""')
        if room < -len(b',"preview":""'):
            continue
        preview = _preview(data, min(room, _LONGEST_PREVIEW), clean)
        return attempt | {"preview": preview} if preview else attempt
    return {}


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"string, {len(value)} characters"
    if isinstance(value, list):
        return f"array, {len(value)} items"
    if isinstance(value, Mapping):
        return f"object, {len(value)} fields"
    if isinstance(value, bool):
        return "boolean"
    return "null" if value is None else "number"


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else _cut(key, _LONGEST_KEY) + "…"


def _preview(data: Mapping[str, Any], room: int, clean: Clean) -> str:
    """Return the beginning of a value as text of at most `room` bytes in a JSON string."""
    if room < 16:
        return ""
    text = to_json(clean(_beginning(data, [room * 2], _OUTLINE_DEPTH))).decode()
    text = text[:room]
    while text and len(to_json(text)) - 2 > room - 3:
        over = len(to_json(text)) - 2 - (room - 3)
        text = text[: -max(1, over // 4)]
    return text + "…"


def _beginning(value: Any, room: list[int], depth: int) -> Any:
    """Return the first part of a value, about as many characters as there is room for."""
    if isinstance(value, str):
        room[0] -= len(value) + 2
        return value if room[0] >= 0 else _cut(value, max(0, len(value) + room[0]))
    if isinstance(value, Mapping | list) and depth == 0:
        return {} if isinstance(value, Mapping) else []
    if isinstance(value, Mapping):
        part: dict[str, Any] = {}
        for key, item in value.items():
            if room[0] <= 0:
                break
            room[0] -= len(key) + 4
            part[_short(key)] = _beginning(item, room, depth - 1)
        return part
    if isinstance(value, list):
        items: list[Any] = []
        for item in value:
            if room[0] <= 0:
                break
            items.append(_beginning(item, room, depth - 1))
        return items
    room[0] -= 8
    return value


def _cut(text: str, length: int) -> str:
    """Cut between words: part of a secret would not be recognised, and must not be shown."""
    words = text[:length].rsplit(maxsplit=1)
    return words[0] if len(words) == 2 else ""


# --- profiles: what a contract says about its observations ----------------------------------------


SOURCE_MARK = "x-source-ref"
"""The annotation of an output property whose value names a source."""

_OF_THE_PAYLOAD = frozenset(
    {Code.SYNTACTIC_PARSE_FAIL, Code.STRUCTURAL_VIOLATION, Code.TYPE_MISMATCH}
    | {Code.OUT_OF_BOUNDS, Code.SEMANTIC_INVALIDITY}
)
"""Codes that the same arguments would only repeat: a retry needs other arguments."""
_EACH = "*"
_MOST_PROFILES = 4096
_DEEPEST = 16

Step = str | tuple[str]
"""A property's name, or `("*",)` for every item."""
Place = tuple[Step, ...]
"""The path to a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    tool: str
    version: str
    trust: Trust
    responses: Mapping[Code, Response]
    sources: tuple[Place, ...]
    wrapped: bool
    """True if the declared output is not an object: the output is put under `result`."""
    max_bytes: int
    redacted: tuple[tuple[str, ...], ...]
    """The paths that the contract redacts."""
    verified: bool
    """True if an action has to be verified afterwards."""

    def sourceless(self, data: Mapping[str, Any]) -> list[str]:
        """Return pointers to source references that are empty."""
        return [at for place in self.sources for at in _empty(data, place, ())]


_PROFILES: dict[str, Profile] = {}


def profile(contract: Contract) -> Profile:
    """Return a contract's profile, cached by the contract's hash."""
    known = _PROFILES.get(contract.hash)
    if known is None:
        if len(_PROFILES) >= _MOST_PROFILES:
            _PROFILES.clear()
        known = _PROFILES[contract.hash] = _profile(contract)
    return known


def refine(code: Code, contract: Contract | None) -> Response:
    """Return a code's response vector, as this contract refines it."""
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
        redacted=tuple(tuple(steps(place)) for place in contract.redact),
        verified=contract.transactional.post_action_verification_required,
    )


def _refined(response: Response, contract: Contract) -> Response:
    """Return the response vector that the contract's lists of errors give a code.

    The lists are complete: a code that a list does not name is not retryable, or repairable, and so
    on. If several lists name a code, the one that involves people most wins.
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
    """Return a next action that agrees with the response's flags."""
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
            named = reference.get("ref") if isinstance(reference, Mapping) else reference
            if not isinstance(named, str) or not named.strip():
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


_LONGEST_RAW = 16 * 1024 * 1024
_MOST_ERRORS = 20
CONTRACT: Final = "contract"
"""The rule name for values that a contract redacts from its output."""
_WITHHELD: Final = "[redacted:contract]"
_WHOLE: Final = (str, bytes, BaseModel)
_FLAT: Final = frozenset({str, int, bool, type(None)})
_UNPAIRED_SURROGATE = re.compile("[\ud800-\udfff]")


class Observed(NamedTuple):
    """The visible part of an outcome, and the parts to keep away from the model."""

    code: Code
    data: dict[str, Any] | None = None
    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()
    redactions: tuple[Redaction, ...] = ()
    raw: bytes | None = None
    """The whole output, for the vault, if `data` is only a part of it."""
    output: dict[str, Any] | None = None
    """The checked output before redaction. Never for a model."""


def observe(
    output: Any, profile: Profile, validator: Validator, redactor: Redactor, mask: Mask = NO_MASK
) -> Observed:
    """Return what an agent may see of a tool's output, under the profile of its contract."""
    observed = _observe(output, validator, profile, redactor, mask)
    raw = observed.raw
    return observed if raw is None or not mask else observed._replace(raw=mask.raw(raw))


def _observe(
    value: Any, validator: Validator, profile: Profile, redactor: Redactor, mask: Mask
) -> Observed:
    if isinstance(value, Partial):
        return _observe_partial(value, validator, profile, redactor, mask)
    try:
        text, output = _as_json(value)
    except ValueError:
        return _unusable(_best_effort(value), "the tool returned something that is not JSON")
    if output.__class__ is not dict:
        text, output = b'{"result":%b}' % text, {"result": output}
    if not validator.is_valid(output):
        wrapped = {"result": output}
        if not profile.wrapped or not validator.is_valid(wrapped):
            return _mismatch(text, output, validator, profile)
        text, output = b'{"result":%b}' % text, wrapped
    if profile.sources and (missing := profile.sourceless(output)):
        return _sourceless(text, missing)
    return _shown(Code.SUCCESS, output, text, profile, redactor, mask)


def _as_json(value: Any) -> tuple[bytes, Any]:
    """Return a value as JSON text and as plain data. Raise ValueError if it has no JSON form."""
    flat = value.__class__ is dict and _is_flat(value)
    if not flat and not isinstance(value, BaseModel):
        _refuse_streams(value, 0)
    try:
        text = to_json(value, fallback=_fallback)
    except Exception:  # noqa: BLE001 - a tool's own classes may raise anything here
        # Most likely bytes that are not text, or text with unpaired surrogates.
        text, flat = _mended_json(value), False
    if flat:
        return text, dict(value)
    return text, from_json(text, allow_inf_nan=False, cache_strings="keys")


def _is_flat(value: dict[Any, Any]) -> bool:
    """Return whether an object holds only plain scalars, so that a copy equals its JSON."""
    for name, item in value.items():
        if name.__class__ is not str or item.__class__ not in _FLAT:
            return False
    return True


def _refuse_streams(value: Any, depth: int) -> None:
    """Raise ValueError for iterators: reading one may never end, and consumes it."""
    if isinstance(value, _WHOLE) or is_dataclass(value) or depth > 64:
        return
    if isinstance(value, Mapping):
        for item in value.values():
            _refuse_streams(item, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _refuse_streams(item, depth + 1)
    elif hasattr(value, "__iter__") and not isinstance(value, type):
        raise ValueError("the output is an iterator; expected data")


def _mended_json(value: Any) -> bytes:
    try:
        return to_json(_mended(value, 0), fallback=_fallback, bytes_mode="base64")
    except Exception:  # noqa: BLE001 - as above; what it says is not for the model
        raise ValueError("no JSON form") from None


def _fallback(value: Any) -> Any:
    if isinstance(value, BaseException):
        return {"error": type(value).__name__}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _mended(value: Any, depth: int) -> Any:
    if depth > 64:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return _UNPAIRED_SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_mended(key, depth + 1): _mended(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item, depth + 1) for item in value]
    return value


def _best_effort(value: Any) -> bytes:
    """Return a text form for the vault of a value that has no JSON form."""
    try:
        if isinstance(value, Partial):
            value = [value.completed, value.failed, value.data]
        _refuse_streams(value, 0)
        return to_json(value, serialize_unknown=True)[:_LONGEST_RAW]
    except Exception:  # noqa: BLE001 - as above
        return to_json({"type": f"{type(value).__module__}.{type(value).__qualname__}"})


def _shown(
    code: Code,
    output: dict[str, Any],
    text: bytes,
    profile: Profile,
    redactor: Redactor,
    mask: Mask,
) -> Observed:
    """Return the redacted and bounded form of a checked output."""
    if not profile.redacted:
        return _clean(code, output, text, profile, redactor, mask)
    shown, places = _without(output, profile, code)
    observed = _clean(code, shown, to_json(shown), profile, redactor, mask)
    taken = (Redaction(CONTRACT, place) for place in places)
    return observed._replace(redactions=(*taken, *observed.redactions), output=output)


def _clean(
    code: Code,
    output: dict[str, Any],
    text: bytes,
    profile: Profile,
    redactor: Redactor,
    mask: Mask,
) -> Observed:
    if mask is not NO_MASK and mask.found(text):
        # Redacted before it is cut: part of a secret would not be recognised.
        output = mask.data(output)
        text = to_json(output)
    if len(text) > profile.max_bytes:
        return _summary(code, output, text, profile, redactor)
    if not redactor.suspects(text):
        return Observed(code, output, output=output)
    data, redactions = redactor.redact(output)
    if redactions and len(to_json(data)) > profile.max_bytes:
        return _summary(code, output, text, profile, redactor)
    return Observed(code, data, redactions=redactions, output=output)


def without_redacted(output: Mapping[str, Any], profile: Profile) -> Mapping[str, Any]:
    """Return an output without the values that its contract redacts."""
    return _without(dict(output), profile, Code.SUCCESS)[0] if profile.redacted else output


def _without(
    output: dict[str, Any], profile: Profile, code: Code
) -> tuple[dict[str, Any], list[str]]:
    """Return a copy without the values that the contract redacts, and their places."""
    copy: dict[str, Any] = thaw(output)
    deeper = () if code is Code.SUCCESS else ("data",)  # where a partial success has its output
    places: list[str] = []
    for place in profile.redacted:
        _take_out(copy, (*deeper, *place), (), places)
    return copy, places


def _take_out(
    value: Any, place: tuple[str, ...], path: tuple[str | int, ...], places: list[str]
) -> None:
    step, rest = place[0], place[1:]
    if isinstance(value, dict):
        keys: list[Any] = list(value) if step == "*" else [step] if step in value else []
    elif isinstance(value, list):
        whole = step.isascii() and step.isdigit() and int(step) < len(value)
        keys = list(range(len(value))) if step == "*" else [int(step)] if whole else []
    else:
        keys = []
    for key in keys:
        if rest:
            _take_out(value[key], rest, (*path, key), places)
        elif value[key] is not None:
            value[key] = _WITHHELD
            places.append(pointer(*path, key))


def _summary(
    code: Code, output: dict[str, Any], text: bytes, profile: Profile, redactor: Redactor
) -> Observed:
    taken: dict[str, int] = {}

    def clean(value: Any) -> Any:
        shown, redactions = redactor.redact(value)
        for redaction in redactions:
            taken[redaction.rule] = taken.get(redaction.rule, 0) + redaction.count
        return shown

    data = summarise(output, len(text), profile.max_bytes, clean)
    warning = (
        f"The output has {len(text)} bytes, more than the {profile.max_bytes} allowed. This is a"
        " summary of it; ask for less, or for one part at a time."
    )
    # Pointers into the hidden output would not help: they are about the summary as a whole.
    redactions = tuple(Redaction(rule, "", count) for rule, count in taken.items())
    return Observed(code, data, warnings=(warning,), redactions=redactions, raw=text, output=output)


def _observe_partial(
    partial: Partial, validator: Validator, profile: Profile, redactor: Redactor, mask: Mask
) -> Observed:
    try:
        _, steps = _as_json({"completed": partial.completed, "failed": partial.failed})
        _, data = _as_json(partial.data)
    except ValueError:
        return _unusable(_best_effort(partial), "the tool returned something that is not JSON")
    if data is not None:
        if not isinstance(data, dict) or (profile.wrapped and not validator.is_valid(data)):
            data = {"result": data}
        if not validator.is_valid(data):
            return _mismatch(to_json(steps | {"data": data}), data, validator, profile)
        if missing := profile.sourceless(data):
            return _sourceless(to_json(steps | {"data": data}), missing)
    output = steps | {"data": data}
    observed = _shown(Code.PARTIAL_SUCCESS, output, to_json(output), profile, redactor, mask)
    done, failed = (len(steps[name] or ()) for name in ("completed", "failed"))
    count = f"{failed} of {done + failed} steps failed; only the completed ones took effect."
    return observed._replace(warnings=(count, *observed.warnings))


def _mismatch(text: bytes, output: Any, validator: Validator, profile: Profile) -> Observed:
    """Return where the output differs from its schema, without quoting values."""
    value = {"result": output} if profile.wrapped and "result" not in output else output
    fields: dict[str, None] = {}
    for error in validator.iter_errors(value):
        fields.setdefault(_declared(error.schema_path))
        if len(fields) >= _MOST_ERRORS:
            break
    return _unusable(
        text, "the output does not match the tool's output contract", tuple(filter(None, fields))
    )


def _declared(schema_path: Iterable[str | int]) -> str:
    """Return the declared property that an error is about.

    It is read from the schema, because the output's own keys may be anything.
    """
    parts = list(schema_path)
    names = [str(parts[i + 1]) for i, part in enumerate(parts[:-1]) if part == "properties"]
    return ".".join(names)


def _sourceless(text: bytes, missing: list[str]) -> Observed:
    count = len(missing)
    noun = "source reference is" if count == 1 else "source references are"
    return _unusable(text, f"{count} {noun} empty")


def _unusable(raw: bytes, why: str, fields: tuple[str, ...] = ()) -> Observed:
    code = Code.OBSERVATION_NORMALIZATION_FAIL
    where = f" (in {', '.join(fields)})" if fields else ""
    message = neutralise(f"{sentence_for(code)} Reason: {why}{where}.")[0]
    return Observed(code, None, (FieldError("", message, code.value),), raw=raw[:_LONGEST_RAW])
