"""The parse gate: parses text, bytes or a mapping into arguments.

JSON is not extracted from surrounding text. Whatever two JSON readers could read differently
(duplicate keys, NaN, lone surrogates) is refused, and so is what could exhaust a reader (size,
depth). Integers beyond ±(2^53 - 1), which readers round differently, become doubles: a schema may
take those as a `number`, and the schema gate refuses them as an `integer`. What a caller says about
the origins of arguments is checked here too, as it names places in them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jiter
from pydantic_core import to_json

from counterseal.canonical import MAX_DEPTH, SAFE_INTEGER, pointer, thaw
from counterseal.codes import Code
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny
from counterseal.observation.envelope import FieldError
from counterseal.proposal import Proposal

NAME: Final = "parse"
ALLOW: Final = allow(NAME)
MAX_BYTES = 256 * 1024
MAX_VALUES = 50_000
MAX_ID = 512
_HALF = re.compile("[\ud800-\udfff]")
_QUOTED = re.compile(r"[\"`].*[\"`] ?", re.DOTALL)
_REASON = "The arguments are not one JSON object."
CALLER_IDS: Final = ("call_id", "workflow_id", "conversation_id", "session_id")
"""The caller's own ids of a call, and of what it belongs to."""
_NO_IDS = (None,) * 7
_NO_CALLER_IDS = (None,) * len(CALLER_IDS)
ORIGINS: Final = ("user", "trusted", "untrusted")
"""Where an argument came from, from the least suspicious to the most."""
_BYTES_PER_CHARACTER = 6
"""Most bytes that an ASCII character takes in JSON."""
_BYTES_PER_ITEM = 24
"""Most bytes that a number, or the punctuation around an item, takes in JSON."""


class _UnsoundError(Exception):
    """A value that is not safe JSON, with its place."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.place = pointer(*path)


def check(ctx: GateContext) -> Decision | Learned:
    """Return the parsed arguments, or a denial that names the place of the fault."""
    proposal = ctx.proposal
    raw: Any = proposal.arguments
    kind = type(raw)
    try:
        _check_ids(proposal, ctx.run.run_id)
        if kind is dict or (kind is not str and isinstance(raw, Mapping)):
            arguments = dict(raw)
        else:
            arguments = _read(raw)
        if _is_plain(arguments):
            fault = _origins_fault(proposal, arguments)
            return fault or Learned(ALLOW, {"arguments": arguments})
        has_large = _walk(arguments)
        arguments = _copy(arguments, has_large=has_large)  # the caller may change its own later
        if kind is not str and len(to_json(arguments)) > MAX_BYTES:
            return _refusal("", f"more than {MAX_BYTES:,} bytes")
    except _UnsoundError as error:
        return _refusal(error.place, str(error))
    learned = {"arguments": arguments, "has_large_numbers": has_large}
    return _origins_fault(proposal, arguments) or Learned(ALLOW, learned)


def sound_copy(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a copy of arguments that were not parsed from text; None if they are not safe JSON."""
    try:
        return _copy(arguments, has_large=_walk(arguments))
    except _UnsoundError:
        return None


def _copy(arguments: Mapping[str, Any], *, has_large: bool) -> dict[str, Any]:
    copy: dict[str, Any] = _with_doubles(arguments) if has_large else thaw(arguments)
    return copy


def _with_doubles(value: Any) -> Any:
    """Return a plain copy in which integers beyond ±(2^53 - 1) are doubles."""
    if isinstance(value, Mapping):
        return {key: _with_doubles(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_doubles(item) for item in value]
    return float(value) if type(value) is int and abs(value) > SAFE_INTEGER else value


def _check_ids(proposal: Proposal, run_id: str) -> None:
    """Raise _UnsoundError for an invalid id. `run_id` is the run that the call was given."""
    tool = proposal.tool
    plain = tool.__class__ is str and tool.isascii() and len(tool) <= MAX_ID
    if not plain and not is_name(tool):
        raise _UnsoundError((), "the tool's name must be a text of at most 512 characters")
    if proposal.run_id is not None and proposal.run_id != run_id:
        raise _UnsoundError((), "the run's id must be a text of 1 to 512 characters")
    own = proposal.call_id, proposal.workflow_id, proposal.conversation_id, proposal.session_id
    ids = (proposal.key, proposal.version, proposal.operation_id, *own)
    if ids != _NO_IDS and not all(value is None or is_id(value) for value in ids):
        raise _UnsoundError((), "every id of the call must be a text of 1 to 512 characters")
    version = proposal.expected_version
    if version is not None and not _is_version(version):
        raise _UnsoundError((), "the expected version must be an integer or a text")


def _origins_fault(proposal: Proposal, arguments: Mapping[str, Any]) -> Decision | None:
    """Return a denial if origins are not one of the words, each at a place of the arguments.

    A misspelt one must not be dropped: approvers would take an untrusted value for another.
    """
    origins: Any = proposal.origins
    if origins is None:
        return None
    if not isinstance(origins, Mapping):
        return _origins_refusal("", "must map JSON Pointers to words", type(origins).__name__)
    # A plan may have taken an argument away since its place was checked.
    known = set(places(arguments)) if proposal.proposed is None else origins.keys()
    words = ", ".join(ORIGINS)
    for place, word in origins.items():
        if place not in known:
            shown = f"{place[:80]!r}" if isinstance(place, str) else "a key"
            return _origins_refusal("", f"{shown} must be a JSON Pointer to a given argument")
        if word not in ORIGINS:
            return _origins_refusal(place, f"must be one of: {words}")
    return None


def _origins_refusal(place: str, message: str, actual: str = "") -> Decision:
    code = Code.STRUCTURAL_VIOLATION
    error = FieldError(place, f"origins: {message}", code.value, actual=actual)
    return deny(NAME, code, "The origins of the arguments are not valid.", field_errors=(error,))


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """Yield a JSON Pointer to every part of a value."""
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list | tuple):
        inside = enumerate(value)
    for key, item in inside:
        yield pointer(*path, key)
        yield from places(item, (*path, key))


