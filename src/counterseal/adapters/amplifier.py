"""Amplifier, both ways: contracts as its tools, and its own tools under contract.

    tools:                                    # a mount plan
      - module: tool-counterseal
        config: {project: ./counterseal.toml, agent: support, effects: {read_file: read_only}}

    await govern(session.coordinator, runtime, principal=..., effects={"read_file": "read_only"})

`mount` is the entry point of the module `tool-counterseal`: it offers the tools of a project, and
when the session is ready it puts all other mounted tools under contract. `offer` and `govern` do
the same for programs that have a runtime. From then on a `tool:pre` hook refuses every tool that is
not under contract. Amplifier goes on without a module that fails to load, and calls a tool if a
hook raises; so the hook is registered first, and answers all errors of its own with a refusal.

Amplifier hands no call id to its tools: the arguments alone make an operation, unless `call_id`
returns the id that the orchestrator keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Unpack
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    NotRecordedError,
    Pending,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.config import FILE_NAME, ConfigError, find_config, load_settings
from counterseal.config.build import open_runtime
from counterseal.contract.declare import reported_failure
from counterseal.contract.effects import Effect
from counterseal.contract.egress import Egress
from counterseal.contract.formats import describe
from counterseal.contract.model import Contract
from counterseal.errors import EgressError, SpokenError
from counterseal.proposal import Principal
from counterseal.runtime import Runtime

try:
    from amplifier_core import HookResult, ModuleCoordinator, Tool, ToolResult
    from amplifier_core.approval import ApprovalTimeoutError
except ImportError as error:
    raise missing_extra("amplifier", error) from error

__amplifier_module_type__ = "tool"
TESTED: Final = {"amplifier-core": ">=2.0.2,<2.1"}
"""The versions that the adapter was tested with."""
EVENTS: Final = ("counterseal:held", "counterseal:refused")
"""Events of this module, beside the `tool:…` events of the orchestrator."""

_NAME: Final = "counterseal"
_CHOICES: Final = {"Approve": "approve", "Reject": "reject"}
_UNGOVERNED: Final = "{} is not under contract in this session, so it is not called."
_CONTENT: Final = "amplifier_content"
_PORTS: Final = {"http": 80, "https": 443}
_REPORTS: Final = (
    ("timeout", Code.TIMEOUT),
    ("timed_out", Code.TIMEOUT),
    ("rate_limit", Code.RATE_LIMITED),
    ("denied", Code.PERMISSION_DENIED),
    ("forbidden", Code.PERMISSION_DENIED),
    ("permission", Code.PERMISSION_DENIED),
    ("not_found", Code.STALE_STATE),
)
"""Parts of the names that tools give their failures, and the codes that these mean."""
_log = logging.getLogger("counterseal.adapters")

CallId = Callable[[ModuleCoordinator], str | None]

check_versions(TESTED)


def host_tool(tool: Tool) -> HostTool:
    """Return a tool as its model sees it."""
    schema, getter = getattr(tool, "input_schema", None), getattr(tool, "get_schema", None)
    if not schema and callable(getter):
        schema = getter()
    # An empty schema is the protocol's word for "none": a contract needs one.
    return HostTool(tool.name, tool.description or tool.name, schema or None)  # type: ignore[arg-type]


def contract_for(tool: Tool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


# --- tools ----------------------------------------------------------------------------------------


class GovernedTool:
    """A tool under contract: with a `guest` Amplifier's own, else one of the runtime."""

    def __init__(
        self,
        coordinator: ModuleCoordinator,
        host: Host,
        contract: Contract,
        guest: Tool | None = None,
        call_id: CallId | None = None,
    ) -> None:
        self.name: str = contract.name
        self.description: str = describe(contract) if guest is None else guest.description
        self.input_schema: dict[str, Any] = thaw(contract.affordance.input_schema)
        self._coordinator, self._host, self._guest = coordinator, host, guest
        self._egress, self._call_id = Egress.of(contract), call_id

    def get_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the protocol's word
        """Execute a call under contract. A refusal, a held call and a failure are results."""
        host, coordinator = self._host, self._coordinator
        call = HostCall(
            tool=self.name,
            arguments=input,
            call_id=None if self._call_id is None else self._call_id(coordinator),
            run_id=host.run_id(coordinator, coordinator.session_id),
            context=coordinator,
            execute=self._run_guest,
            to_plain=self._plain,
        )
        note = None
        try:
            answer = await host.submit(call)
            if answer.pending is not None and host.has_voter and not host.waits:
                note = await self._ask(answer.pending)
                answer = await host.submit(call)
        except NotRecordedError:
            # Orchestrators turn exceptions into text for the model; a cancelled run ends.
            await coordinator.request_cancel(immediate=True)
            raise
        if answer.ok:
            return _success(answer)
        await self._tell(answer)
        return _failure(answer, note)

    async def _run_guest(self, arguments: dict[str, Any]) -> ToolResult:
        if self._guest is None:
            raise NotImplementedError(f"{self.name} is executed by the runtime")
        for name, url in _urls(arguments):
            _check_url(self._egress, name, url)
        return await self._guest.execute(arguments)

    def _plain(self, result: Any) -> Any:
        """Return a result as plain data. SpokenError: the tool reports a failure."""
        if not isinstance(result, ToolResult):
            return result
        if not result.success:
            raise _reported(self.name, result)
        if not result.content:
            return result.output
        blocks = [block.model_dump(mode="json") for block in result.content]
        return {_CONTENT: blocks, "output": result.output}

    async def _ask(self, pending: Pending) -> str | None:
        """Ask the session's approval system, and vote. Returns why there is no vote."""
        place = f" ({pending.link})" if pending.link else ""
        desk = self._coordinator.approval_system
        if desk is None:
            return None
        try:
            choice = await desk.request_approval(
                f"{pending.consequence}{place}", [*_CHOICES], self._host.seconds, "deny"
            )
        except ApprovalTimeoutError:
            return None
        except Exception:  # noqa: BLE001 - the host's own code; without an answer nothing is decided
            _log.exception("the approval system failed, so it decides nothing")
            return None
        answer = {"type": _CHOICES.get(choice), "approval_id": pending.approval_id}
        return await self._host.vote(answer, self._coordinator)

    async def _tell(self, answer: Answer) -> None:
        """Emit the event of a call that was not carried out."""
        if answer.pending is not None:
            data = {"tool_name": self.name, **answer.pending.record()}
            await self._coordinator.hooks.emit("counterseal:held", data)
        else:
            data = {"tool_name": self.name, "code": answer.observation.code.value}
            await self._coordinator.hooks.emit("counterseal:refused", data)


