"""Tools that are one HTTP request, described by a contract's `http` section.

The request's templates are filled with the call's values, the request is sent once, and the
response becomes the tool's output. Where it may go is decided by the client (see `network`).
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

from counterseal.canonical import canonical, pointer, steps
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

# --- filling a request ----------------------------------------------------------------------------


class UnsendableError(CountersealError):
    """An argument does not fit its place in the request. Nothing was sent.

    The message quotes no value, so that it may be shown to the caller.
    """

    def __init__(
        self, problem: str, source: Placeholder | None = None, index: int | None = None
    ) -> None:
        super().__init__(f"{source} {problem}" if source else problem)
        self.problem = problem
        """The reason, for example "holds a slash or a control character"."""
        self.field: str | None = None
        """JSON Pointer to the argument; None if no argument is the cause."""
        if source is not None and source.argument:
            self.field = pointer(source.name, *(() if index is None else (index,)))


Values = Mapping[Placeholder, Any]
_ABSENT: Final = object()
_LINE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")


def fill_request(binding: HttpBinding, values: Values) -> dict[str, Any]:
    """Return the request as keywords for an HTTP client.

    Raise UnsendableError for a value that can't go.
    """
    lines = {name: _line(template(text), values) for name, text in binding.headers.items()}
    headers = {name: line for name, line in lines.items() if line is not None}
    defaults = {"accept": "application/json, */*;q=0.1"}
    content = None
    body = _json(binding.body, values)
    if binding.form:
        content = urlencode(list(_pairs(binding.form, values))).encode()
        defaults["content-type"] = "application/x-www-form-urlencoded"
    elif binding.body is not None and body is not _ABSENT:
        content = json.dumps(body, separators=(",", ":")).encode()
        defaults["content-type"] = "application/json"
    own = {name.lower() for name in headers}
    path = "".join(f"/{_segment(segment, values)}" for segment in binding.segments())
    return {
        "method": binding.method,
        "url": f"{binding.origin}{path}",
        "params": list(_pairs(binding.query, values)),
        "headers": {k: v for k, v in defaults.items() if k not in own} | headers,
        "content": content,
    }


def _json(body: Any, values: Values) -> Any:
    """Return a part of the JSON body; parts of absent arguments are left out."""
    if isinstance(body, str):
        text = template(body)
        return values.get(text.alone, _ABSENT) if text.alone else _text(text, values)
    if isinstance(body, Mapping):
        filled = ((key, _json(item, values)) for key, item in body.items())
        return {key: item for key, item in filled if item is not _ABSENT}
    if isinstance(body, list | tuple):
        items = (_json(item, values) for item in body)
        return [item for item in items if item is not _ABSENT]
    return body


def _text(text: Template, values: Values) -> Any:
    """Return the template's text, or _ABSENT if one of its arguments is absent."""
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
    """Return a scalar value as plain text, for URLs, headers and forms."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return canonical(value).decode()  # 5.0 as "5": JSON Schema counts it as an integer
    if isinstance(value, str | int):
        text = str(value)
        if text.encode(errors="replace").decode() != text:
            raise UnsendableError("holds half a character", source, index)
        return text
    raise UnsendableError("is a list or an object, which only a body can hold", source, index)


def _pairs(templates: Mapping[str, str], values: Values) -> Iterator[tuple[str, str]]:
    for name, text in ((name, template(text)) for name, text in templates.items()):
        alone = text.alone
        value = values.get(alone) if alone else None
        if isinstance(value, list | tuple):
            yield from ((name, _plain(item, alone, at)) for at, item in enumerate(value))
        elif (filled := _text(text, values)) is not _ABSENT:
            yield name, filled


def _segment(segment: Template, values: Values) -> str:
    """Return one path segment; no argument can add another one."""
    parts = []
    for part in segment.parts:
        if isinstance(part, str):
            parts.append(part.replace("{", "%7B").replace("}", "%7D"))
            continue
        if values.get(part) is None:
            raise UnsendableError("is missing, and the path needs it", part)
        text = _plain(values[part], part)
        # Many servers decode a path before they split it, so an encoded slash is not safe either.
        if re.search(r"[/\\\x00-\x1f\x7f]", text):
            raise UnsendableError("holds a slash or a control character", part)
        parts.append(quote(text, safe=""))
    # An empty segment would address the collection: DELETE /users/ instead of /users/7.
    if segment.placeholders and unquote("".join(parts)) in ("", ".", ".."):
        raise UnsendableError("would lead to another path", segment.placeholders[0])
    return "".join(parts)


def _line(text: Template, values: Values) -> str | None:
    """Return the value of a header, or None to leave the header out."""
    filled = _text(text, values)
    if filled is _ABSENT:
        return None
    if not _LINE.fullmatch(filled):
        unfit = [found for found in text.placeholders if not _LINE.fullmatch(str(values[found]))]
        named = unfit[0] if unfit else text.placeholders[0]
        if named.secret:
            raise SecretUnavailableError(
                f"the secret {named.name} is not a single line of ASCII, as a header needs; "
                "does it end in a line break?"
            )
        raise UnsendableError("is not a single line of ASCII, as a header needs", named)
    return str(filled)


class AnswerError(CountersealError):
    """The destination accepted the request, and its answer is not a valid output of the tool."""


NOT_SENT: Final = (
    *("httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout"),
    *("httpx.UnsupportedProtocol", "httpx.InvalidURL", "counterseal.errors.EgressError", UNSENT),
    *("counterseal.errors.SecretUnavailableError", "counterseal.execution.http.UnsendableError"),
)
"""Exceptions that are raised only before the first byte of a request is sent."""


def never_left(fault: Fault) -> bool:
    """Return whether a request that failed with this fault was certainly not sent."""
    return not set(NOT_SENT).isdisjoint(fault.kinds)


def http_tool(contract: Contract) -> Tool[..., Any]:
    """Return the tool that a contract's `http` section describes."""
    binding = contract.http
    if binding is None:
        raise ValueError(f"{contract.name} has no http section")
    answer = _Answer.of(contract, binding)
    carries_key, names = binding.carries_key, sorted(binding.secrets)
    injected: dict[str, Injection] = {"context": Context}
    injected |= {f"secret_{index}": Secret(name) for index, name in enumerate(names)}

    def bind(arguments: Mapping[str, Any]) -> dict[str, Any]:
        values = {Placeholder(name): value for name, value in arguments.items()}
        # A trial with placeholders for secrets and key: an argument that can't be sent is refused
        # by name before the tool starts.
        stand_ins = {Placeholder(name, secret=True): "x" for name in names}
        fill_request(binding, {**values, **stand_ins, CALL_KEY: "x"})
        return {"values": values}

    async def send(values: Mapping[Placeholder, Any], context: Context, **secrets: str) -> Any:
        given = {
            Placeholder(name, secret=True): secrets[f"secret_{index}"]
            for index, name in enumerate(names)
        }
        key = context.key
        if key is not None and not re.fullmatch(r"[\x21-\x7e]{1,255}", key):
            # Keys that no header can carry are sent as a digest, the same for the same key.
            key = f"sha256-{hashlib.sha256(key.encode()).hexdigest()}"
        if carries_key and key is None:
            raise UnsendableError(f"the request carries {CALL_KEY}, and this call has no key")
        filled = fill_request(binding, {**values, **given, CALL_KEY: key})
        header = contract.idempotency.key_header
        if header is not None and key is not None:
            filled["headers"][header] = key
        import httpx  # noqa: PLC0415 - slow to import, and most tools make no request

        own = context.http.timeout
        # Connecting gets half of the time, so that a failure to connect is certainly "not sent".
        connect, pool = own.connect and own.connect / 2, own.pool and own.pool / 2
        timeout = httpx.Timeout(own.read, write=own.write, connect=connect, pool=pool)
        return answer.read(
            await context.http.request(**filled, follow_redirects=False, timeout=timeout)
        )

    return Tool(contract=contract, function=send, injected=injected, binder=bind)


