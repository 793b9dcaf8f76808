"""The executor: runs admitted calls where their contract wants them to run.

A `Runner` is prepared once per tool, at registration: where the tool runs, what it may reach, which
values are injected. `Runner.run` makes one attempt. It never raises for what a tool does, and never
retries by itself.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from counterseal.codes import Code
from counterseal.contract.declare import Tool
from counterseal.contract.egress import Egress
from counterseal.contract.model import Contract, EgressPolicy, Isolation
from counterseal.contract.outputs import Partial
from counterseal.contract.tool_context import Config, Context, RefusedError, Secret, State
from counterseal.errors import IsolationError, SpokenError
from counterseal.execution import http, in_process, logs
from counterseal.execution.attempt import (
    AttemptRequest,
    LocalServices,
    Outcome,
    Provision,
    progress_of,
)
from counterseal.execution.failures import Fault, describe, judge, reports_not_sent
from counterseal.execution.files import directory_for
from counterseal.execution.http import UnsendableError
from counterseal.execution.in_process import Deadlines, Threads
from counterseal.execution.isolation.messages import FunctionAddress, IsolatedJob, Reply, address_of
from counterseal.execution.isolation.pool import Workers
from counterseal.execution.isolation.sandboxes import Sandboxes
from counterseal.execution.secrets import Credentials, Secrets
from counterseal.masking import Mask

if TYPE_CHECKING:
    from counterseal.execution.network import Clients, Network

_MAX_CACHED_RUNNERS = 10_000
_NEVER_BEGAN = Outcome(Code.TIMEOUT, began=False, interrupted=True)
"""The outcome of a call whose caller left before the tool was started."""


class Executor:
    """The resources that all tools of a runtime share. Each is started on first use.

    Credentials, HTTP connections, threads, worker processes, sandboxes and directories for files.
    """

    def __init__(
        self,
        secrets: Secrets | None = None,
        *,
        files: str | Path | None = None,
        network: Network | None = None,
    ) -> None:
        self.threads = Threads()
        self.credentials = Credentials({} if secrets is None else secrets, apart=self.threads.run)
        self._abandoned: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self.workers = Workers()
        self.deadlines = Deadlines()
        self.sandboxes = Sandboxes(folder=self._all_files)
        self._network = network
        self._lock = threading.Lock()
        self._clients: Clients | None = None
        self._files = None if files is None else Path(files)
        self._temporary: Path | None = None
        self._cached: dict[Hashable, Runner] = {}
        self._warming: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        logs.install()

    def check(self, contract: Contract, tool: Tool[..., Any]) -> None:
        """Raise IsolationError if this machine lacks the isolation that the tool declares."""
        if Runner(self, contract, tool).where is Where.SANDBOX:
            self.sandboxes.available()

    def runner(self, contract: Contract, tool: Tool[..., Any]) -> Runner:
        """Return a tool that is ready to run: its process is started, or its TLS context made."""
        runner = Runner(self, contract, tool)
        if runner.where is Where.PROCESS:
            with suppress(RuntimeError):  # no event loop yet: the first call starts the process
                self.use_current_loop()
                warming = self.workers.warm(1, runner.address)
                task = asyncio.get_running_loop().create_task(warming)
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)
        elif runner.connects:
            self.clients()
        return runner

    def use_current_loop(self) -> None:
        """Start over with new processes and connections when the event loop is a new one."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            self.workers, self.deadlines, self._clients = Workers(), Deadlines(), None
            self.sandboxes.abandon()
            self.sandboxes = Sandboxes(folder=self._all_files)
            self._abandoned.clear()
        self._loop = loop

    def note_abandoned(self, tenant: str, key: str, running: asyncio.Future[Any]) -> None:
        """Note an execution under this key that continues after its call was given up."""
        name = (tenant, key)
        self._abandoned[name] = running
        running.add_done_callback(lambda _: self._abandoned.pop(name, None))

    def abandoned(self, tenant: str, key: str) -> asyncio.Future[Any] | None:
        """Return the execution under this key that was given up and still runs here, if any."""
        return self._abandoned.get((tenant, key))

    def cached_runner(self, key: Hashable, make: Callable[[], Runner]) -> Runner:
        """Return the runner of a probe, which is not registered as a tool; make it if needed."""
        if key not in self._cached:
            if len(self._cached) >= _MAX_CACHED_RUNNERS:
                self._cached.clear()
            self._cached[key] = make()
        return self._cached[key]

    def clients(self) -> Clients:
        with self._lock:  # a tool in a thread may be the first user
            if self._clients is None:
                self._clients = self.own_clients()
            return self._clients

    def own_clients(self) -> Clients:
        """Return new clients, for a tool that runs on its own event loop."""
        from counterseal.execution.network import Clients  # noqa: PLC0415 - httpx is slow to import

        return Clients() if self._network is None else Clients(network=self._network)

    def directory(self, about: Context, tool: str) -> Path:
        """Return the directory of a tool's files in a run."""
        return directory_for(self._all_files(), about.tenant, about.run_id, tool)

    def _all_files(self) -> Path:
        """Return the directory of the files of all tools."""
        if self._files is not None:
            return self._files
        with self._lock:
            if self._temporary is None:
                self._temporary = Path(tempfile.mkdtemp(prefix="counterseal-"))
            return self._temporary

    async def aclose(self) -> None:
        """Stop everything that was started. Files in a configured directory are kept."""
        for task in self._warming:
            task.cancel()
        await self.workers.aclose()
        await self.sandboxes.aclose()
        if self._clients is not None:
            await self._clients.aclose()
        self.threads.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


