"""Credentials: their sources, checks and cache.

A source is a mapping, or a function of (tenant, name): `from_environment`, `from_files(directory)`,
or the user's own resolver. A tenant's own secret is used first, then the common one; another
tenant's secret is never read. No message contains a value.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from counterseal.errors import SecretUnavailableError
from counterseal.masking import SHORTEST

Resolver = Callable[[str, str], str | Awaitable[str]]
"""A function of (tenant, name), async or not."""
Secrets = Mapping[str, str | Mapping[str, str]] | Resolver
"""A resolver, or values by name; a tenant's own values are in a mapping under its name."""


class _PendingLookup:
    """One request to a resolver, and the number of callers that wait for it."""

    __slots__ = ("task", "waiting")

    task: asyncio.Task[str]

    def __init__(self) -> None:
        self.waiting = 0


_Key = tuple[asyncio.AbstractEventLoop, str, str]


class Credentials:
    """Reads secrets from a source, checks them, and caches each for a while.

    Failures are not cached. Callers that want the same secret at the same time share one request,
    which is cancelled when none of them waits any longer. A sync resolver may block, so it runs in
    a thread; a mapping and the environment are read directly.
    """

    def __init__(
        self,
        source: Secrets,
        *,
        clock: Callable[[], float] = time.monotonic,
        ttl: float = 300.0,
        most: int = 1024,
        apart: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._source = source
        self._apart = apart
        """Runs a blocking function in a thread."""
        self._clock = clock
        self._ttl = ttl
        self._most = most
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}
        self._flights: dict[_Key, _PendingLookup] = {}

    async def get(self, tenant: str, name: str) -> str:
        """Return the secret's value. Raise SecretUnavailableError with its name and the reason."""
        kept = self._kept.get((tenant, name))
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        if isinstance(self._source, Mapping):
            return self._now(partial(_from_mapping, self._source), tenant, name)
        if self._source is from_environment:
            return self._now(from_environment, tenant, name)
        return await self._join(tenant, name)

    def forget(self, tenant: str | None = None) -> None:
        """Drop the cached secrets of this tenant, or of all tenants, after a rotation."""
        for kept in [key for key in self._kept if tenant in {None, key[0]}]:
            del self._kept[kept]
        # A request under way may return the old value: no new caller joins it, and it isn't cached.
        for key in [key for key in self._flights if tenant in {None, key[1]}]:
            del self._flights[key]

    def _now(self, source: Callable[[str, str], Any], tenant: str, name: str) -> str:
        with _failing(name):
            value = source(tenant, name)
        checked = _checked(name, value)
        self._keep(tenant, name, checked)
        return checked

    async def _join(self, tenant: str, name: str) -> str:
        loop = asyncio.get_running_loop()
        key = (loop, tenant, name)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _PendingLookup()
            flight.task = loop.create_task(self._fly(flight, key))
            # Retrieved, so that asyncio does not log an exception as never retrieved.
            flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._land(flight, key)
                flight.task.cancel()
        if flight.task.cancelled():
            raise SecretUnavailableError(
                f"the secret {name} is not available: the resolver was cancelled"
            )
        return flight.task.result()

    async def _fly(self, flight: _PendingLookup, key: _Key) -> str:
        _, tenant, name = key
        try:
            value = _checked(name, await self._ask(tenant, name))
            if self._flights.get(key) is flight:
                self._keep(tenant, name, value)
            return value
        finally:
            self._land(flight, key)

    def _land(self, flight: _PendingLookup, key: _Key) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _ask(self, tenant: str, name: str) -> Any:
        source: Any = self._source
        with _failing(name):
            if any(map(inspect.iscoroutinefunction, (source, type(source).__call__))):
                return await source(tenant, name)

            def contained() -> Any:
                with _failing(name):  # in the thread: a future can't carry every exception
                    return source(tenant, name)

            answer = await self._apart(contained)
            # A lambda may return an awaitable.
            return await answer if inspect.isawaitable(answer) else answer

    def _keep(self, tenant: str, name: str, value: str) -> None:
        now = self._clock()
        self._kept.pop((tenant, name), None)
        self._kept[tenant, name] = (now + self._ttl, value)
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) <= self._most and now < self._kept[oldest][0]:
                break
            del self._kept[oldest]


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Raise SecretUnavailableError for anything that the operator's source raises."""
    try:
        yield
    except (SecretUnavailableError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        kind = type(error).__name__
        raise SecretUnavailableError(
            f"the secret {name} is not available: its source raised {kind}"
        ) from error


def _checked(name: str, value: object) -> str:
    """Return the value if it can be masked. The error says what is wrong without quoting it."""
    if not isinstance(value, str):
        why = f"it must be text, got {type(value).__name__}"
    elif not value.strip():
        why = "it is blank"
    elif len(value.strip()) < SHORTEST:
        why = f"it has fewer than {SHORTEST} characters, too few to be masked reliably"
    elif "\0" in value:
        why = "it holds a NUL character"
    elif not value.isascii() and re.search("[\ud800-\udfff]", value):
        why = "it is not UTF-8 text"
    else:
        return value
    raise SecretUnavailableError(f"the secret {name} can't be used: {why}")


def _from_mapping(source: Mapping[str, Any], tenant: str, name: str) -> Any:
    own = source.get(tenant)
    if isinstance(own, Mapping) and name in own:
        return own[name]
    common = source.get(name)
    # A mapping holds the secrets of a tenant that has the same name as this secret.
    if common is None or isinstance(common, Mapping):
        raise SecretUnavailableError(f"the secret {name} is not configured; add it to secrets=")
    return common


# --- from the environment -------------------------------------------------------------------------

_PREFIX = "COUNTERSEAL_SECRET_"
_NAME = re.compile(r"[A-Za-z0-9]+(?:[-._][A-Za-z0-9]+)*")


def secret_variable(name: str, tenant: str | None = None) -> str:
    """Return the environment variable of a secret, for all tenants or for one.

    Case does not matter in a secret's name; `-` and `.` become `_`. A tenant is encoded exactly:
    any byte except a-z and 0-9 becomes `_` and its hex code, so that no two tenants collide. Two
    underscores separate tenant and name, and occur nowhere else.

        secret_variable("api-key")                       COUNTERSEAL_SECRET_API_KEY
        secret_variable("api-key", tenant="acme")        COUNTERSEAL_SECRET_ACME__API_KEY
        secret_variable("api-key", tenant="acme-eu")     COUNTERSEAL_SECRET_ACME_2DEU__API_KEY
    """
    if not _NAME.fullmatch(name) or tenant == "":
        raise SecretUnavailableError(
            f"the secret {name} has no environment variable: its name must consist of letters "
            "and digits with single -, . or _ between them, and its tenant must not be empty"
        )
    variable = re.sub("[-.]", "_", name).upper()
    if tenant is None:
        return _PREFIX + variable
    raw = tenant.encode(errors="surrogatepass")
    exact = re.sub(rb"[^a-z0-9]", lambda found: b"_%02X" % found[0][0], raw).decode().upper()
    return f"{_PREFIX}{exact}__{variable}"


def from_environment(tenant: str, name: str) -> str:
    """Return the tenant's own variable, or else the common one."""
    own, common = secret_variable(name, tenant), secret_variable(name)
    for variable in (own, common):
        if variable in os.environ:
            return os.environ[variable]
    alone = "" if tenant == "*" else f", or {own} for this tenant alone"
    raise SecretUnavailableError(f"the secret {name} is not configured; set {common}{alone}")


def why_unconfigured(name: str, directory: Path | None) -> str:
    """Return what to do about a secret that no tenant has; empty if one has it, or all.

    The secrets are files below the directory, else variables of the environment.
    """
    if directory is not None:
        folders = [directory, *(one for one in directory.iterdir() if one.is_dir())]
        configured = any((folder / name).exists() for folder in folders)
        fix = f"put it into {directory / name}"
    else:
        try:
            variable = secret_variable(name)
        except SecretUnavailableError as error:
            return str(error)
        own = f"__{variable.removeprefix(_PREFIX)}"
        variables = [one for one in os.environ if one.startswith(_PREFIX)]
        configured = any(one == variable or one.endswith(own) for one in variables)
        fix = f"set {variable}"
    return "" if configured else f"the secret {name} is not configured; {fix}"


# --- from files -----------------------------------------------------------------------------------

_LARGEST: Final = 64 * 1024


def from_files(directory: str | Path) -> Resolver:
    """Return a resolver that reads `directory/tenant/name`, or else `directory/name`.

    One line break at the end is not part of the secret. Links may lead anywhere inside the
    directory, because orchestrators mount secret files as links.
    """
    root = Path(directory).absolute()

    def resolve(tenant: str, name: str) -> str:
        if not (_plain(tenant) and _plain(name)):
            raise SecretUnavailableError(
                f"the secret {name} is not available: its name or tenant is not a valid file name"
            )
        try:
            for path in (root / tenant / name, root / name):
                if _listed(root, path):
                    return _read(root, path, name)
        except OSError as error:
            raise SecretUnavailableError(
                f"the secret {name} can't be read: {error.strerror}"
            ) from error
        raise SecretUnavailableError(
            f"the secret {name} is not configured; put it into {root / name}"
        )

    return resolve


def _plain(part: str) -> bool:
    return bool(part) and not part.startswith(".") and not re.search(r"[/\\\0]", part)


def _listed(root: Path, path: Path) -> bool:
    """Return whether the path exists with exactly this case: some file systems ignore case."""
    if path == root:
        return True
    try:
        return _listed(root, path.parent) and any(
            found.name == path.name for found in path.parent.iterdir()
        )
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read(root: Path, path: Path, name: str) -> str:
    real = path.resolve(strict=True)
    if not real.is_relative_to(root.resolve()):
        raise SecretUnavailableError(f"the secret {name} can't be used: it is outside of {root}")
    # Opening a pipe would block. The path is resolved, so a link here was made since.
    careful = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    with open(real, "rb", opener=lambda path, flags: os.open(path, flags | careful)) as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        raw = file.read(_LARGEST + 1) if regular else b""
    if not regular or len(raw) > _LARGEST:
        raise SecretUnavailableError(
            f"the secret {name} can't be used: {path} must be a regular file of at most "
            f"{_LARGEST} bytes"
        )
    # Bytes that are not UTF-8 stay recognisable, and `_checked` refuses them.
    text = raw.decode(errors="surrogateescape")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
