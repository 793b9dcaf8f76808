"""Which requests may go the short way: those that ask for one call, and for nothing beside it.

Every rule here is the SDK's own, applied to what nearly all requests look like. `None` never means
"refused": it means that the SDK is to look at the request, and say what is wrong with it, if it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.methods import validate_client_request
from pydantic import ValidationError
from pydantic_core import from_json

from counterseal.gateway.calling import KEY, OPERATION, RUN

__all__ = ["LEGACY", "MODERN", "Asked", "Reading"]

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"

_METHOD: Final = "tools/call"
_METHOD_HEAD: Final = _METHOD.encode()
_MESSAGE: Final = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_TOLD: Final = frozenset({RUN, KEY, OPERATION, "traceparent"})
"""What may be said in `_meta` of a call; all of it texts."""
_ENVELOPE: Final = frozenset(
    {
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
    }
)
_JSON: Final = frozenset({b"application/json", b"application/json; charset=utf-8"})
_MOST_KNOWN, _LONGEST_KNOWN = 256, 2_000

Capabilities = types.ClientCapabilities


class Asked(NamedTuple):
    """A call that may go the short way."""

    id: int | str
    name: str
    arguments: dict[str, Any]
    params: dict[str, Any]
    meta: dict[str, Any] | None
    capabilities: Capabilities | None
    """What the client can do, as this request says; in sessions the first one did."""


class Reading:
    """Looks at requests. Remembers which hosts are ours, and which clients made sense."""

    def __init__(self, security: TransportSecuritySettings) -> None:
        self._ours: Callable[[bytes], bool] = lru_cache(64)(_named(security))
        self._clients: dict[str, Capabilities] = {}

    def headers(self, scope: Mapping[str, Any]) -> dict[bytes, bytes] | None:
        """Those of a POST of JSON to us, that a page from elsewhere can't have made."""
        given = scope["headers"]
        headers = dict(given)
        if (
            scope["method"] == "POST"
            and len(headers)
            == len(given)  # of a header that comes twice, who knows which one counts
            and b"origin" not in headers
            and headers.get(b"content-type") in _JSON
            and _takes_both(headers.get(b"accept", b""))
            and self._ours(headers.get(b"host", b""))
        ):
            return headers
        return None

    def modern(self, headers: Mapping[bytes, bytes], body: bytes) -> Asked | None:
        """A call of 2026-07-28, which says everything about itself, and part of it in headers."""
        asked = _asked(body)
        if asked is None or asked.meta is None:
            return None
        name = headers.get(b"mcp-name", b"").decode("latin-1")
        if (
            name != asked.name
            or name.startswith("=?")
            or headers.get(b"mcp-method") != b"tools/call"
        ):
            return None
        meta = asked.meta
        if meta.get(types.PROTOCOL_VERSION_META_KEY) != MODERN or not _is_plain(meta, _ENVELOPE):
            return None
        capabilities = self._client(meta)
        return None if capabilities is None else asked._replace(capabilities=capabilities)

    def legacy(self, body: bytes) -> Asked | None:
        """A call of 2025-11-25, within a session."""
        asked = _asked(body)
        if asked is None or (asked.meta is not None and not _is_plain(asked.meta, frozenset())):
            return None
        return asked

    def _client(self, meta: Mapping[str, Any]) -> Capabilities | None:
        """What a client says that it can. The SDK is asked once whether that makes sense."""
        info = meta.get(types.CLIENT_INFO_META_KEY)
        can = meta.get(types.CLIENT_CAPABILITIES_META_KEY)
        key = repr((info, can, types.CLIENT_INFO_META_KEY in meta))
        known = self._clients.get(key)
        if known is None and len(key) <= _LONGEST_KNOWN:
            envelope = {name: meta[name] for name in _ENVELOPE if name in meta}
            try:
                validate_client_request(_METHOD, MODERN, {"name": "any", "_meta": envelope})
            except ValidationError:
                return None
            known = Connection.from_envelope(MODERN, info, can).client_capabilities
            if known is not None:
                if len(self._clients) >= _MOST_KNOWN:
                    self._clients.clear()
                self._clients[key] = known
        return known


def _asked(body: bytes) -> Asked | None:
    try:
        # What it reads, the other reader that the SDK has reads the same. It keeps no values.
        message = from_json(body, cache_strings="keys")
    except ValueError:
        return None
    if type(message) is not dict or message.keys() != _MESSAGE:
        return None
    number, params = message["id"], message["params"]
    if (
        message["jsonrpc"] != "2.0"
        or message["method"] != _METHOD
        or type(number) not in (int, str)
        or type(params) is not dict
        or not params.keys() <= _PARAMS
    ):
        return None
    name, arguments, meta = params.get("name"), params.get("arguments", {}), params.get("_meta")
    if type(name) is not str or type(arguments) is not dict:
        return None
    if "_meta" in params and type(meta) is not dict:
        return None
    return Asked(number, name, arguments, params, meta, None)


def _is_plain(meta: Mapping[str, Any], envelope: frozenset[str]) -> bool:
    """Whether nothing is said that the SDK, or a call, would have to act on in another way."""
    own = meta.keys() - envelope
    return not own or (own <= _TOLD and all(type(meta[key]) is str for key in own))


@lru_cache(64)
def _takes_both(accept: bytes) -> bool:
    """Whether a client takes JSON and events, as both revisions want it."""
    kinds = {one.partition(";")[0].strip().lower() for one in accept.decode("latin-1").split(",")}
    if "*/*" in kinds:
        return True
    events = {"text/event-stream", "text/*"}
    return bool(kinds & {"application/json", "application/*"}) and bool(kinds & events)


def _named(security: TransportSecuritySettings) -> Callable[[bytes], bool]:
    """Whether a Host is one of ours: by its name and port, or at any port."""
    exact = frozenset(security.allowed_hosts)
    any_port = tuple(one[:-1] for one in exact if one.endswith(":*"))

    def ours(host: bytes) -> bool:
        text = host.decode("latin-1")
        checked = security.enable_dns_rebinding_protection
        return not checked or (bool(text) and (text in exact or text.startswith(any_port)))

    return ours