def _success(answer: Answer) -> ToolResult:
    """Return the tool's own result, or the one of an earlier execution."""
    if answer.native is not None and isinstance(answer.native[0], ToolResult):
        return answer.native[0]
    value = answer.value
    if isinstance(value, dict) and _CONTENT in value:
        return ToolResult(success=True, output=value["output"], content=value[_CONTENT])
    return ToolResult(success=True, output=value)


def _failure(answer: Answer, note: str | None) -> ToolResult:
    """Return a failure: its output is for the model, its error also says the code."""
    text = f"{answer.text}\n{note}" if note else answer.text
    code = answer.observation.code.value
    error: dict[str, Any] = {"message": text, "type": code, "code": code}
    said = thaw(answer.observation.data)
    if isinstance(said, dict) and "details" in said:
        error["details"] = said["details"]
    if answer.pending is not None:
        error |= {"approval_id": answer.pending.approval_id, "link": answer.pending.link}
    return ToolResult(success=False, output=text, error=error)


def _reported(tool: str, result: ToolResult) -> SpokenError:
    """Return a tool's own failure: message, other fields, and names from which a code follows."""
    details = result.error or {}
    words = details.get("message") or result.output
    failure = reported_failure(tool, {**details, "message": words}, open_fields=True)
    names = failure.reported
    codes = [code.value for part, code in _REPORTS for name in names if part in name.lower()]
    if details.get("retryable") is True:
        codes.append(Code.DEPENDENCY_UNAVAILABLE.value)
    failure.reported, failure.details = (*names, *codes), details
    return failure


