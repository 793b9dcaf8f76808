"""Operators' changes to the registry: stored for good, on record, and heeded by every worker.

A change is made in the store first and replayed on the registry then, here and wherever the store
is shared: `admit` refuses what was decided without it, and the worker catches up. The registry says
what a change means; who may be an operator is for whoever hands out an `Operator` to know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast

from counterseal.audit import Caller, Event, EventType
from counterseal.canonical import canonical
from counterseal.contract.effects import Effect
from counterseal.errors import RegistryError, StoreError
from counterseal.proposal import Principal
from counterseal.registry import (
    Deprecation,
    Grant,
    Kill,
    Registry,
    RegistryChange,
    RegistryRecord,
)
from counterseal.registry.changes import Op
from counterseal.registry.identities import (
    Credential,
    User,
    key_id_in,
    new_key,
    stored,
    without_hashes,
)
from counterseal.storage.base import Store

__all__ = ["EVERYBODY", "News", "Operator", "catch_up"]

EVERYBODY: Final = "*"
"""The tenant under which changes are on record: they concern all of them."""

_LONGEST_REASON: Final = 1000
_LONGEST_NAME: Final = 200
_MOST_BYTES: Final = 16_384
_TRIES: Final = 5
"""How often a change is tried while others make theirs."""
_FRESH: Final = 1.0
"""For how many seconds news are new."""


async def catch_up(store: Store, registry: Registry) -> bool:
    """Replay what was stored since. Whether there was anything."""
    known = registry.stored
    for number, what in await store.changes(known):
        registry.apply(number, what)
    return registry.stored > known


class Follower(Protocol):
    """What has a registry to keep up to date: the runtime."""

    async def catch_up(self) -> bool: ...

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]: ...


class News:
    """Keeps up with what operators change, asking the store at most once a second."""

    def __init__(self, runtime: Follower, steady: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._steady = steady
        self._heard = -float("inf")
        self._hearing: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether what is known is at most a second old."""
        return self._steady() - self._heard < _FRESH

    async def heard(self) -> None:
        """Wait until it is. StoreError."""
        if self.fresh:
            return
        if self._hearing is None or self._hearing.done():
            self._hearing = self._runtime.begin(self._catch_up())
        await asyncio.shield(self._hearing)

    async def _catch_up(self) -> None:
        began = self._steady()
        await self._runtime.catch_up()
        self._heard = began