# --- responses ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """Turns a response into the tool's output."""

    binding: HttpBinding
    takes_text: bool
    empty: dict[str, Any] | None
    """The output for an empty response, if the output schema allows one."""
    mutates: bool
    named: frozenset[str]
    """Statuses and exceptions that the contract maps to its own codes."""

    @classmethod
    def of(cls, contract: Contract, binding: HttpBinding) -> _Answer:
        schema = contract.affordance.output_schema
        validator = compile_schema(schema)
        # An open object schema would accept any HTML page, so `text` must be a declared field.
        declares_text = "text" in schema.get("properties", {"text": {}})
        return cls(
            binding=binding,
            takes_text=declares_text and not binding.response and validator.is_valid({"text": ""}),
            empty={} if validator.is_valid({}) else None,
            mutates=contract.mutates or binding.method not in ("GET", "HEAD"),
            named=frozenset(contract.observability.error_taxonomy_mapping),
        )

    def read(self, response: httpx.Response) -> Any:
        """Return the output. Raise httpx.HTTPStatusError for a status that means failure."""
        import httpx  # noqa: PLC0415 - as above; loaded by now

        status = response.status_code
        if status in self.binding.absent:
            return None
        meant = self.binding.code_for(status) is not None
        # Redirects are not followed. For a change, 303 often means that it was done.
        if 300 <= status < 400 and self.mutates and not meant and str(status) not in self.named:
            raise AnswerError(f"{self.binding.host} accepted the request and answered {status}")
        if meant or not response.is_success:
            # httpx's own message would quote the URL, and with it the caller's arguments.
            message = f"{self.binding.host} answered {status}"
            raise httpx.HTTPStatusError(message, request=response.request, response=response)
        if not response.content.strip():
            return self.empty
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind.endswith(("/json", "+json")) or not kind
        if self.takes_text and not is_json:
            try:
                return {"text": response.content.decode(response.charset_encoding or "utf-8")}
            except (UnicodeDecodeError, LookupError):
                raise AnswerError("the answer is neither JSON nor text") from None
        try:
            value = from_json(response.content.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
        except ValueError:
            raise AnswerError(
                f"the answer is not JSON; its content type is {kind or 'missing'}"
            ) from None
        return _at(value, self.binding.response)


def _at(value: Any, place: str) -> Any:
    """Return the value at a JSON Pointer. A missing value is an error; null is not."""
    for part in steps(place):
        step: str | int = part
        if isinstance(value, list):
            step = int(part) if re.fullmatch("[0-9]{1,9}", part) else -1
            found = 0 <= step < len(value)
        else:
            found = isinstance(value, dict) and step in value
        if not found:
            raise AnswerError(f"the answer has nothing at {place}")
        value = value[step]
    return value
