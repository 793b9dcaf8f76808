"""Fills the templates of an HTTP request with a call's values.

Nothing of an argument can change who is asked or what of: in the path it is one segment, in the
query one value, in a header one line. What does not fit is refused. Pure: nothing is sent here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from counterseal.canonical import pointer
from counterseal.contract.bindings import HttpBinding, Placeholder, Template, template
from counterseal.errors import CountersealError, SecretUnavailableError

__all__ = ["Filled", "Request", "UnsendableError", "Values"]


class UnsendableError(CountersealError):
    """An argument can't stand where the request wants it. Nothing was sent.

    No part of it quotes a value: it may be shown to whoever made the call.
    """

    def __init__(
        self, problem: str, source: Placeholder | None = None, index: int | None = None
    ) -> None:
        super().__init__(f"{source} {problem}" if source else problem)
        self.problem = problem
        """What is wrong with the argument: "holds a slash or a control character"."""
        self.field: str | None = None
        """JSON Pointer to the argument; None when it is none that is wrong."""
        if source is not None and source.argument:
            self.field = pointer(source.name, *(() if index is None else (index,)))


Values = Mapping[Placeholder, Any]
_ABSENT: Final = object()
_JSON: Final = {"content-type": "application/json"}
_FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
_LINE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    method: str
    url: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    content: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A binding with its templates taken apart."""

    binding: HttpBinding
    segments: tuple[Template, ...]
    query: Mapping[str, Template]
    headers: Mapping[str, Template]
    form: Mapping[str, Template]
    body: Any

    @classmethod
    def of(cls, binding: HttpBinding) -> Request:
        return cls(
            binding=binding,
            segments=binding.segments(),
            query=_templates(binding.query),
            headers=_templates(binding.headers),
            form=_templates(binding.form),
            body=_templates(binding.body),
        )

    def filled(self, values: Values) -> Filled:
        """The request with its values. UnsendableError names the one that does not fit."""
        headers = {
            name: line
            for name, text in self.headers.items()
            if (line := _line(text, values)) is not None
        }
        content, kind = self._content(values)
        defaults = {"accept": "application/json, */*;q=0.1", **kind}
        own = {name.lower() for name in headers}
        path = "".join(f"/{_segment(segment, values)}" for segment in self.segments)
        return Filled(
            method=self.binding.method,
            url=f"{self.binding.origin}{path}",
            query=list(_pairs(self.query, values)),
            headers={k: v for k, v in defaults.items() if k not in own} | headers,
            content=content,
        )

    def _content(self, values: Values) -> tuple[bytes | None, dict[str, str]]:
        """The body, and the header that says what it is."""
        if self.form:
            pairs = list(_pairs(self.form, values))
            return urlencode(pairs).encode(), _FORM
        body = _json(self.body, values)
        if self.body is None or body is _ABSENT:
            return None, {}
        return json.dumps(body, separators=(",", ":")).encode(), _JSON


def _templates(value: Any) -> Any:
    if isinstance(value, str):
        return template(value)
    if isinstance(value, Mapping):
        return {key: _templates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_templates(item) for item in value]
    return value


def _json(body: Any, values: Values) -> Any:
    """A part of the body. What only an absent argument would fill is left out."""
    if isinstance(body, Template):
        alone = body.alone
        return values.get(alone, _ABSENT) if alone else _text(body, values)
    if isinstance(body, dict):
        filled = ((key, _json(item, values)) for key, item in body.items())
        return {key: item for key, item in filled if item is not _ABSENT}
    if isinstance(body, list):
        items = (_json(item, values) for item in body)
        return [item for item in items if item is not _ABSENT]
    return body


def _text(text: Template, values: Values) -> Any:
    """A template as a text, or absent when one of its arguments is."""
    parts: list[str] = []
    for part in text.parts:
        if isinstance(part, str):
            parts.append(part)
            continue
        value = values.get(part)
        if value is None:
            return _ABSENT
        parts.append(_plain(value, part))
    return "".join(parts)


def _plain(value: Any, source: Placeholder | None, index: int | None = None) -> str:
    """A value as it is written where there is no JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # to a schema 5.0 is an integer too
    if isinstance(value, str | int | float):
        text = str(value)
        if text.encode(errors="replace").decode() != text:
            raise UnsendableError("holds half a character", source, index)
        return text
    raise UnsendableError("is no plain value, and has no place outside a body", source, index)


def _pairs(templates: Mapping[str, Template], values: Values) -> Iterator[tuple[str, str]]:
    for name, text in templates.items():
        alone = text.alone
        value = values.get(alone) if alone else None
        if isinstance(value, list | tuple):
            yield from ((name, _plain(item, alone, at)) for at, item in enumerate(value))
        elif (filled := _text(text, values)) is not _ABSENT:
            yield name, filled


def _segment(segment: Template, values: Values) -> str:
    """One segment of the path, which stays one whatever its arguments say."""
    parts = [_part_of_path(part, values) for part in segment.parts]
    # Empty, the request would ask for the collection: DELETE /users/ instead of /users/7.
    if segment.placeholders and unquote("".join(parts)) in ("", ".", ".."):
        raise UnsendableError("would lead to another path", segment.placeholders[0])
    return "".join(parts)


def _part_of_path(part: str | Placeholder, values: Values) -> str:
    if isinstance(part, str):
        return part.replace("{", "%7B").replace("}", "%7D")
    if values.get(part) is None:
        raise UnsendableError("is missing, and the path needs it", part)
    text = _plain(values[part], part)
    # Many servers decode before they take a path apart, so an encoded slash would not help.
    if re.search(r"[/\\\x00-\x1f\x7f]", text):
        raise UnsendableError("holds a slash or a control character", part)
    return quote(text, safe="")


def _line(text: Template, values: Values) -> str | None:
    """The value of a header; None to leave it out."""
    filled = _text(text, values)
    if filled is _ABSENT:
        return None
    if not _LINE.fullmatch(filled):
        unfit = [found for found in text.placeholders if not _LINE.fullmatch(str(values[found]))]
        named = unfit[0] if unfit else text.placeholders[0]
        if named.secret:
            raise SecretUnavailableError(
                f"the secret {named.name} holds what a header can't: a line break at its end?"
            )
        raise UnsendableError("holds what a header can't: only one line of ASCII", named)
    return str(filled)