def _urls(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the arguments whose names say that they are URLs."""
    for name, value in arguments.items():
        if name.lower().rpartition("_")[2] in ("url", "urls", "uri", "uris"):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str):
                    yield name, one


def _check_url(egress: Egress, name: str, url: str) -> None:
    """Raise EgressError if the contract's egress does not allow the URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise EgressError(f"{name}: not a URL: {error}") from None
    egress.check_url(parts.scheme, parts.hostname or "", port)


# --- a session ------------------------------------------------------------------------------------


def guard(coordinator: ModuleCoordinator) -> Callable[[], Any]:
    """Refuse every tool of a session that is not under contract. Returns what takes it back."""

    async def refuse_others(_event: str, data: dict[str, Any]) -> HookResult:
        try:
            name = str(data["tool_name"])
            if isinstance((coordinator.get("tools") or {}).get(name), GovernedTool):
                return HookResult(action="continue")
        except Exception:  # noqa: BLE001 - Amplifier calls the tool if a hook raises
            _log.exception("a tool call could not be checked, so it is refused")
            name = "This tool"
        return HookResult(action="deny", reason=_UNGOVERNED.format(name))

    coordinator.register_contributor("observability.events", _NAME, lambda: [*EVENTS])
    undo: Callable[[], Any] = coordinator.hooks.register(
        "tool:pre", refuse_others, priority=-1000, name=_NAME
    )
    return undo


async def offer(
    coordinator: ModuleCoordinator,
    runtime: Runtime,
    tools: Iterable[str],
    *,
    call_id: CallId | None = None,
    **options: Unpack[HostOptions],
) -> list[GovernedTool]:
    """Mount tools of the runtime, by name, and return them."""
    host = Host(runtime, [], **options)
    return [await _mounted(coordinator, host, name, name, call_id=call_id) for name in tools]


async def govern(
    coordinator: ModuleCoordinator,
    runtime: Runtime,
    *,
    call_id: CallId | None = None,
    **options: Unpack[HostOptions],
) -> list[GovernedTool]:
    """Put all tools that a session has mounted under contract, and refuse those that come later.

    ContractError lists all tools without a declared effect.
    """
    guard(coordinator)
    guests = _guests(coordinator)
    host = Host(runtime, map(host_tool, guests.values()), **options)
    return [
        await _mounted(coordinator, host, name, guest.name, guest, call_id)
        for name, guest in guests.items()
    ]


def _guests(coordinator: ModuleCoordinator) -> dict[str, Tool]:
    tools = coordinator.get("tools") or {}
    return {name: tool for name, tool in tools.items() if not isinstance(tool, GovernedTool)}


async def _mounted(
    coordinator: ModuleCoordinator,
    host: Host,
    place: str,
    name: str,
    guest: Tool | None = None,
    call_id: CallId | None = None,
) -> GovernedTool:
    """Mount a tool under contract, in the place of its guest if it has one."""
    versions = host.runtime.registry.versions(name)
    if not versions:
        raise ValueError(f"{name} is not registered with the runtime; register it first")
    tool = GovernedTool(coordinator, host, versions[0].contract, guest, call_id)
    await coordinator.mount("tools", tool, name=place)
    return tool


# --- the module -----------------------------------------------------------------------------------


class _Config(BaseModel):
    """The `config` of the module in a mount plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str
    """The agent of the project that acts in this session."""
    project: Path | None = None
    """The project's configuration file or folder. Left out: the nearest one."""
    user: str | None = None
    """The user on whose behalf it acts, instead of the one in the project."""
    effects: dict[str, Effect] = {}
    """Effects of the tools that other modules mount. The agent is granted these tools."""
    pause: Literal["native", "wait"] = "wait"
    wait: float = 60.0
    console: str = ""


@dataclass(frozen=True, slots=True)
class _Session:
    """What `mount` leaves for the moment when all modules are mounted."""

    host: Host
    config: _Config


async def mount(
    coordinator: ModuleCoordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Offer the tools of a project. Returns the cleanup; None if the agent has no tools there."""
    undo = guard(coordinator)
    wanted = _Config.model_validate(config or {})
    settings = load_settings(_project_file(wanted.project))
    declared = settings.agents.get(wanted.agent)
    values = dict(declared) if declared is not None else {}
    if values.get("tenant") is None:
        raise ConfigError(f"{settings.file}: [agents.{wanted.agent}] has no tenant; write one")
    if wanted.user is not None:
        values["user"] = wanted.user
    principal = Principal(agent=wanted.agent, **values)
    runtime = open_runtime(settings)
    await runtime.__aenter__()
    try:
        names = [each.name for each in runtime.registry.catalogue(principal, "")]
        choices = {"pause": wanted.pause, "wait": wanted.wait, "console": wanted.console}
        host = Host(runtime, [], principal=lambda _: principal, **choices)  # type: ignore[arg-type]
        for name in names:
            await _mounted(coordinator, host, name, name)
        coordinator.register_capability(_NAME, _Session(host, wanted))
    except BaseException:
        await runtime.__aexit__(None, None, None)
        raise

    async def cleanup() -> None:
        undo()
        await runtime.__aexit__(None, None, None)

    if not names and not wanted.effects:
        _log.warning("%s: agent %s has no tools", settings.file, wanted.agent)
        await cleanup()
        return None
    return cleanup


async def on_session_ready(coordinator: ModuleCoordinator) -> None:
    """Put the tools of other modules under contract. If this fails, they stay refused."""
    session = coordinator.get_capability(_NAME)
    if not isinstance(session, _Session):
        return
    guests, host = _guests(coordinator), session.host
    host.register(map(host_tool, guests.values()), session.config.effects, (), session.config.agent)
    for name, guest in guests.items():
        await _mounted(coordinator, host, name, guest.name, guest)


def _project_file(given: Path | None) -> Path:
    if given is not None:
        return given / FILE_NAME if given.is_dir() else given
    found = find_config(Path.cwd())
    if found is None:
        raise ConfigError(f"{FILE_NAME}: not found; name it in the mount plan, as `project`")
    return found
