"""Resources, prompts and completions of upstreams, for the callers that may use them.

Reading a resource and getting a prompt go the way of every call: gates, budgets, redaction, record.
Lists are merged from all upstreams that a caller may use; one that is down or slow is left out. A
refusal is an error of the protocol here, because there is no tool that could return it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate

from counterseal.audit import CallFields, Event, EventType
from counterseal.codes import Code
from counterseal.contract.sources.foreign_text import plain
from counterseal.errors import CountersealError
from counterseal.gateway.calls import COMPLETE, FACTS, ToolCalls
from counterseal.gateway.upstream_tools import UpstreamTools
from counterseal.proposal import Principal, Proposal

Ctx = ServerRequestContext[Any, Any]

_log = logging.getLogger("counterseal.gateway")

_MAX_PAGES: Final = 100
_MAX_ITEMS: Final = 10_000
_MAX_OWNERS: Final = 10_000
_LIST_SECONDS: Final = 5.0
"""Seconds that an upstream has for a list, so that it does not hold up the lists of the others."""
_LONGEST: Final = 4_000
LISTS: Final = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""The lists, with the fields of the results that hold their items."""


class ResourceSubscription(NamedTuple):
    """A resource whose changes an upstream reports to us."""

    tenant: str
    """The tenant whose connections are used; empty where all tenants share them."""
    server: str
    uri: str


