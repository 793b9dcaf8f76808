"""A contract's HTTP request as a tool: it is filled, made once, and its answer read.

Where the request may go is not decided here, but by the client that the call was given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from counterseal.contract.bindings import CALL_KEY, HttpBinding, Placeholder
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.schemas import compile_schema
from counterseal.contract.tool_context import Context, Secret
from counterseal.errors import CountersealError
from counterseal.execution.failures import UNSENT, Fault
from counterseal.execution.request import Filled, Request, UnsendableError

if TYPE_CHECKING:
    import httpx

    from counterseal.contract.signature import Injection

__all__ = ["NOT_SENT", "AnswerError", "http_tool", "never_left"]


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
    "counterseal.execution.request.UnsendableError",
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