class Where(StrEnum):
    """Where a tool runs, which follows from its declared isolation and its function."""

    DIRECT = "direct"
    """A sync function on the event loop: declared inline, and read-only."""
    TASK = "task"
    THREAD = "thread"
    LOOP = "loop"
    """An async function in a thread with its own event loop."""
    PROCESS = "process"
    SANDBOX = "sandbox"


def _where(isolation: Isolation, contract: Contract, tool: Tool[..., Any]) -> Where:
    if isolation is Isolation.PROCESS or isolation is Isolation.SANDBOX:
        return Where(isolation.value)
    if tool.is_async:
        return Where.LOOP if isolation is Isolation.THREAD else Where.TASK
    # A sync tool that changes something never blocks the event loop, whatever its contract says.
    inline = isolation is Isolation.INLINE and not contract.mutates
    return Where.DIRECT if inline else Where.THREAD


_FLAT = frozenset({"string", "integer", "number", "boolean", "null"})


class Runner:
    """A tool that is ready to run."""

    def __init__(
        self, executor: Executor, contract: Contract, tool: Tool[..., Any], *, hook: bool = False
    ) -> None:
        self.executor = executor
        self.contract = contract
        self.tool = tool
        # A probe function shares the egress and secrets of its tool, but not its isolation.
        self.where = _where(Isolation.AUTO if hook else contract.isolation, contract, tool)
        self.seconds = contract.runtime.timeout_ms / 1000
        """The contract's time limit for one attempt."""
        fields = contract.affordance.input_schema.get("properties", {}).values()
        self.nested = not all(isinstance(f, Mapping) and f.get("type") in _FLAT for f in fields)
        """True if an argument may be a list or an object, which the tool could modify."""
        self.egress = Egress.of(contract)
        self.is_request = contract.http is not None or contract.mcp is not None
        """True for a tool that only sends one request: before it is sent, nothing has happened."""
        reaches = contract.mcp is None and self.egress.policy is not EgressPolicy.NONE
        self.connects = reaches and Context in tool.injected.values()
        """True for a tool that may connect to other machines through its context."""
        self.address: FunctionAddress | None = None
        if self.where is Where.PROCESS or self.where is Where.SANDBOX:
            self.address = address_of(tool.function)
        marks = tool.injected.items()
        self.secrets = {name: mark.name for name, mark in marks if isinstance(mark, Secret)}
        self._masked: tuple[dict[str, str], Mask] | None = None
        apart = self.where is Where.LOOP
        clients = executor.own_clients if apart else executor.clients
        self.provision = Provision(
            contract.name, self.egress, clients, executor.directory, own_clients=apart
        )

    async def run(self, work: AttemptRequest) -> Outcome:
        """Make one attempt."""
        self.executor.use_current_loop()
        services = LocalServices(work, self.provision)
        try:
            if self.secrets:
                work, values = await self._resolve_secrets(work, services)
            else:
                values = {}
            injected = self._injected(services, values) if self.tool.injected else {}
            job = None
            if self.address is not None:
                job = _job_of(self, self.address, work, injected, services.about)
            arguments = {} if job else {**self.tool.binder(work.arguments), **injected}
        except asyncio.CancelledError:
            return _NEVER_BEGAN
        # Binding runs the tool's own types, and resolving a secret the operator's code.
        except Exception as error:  # noqa: BLE001 - whatever it was, the tool was not started
            return self.failure_outcome(error, services.mask)._replace(began=False)
        if job is not None:
            return await _run_isolated(self, job, work, services)
        ended = await self._run(arguments, work.seconds, services)
        if self.where is not Where.LOOP and services.end():
            await services.close()
        return self._outcome(ended, services.mask)

    async def _run(
        self, arguments: Mapping[str, Any], seconds: float, services: LocalServices
    ) -> in_process.Ended:
        function = self.tool.function
        try:
            if self.where is Where.DIRECT:
                return in_process.Ended(function(**arguments))
            if self.where is Where.TASK:
                running: Any = function(**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, sys.exit() too
            return in_process.Ended(error=error)
        if self.where is Where.TASK:
            return await in_process.in_task(
                running, deadlines=self.executor.deadlines, seconds=seconds, services=services
            )
        call: Callable[[], Any] = partial(function, **arguments)
        more: dict[str, Any] = {"threads": self.executor.threads, "seconds": seconds}
        more["deadlines"] = self.executor.deadlines
        if self.where is Where.LOOP:
            own = _OwnLoop(call, services)
            call, more["stop"] = own.run, own.stop
        try:
            return await in_process.in_thread(call, services=services, **more)
        except IsolationError as error:  # no thread is available
            return in_process.Ended(error=error, began=False)

    async def _resolve_secrets(
        self, work: AttemptRequest, services: LocalServices
    ) -> tuple[AttemptRequest, dict[str, str]]:
        """Return the work with the time left, and the credentials, read right before their use."""
        loop, get = asyncio.get_running_loop(), self.executor.credentials.get
        until, tenant = loop.time() + work.seconds, services.about.tenant
        async with asyncio.timeout_at(until):
            values = {name: await get(tenant, name) for name in set(self.secrets.values())}
        if self._masked is None or self._masked[0] != values:  # one of them has changed
            self._masked = (values, Mask(values))
        services.mask = self._masked[1]
        return work._replace(seconds=until - loop.time()), values

    def _injected(self, services: LocalServices, secrets: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of marked parameters."""
        about, injected = services.about, dict[str, Any]()
        for name, mark in self.tool.injected.items():
            if isinstance(mark, Secret):
                injected[name] = secrets[mark.name]
            elif isinstance(mark, Config):
                injected[name] = about.config.get(mark.key)
            elif isinstance(mark, State):
                injected[name] = about.state.get(mark.key)
            else:
                injected[name] = replace(about, services=services)
        return injected

    def _outcome(self, ended: in_process.Ended, mask: Mask) -> Outcome:
        interrupted = ended.interrupted
        if not ended.answered:
            given_up = Outcome(Code.TIMEOUT, answered=False, late=ended.late)
            return given_up._replace(interrupted=interrupted, mask=mask)
        if ended.error is None:
            return Outcome(Code.SUCCESS, ended.value, interrupted=interrupted, mask=mask)
        failed = self.failure_outcome(ended.error, mask)
        return failed._replace(interrupted=interrupted, began=failed.began and ended.began)

    def failure_outcome(self, error: BaseException, mask: Mask) -> Outcome:
        """Return the outcome for an exception."""
        fault = describe(error)
        misfit = None
        if isinstance(error, UnsendableError) and error.field is not None:
            misfit = (error.field, error.problem)
        # The part of the error's message that the caller may read.
        public_text = error.words if isinstance(error, SpokenError) else ""
        words = mask.text(str(error) if isinstance(error, RefusedError) else public_text)
        fields = error.fields if isinstance(error, SpokenError) else {}
        code, not_done = judge(fault, words, self.contract)
        return Outcome(
            code,
            fault=fault,
            not_done=not_done,
            trace=logs.masked_trace(error, mask),
            began=not (reports_not_sent(fault) or (self.is_request and http.never_left(fault))),
            misfit=misfit,
            words=words,
            error_fields=fields,
            mask=mask,
        )


class _OwnLoop:
    """Runs an async function in a thread, on its own event loop."""

    def __init__(self, call: Callable[[], Any], services: LocalServices) -> None:
        self._call = call
        self._services = services
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self) -> Any:
        async def main() -> Any:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            try:
                return await self._call()
            finally:
                await self._services.close()

        return asyncio.run(main())

    def stop(self) -> None:
        """Cancel the function; called from another thread."""
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                self._loop.call_soon_threadsafe(self._task.cancel)


# --- attempts in another process ----------------------------------------------------------------


async def _run_isolated(
    runner: Runner, job: IsolatedJob, work: AttemptRequest, services: LocalServices
) -> Outcome:
    """Run the job in its process or sandbox, and turn the reply into an outcome."""
    call_id, mask = services.about.call_id, services.mask

    def tell(kind: str, content: Any) -> None:
        if kind == "progress" and work.tell is not None:
            done, total, message = content
            work.tell(progress_of(call_id, done, total, message, mask))
        elif kind == "log":
            level, text = content
            level = level if isinstance(level, int) else logging.INFO
            services.log.log(level, "%s", text)

    sandboxed = runner.where is Where.SANDBOX
    pool = runner.executor.sandboxes if sandboxed else runner.executor.workers
    try:
        reply = await pool.run(job, seconds=work.seconds, tell=tell)
    # From here on the tool may have started, whatever failed between it and this process.
    except Exception as error:  # noqa: BLE001 - the outcome is unknown, and must be recorded
        return runner.failure_outcome(error, mask)._replace(answered=False)
    return _isolated_outcome(runner, reply, mask)._replace(interrupted=reply.interrupted)


def _job_of(
    runner: Runner,
    address: FunctionAddress,
    work: AttemptRequest,
    injected: Mapping[str, Any],
    about: Context,
) -> IsolatedJob:
    """Return the call as plain data. Raise ValueError for values that have no JSON form."""
    context_params = [name for name, mark in runner.tool.injected.items() if mark is Context]
    values = {name: value for name, value in injected.items() if name not in context_params}
    return IsolatedJob(
        address=address,
        arguments=to_jsonable_python(dict(work.arguments)),
        injected=to_jsonable_python(values),
        context_params=tuple(context_params),
        context=to_jsonable_python(about),
        egress=runner.egress.record(),
        files=str(runner.executor.directory(about, runner.contract.name)),
        memory_mb=runner.contract.memory_mb,
        contract=runner.contract.hash,
        secrets={name: injected[param] for param, name in runner.secrets.items()},
    )


def _isolated_outcome(runner: Runner, reply: Reply, mask: Mask) -> Outcome:
    trace = mask.text(reply.trace)
    if reply.kind == "value":
        return Outcome(Code.SUCCESS, reply.value, mask=mask)
    if reply.kind == "partial":
        # The reply may have any shape.
        fields = reply.value if isinstance(reply.value, dict) else {}
        done, failed = fields.get("completed"), fields.get("failed")
        partly = Partial(
            completed=done if isinstance(done, list) else [done],
            failed=failed if isinstance(failed, list) else [failed],
            data=fields.get("data"),
        )
        return Outcome(Code.SUCCESS, partly, mask=mask)
    if reply.kind == "fault":
        fault = Fault.from_record(reply.fault)
        began, words = reply.began and not reports_not_sent(fault), mask.text(reply.words)
        code, not_done = judge(fault, words, runner.contract)
        return Outcome(
            code,
            fault=fault,
            trace=trace,
            began=began,
            not_done=not_done,
            words=words,
            mask=mask,
        )
    code, answered = {
        "late": (Code.TIMEOUT, False),
        "unavailable": (Code.DEPENDENCY_UNAVAILABLE, True),
        "unserialisable": (Code.OBSERVATION_NORMALIZATION_FAIL, True),
    }.get(reply.kind, (Code.UNKNOWN_ERROR, False))
    return Outcome(code, trace=trace, began=reply.began, answered=answered, mask=mask)
