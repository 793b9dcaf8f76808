"""The first gate: raw text, bytes or a mapping become arguments, or nothing does.

Text around JSON is not guessed at. What one reader would take differently from another (duplicate
keys, NaN, integers that a float would round, lone surrogates) is refused, and so is what could
exhaust a reader (size, depth).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jiter
from pydantic_core import to_json

from counterseal.canonical import MAX_DEPTH, pointer, thaw
from counterseal.codes import Code
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny
from counterseal.observation.envelope import FieldError
from counterseal.proposal import Proposal

__all__ = ["ALLOW", "MAX_BYTES", "check", "is_id", "is_name", "is_sound", "kind_of"]

NAME: Final = "parse"
ALLOW: Final = allow(NAME)
MAX_BYTES = 256 * 1024
MAX_VALUES = 50_000
MAX_ID = 512
_SAFE_INTEGER = 2**53 - 1
_HALF = re.compile("[\ud800-\udfff]")
_QUOTED = re.compile(r"[\"`].*[\"`] ?", re.DOTALL)
_REASON = "The arguments are not one JSON object."
_NO_IDS = (None,) * 5
_LONGEST = 6
"""How many bytes a character of ASCII has in JSON at most."""
_AROUND = 24
"""The same of a number, or of what stands around a name and a text."""


class _UnsoundError(Exception):
    """What is wrong with a value, and where."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.place = pointer(*path)


def check(ctx: GateContext) -> Decision | Learned:
    """Arguments that every reader reads alike, or a refusal that says where they are not."""
    proposal = ctx.proposal
    raw: Any = proposal.arguments
    kind = type(raw)
    try:
        _check_ids(proposal, ctx.run.run_id)
        if kind is dict or (kind is not str and isinstance(raw, Mapping)):
            arguments = dict(raw)
            plain = _plain(arguments)
        else:
            arguments = _read(raw)
            plain = (_simple if kind is str and _is_spelt_out(raw) else _plain)(arguments)
        if not plain:
            _walk(arguments)
            arguments = thaw(arguments)  # what the caller changes later must not reach the tool
            if kind is not str and len(to_json(arguments)) > MAX_BYTES:
                return _refusal("", f"more than {MAX_BYTES:,} bytes")
    except _UnsoundError as error:
        return _refusal(error.place, str(error))
    return Learned(ALLOW, {"arguments": arguments})


def is_sound(arguments: dict[str, Any]) -> bool:
    """Whether arguments that did not come from a parser would have passed one."""
    try:
        _walk(arguments)
    except _UnsoundError:
        return False
    return True


def _check_ids(proposal: Proposal, run_id: str) -> None:
    """`run_id` is the run that the call was given; another one than named if that was no id."""
    tool = proposal.tool
    plain = tool.__class__ is str and tool.isascii() and len(tool) <= MAX_ID
    if not plain and not is_name(tool):
        raise _UnsoundError((), "the tool's name is too long, or no text")
    if proposal.run_id is not None and proposal.run_id != run_id:
        raise _UnsoundError((), "the run's id is empty, too long, or no text")
    ids = (
        proposal.key,
        proposal.call_id,
        proposal.version,
        proposal.operation_id,
        proposal.workflow_id,
    )
    if ids != _NO_IDS and not all(value is None or is_id(value) for value in ids):
        raise _UnsoundError((), "a name or an id of the call is empty, too long, or no text")
    seen = proposal.expected_version
    if seen is not None and not _is_version(seen):
        raise _UnsoundError((), "the expected version is no number and no text, or too long")


def _is_version(value: object) -> bool:
    """Whether a value can be a resource's version; anything else could not have been seen."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**63
    return is_name(value) and "\0" not in str(value)


def is_name(value: object) -> bool:
    """Whether a value is a text of a sane length, whatever it says."""
    if not isinstance(value, str) or len(value) > MAX_ID:
        return False
    return value.isascii() or _HALF.search(value) is None


def is_id(value: object) -> bool:
    """Whether a value can identify something, in every store."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID or "\0" in value:
        return False
    return value.isascii() or _HALF.search(value) is None


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
    """The parser's words without anything that it quotes from the text."""
    return f"not valid JSON: {_QUOTED.sub('', message).lower()}"


def _is_spelt_out(text: str) -> bool:
    """Whether a JSON text stands for nothing but characters of ASCII."""
    return text.isascii() and "\\" not in text


def _simple(arguments: dict[str, Any]) -> bool:
    """As `_plain`, of what such a text says: no string of it can be unsound, or too long."""
    for value in arguments.values():
        kind = type(value)
        if kind is int:
            if not -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
                return False
        elif kind is not str and kind is not bool and value is not None:
            return False
    return True


def _plain(arguments: dict[str, Any]) -> bool:
    """Whether all is sound at a glance: a small flat object of plain texts and small numbers."""
    characters = 0
    for key, value in arguments.items():
        kind = type(value)
        if kind is str:
            if not value.isascii():
                return False
            characters += len(value)
        elif kind is int:
            if not -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
                return False
        elif kind is not bool and value is not None:
            return False
        if type(key) is not str or not key.isascii():
            return False
        characters += len(key)
    return characters * _LONGEST + len(arguments) * _AROUND <= MAX_BYTES


def _walk(root: dict[str, Any]) -> None:
    """Look at every value once. Iterative, so that depth can't exhaust the stack."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), root)]
    seen = 0
    while waiting:
        path, value = waiting.pop()
        seen += 1
        kind = type(value)
        if kind is str:
            _text(path, value)
        elif kind is dict or kind is list or isinstance(value, Mapping | tuple):
            waiting.extend(_children(path, value))
            if seen + len(waiting) > MAX_VALUES:
                raise _UnsoundError((), f"more than {MAX_VALUES:,} values")
        else:
            _scalar(path, value)


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


def _scalar(path: tuple[str | int, ...], value: Any) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if not -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
            raise _UnsoundError(path, "an integer beyond ±(2^53 - 1) is not exact in JSON")
    elif not isinstance(value, float):
        raise _UnsoundError(path, f"{type(value).__name__} is not a JSON type")
    elif not math.isfinite(value):
        raise _UnsoundError(path, "NaN and infinities are not JSON")
    elif abs(value) > _SAFE_INTEGER and value.is_integer():
        raise _UnsoundError(path, "an integer beyond ±(2^53 - 1) is not exact in JSON")


def _text(path: tuple[str | int, ...], value: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _UnsoundError(path, "a lone surrogate is not text") from None


def kind_of(value: object) -> str:
    """The JSON type of a value, in JSON's own words."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    if isinstance(value, bool | dict | list | str | None):
        return names[type(value)]
    return "integer" if isinstance(value, int) else "number"
