"""The project that a command works on: settings, contracts, runtime, store, keys, upstreams.

Every function here ends the command with an error if what it returns cannot be used.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer
from typer import Option

from counterseal.cli.options import STORE_VARIABLE, AsJson, AsTenant, By, Reason, StoreUrl
from counterseal.cli.render import ProgressBar, counted, fail, note, one_line, render

if TYPE_CHECKING:
    import logging

    from counterseal.config import Discovered, Settings
    from counterseal.contract.sources.mcp.definition import Definition
    from counterseal.keys import KeyRing
    from counterseal.operations.operator import Operator
    from counterseal.proposal import Principal
    from counterseal.registry import Registry
    from counterseal.runtime import Runtime
    from counterseal.storage import Store
    from counterseal.upstream import Upstream

T = TypeVar("T")

REFUSED: Final = 1
HELD: Final = 3
"""Exit codes of `call` and `plan`."""
_STORE: Final = '[store] url = "sqlite:///counterseal.db"'


# Settings ----------------------------------------------------------------------------------------


def project_settings_if_any() -> Settings | None:
    """Return the settings of the nearest configuration file; None if there is no file."""
    from counterseal.config import ConfigError, find_config, load_settings

    file = find_config(Path.cwd())
    try:
        return None if file is None else load_settings(file)
    except ConfigError as error:
        fail(str(error))


def project_settings() -> Settings:
    """Return the settings of the nearest configuration file."""
    from counterseal.config import FILE_NAME

    settings = project_settings_if_any()
    if settings is None:
        fail(
            f"No {FILE_NAME} in this folder or a parent folder.",
            "The file names the tools and who may use them. Create one with `counterseal init`.",
        )
    return settings


def require_packages(*packages: str) -> None:
    """End the command if packages that the gateway needs are not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        fail(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            "Install the gateway's packages: pip install 'counterseal[gateway]'",
        )


@contextmanager
def errors_end_the_command(consequence: str) -> Iterator[None]:
    """End the command with every problem of the project's contracts, policy or upstreams."""
    from counterseal.errors import ContractError, CountersealError
    from counterseal.policy import PolicyError

    try:
        yield
    except (ContractError, PolicyError) as error:
        for problem in error.problems:
            note(one_line(str(problem)))
        fail(f"{counted(len(error.problems), 'problem')}; {consequence}.")
    except CountersealError as error:
        fail(str(error))


def user_name(option: str) -> str:
    """Return the login name of the person at the terminal."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no user database
        fail("Your user name is unknown on this system.", f"Give it with {option} NAME.")


# Contracts ---------------------------------------------------------------------------------------


def contracts_at(paths: list[Path]) -> tuple[Discovered, ...]:
    """Return the contracts at the given paths, else those of the project, upstreams included.

    Python files are imported only if a path or the project's configuration names them.
    """
    from counterseal.config import FILE_NAME, discover, pinned_contracts

    settings = project_settings_if_any()
    if settings is None and not paths:
        fail(
            f"No PATH is given, and there is no {FILE_NAME} in this folder or a parent folder.",
            "Name files or folders with contracts; Python files among them are imported, that is "
            "executed.\nOr start a project with `counterseal init`.",
        )
    progress = ProgressBar()
    try:
        with errors_end_the_command("nothing was read"):
            declared = settings.tool_paths() if settings else ()
            beside = declared if paths else ()
            strict = settings is not None and settings.tools.strict
            contracts = list(
                discover(paths or declared, beside=beside, strict=strict, progress=progress)
            )
            if settings and not paths:
                contracts += [item for one in pinned_contracts(settings).values() for item in one]
    finally:
        progress.done()
    if not contracts:
        if settings is None or paths:
            where = ", ".join(map(str, paths))
            files = "Name contract files or Python files with tools."
            fail(f"No contracts found in {where}.", files)
        if settings.upstreams:
            fail(
                f"No tool of {', '.join(settings.upstreams)} is accepted yet.",
                "Review the tools and accept them: `counterseal diff --accept`.",
            )
        fail(
            f"{settings.file.name} names no contracts.",
            'Write [tools] paths = ["tools.py"] into it, with your files or folders.',
        )
    return tuple(contracts)


def declared_tools(settings: Settings) -> Registry:
    """Return a registry with every contract of the project that can be read.

    Contracts of upstreams come from the lock; no upstream is contacted. Unreadable contracts are
    left out, so that an operator can stop tools in a project that is partly broken.
    """
    from counterseal.config import discover, pinned_contracts
    from counterseal.errors import ContractError, CountersealError
    from counterseal.registry import Registry

    progress, registry = ProgressBar(), Registry()
    contracts: Sequence[Discovered] = ()
    pinned: Mapping[str, Sequence[Discovered]] = {}
    complete = True
    try:
        contracts = discover(settings.tool_paths(), progress=progress)
        pinned = pinned_contracts(settings) if settings.upstreams else {}
    except CountersealError as error:
        note(str(error))
        complete = False
    finally:
        progress.done()
    for server, items in pinned.items():
        tenants = settings.upstreams[server].tenants or ()
        for item in items:
            try:
                if item.contract is not None:
                    registry.register(item.contract, allowed_tenants=tenants)
            except ContractError:
                complete = False
            complete = complete and item.contract is not None
    declared = [tool for item in contracts if (tool := item.tool or item.contract) is not None]
    grants = [table.grant() for table in settings.grants]
    if settings.upstreams:  # some may be for tools that are not accepted yet
        known = {record.name for record in registry.records} | {item.name for item in contracts}
        grants = [grant for grant in grants if grant.tool in known]
    try:
        registry.register(*declared, grants=grants)
    except ContractError:
        complete = False
        for tool in declared:
            with suppress(ContractError):
                registry.register(tool)
    if not complete:
        note("Some tools can't be read and are left out. Run `counterseal lint` for the reasons.")
    return registry


# Runtime -----------------------------------------------------------------------------------------


def open_project(settings: Settings, store: str | None = None) -> Runtime:
    """Return the project's runtime on its store."""
    from counterseal.config.project import open_project as runtime_of

    progress = ProgressBar()
    try:
        with errors_end_the_command("nothing was called"):
            return runtime_of(settings, store=store, progress=progress)
    finally:
        progress.done()