class Operator:
    """Somebody who changes the registry for all workers, and until it is changed again.

    Has the registry's own methods, each with a reason. RegistryError or GrantError when a change
    makes no sense; then nothing is stored.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        by: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._registry = registry
        self._by = _text("by", by, _LONGEST_NAME)
        self._clock = clock

    async def preview_kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None
    ) -> tuple[RegistryRecord, ...]:
        """What such a kill would stop that nothing else has stopped yet."""
        await catch_up(self._store, self._registry)
        return self._registry.preview_kill(tool=tool, effect=effect)

    async def kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None, reason: str
    ) -> Kill:
        """Stop a tool, every tool of an effect, or everything, until `restore` undoes this kill."""
        named = None if effect is None else str(effect)
        change = await self._make(Op.KILL, reason, lambda: {"tool": tool, "effect": named})
        return cast("Kill", change.kill)

    async def restore(self, kill: Kill | str, *, reason: str) -> RegistryChange:
        """Undo one kill, by itself or its id. What another kill covers stays stopped."""
        kill_id = kill if isinstance(kill, str) else kill.id
        return await self._make(Op.RESTORE, reason, lambda: {"kill": kill_id})

    async def enable(self, name: str, version: str | None = None, *, reason: str) -> RegistryChange:
        """Without a version: all that there are."""

        def what() -> dict[str, Any]:
            line = [record.version for record in self._registry.versions(name)]
            known = {} if version is not None else {"versions": line}
            return {"tool": name, "version": version, **known}

        return await self._make(Op.ENABLE, reason, what)

    async def disable(
        self, name: str, version: str | None = None, *, reason: str
    ) -> RegistryChange:
        """Without a version: all of them, and those that come later."""
        return await self._make(Op.DISABLE, reason, lambda: {"tool": name, "version": version})

    async def set_rollout(
        self, name: str, version: str, percentage: int, *, reason: str
    ) -> RegistryChange:
        what = {"tool": name, "version": version, "percentage": percentage}
        return await self._make(Op.ROLLOUT, reason, lambda: what)

    async def deprecate(
        self, name: str, version: str, deprecation: Deprecation | None, *, reason: str
    ) -> RegistryChange:
        """None takes a deprecation back; a contract that declares itself sunset stays so."""
        given = None if deprecation is None else deprecation.export()
        what = {"tool": name, "version": version, "deprecation": given}
        return await self._make(Op.DEPRECATE, reason, lambda: what)

    async def grant(self, grant: Grant, *, reason: str) -> RegistryChange:
        """Add a grant. It is weighed before those that code declares."""

        def what() -> dict[str, Any]:
            without = sorted(self._registry.deprecated_versions(grant.tool))
            return {"grant": grant.export(), "without": without}

        return await self._make(Op.GRANT, reason, what)

    async def revoke(self, grant: Grant, *, reason: str) -> RegistryChange:
        """Take a grant back, whoever gave it: code that declares it has no say any more."""
        return await self._make(Op.REVOKE, reason, lambda: {"grant": grant.export()})

    async def issue_key(
        self, principal: Principal, *, expires_at: datetime | None = None, reason: str
    ) -> tuple[str, Credential]:
        """An API key for a principal. Its text is given this once: only a hash of it is kept."""
        key = new_key()
        what = stored(key, principal, expires_at)
        change = await self._make(Op.KEY, reason, lambda: {"key": what})
        return key.text, cast("Credential", change.credential)

    async def revoke_key(self, key_id: str, *, reason: str) -> RegistryChange:
        """End an API key, by its id: every worker refuses it, also in a session that it began."""
        known = key_id_in(key_id)
        return await self._make(Op.UNKEY, reason, lambda: {"key_id": known})

    async def put_user(self, did: str, made: Callable[[Registry], User], *, reason: str) -> User:
        """Store a user as `made` gives them; it is called with all that others changed known."""
        change = await self._make(
            Op.USER, reason, lambda: {"did": did, "user": made(self._registry).stored()}
        )
        return cast("User", change.user)

    async def remove_user(self, name: str, *, reason: str) -> RegistryChange:
        """Forget a user: no session and no personal key of theirs is good any more."""
        known = self._registry.existing_user
        return await self._make(Op.UNUSER, reason, lambda: {"name": known(name).name})

    async def _make(
        self, op: Op, reason: str, what: Callable[[], dict[str, Any]]
    ) -> RegistryChange:
        """Store a change as the next one. Whoever was faster is replayed first."""
        store, registry = self._store, self._registry
        said = {"reason": _text("reason", reason, _LONGEST_REASON), "by": self._by}
        for _ in range(_TRIES):
            await catch_up(store, registry)
            now = self._clock()
            at = datetime.fromtimestamp(now, UTC).isoformat()
            change = {"op": op.value, **what(), **said, "at": at}
            _refuse_unstorable(change)
            registry.check(change)
            number = registry.stored + 1
            if await store.change(number, change, [_event(number, change, now)]):
                registry.apply(number, change)
                return registry.changes[number - 1]
        raise StoreError(f"others kept changing the registry; {op} was tried {_TRIES} times")


def _event(number: int, what: Mapping[str, Any], now: float) -> Event:
    about = what.get("grant", what)
    caller = Caller(
        tenant=EVERYBODY,
        run_id="",
        call_id="",
        tool=about.get("tool") or "",
        version=about.get("version") or "",
        agent="counterseal",
        user=what["by"],
        trace_id="",
    )
    body = {"number": number, **without_hashes(what)}
    return Event(EventType.REGISTRY_CHANGED, caller, now, what["op"], body=body)


def _text(name: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or not value.strip():
        asked = "say why" if name == "reason" else "say who"
        raise RegistryError(f"{name}: {asked}; it is what the next person will read")
    if len(value) > longest:
        raise RegistryError(f"{name}: takes at most {longest} characters, got {len(value)}")
    return value


def _refuse_unstorable(what: Mapping[str, Any]) -> None:
    """What one of the stores could not keep as it is."""
    if any("\0" in text for text in _texts(what)):
        raise RegistryError("a change can't hold a null character")
    try:
        size = len(canonical(what))
    except ValueError as error:
        raise RegistryError(f"a change must be plain JSON: {error}") from None
    if size > _MOST_BYTES:
        raise RegistryError(f"a change takes at most {_MOST_BYTES:,} bytes, got {size:,}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