class UpstreamResources:
    """Passes requests to upstreams, and knows which upstream has what."""

    def __init__(self, upstreams: UpstreamTools, calls: ToolCalls) -> None:
        self._upstreams = upstreams
        self._calls = calls
        self.owners: dict[tuple[str, str, str], tuple[str, str]] = {}
        """A cache: tenant, kind and name to the server and its own name for it."""
        self._subscriptions: Counter[ResourceSubscription] = Counter()
        """How many clients have each subscription."""

    # --- lists ------------------------------------------------------------------------------------

    async def items(self, principal: Principal, method: str) -> list[dict[str, Any]]:
        """Return what a caller may use of one of the `LISTS`, under the names that it sees."""
        items = await self._items(principal, method)
        if method != "prompts/list":
            return [item for _, item in items]
        return [{**item, "name": self._shown_name(server, item)} for server, item in items]

    async def _items(self, principal: Principal, method: str) -> list[tuple[str, dict[str, Any]]]:
        """Return every item of every upstream that a caller may use, with its server."""
        servers = list(self._usable(principal, method.partition("/")[0]))
        lists = await asyncio.gather(
            *(self._pages(principal, server, method) for server in servers)
        )
        return [
            (server, _visible(item))
            for server, items in zip(servers, lists, strict=True)
            for item in items
        ]

    async def _pages(self, principal: Principal, server: str, method: str) -> list[dict[str, Any]]:
        upstream, field = self._upstreams.upstreams[server], LISTS[method]
        items: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                for _ in range(_MAX_PAGES):
                    page = await upstream.request(method, params, tenant=principal.tenant)
                    items += [item for item in page.get(field) or () if isinstance(item, dict)]
                    cursor = page.get("nextCursor")
                    if not isinstance(cursor, str) or len(items) >= _MAX_ITEMS:
                        break
                    params = {"cursor": cursor}
        except (CountersealError, TimeoutError) as error:
            reason = str(error) or f"it took more than {_LIST_SECONDS:g} s"
            _log.warning("upstream %s: %s failed: %s", server, method, reason)
        return items[:_MAX_ITEMS]

    def _usable(self, principal: Principal, what: str) -> Iterator[str]:
        for server, contracts in self._upstreams.contracts.items():
            offers = self._upstreams.upstreams[server].capabilities.get(what) is not None
            wanted = offers and getattr(contracts.table, what)
            if wanted and self._upstreams.allows(principal, server, what):
                yield server

    def _shown_name(self, server: str, item: Mapping[str, Any]) -> str:
        return f"{self._upstreams.contracts[server].table.prefix}{item.get('name')}"

    # --- single items -----------------------------------------------------------------------------

    async def read(
        self,
        ctx: Ctx,
        params: types.ReadResourceRequestParams,
        principal: Principal,
        run: str | None,
    ) -> dict[str, Any]:
        uri = str(params.uri)
        server, _ = await self._owner(principal, "resource", uri)
        proposal = Proposal(tool=f"{server}.resources", arguments={"uri": uri}, run_id=run)
        return await self._carry_out(ctx, params, proposal, principal)

    async def prompt(
        self, ctx: Ctx, params: types.GetPromptRequestParams, principal: Principal, run: str | None
    ) -> dict[str, Any]:
        server, name = await self._owner(principal, "prompt", params.name)
        arguments = {"name": name, **({"arguments": params.arguments} if params.arguments else {})}
        proposal = Proposal(tool=f"{server}.prompts", arguments=arguments, run_id=run)
        return await self._carry_out(ctx, params, proposal, principal)

    async def _carry_out(
        self,
        ctx: Ctx,
        params: types.InputResponseRequestParams,
        proposal: Proposal,
        principal: Principal,
    ) -> dict[str, Any]:
        result = await self._calls.carry_out(ctx, params, proposal, principal)
        if result.get("resultType") == "input_required":
            return result
        if result["isError"]:  # an error of the protocol, with the facts of the refusal as data
            facts = dict(result["_meta"][FACTS])
            if isinstance(params, types.ReadResourceRequestParams):
                facts["uri"] = str(params.uri)  # the protocol wants the URI in the error
            errors = [error["message"] for error in facts.get("errors", ())]
            message = f"{facts['code']}: {errors[0] if errors else 'the request was refused'}"
            invalid = facts["code"] in (Code.SEMANTIC_INVALIDITY, Code.STALE_STATE)
            code = types.INVALID_PARAMS if invalid else types.INTERNAL_ERROR
            raise MCPError(code, message, facts)
        return {**COMPLETE, **result["structuredContent"]}

    async def complete(
        self, ctx: Ctx, params: types.CompleteRequestParams, principal: Principal, run: str | None
    ) -> dict[str, Any]:
        wire = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        wire.pop("_meta", None)
        if isinstance(params.ref, types.PromptReference):
            server, wire["ref"]["name"] = await self._owner(principal, "prompt", params.ref.name)
        else:
            uri = str(params.ref.uri)
            server, _ = await self._owner(principal, "resource template", uri)
        result = await self._request(principal, server, "completion/complete", wire)
        return {**COMPLETE, **result}

    # --- subscriptions ----------------------------------------------------------------------------

    async def subscribe(self, principal: Principal, uri: str) -> ResourceSubscription:
        """Have an upstream report changes of a resource. Raises MCPError if none has it."""
        server, _ = await self._owner(principal, "resource", uri)
        own_connections = self._upstreams.upstreams[server].settings.secrets
        tenant = principal.tenant if own_connections else ""
        subscription = ResourceSubscription(tenant, server, uri)
        if not self._subscriptions[subscription]:
            await self._request(principal, server, "resources/subscribe", {"uri": uri})
        self._subscriptions[subscription] += 1
        return subscription

    async def subscribe_all(
        self, principal: Principal, uris: Iterable[str]
    ) -> list[ResourceSubscription]:
        """Subscribe to those of these resources that exist."""
        subscriptions = []
        for uri in uris:
            with suppress(MCPError):
                subscriptions.append(await self.subscribe(principal, uri))
        return subscriptions

    def unsubscribe(
        self, principal: Principal, subscriptions: Iterable[ResourceSubscription]
    ) -> None:
        """Give up subscriptions. The last client of one ends it at the upstream."""
        for subscription in subscriptions:
            self._subscriptions[subscription] -= 1
            if self._subscriptions[subscription] <= 0:
                del self._subscriptions[subscription]
                self._upstreams.runtime.begin_if_open(self._end(principal, subscription))

    async def _end(self, principal: Principal, subscription: ResourceSubscription) -> None:
        with suppress(MCPError):
            params = {"uri": subscription.uri}
            await self._request(principal, subscription.server, "resources/unsubscribe", params)

    async def _request(
        self, principal: Principal, server: str, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send a request that is no call, and put it on record."""
        runtime = self._upstreams.runtime
        caller = CallFields(
            principal.tenant, "", "", server, "", principal.agent, principal.user, ""
        )
        event = Event(EventType.PASSED_ON, caller, runtime.clock(), method)
        upstream = self._upstreams.upstreams[server]
        try:
            result = await upstream.request(method, params, tenant=principal.tenant)
        except CountersealError as error:
            _log.warning("upstream %s: %s failed: %s", server, method, error)
            runtime.store.note(event._replace(body={"failed": type(error).__name__}))
            message = f"upstream {server} could not answer {method}; try again later"
            raise MCPError(types.INTERNAL_ERROR, f"DEPENDENCY_UNAVAILABLE: {message}") from None
        runtime.store.note(event)
        return result

    # --- owners -----------------------------------------------------------------------------------

    async def _owner(self, principal: Principal, kind: str, name: str) -> tuple[str, str]:
        """Return the server that has something, and its own name for it.

        Raises MCPError if no server has it, or several.
        """
        known = self.owners.get((principal.tenant, kind, name))
        what = "prompts" if kind == "prompt" else "resources"
        if known is not None and self._upstreams.allows(principal, known[0], what):
            return known
        owners = dict(await self._candidates(principal, kind, name))
        if len(owners) != 1:
            several = f"Several servers have this {kind}: {', '.join(sorted(owners))}."
            message = several if owners else f"There is no such {kind} here."
            data = {"uri": name} if kind == "resource" else {"name": name}
            raise MCPError(types.INVALID_PARAMS, message, data)
        if len(self.owners) > _MAX_OWNERS:
            self.owners.clear()
        self.owners[principal.tenant, kind, name] = owner = next(iter(owners.items()))
        return owner

    async def _candidates(
        self, principal: Principal, kind: str, name: str
    ) -> list[tuple[str, str]]:
        if kind == "prompt":
            prompts = await self._items(principal, "prompts/list")
            return [
                (server, str(item["name"]))
                for server, item in prompts
                if self._shown_name(server, item) == name
            ]
        if kind == "resource template":
            templates = await self._items(principal, "resources/templates/list")
            return [(server, name) for server, item in templates if item.get("uriTemplate") == name]
        resources = await self._items(principal, "resources/list")
        owners = [(server, name) for server, item in resources if item.get("uri") == name]
        if not owners:
            templates = await self._items(principal, "resources/templates/list")
            owners = [(s, name) for s, item in templates if _matches(item.get("uriTemplate"), name)]
        servers = list(self._usable(principal, "resources"))
        # A server may have resources that it does not list. With only one server, ask that one.
        return owners or ([(servers[0], name)] if len(servers) == 1 else [])


def _visible(item: dict[str, Any]) -> dict[str, Any]:
    """Remove invisible characters from the texts of a list item that models read."""
    clean = {
        key: plain(value, _LONGEST)
        if key in ("title", "description") and isinstance(value, str)
        else value
        for key, value in item.items()
    }
    arguments = clean.get("arguments")
    if isinstance(arguments, list):
        clean["arguments"] = [
            _visible(each) if isinstance(each, dict) else each for each in arguments
        ]
    return clean


def _matches(template: object, uri: str) -> bool:
    try:
        return UriTemplate.parse(str(template)).match(uri) is not None
    except ValueError:
        return False