# Store -------------------------------------------------------------------------------------------


def with_store(given: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store without contracts, do the work, close it, and return the work's result."""
    settings = None if given else project_settings_if_any()
    url = existing_store(given or (settings.store_url() if settings else None))
    return _in_store(url, work)


def _in_store(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    import asyncio

    from counterseal.errors import CountersealError, StoreError
    from counterseal.storage import open_store

    async def run() -> T:
        store = open_store(url)
        try:
            await store.ready()
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except CountersealError as error:
        fail(one_line(str(error)), code=1 if isinstance(error, StoreError) else 2)


def existing_store(url: str | None) -> str:
    """Return the URL of a store that exists: a command that only reads must not create one."""
    if url is None:
        fail(
            "No store is configured.",
            f"Write {_STORE} into counterseal.toml, or give --store URL, or set {STORE_VARIABLE}.",
        )
    if url.startswith("memory:"):
        fail(
            "A store in memory belongs to one process; other processes can't read it.",
            f"Keep it in a file: {_STORE} in counterseal.toml.",
        )
    if url.startswith("sqlite:"):
        from counterseal.errors import CountersealError
        from counterseal.storage.sqlite.file import path_of

        try:
            file = path_of(url)
        except CountersealError as error:
            fail(str(error))
        if not file.is_file():
            fail(f"There is no store at {file}.", "The first call creates it.")
    return url


async def one_tenant(store: Store, given: str | None) -> str:
    """Return the given tenant, else the only tenant of the store."""
    if given is not None:
        return given
    tenants = await store.tenants()
    if not tenants:
        fail("The store has no events yet.", code=1)
    own = [name for name in tenants if name != "*"] or tenants  # "*" holds operators' changes
    if len(own) > 1:
        more = f" and {len(tenants) - 20} more" if len(tenants) > 20 else ""
        listed = f"Tenants: {', '.join(map(one_line, tenants[:20]))}{more}."
        fail("The store has several tenants. Choose one with --tenant T.", listed)
    return own[0]


def _shared_store(given: str | None) -> str:
    """Return the URL of the store that all workers share."""
    settings = project_settings()
    url = given or settings.store_url()
    if url is None or url.startswith("memory:"):
        fail(
            "The project has no store that workers share.",
            f"Write {_STORE} into {settings.file.name}, or give --store URL.",
        )
    return url


def load_registry(given: str | None, registry: Registry | None = None) -> Registry:
    """Return the given registry, or an empty one, with the changes of the store applied to it."""
    from counterseal.operations.operator import catch_up, review_versions
    from counterseal.registry import Registry

    known = Registry() if registry is None else registry

    async def read(store: Store) -> None:
        await catch_up(store, known)
        await review_versions(store, known, time.time, register=False)

    _in_store(_shared_store(given), read)
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """The options of commands with which operators change the registry."""

    reason: Reason = None
    by: By = None
    store: StoreUrl = None
    as_json: AsJson = False

    def why(self) -> str:
        """Return the reason that was given, or ask for one."""
        reason: str = self.reason or typer.prompt("Reason (kept on record)", err=True)
        return reason

    def make(self, act: Callable[[Operator], Awaitable[T]], registry: Registry | None = None) -> T:
        """Do an operator's work in the store, after its changes are applied to the registry."""
        from counterseal.operations.operator import Operator, catch_up, review_versions
        from counterseal.registry import Registry

        who, known = self.by or user_name("--by"), Registry() if registry is None else registry

        async def work(store: Store) -> T:
            await catch_up(store, known)
            await review_versions(store, known, time.time, register=False)
            return await act(Operator(store, known, by=who))

        return _in_store(_shared_store(self.store), work)

    def print(self, record: dict[str, Any], text: str) -> None:
        """Print what was changed: the record as JSON, or the text."""
        render(record, lambda: [text], as_json=self.as_json)


# Keys --------------------------------------------------------------------------------------------


def keys_folder(given: Path | None) -> Path | None:
    """Return the folder of keys, existing or not; None if neither option nor project names one."""
    if given is not None:
        return given
    settings = project_settings_if_any()
    return settings.keys_path() if settings else None


def load_keys(given: Path | None) -> KeyRing:
    """Return the keys of the project; an empty ring if no folder is configured."""
    from counterseal.keys import KeyRing, KeysError

    folder = keys_folder(given)
    if folder is None:
        return KeyRing()
    try:
        return KeyRing.load(folder)
    except KeysError as error:
        fail(str(error))


# Upstreams ---------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """The tools that an upstream lists, or why it could not be reached."""

    server: str
    definitions: tuple[Definition, ...] = ()
    unusable: tuple[dict[str, str], ...] = ()
    """Each `tool` that no contract can be made for, and `why`."""
    error: str = ""


def list_upstreams(settings: Settings, names: Iterable[str]) -> list[Listing]:
    """Return a listing for each named upstream. Ends the command if the settings are unusable."""
    import asyncio

    from counterseal.config.build import secrets_of, upstream_settings
    from counterseal.upstream import Upstreams

    wanted = list(names)
    if sys.stderr.isatty():
        note(f"Connecting to {', '.join(wanted)} …")

    async def list_all() -> list[Listing]:
        connections = upstream_settings(settings, *wanted)
        async with Upstreams(connections, secrets=secrets_of(settings)) as upstreams:
            await upstreams.settle()
            return list(await asyncio.gather(*(_list(upstreams[name]) for name in wanted)))

    with errors_end_the_command("no upstream was contacted"):
        return asyncio.run(list_all()) if wanted else []


async def _list(upstream: Upstream) -> Listing:
    if not upstream.ready:
        return Listing(upstream.name, error=one_line(upstream.trouble))
    try:
        tools = await upstream.definitions()
    except Exception as error:  # noqa: BLE001 - one broken upstream must not hide the others
        return Listing(upstream.name, error=one_line(upstream.trouble or str(error)))
    from counterseal.contract.sources.mcp.definition import read_listing

    definitions, unusable = read_listing(tools)
    left_out = [{"tool": one_line(name)[:80], "why": one_line(why)} for name, why in unusable]
    return Listing(upstream.name, tuple(definitions.values()), tuple(left_out))


# Agents ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """The options of commands that act as an agent."""

    agent: Annotated[str | None, Option("--as", metavar="AGENT", help="The agent to act as.")] = (
        None
    )
    tenant: AsTenant = None
    user: Annotated[
        str | None,
        Option("--user", metavar="U", help="User to act as, instead of the agent's own."),
    ] = None

    def principal(self, settings: Settings, **more: list[str] | None) -> Principal:
        """Return the agent's principal, with the given values instead of its own."""
        if self.agent is None:
            agents = sorted({grant.agent for grant in settings.grants})
            known = f"Agents with grants: {', '.join(agents)}." if agents else ""
            missing = "The calling agent is missing. Give it with --as AGENT."
            fail(missing, known or "No agent has a grant yet.")
        given = {"tenant": self.tenant, "user": self.user, **more}
        return principal_for(settings, self.agent, given)


def principal_for(
    settings: Settings,
    agent: str,
    overrides: Mapping[str, str | list[str] | None] = MappingProxyType({}),
) -> Principal:
    """Return the principal of `[agents.NAME]`, with the given values instead of its own."""
    from counterseal.config import ConfigError

    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return settings.principal(agent, **given)
    except ConfigError as error:
        fail(str(error), *(("Or give --tenant T.",) if overrides else ()))


def in_runtime(runtime: Runtime, work: Callable[[Runtime], Awaitable[T]]) -> T:
    """Open the runtime, do the work, close it, and return the result.

    What tools raise is printed on stderr. Agents never see it; a person who tries a call needs it.
    """
    import asyncio
    import logging

    async def run() -> T:
        async with runtime:
            return await work(runtime)

    log = logging.getLogger("counterseal")
    log.addFilter(_print_failure)
    try:
        return asyncio.run(run())
    finally:
        log.removeFilter(_print_failure)


def _print_failure(record: logging.LogRecord) -> bool:
    trace = getattr(record, "counterseal_trace", None)
    if trace is None:
        return True
    lines = trace.strip().splitlines() or [""]
    # The last traceback of a chain belongs to the exception that was raised. Its message may have
    # several lines.
    start = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=-1)
    rest = (n for n, line in enumerate(lines) if n > start and not line.startswith(" "))
    message = one_line("\n".join(lines[next(rest, 0) :]))
    # The innermost frame outside of Counterseal is the tool's.
    package = Path(__file__).parents[1]
    matches = [re.match(r'\s+File "(.+)", line (\d+)', line) for line in lines]
    frames = [(Path(match[1]), match[2]) for match in matches if match]
    outside = [f" ({file.name}:{n})" for file, n in frames if not file.is_relative_to(package)]
    place = outside[-1] if outside else ""
    note(f"Not shown to the agent: {message.removeprefix('counterseal.errors.')}{place}")
    return False
