"""Resources, prompts and completions of upstreams, passed on to those who may use them.

Reading a resource and getting a prompt go the way of every call: gates, budgets, redaction, record.
Lists are merged from all upstreams that a caller may use; one that is down, or slow, is left out of
them. A refusal is the protocol's error here, because there is no tool whose error it could be.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate

from counterseal.audit import Caller, Event, EventType
from counterseal.codes import Code
from counterseal.contract.sources.foreign_text import plain
from counterseal.errors import CountersealError
from counterseal.gateway.answering import COMPLETE, FACTS
from counterseal.gateway.calling import Calling
from counterseal.gateway.upstreams import Behind
from counterseal.proposal import Principal, Proposal

__all__ = ["Followed", "Relaying"]

Ctx = ServerRequestContext[Any, Any]

_log = logging.getLogger("counterseal.gateway")

_MOST_PAGES: Final = 100
_MOST_ITEMS: Final = 10_000
_SLOWEST: Final = 5.0
"""Seconds that an upstream has for a list, before it holds up the lists of the others."""
_LONGEST: Final = 4_000
_NOWHERE: Final = "There is no such {} here."


class Followed(NamedTuple):
    """A resource of which an upstream tells changes."""

    tenant: str
    """Over whose connections; empty where all tenants share them."""
    server: str
    uri: str


class Relaying:
    """What is passed on, and to whom."""

    def __init__(self, behind: Behind, calling: Calling) -> None:
        self._behind = behind
        self._calling = calling
        self._owners: dict[tuple[str, str, str], tuple[str, str]] = {}
        """Whose something is, as found out before: tenant, kind and name to server and name."""
        self._followed: Counter[Followed] = Counter()
        """How many follow each."""

    # --- lists ------------------------------------------------------------------------------------

    async def resources(self, who: Principal) -> list[dict[str, Any]]:
        found = await self._all(who, "resources", "resources/list", "resources")
        return [item for _, item in found]

    async def templates(self, who: Principal) -> list[dict[str, Any]]:
        found = await self._all(who, "resources", "resources/templates/list", "resourceTemplates")
        return [item for _, item in found]

    async def prompts(self, who: Principal) -> list[dict[str, Any]]:
        found = await self._all(who, "prompts", "prompts/list", "prompts")
        return [{**item, "name": self._shown(server, item)} for server, item in found]

    async def _all(
        self, who: Principal, what: str, method: str, field: str
    ) -> list[tuple[str, dict[str, Any]]]:
        """Every item of every upstream that a caller may use, with whose it is."""
        servers = list(self._usable(who, what))
        lists = await asyncio.gather(*(self._pages(who, one, method, field) for one in servers))
        return [
            (server, _legible(item))
            for server, items in zip(servers, lists, strict=True)
            for item in items
        ]

    async def _pages(
        self, who: Principal, server: str, method: str, field: str
    ) -> list[dict[str, Any]]:
        upstream = self._behind.upstreams[server]
        items: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        try:
            async with asyncio.timeout(_SLOWEST):
                for _ in range(_MOST_PAGES):
                    page = await upstream.request(method, params, tenant=who.tenant)
                    found = page.get(field)
                    items += [one for one in found if isinstance(one, dict)] if found else []
                    cursor = page.get("nextCursor")
                    if not isinstance(cursor, str) or len(items) >= _MOST_ITEMS:
                        break
                    params = {"cursor": cursor}
        except (CountersealError, TimeoutError) as error:
            told = str(error) or f"it took more than {_SLOWEST:g} s"
            _log.warning("%s of %s could not be had: %s", method, server, told)
        return items[:_MOST_ITEMS]

    def _usable(self, who: Principal, what: str) -> Iterator[str]:
        for server, plan in self._behind.plans.items():
            capable = self._behind.upstreams[server].capabilities.get(what) is not None
            if getattr(plan, what) and capable and self._behind.uses(who, server, what):
                yield server

    def _shown(self, server: str, item: Mapping[str, Any]) -> str:
        return f"{self._behind.plans[server].prefix}{item.get('name')}"

    # --- one of them ------------------------------------------------------------------------------

    async def read(
        self, ctx: Ctx, params: types.ReadResourceRequestParams, who: Principal, run: str | None
    ) -> dict[str, Any]:
        uri = str(params.uri)
        server = await self._owner_of_resource(uri, who)
        proposal = Proposal(tool=f"{server}.resources", arguments={"uri": uri}, run_id=run)
        return await self._carried_out(ctx, params, proposal, who)

    async def prompt(
        self, ctx: Ctx, params: types.GetPromptRequestParams, who: Principal, run: str | None
    ) -> dict[str, Any]:
        server, name = await self._owner_of_prompt(params.name, who)
        arguments = {"name": name, **({"arguments": params.arguments} if params.arguments else {})}
        proposal = Proposal(tool=f"{server}.prompts", arguments=arguments, run_id=run)
        return await self._carried_out(ctx, params, proposal, who)

    async def _carried_out(
        self, ctx: Ctx, params: types.InputResponseRequestParams, proposal: Proposal, who: Principal
    ) -> dict[str, Any]:
        given, state = params.input_responses, params.request_state
        result = await self._calling.carry_out(ctx, proposal, who, given, state)
        if result.get("resultType") == "input_required":
            return result
        if result["isError"]:
            raise _refused({**result["_meta"][FACTS], **_named(params)})
        return {**COMPLETE, **result["structuredContent"]}

    async def complete(self, params: types.CompleteRequestParams, who: Principal) -> dict[str, Any]:
        asked = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        asked.pop("_meta", None)
        if isinstance(params.ref, types.PromptReference):
            server, asked["ref"]["name"] = await self._owner_of_prompt(params.ref.name, who)
        else:
            server = await self._owner_of_template(str(params.ref.uri), who)
        result = await self._passed(who, server, "completion/complete", asked)
        return {**COMPLETE, **result}

    # --- what changes -----------------------------------------------------------------------------

    async def follow(self, who: Principal, uri: str) -> Followed:
        """Have its upstream tell of changes of a resource. MCPError when there is none."""
        server = await self._owner_of_resource(uri, who)
        own = self._behind.upstreams[server].settings.secrets
        followed = Followed(who.tenant if own else "", server, uri)
        if not self._followed[followed]:
            await self._passed(who, server, "resources/subscribe", {"uri": uri})
        self._followed[followed] += 1
        return followed

    async def follow_all(self, who: Principal, uris: Iterable[str]) -> list[Followed]:
        """The same for several. Which are followed; what nobody has never changes."""
        followed = []
        for uri in uris:
            with suppress(MCPError):
                followed.append(await self.follow(who, uri))
        return followed

    def leave(self, who: Principal, followed: Iterable[Followed]) -> None:
        """What this caller has followed is not told any more on its account."""
        for one in followed:
            self._followed[one] -= 1
            if self._followed[one] <= 0:
                del self._followed[one]
                work = self._passed(who, one.server, "resources/unsubscribe", {"uri": one.uri})
                self._behind.runtime.begin_if_open(_quietly(work))

    def forget(self) -> None:
        """What was found out of whose something is may not hold any more."""
        self._owners.clear()

    async def _passed(
        self, who: Principal, server: str, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Something that is no call of a tool, sent on and put on record."""
        runtime = self._behind.runtime
        caller = Caller(who.tenant, "", "", server, "", who.agent, who.user, "")
        event = Event(EventType.PASSED_ON, caller, runtime.clock(), method)
        try:
            result = await self._behind.upstreams[server].request(method, params, tenant=who.tenant)
        except CountersealError as error:
            _log.warning("%s of %s failed: %s", method, server, error)
            runtime.store.note(event._replace(body={"failed": type(error).__name__}))
            raise _unavailable(method) from None
        runtime.store.note(event)
        return result

    # --- whose it is ------------------------------------------------------------------------------

    async def _owner_of_resource(self, uri: str, who: Principal) -> str:
        return (await self._owner(who, "resource", uri))[0]

    async def _owner_of_template(self, uri: str, who: Principal) -> str:
        return (await self._owner(who, "resource template", uri))[0]

    async def _owner_of_prompt(self, name: str, who: Principal) -> tuple[str, str]:
        return await self._owner(who, "prompt", name)

    async def _owner(self, who: Principal, kind: str, name: str) -> tuple[str, str]:
        """Whose something is, and what its server calls it. MCPError when that is not clear."""
        known = self._owners.get((who.tenant, kind, name))
        what = "prompts" if kind == "prompt" else "resources"
        if known is not None and self._behind.uses(who, known[0], what):
            return known
        found = _only(dict(await self._candidates(who, kind, name)), kind, name)
        if len(self._owners) > 10_000:
            self._owners.clear()
        self._owners[who.tenant, kind, name] = found
        return found

    async def _candidates(self, who: Principal, kind: str, name: str) -> list[tuple[str, str]]:
        if kind == "prompt":
            prompts = await self._all(who, "prompts", "prompts/list", "prompts")
            return [(s, str(item["name"])) for s, item in prompts if self._shown(s, item) == name]
        templates = "resources/templates/list"
        if kind == "resource template":
            listed = await self._all(who, "resources", templates, "resourceTemplates")
            return [(s, name) for s, item in listed if item.get("uriTemplate") == name]
        listed = await self._all(who, "resources", "resources/list", "resources")
        found = [(s, name) for s, item in listed if item.get("uri") == name]
        if not found:
            listed = await self._all(who, "resources", templates, "resourceTemplates")
            found = [(s, name) for s, item in listed if _matches(item.get("uriTemplate"), name)]
        servers = list(self._usable(who, "resources"))
        # The only one may have more than it lists.
        return found or ([(servers[0], name)] if len(servers) == 1 else [])


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(MCPError):
        await work


