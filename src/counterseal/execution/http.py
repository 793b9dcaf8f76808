"""A contract's HTTP request as a tool: it is filled, made once, and its answer read.

Where the request may go is not decided here, but by the client that the call was given.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlencode

from pydantic_core import from_json

from counterseal.canonical import pointer
from counterseal.contract.bindings import CALL_KEY, HttpBinding, Placeholder, Template, template
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.schemas import compile_schema
from counterseal.contract.tool_context import Context, Secret
from counterseal.errors import CountersealError, SecretUnavailableError
from counterseal.execution.failures import UNSENT, Fault

if TYPE_CHECKING:
    import httpx

    from counterseal.contract.signature import Injection

__all__ = [
    "NOT_SENT",
    "AnswerError",
    "Filled",
    "Request",
    "UnsendableError",
    "Values",
    "http_tool",
    "never_left",
]


# --- filling a request ----------------------------------------------------------------------------


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


class AnswerError(CountersealError):
    """The destination took the request, and answered with what is no output of the tool."""


NOT_SENT: Final = (
    "httpx.ConnectError",
    "httpx.ConnectTimeout",
    "httpx.PoolTimeout",
    "httpx.UnsupportedProtocol",
    "httpx.InvalidURL",
    "counterseal.errors.EgressError",
    UNSENT,
    "counterseal.errors.SecretUnavailableError",
    "counterseal.execution.http.UnsendableError",
)
"""What is raised only before the first byte of a request has left."""


def never_left(fault: Fault) -> bool:
    """Whether a request that failed like this can't have reached anybody."""
    return not set(NOT_SENT).isdisjoint(fault.kinds)


def http_tool(contract: Contract) -> Tool[..., Any]:
    """The tool that a contract's `http` section describes."""
    if contract.http is None:
        raise ValueError(f"{contract.name} has no http section")
    request = Request.of(contract.http)
    answer = _Answer.of(contract, contract.http)
    carries_key = contract.http.carries_key
    names = sorted(contract.http.secrets)
    injected: dict[str, Injection] = {"context": Context}
    injected |= {f"secret_{index}": Secret(name) for index, name in enumerate(names)}

    def bind(arguments: Mapping[str, Any]) -> dict[str, Any]:
        values = {Placeholder(name): value for name, value in arguments.items()}
        # Tried with stand-ins for what is not an argument: one that can't be sent fails here, by
        # its name, before the tool is called.
        stand_ins = {Placeholder(name, secret=True): "x" for name in names}
        request.filled({**values, **stand_ins, CALL_KEY: "x"})
        return {"values": values}

    async def send(values: Mapping[Placeholder, Any], context: Context, **secrets: str) -> Any:
        given = {
            Placeholder(name, secret=True): secrets[f"secret_{index}"]
            for index, name in enumerate(names)
        }
        key = _key(context)
        if carries_key and key is None:
            raise UnsendableError(f"the request carries {CALL_KEY}, and this call has no key")
        filled = request.filled({**values, **given, CALL_KEY: key})
        header = contract.idempotency.key_header
        if header is not None and key is not None:
            filled.headers[header] = key
        return answer.read(await _send(filled, context))

    return Tool(contract=contract, function=send, injected=injected, binder=bind)


def _key(context: Context) -> str | None:
    """The key, for a destination that knows how to tell a retry from a second call."""
    key = context.key
    if key is None or re.fullmatch(r"[\x21-\x7e]{1,255}", key):
        return key
    # The same key must be sent as the same text, whatever it is written in.
    return f"sha256-{hashlib.sha256(key.encode()).hexdigest()}"


async def _send(filled: Filled, context: Context) -> httpx.Response:
    import httpx  # noqa: PLC0415 - slow to import, and most tools make no request

    client = context.http
    own = client.timeout
    # Given up half-way, while it is still certain that nothing was sent.
    timeout = httpx.Timeout(
        own.read,
        write=own.write,
        connect=own.connect and own.connect / 2,
        pool=own.pool and own.pool / 2,
    )
    return await client.request(
        filled.method,
        filled.url,
        params=[*filled.query],
        headers=filled.headers,
        content=filled.content,
        follow_redirects=False,
        timeout=timeout,
    )


# The answer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """How a response becomes the tool's output."""

    binding: HttpBinding
    takes_text: bool
    empty: dict[str, Any] | None
    """What stands for no answer at all, as far as the output schema has a word for it."""
    mutates: bool
    named: frozenset[str]
    """Statuses and exceptions that the contract has codes of its own for."""

    @classmethod
    def of(cls, contract: Contract, binding: HttpBinding) -> _Answer:
        schema = contract.affordance.output_schema
        validator = compile_schema(schema)
        # A page of HTML would pass for many an open object, so a text has to be asked for.
        asked = "text" in schema.get("properties", {"text": {}})
        return cls(
            binding=binding,
            takes_text=asked and not binding.response and validator.is_valid({"text": ""}),
            empty={} if validator.is_valid({}) else None,
            mutates=contract.mutates or binding.method not in ("GET", "HEAD"),
            named=frozenset(contract.observability.error_taxonomy_mapping),
        )

    def read(self, response: httpx.Response) -> Any:
        """The output. A status that means failure is raised as httpx.HTTPStatusError."""
        if response.status_code in self.binding.absent:
            return None
        self._judge(response)
        if not response.content.strip():
            return self.empty
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind.endswith(("/json", "+json")) or not kind
        if self.takes_text and not is_json:
            return {"text": _decoded(response)}
        try:
            value = from_json(response.content.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
        except ValueError:
            raise AnswerError(
                f"the answer is no JSON; it calls itself {kind or 'nothing'}"
            ) from None
        return _at(value, self.binding.response)

    def _judge(self, response: httpx.Response) -> None:
        import httpx  # noqa: PLC0415 - as above; loaded by now

        status = response.status_code
        meant = self.binding.code_for(status) is not None
        if response.is_success and not meant:
            return
        # Not followed, and yet no refusal: 303 is how many a server says that it was done.
        if 300 <= status < 400 and self.mutates and not meant and str(status) not in self.named:
            raise AnswerError(f"{self.binding.host} took the request, and answered {status}")
        # httpx's own message would quote the URL, and with it what a caller put there.
        raise httpx.HTTPStatusError(
            f"{self.binding.host} answered {status}",
            request=response.request,
            response=response,
        )


def _decoded(response: httpx.Response) -> str:
    try:
        return response.content.decode(response.charset_encoding or "utf-8")
    except (UnicodeDecodeError, LookupError):
        raise AnswerError("the answer is neither JSON nor text") from None


def _at(value: Any, place: str) -> Any:
    """What a JSON Pointer leads to. Unlike null, nothing there is an error."""
    for part in place.split("/")[1:]:
        step: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            step = int(part) if re.fullmatch("[0-9]{1,9}", part) else -1
            found = 0 <= step < len(value)
        else:
            found = isinstance(value, dict) and step in value
        if not found:
            raise AnswerError(f"the answer has nothing at {place}")
        value = value[step]
    return value
