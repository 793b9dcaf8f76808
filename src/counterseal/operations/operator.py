"""Operators: they change the registry, durably, on record, for every worker.

A change is stored first, and then applied to the registry of each worker that shares the store:
`admit` refuses a decision that was made without it, and the worker catches up. The registry defines
what a change means; the code that hands out an `Operator` decides who may be one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast

from counterseal.audit import CallFields, Event, EventType
from counterseal.canonical import canonical
from counterseal.contract.bindings import texts
from counterseal.contract.effects import Effect
from counterseal.errors import RegistryError, StoreError
from counterseal.ledger.records import RegisteredContract
from counterseal.proposal import Principal
from counterseal.registry import Deprecation, Grant, Kill, Registry, RegistryChange, RegistryRecord
from counterseal.registry.changes import Op
from counterseal.registry.identities import (
    Credential,
    User,
    key_id_in,
    new_key,
    stored,
    without_hashes,
)
from counterseal.storage.store import Store

ALL_TENANTS: Final = "*"
"""The tenant under which changes are recorded, because they concern all of them."""

_MAX_REASON: Final = 1000
_MAX_NAME: Final = 200
_MAX_BYTES: Final = 16_384
_TRIES: Final = 5
"""How often a change is tried while other operators make theirs."""
_FRESH_SECONDS: Final = 1.0


async def catch_up(store: Store, registry: Registry) -> bool:
    """Apply the changes stored since the last one known. Returns False if there are none."""
    last = registry.stored
    for number, change in await store.changes(last):
        registry.apply(number, change)
    return registry.stored > last


async def review_versions(
    store: Store, registry: Registry, clock: Callable[[], float], *, register: bool
) -> None:
    """Hold the versions of a registry that widen what their tools may do, and are not accepted.

    With `register`, contracts that the store does not know yet are stored, and holds are recorded.
    If that fails, the review is made again: a later version is compared with what is stored.
    """
    records = registry.unreviewed  # others may be registered while the store is read
    if not records:
        return
    stored_contracts = await store.contracts({record.name for record in records})
    new = registry.review(records, stored_contracts)
    if new and register:
        now = clock()
        rows = [
            RegisteredContract(one.name, one.version, one.hash, one.record(), held)
            for one, held in new
        ]
        await store.register_contracts([(row, _hold_events(row, now)) for row in rows])
    registry.end_review(records)


def _hold_events(row: RegisteredContract, now: float) -> Sequence[Event]:
    if not row.held:
        return ()
    caller = CallFields(ALL_TENANTS, "", "", row.tool, row.version, "counterseal", None, "")
    body = {"contract_hash": row.contract_hash, "changes": list(row.held)}
    return [Event(EventType.VERSION_HELD, caller, now, "hold", body=body)]


class RegistryServices(Protocol):
    """The part of the runtime that following the registry uses."""

    async def catch_up(self) -> bool: ...
    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]: ...


class RegistryFollower:
    """Keeps the registry up to date, reading from the store at most once a second."""

    def __init__(
        self, services: RegistryServices, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._services = services
        self._steady = steady
        self._read_at = -float("inf")
        self._reading: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """True if the registry is at most a second old."""
        return self._steady() - self._read_at < _FRESH_SECONDS

    async def refresh(self) -> None:
        """Wait until the registry is at most a second old. Raises StoreError if that fails."""
        if self.fresh:
            return
        if self._reading is None or self._reading.done():
            self._reading = self._services.begin(self._catch_up())
        await asyncio.shield(self._reading)

    async def _catch_up(self) -> None:
        began = self._steady()
        await self._services.catch_up()
        self._read_at = began


class Operator:
    """Changes the registry for all workers, each change with a reason.

    Has the registry's own methods. RegistryError or GrantError if a change is invalid; then nothing
    is stored.
    """

    def __init__(
        self, store: Store, registry: Registry, *, by: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._registry = registry
        self._by = _text("by", by, _MAX_NAME)
        self._clock = clock

    async def preview_kill(
        self,
        *,
        tool: str | None = None,
        effect: Effect | str | None = None,
        tenant: str | None = None,
    ) -> tuple[RegistryRecord, ...]:
        """Return what such a kill would stop that is not stopped already."""
        await catch_up(self._store, self._registry)
        return self._registry.preview_kill(tool=tool, effect=effect, tenant=tenant)

    async def kill(
        self,
        *,
        tool: str | None = None,
        effect: Effect | str | None = None,
        tenant: str | None = None,
        reason: str,
    ) -> Kill:
        """Stop a tool, every tool of an effect, or everything, until `restore` undoes this kill.

        With a tenant, only there; without, in every tenant.
        """
        named = None if effect is None else str(effect)
        what = {"tool": tool, "effect": named, **_of(tenant)}
        change = await self._make(Op.KILL, reason, lambda: what)
        return cast("Kill", change.kill)

    async def restore(self, kill: Kill | str, *, reason: str) -> RegistryChange:
        """Undo one kill, by itself or its id. What another kill covers stays stopped."""
        kill_id = kill if isinstance(kill, str) else kill.id

        def what() -> dict[str, Any]:
            tenants = [one.tenant for one in self._registry.kills if one.id == kill_id]
            return {"kill": kill_id, **_of(*tenants)}

        return await self._make(Op.RESTORE, reason, what)

    async def enable(self, name: str, version: str | None = None, *, reason: str) -> RegistryChange:
        """Enable a version; without one, all that exist now."""

        def what() -> dict[str, Any]:
            line = [record.version for record in self._registry.versions(name)]
            known = {} if version is not None else {"versions": line}
            return {"tool": name, "version": version, **known}

        return await self._make(Op.ENABLE, reason, what)

    async def disable(
        self, name: str, version: str | None = None, *, reason: str
    ) -> RegistryChange:
        """Disable a version; without one, all of them, also those registered later."""
        return await self._make(Op.DISABLE, reason, lambda: {"tool": name, "version": version})

    async def set_rollout(
        self, name: str, version: str, percentage: int, *, reason: str
    ) -> RegistryChange:
        what = {"tool": name, "version": version, "percentage": percentage}
        return await self._make(Op.ROLLOUT, reason, lambda: what)

    async def deprecate(
        self, name: str, version: str, deprecation: Deprecation | None, *, reason: str
    ) -> RegistryChange:
        """Deprecate a version; None takes it back, unless the contract declares its own sunset."""
        exported = None if deprecation is None else deprecation.export()
        what = {"tool": name, "version": version, "deprecation": exported}
        return await self._make(Op.DEPRECATE, reason, lambda: what)

    async def accept_risk(
        self, name: str, version: str, *, accepted: bool = True, reason: str
    ) -> RegistryChange:
        """Accept that a contract lowers the risk class of its effect, or withdraw the acceptance.

        From then on approval and audit follow the risk class that the contract declares. Holds for
        the contract as it is now: one that changes under the same version is not accepted.
        """

        def what() -> dict[str, Any]:
            contract = self._registry.get(name, version).contract
            return {
                "tool": name,
                "version": version,
                "risk_class": contract.risk.value,
                "contract_hash": contract.hash if accepted else None,
            }

        return await self._make(Op.ACCEPT_RISK, reason, what)

    async def accept_version(self, name: str, version: str, *, reason: str) -> RegistryChange:
        """Accept a version that is held for review. Holds for the contract as it is now."""

        def what() -> dict[str, Any]:
            record = self._registry.get(name, version)
            accepted = {"contract_hash": record.contract.hash, "changes": list(record.held)}
            return {"tool": name, "version": version, **accepted}

        return await self._make(Op.ACCEPT_VERSION, reason, what)

    async def grant(self, grant: Grant, *, reason: str) -> RegistryChange:
        """Add a grant. It comes before the grants that code declares.

        A grant that names no highest effect is given for what the tool does now.
        """

        def what() -> dict[str, Any]:
            without = sorted(self._registry.deprecated_versions(grant.tool))
            highest = grant.max_effect or self._registry.effect_for(grant)
            return {"grant": {**grant.export(), "max_effect": highest}, "without": without}

        return await self._make(Op.GRANT, reason, what)

    async def revoke(self, grant: Grant, *, reason: str) -> RegistryChange:
        """Take a grant back, also one that code declares."""
        return await self._make(Op.REVOKE, reason, lambda: {"grant": grant.export()})

    async def issue_key(
        self, principal: Principal, *, expires_at: datetime | None = None, reason: str
    ) -> tuple[str, Credential]:
        """Issue an API key. Its text is returned only here; the store keeps a hash."""
        key = new_key()
        what = stored(key, principal, expires_at)
        change = await self._make(Op.KEY, reason, lambda: {"key": what})
        return key.text, cast("Credential", change.credential)

    async def revoke_key(self, key_id: str, *, reason: str) -> RegistryChange:
        """Revoke an API key by its id: every worker refuses it, also in sessions opened with it."""
        checked = key_id_in(key_id)
        return await self._make(Op.UNKEY, reason, lambda: {"key_id": checked})

    async def put_user(self, did: str, made: Callable[[Registry], User], *, reason: str) -> User:
        """Store the user that `made` returns. It is called with an up-to-date registry."""
        change = await self._make(
            Op.USER, reason, lambda: {"did": did, "user": made(self._registry).stored()}
        )
        return cast("User", change.user)

    async def remove_user(self, name: str, *, reason: str) -> RegistryChange:
        """Remove a user, with all their sessions and personal keys."""
        user = self._registry.existing_user
        return await self._make(Op.UNUSER, reason, lambda: {"name": user(name).name})

    async def _make(
        self, op: Op, reason: str, what: Callable[[], dict[str, Any]]
    ) -> RegistryChange:
        """Store a change as the next one, after those that other operators stored meanwhile."""
        store, registry = self._store, self._registry
        signature = {"reason": _text("reason", reason, _MAX_REASON), "by": self._by}
        for _ in range(_TRIES):
            await catch_up(store, registry)
            now = self._clock()
            at = datetime.fromtimestamp(now, UTC).isoformat()
            change = {"op": op.value, **what(), **signature, "at": at}
            _refuse_unstorable(change)
            registry.check(change)
            number = registry.stored + 1
            if await store.change(number, change, [_event(number, change, now)]):
                registry.apply(number, change)
                return registry.changes[number - 1]
        raise StoreError(
            f"{op} was tried {_TRIES} times, and other operators changed the registry each time;"
            " try again"
        )


def _of(tenant: str | None = None) -> dict[str, str]:
    """Return the tenant that a change is limited to, as a field of it; nothing if it is not."""
    return {} if tenant is None else {"tenant": tenant}


def _event(number: int, change: Mapping[str, Any], now: float) -> Event:
    about = change.get("grant", change)
    tool, version = about.get("tool") or "", about.get("version") or ""
    tenant = change.get("tenant", ALL_TENANTS)  # a tenant's kill is on that tenant's record
    caller = CallFields(tenant, "", "", tool, version, "counterseal", change["by"], "")
    body = {"number": number, **without_hashes(change)}
    return Event(EventType.REGISTRY_CHANGED, caller, now, change["op"], body=body)


def _text(name: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or not value.strip():
        purpose = "why" if name == "reason" else "who"
        raise RegistryError(f"{name} must be a text that says {purpose}, for the audit record")
    if len(value) > longest:
        raise RegistryError(f"{name} must have at most {longest} characters, got {len(value)}")
    return value


def _refuse_unstorable(change: Mapping[str, Any]) -> None:
    """Raise RegistryError for a change that one of the stores could not keep as it is."""
    if any("\0" in text for _, text in texts(change)):
        raise RegistryError("a change must not contain a NUL character")
    try:
        size = len(canonical(change))
    except ValueError as error:
        raise RegistryError(f"a change must be plain JSON: {error}") from None
    if size > _MAX_BYTES:
        raise RegistryError(f"a change must have at most {_MAX_BYTES:,} bytes, got {size:,}")