def _legible(item: dict[str, Any]) -> dict[str, Any]:
    """An item of a list without what nobody can see in the words that models read."""
    clean = {
        key: plain(value, _LONGEST)
        if key in ("title", "description") and isinstance(value, str)
        else value
        for key, value in item.items()
    }
    arguments = clean.get("arguments")
    if isinstance(arguments, list):
        clean["arguments"] = [_legible(one) if isinstance(one, dict) else one for one in arguments]
    return clean


def _named(params: types.InputResponseRequestParams) -> dict[str, str]:
    """What a refused request was about, where the protocol wants that told."""
    return {"uri": str(params.uri)} if isinstance(params, types.ReadResourceRequestParams) else {}


def _matches(template: object, uri: str) -> bool:
    try:
        return UriTemplate.parse(str(template)).match(uri) is not None
    except ValueError:
        return False


def _only(owners: Mapping[str, str], kind: str, name: str) -> tuple[str, str]:
    data = {"uri": name} if kind == "resource" else {"name": name}
    if not owners:
        raise MCPError(types.INVALID_PARAMS, _NOWHERE.format(kind), data)
    if len(owners) > 1:
        said = f"Several servers have this {kind}: {', '.join(sorted(owners))}."
        raise MCPError(types.INVALID_PARAMS, said, data)
    return next(iter(owners.items()))


def _refused(facts: Mapping[str, Any]) -> MCPError:
    """A refusal as an error of the protocol; its facts say the rest."""
    errors = [error["message"] for error in facts.get("errors", ())]
    said = f"{facts['code']}: {errors[0] if errors else 'the request was refused'}"
    argued = facts["code"] in (Code.SEMANTIC_INVALIDITY, Code.STALE_STATE)
    code = types.INVALID_PARAMS if argued else types.INTERNAL_ERROR
    return MCPError(code, said, dict(facts))


def _unavailable(method: str) -> MCPError:
    return MCPError(
        types.INTERNAL_ERROR, f"DEPENDENCY_UNAVAILABLE: {method} could not be passed on"
    )