def _is_version(value: object) -> bool:
    """Return True if a value can be the version of a resource."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value == "" or is_id(value)


def is_name(value: object) -> bool:
    """Return True if a value is a text of at most 512 characters."""
    if not isinstance(value, str) or len(value) > MAX_ID:
        return False
    return value.isascii() or _HALF.search(value) is None


def caller_ids(proposal: Proposal) -> dict[str, str]:
    """Return the caller's own ids in a proposal, without those that are not valid."""
    given = proposal.call_id, proposal.workflow_id, proposal.conversation_id, proposal.session_id
    if given == _NO_CALLER_IDS:
        return {}
    ids = zip(CALLER_IDS, given, strict=True)
    return {name: value for name, value in ids if value is not None and is_id(value)}


def is_id(value: object) -> bool:
    """Return True if a value can be an id in every store."""
    return value != "" and is_name(value) and "\0" not in str(value)


def _refusal(place: str, message: str) -> Decision:
    error = FieldError(place, message, Code.SYNTACTIC_PARSE_FAIL.value)
    return deny(NAME, Code.SYNTACTIC_PARSE_FAIL, _REASON, field_errors=(error,))


def _read(raw: object) -> dict[str, Any]:
    if isinstance(raw, str):
        try:
            data = raw.encode()
        except UnicodeEncodeError:
            raise _UnsoundError((), "a lone surrogate is not text") from None
    elif isinstance(raw, bytes):
        data = raw
    else:
        raise _UnsoundError((), f"expected a JSON object, got {type(raw).__name__}")
    if len(data) > MAX_BYTES:
        raise _UnsoundError((), f"{len(data):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        value = jiter.from_json(
            data, allow_inf_nan=False, cache_mode="none", catch_duplicate_keys=True
        )
    except ValueError as error:
        raise _UnsoundError((), _safe(str(error))) from None
    if not isinstance(value, dict):
        raise _UnsoundError((), f"expected an object, got {kind_of(value)}")
    return value


def _safe(message: str) -> str:
    """Return the parser's message without what it quotes from the text."""
    return f"not valid JSON: {_QUOTED.sub('', message).lower()}"


def _is_plain(arguments: dict[str, Any]) -> bool:
    """Return True for a small flat object of ASCII texts and small numbers: it is sound."""
    characters = 0
    for key, value in arguments.items():
        kind = type(value)
        if kind is str:
            if not value.isascii():
                return False
            characters += len(value)
        elif kind is int:
            if not -SAFE_INTEGER <= value <= SAFE_INTEGER:
                return False
        elif kind is not bool and value is not None:
            return False
        if type(key) is not str or not key.isascii():
            return False
        characters += len(key)
    return characters * _BYTES_PER_CHARACTER + len(arguments) * _BYTES_PER_ITEM <= MAX_BYTES


def _walk(root: Mapping[str, Any]) -> bool:
    """Check every value once; iterative, so that depth can't exhaust the stack.

    Returns True if there are whole numbers beyond ±(2^53 - 1).
    """
    has_large = False
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), root)]
    count = 0
    while waiting:
        path, value = waiting.pop()
        count += 1
        kind = type(value)
        if kind is str:
            _text(path, value)
        elif kind is dict or kind is list or isinstance(value, Mapping | tuple):
            waiting.extend(_children(path, value))
            if count + len(waiting) > MAX_VALUES:
                raise _UnsoundError((), f"more than {MAX_VALUES:,} values")
        else:
            has_large = _scalar(path, value) or has_large
    return has_large


def _children(
    path: tuple[str | int, ...], value: Any
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if len(path) >= MAX_DEPTH:
        raise _UnsoundError(path[:4], f"nested deeper than {MAX_DEPTH} levels")
    if not isinstance(value, Mapping):
        yield from (((*path, index), item) for index, item in enumerate(value))
        return
    for key, item in value.items():
        if not isinstance(key, str):
            raise _UnsoundError(path, "a key is not a string")
        _text(path, key)
        yield (*path, key), item


def _scalar(path: tuple[str | int, ...], value: Any) -> bool:
    """Check a value that is neither text nor holds others. Returns True for a large number."""
    if value is None or isinstance(value, bool):
        return False
    if not isinstance(value, int | float):
        raise _UnsoundError(path, f"{type(value).__name__} is not a JSON type")
    if not abs(value) <= sys.float_info.max:  # which NaN is not, either
        raise _UnsoundError(
            path, "must be a number up to ±1.8e308: NaN and infinities are not JSON"
        )
    return abs(value) > SAFE_INTEGER


def _text(path: tuple[str | int, ...], value: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _UnsoundError(path, "a lone surrogate is not text") from None


def kind_of(value: object) -> str:
    """Return the name of a value's JSON type."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    if isinstance(value, bool | dict | list | str | None):
        return names[type(value)]
    return "integer" if isinstance(value, int) else "number"
