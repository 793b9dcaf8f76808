"""Credentials: where they come from, what is refused, and how long one is remembered.

A source is a mapping, or a function of (tenant, name): `from_environment`, `from_files(directory)`,
or a resolver of the user's that asks a vault. What belongs to a tenant is asked for first, then
what belongs to all; what belongs to another tenant is never seen. No message here holds a value.
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

__all__ = [
    "Credentials",
    "Resolver",
    "Secrets",
    "from_environment",
    "from_files",
    "secret_variable",
]

Resolver = Callable[[str, str], str | Awaitable[str]]
"""A function of (tenant, name), async or not."""
Secrets = Mapping[str, str | Mapping[str, str]] | Resolver
"""A resolver, or values by name; a tenant's own stand in a mapping under the tenant."""


class _Flight:
    """One question to a resolver, and how many callers wait for its answer."""

    __slots__ = ("task", "waiting")

    task: asyncio.Task[str]

    def __init__(self) -> None:
        self.waiting = 0


_Key = tuple[asyncio.AbstractEventLoop, str, str]


class Credentials:
    """Asks a source for secrets, checks them, and remembers each for a while.

    A failure is not remembered. Callers that want the same secret at the same time share one
    question, which is given up when none of them waits any longer. A resolver that is not async
    may block, so it runs in a thread; a mapping and the environment answer at once.
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
        """Runs what may block in a thread."""
        self._clock = clock
        self._ttl = ttl
        self._most = most
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}
        self._flights: dict[_Key, _Flight] = {}

    async def get(self, tenant: str, name: str) -> str:
        """The secret's value. SecretUnavailableError says which one could not be had, and why."""
        kept = self._kept.get((tenant, name))
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        if isinstance(self._source, Mapping):
            return self._now(partial(_from_mapping, self._source), tenant, name)
        if self._source is from_environment:
            return self._now(from_environment, tenant, name)
        return await self._join(tenant, name)

    def forget(self, tenant: str | None = None) -> None:
        """Ask anew for every secret of this tenant, or of all: they were rotated."""
        for kept in [key for key in self._kept if tenant in {None, key[0]}]:
            del self._kept[kept]
        # Whoever waits gets what comes, but it may be the old one: nobody else joins, or keeps it.
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
            flight = self._flights[key] = _Flight()
            flight.task = loop.create_task(self._fly(flight, key))
            flight.task.add_done_callback(_looked_at)
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._land(flight, key)
                flight.task.cancel()
        if flight.task.cancelled():
            raise SecretUnavailableError(f"the secret {name} is not available: nobody answered")
        return flight.task.result()

    async def _fly(self, flight: _Flight, key: _Key) -> str:
        _, tenant, name = key
        try:
            value = _checked(name, await self._ask(tenant, name))
            if self._flights.get(key) is flight:
                self._keep(tenant, name, value)
            return value
        finally:
            self._land(flight, key)

    def _land(self, flight: _Flight, key: _Key) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _ask(self, tenant: str, name: str) -> Any:
        source: Any = self._source
        with _failing(name):
            if any(map(inspect.iscoroutinefunction, (source, type(source).__call__))):
                return await source(tenant, name)
            answer = await self._apart(partial(_contained, source, tenant, name))
            # A lambda may hide that it is async.
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


def _looked_at(task: asyncio.Task[str]) -> None:
    """So that an error which nobody waited for any longer is not reported as overlooked."""
    if not task.cancelled():
        task.exception()


def _contained(source: Callable[[str, str], Any], tenant: str, name: str) -> Any:
    # In the thread: a future can't carry every exception.
    with _failing(name):
        return source(tenant, name)


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """A source is the operator's own code: whatever it raises means that there is no secret."""
    try:
        yield
    except (SecretUnavailableError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        kind = type(error).__name__
        raise SecretUnavailableError(
            f"the secret {name} is not available: {kind} where it should come from"
        ) from error


def _checked(name: str, value: object) -> str:
    """What can be masked and passed on. Says what is wrong with a value, never how it looks."""
    if not isinstance(value, str):
        why = f"it is no text but {type(value).__name__}"
    elif not value.strip():
        why = "it is blank"
    elif len(value.strip()) < SHORTEST:
        why = f"it has fewer than {SHORTEST} characters, and would be found in innocent text too"
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
    # A mapping here holds the secrets of a tenant who is called like the secret.
    if common is None or isinstance(common, Mapping):
        raise SecretUnavailableError(f"the secret {name} is not configured; add it to secrets=")
    return common


# From the environment -----------------------------------------------------------------------------

_PREFIX = "COUNTERSEAL_SECRET_"
_NAME = re.compile(r"[A-Za-z0-9]+(?:[-._][A-Za-z0-9]+)*")


def secret_variable(name: str, tenant: str | None = None) -> str:
    """The environment variable that holds a secret, of every tenant or of one.

    In a name case does not matter, and `-` and `.` are `_`. A tenant is spelled exactly: whatever
    is no small letter or digit is written as `_` and its code, so that no two tenants can meet. Two
    underscores stand between tenant and name and nowhere else.

        secret_variable("api-key")                       COUNTERSEAL_SECRET_API_KEY
        secret_variable("api-key", tenant="acme")        COUNTERSEAL_SECRET_ACME__API_KEY
        secret_variable("api-key", tenant="acme-eu")     COUNTERSEAL_SECRET_ACME_2DEU__API_KEY
    """
    if not _NAME.fullmatch(name) or tenant == "":
        raise SecretUnavailableError(
            f"the secret {name} has no environment variable: its name has to be made of letters "
            "and digits, with single -, . or _ between them, and its tenant can't be empty"
        )
    variable = re.sub("[-.]", "_", name).upper()
    return _PREFIX + (variable if tenant is None else f"{_exactly(tenant)}__{variable}")


def _exactly(tenant: str) -> str:
    return (
        re.sub(
            rb"[^a-z0-9]",
            lambda found: b"_%02X" % found[0][0],
            tenant.encode(errors="surrogatepass"),
        )
        .decode()
        .upper()
    )


def from_environment(tenant: str, name: str) -> str:
    """The tenant's own variable, or else the one for all."""
    own, common = secret_variable(name, tenant), secret_variable(name)
    for variable in (own, common):
        if variable in os.environ:
            return os.environ[variable]
    raise SecretUnavailableError(
        f"the secret {name} is not configured; set {common}, or {own} for this tenant alone"
    )


# From files ---------------------------------------------------------------------------------------

_LARGEST: Final = 64 * 1024


def from_files(directory: str | Path) -> Resolver:
    """A resolver that reads `directory/tenant/name`, or else `directory/name`.

    One line break at the end is no part of the secret. Links may lead anywhere inside the
    directory, which is how an orchestrator mounts such files.
    """
    root = Path(directory).absolute()

    def resolve(tenant: str, name: str) -> str:
        if not (_plain(tenant) and _plain(name)):
            raise SecretUnavailableError(
                f"the secret {name} is not available: it or its tenant can't be a file's name"
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
    """Whether it is there in exactly this spelling: some file systems take Acme for acme."""
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
    with open(real, "rb", opener=_opened) as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        raw = file.read(_LARGEST + 1) if regular else b""
    if not regular or len(raw) > _LARGEST:
        raise SecretUnavailableError(
            f"the secret {name} can't be used: {path} is no plain file of up to {_LARGEST} bytes"
        )
    # What is not UTF-8 stays visible as such, and is refused where all values are checked.
    text = raw.decode(errors="surrogateescape")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _opened(path: str, flags: int) -> int:
    # A pipe would wait for somebody to write. The path is resolved, so a link now is a new one.
    careful = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags | careful)
