"""The program of a process that runs isolated tools: reads jobs, runs them, sends the results.

Started by `pool`, never imported by the runtime. It communicates over its standard input and
output, and moves both out of the tool's reach first: what a tool prints goes to standard error.
Messages are length-prefixed JSON, because the runtime trusts nothing that comes from here.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import queue
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from importlib import import_module, invalidate_caches
from importlib.abc import MetaPathFinder
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json, to_jsonable_python

from counterseal.clocks import boottime
from counterseal.contract.declare import Tool
from counterseal.contract.outputs import Partial
from counterseal.contract.signature import read_signature
from counterseal.contract.tool_context import Context
from counterseal.errors import FilesError, ResponseTooLargeError, SpokenError
from counterseal.execution.failures import describe
from counterseal.execution.isolation import processes
from counterseal.execution.isolation.messages import (
    LONGEST_VALUE,
    NO_COVER,
    Cover,
    FunctionAddress,
    framed,
    is_too_much,
)
from counterseal.proposal import Principal

if TYPE_CHECKING:
    import asyncio

    import httpx

    from counterseal.execution.files import Files
    from counterseal.execution.network import Clients

# --- loading a tool -------------------------------------------------------------------------------

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)


class CodeIn(MetaPathFinder):
    """Finds the modules and packages of a folder without listing it.

    A sandbox may open the code in the folder, but not list the folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        below = f"{self.folder.rstrip('/')}/"
        for folder in (self.folder,) if path is None else path:
            if path is None or folder.startswith(below):
                place = f"{folder.rstrip('/')}/{fullname.rpartition('.')[2]}"
                if spec := _spec_at(place, fullname):
                    return spec
        return None


def _spec_at(place: str, fullname: str) -> ModuleSpec | None:
    """Return the spec of a package, a module, or (inside a package) a namespace folder."""
    for suffix in _SUFFIXES:
        file = f"{place}/__init__{suffix}"
        if os.path.isfile(file):  # noqa: PTH113 - called for every import
            return spec_from_file_location(fullname, file, submodule_search_locations=[place])
    for suffix in _SUFFIXES:
        if os.path.isfile(f"{place}{suffix}"):  # noqa: PTH113 - as above
            return spec_from_file_location(fullname, f"{place}{suffix}")
    if "." in fullname and os.path.isdir(place):  # noqa: PTH112 - as above
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec
    return None


def load(address: FunctionAddress, *, listed: bool = True) -> Tool[..., Any] | Callable[..., Any]:
    """Import and return the tool or function at an address.

    `listed` is False in a sandbox, where folders can't be listed.
    """
    folder = address.folder
    if folder and listed and folder not in sys.path:
        sys.path.insert(0, folder)
        invalidate_caches()
    if folder and not listed and folder not in {getattr(f, "folder", None) for f in sys.meta_path}:
        sys.meta_path.insert(0, CodeIn(folder))
    module = _run(address) if address.file else import_module(address.module)
    target: Any = module
    for part in address.qualname.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise ImportError(f"{address.module} has no {address.qualname}")
    loaded: Tool[..., Any] | Callable[..., Any] = target
    return loaded


def _run(address: FunctionAddress) -> ModuleType:
    known = sys.modules.get(address.module)
    if known is not None and getattr(known, "__file__", None) == address.file:
        return known
    spec = spec_from_file_location(address.module, address.file or "")
    if spec is None or spec.loader is None:
        raise ImportError(f"{address.file} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[address.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(address.module, None)
        raise
    return module


# --- services of a call ---------------------------------------------------------------------------


_LONGEST_RECORD = 8 * 1024

Send = Callable[[str, int, Any], None]


class WorkerServices:
    """The services of one call, and the way to cancel it."""

    def __init__(self, send: Send, number: int, job: Mapping[str, Any]) -> None:
        self.cancelled = False
        self.number = number
        self.cover = Cover(job.get("secrets", {}))
        self._send = send
        self._job = job
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    # Clients are made for each call: an async one can't outlive its event loop.

    @cached_property
    def http(self) -> httpx.AsyncClient:
        client: httpx.AsyncClient = self._client(self._clients.client)
        return client

    @cached_property
    def sync_http(self) -> httpx.Client:
        client: httpx.Client = self._client(self._clients.sync_client)
        return client

    @cached_property
    def _clients(self) -> Clients:
        from counterseal.execution.network import Clients  # noqa: PLC0415 - httpx is slow to import

        return Clients()

    def _client(self, make: Callable[..., Any]) -> Any:
        from counterseal.contract.egress import Egress  # noqa: PLC0415 - only tools that connect need it

        def too_late() -> str:  # only the runtime knows of leases
            return "the call's deadline has passed" if boottime() >= self._job["until"] else ""

        egress = Egress.from_record(self._job["egress"])
        return make(egress, too_late, seconds=self._job["seconds"])

    @cached_property
    def files(self) -> Files:
        from counterseal.execution.files import Files  # noqa: PLC0415 - only tools with files need it

        if self._job["files"] is None:
            raise FilesError("this call has no directory for files")
        return Files(Path(self._job["files"]))

    @cached_property
    def log(self) -> logging.LoggerAdapter[Any]:
        logger = logging.Logger("counterseal.tool")  # noqa: LOG001 - this call's own, not kept
        logger.addHandler(_ToRuntime(self._send, self.number, self.cover))
        return logging.LoggerAdapter(logger, {})

    def progress(self, done: float, total: float | None, message: str) -> None:
        self._send("progress", self.number, [done, total, _text(message, self.cover)])

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Run an async tool on its own event loop and return its result."""
        import asyncio  # noqa: PLC0415 - only async tools need it

        async def main() -> Any:
            task = asyncio.current_task()
            if task is not None:
                self._task = (asyncio.get_running_loop(), task)
            if task is not None and self.cancelled:
                task.cancel()
            try:
                return await awaitable
            finally:
                if "http" in vars(self):
                    await self.http.aclose()
                    await self._clients.aclose()

        return asyncio.run(main())

    def cancel(self) -> None:
        """Cancel the call; called from another thread than the tool's."""
        self.cancelled = True
        if self._task is not None:
            loop, task = self._task
            with suppress(RuntimeError):  # the loop is closed: the tool has just ended
                loop.call_soon_threadsafe(task.cancel)

    def ended_by(self, error: BaseException) -> bool:
        """Return whether this exception is the end of a cancelled async tool."""
        cancelled = self.cancelled and self._task is not None
        return cancelled and type(error).__name__ == "CancelledError"

    def close(self) -> None:
        if "sync_http" in vars(self):
            self.sync_http.close()
            self._clients.close()


class _ToRuntime(logging.Handler):
    def __init__(self, send: Send, number: int, cover: Cover) -> None:
        super().__init__()
        self._cover = cover
        self._to = send
        self._number = number

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = _text(self.format(record), self._cover)
            self._to("log", self._number, [record.levelno, text])
        except Exception:  # noqa: BLE001 - logging never fails the call
            self.handleError(record)


def _text(value: object, cover: Cover) -> str:
    return cover.beginning(str(value), _LONGEST_RECORD).encode(errors="replace").decode()


def context_of(fields: Mapping[str, Any], services: WorkerServices) -> Context:
    """Return the context of a call from plain data."""
    deadline = fields.get("deadline")
    own = {
        "principal": Principal(**fields["principal"]),
        "deadline": datetime.fromisoformat(deadline) if deadline else None,
        "services": services,
    }
    return Context(**{**fields, **own})


# --- resource limits ------------------------------------------------------------------------------


@contextmanager
def limited(memory: int | None, seconds: float) -> Iterator[None]:
    """Limit the process's memory, in bytes, and its processor time, inside the block.

    On Linux, memory is what RLIMIT_DATA counts: writable memory. RLIMIT_AS would count libraries
    and reserved address space, and refuse threads long before memory is short. Processor time
    counts all threads, so the limit is the time of all processors until the deadline plus a
    second: the deadline comes first.
    """
    wanted: dict[int, int] = {}
    if memory is not None:
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        wanted[kind] = memory
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = used.ru_utime + used.ru_stime
    wanted[resource.RLIMIT_CPU] = math.ceil(spent + seconds * (os.cpu_count() or 1)) + 1
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    try:
        for kind, value in wanted.items():
            given = [each for each in (value, *before[kind]) if each != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min(given), before[kind][1]))
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


_LONGEST_TRACE = 64 * 1024
_LAST_MOMENT = 0.05
_PR_SET_CHILD_SUBREAPER = 36


def main(options: Mapping[str, Any]) -> None:
    """Serve until the runtime closes the pipe. `options` come from `pool`."""
    sys.argv[:] = ["counterseal-worker"]
    link = RuntimeLink()
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only where it is needed

        # Become the parent of processes whose parent ends, so that they can be found and ended.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would contain secrets
    if options["sealed"]:
        from counterseal.execution.isolation.seal import seal  # noqa: PLC0415 - others need no ctypes

        seal()
        sys.meta_path.extend(CodeIn(folder) for folder in options["code"])
        for name in ("copymode", "copystat"):
            # Modes and times can't be set in a sandbox; copying a file works anyway.
            setattr(shutil, name, lambda *_, **__: None)
    Worker(link, listed=not options["sealed"]).serve()


class RuntimeLink:
    """The two pipes to the runtime, moved out of the tool's reach."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def receive(self) -> Any:
        """Return the next message, or None after the last one."""
        size = self._read(4)
        body = self._read(int.from_bytes(size, "big")) if size else None
        return json.loads(body) if body else None

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                piece = os.read(self._in, min(count - len(data), 1 << 20))
            except OSError:  # a tool may close all open files
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)

    def send(self, kind: str, number: int, content: Any = None) -> None:
        self.send_raw(kind, number, to_json(content, fallback=str))

    def send_raw(self, kind: str, number: int, content: bytes) -> None:
        if os.getpid() != self._pid:
            return  # a fork of this process, made by a tool: only the original may send
        body = b'["%b",%d,%b]' % (kind.encode(), number, content)
        message = memoryview(framed(body))
        # If the pipe is closed, the runtime notices on its side.
        with self._lock, suppress(OSError):
            while message:
                message = message[os.write(self._out, message) :]


Loaded = tuple[Callable[..., Any], Callable[[Mapping[str, Any]], dict[str, Any]]]
"""A tool's function and its binder."""


class Worker:
    """Runs one job at a time in the main thread; another thread receives messages."""

    def __init__(self, link: RuntimeLink, *, listed: bool) -> None:
        self._link = link
        self._listed = listed
        self._jobs: queue.SimpleQueue[tuple[str, int, Any] | None] = queue.SimpleQueue()
        self._known: dict[FunctionAddress, Loaded] = {}
        self._pid = os.getpid()
        self._running: WorkerServices | None = None
        self._threads = 0

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        self._threads = _threads()
        self._link.send("ready", 0)
        while (job := self._jobs.get()) is not None:
            kind, number, content = job
            if kind == "load":
                with suppress(BaseException):  # the first call reports it
                    self._load(content)
                self._link.send("loaded", number)
            else:
                self._run(number, content)

    def _listen(self) -> None:
        while (message := self._link.receive()) is not None:
            kind, number, content = message
            running = self._running
            if kind != "cancel":
                self._jobs.put((kind, number, content))
            elif running is not None and running.number == number:
                running.cancel()
        if self._running is not None:  # the runtime is gone: end at once
            for pid in processes.family(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os._exit(1)
        self._jobs.put(None)

    def _run(self, number: int, job: Mapping[str, Any]) -> None:
        services = self._running = WorkerServices(self._link.send, number, job)
        try:
            answer = self._outcome(job, services)
        # A cancelled call may be interrupted anywhere between the tool and here.
        except BaseException as error:  # noqa: BLE001 - it belongs to this call
            answer = _fault(error, services.cover)
        finally:
            self._running = None
        if os.getpid() != self._pid:
            os._exit(0)  # a fork of this process, made by the tool
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a tool may have closed them
                stream.flush()
        with suppress(OSError):  # the fence ends this call's output
            os.write(2, f"\n{job['fence']}\n".encode())
        left = _left_behind() or self._has_more_threads()
        self._link.send_raw("answer", number, _sized(answer, left=left))

    def _outcome(self, job: Mapping[str, Any], services: WorkerServices) -> dict[str, Any]:
        try:
            with limited(job["memory"], job["seconds"]):
                return _value(self._call(job, services), services.cover)
        # Outside of the limits: describing an exception takes memory, too, and sandlock counts what
        # the kernel refuses as if it were used.
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, sys.exit() too
            cancelled = services.ended_by(error)
            return {"kind": "cancelled"} if cancelled else _fault(error, services.cover)

    def _call(self, job: Mapping[str, Any], services: WorkerServices) -> Any:
        if not self._listed:
            _move_to(job["files"])
        function, binder = self._load(job["address"])
        arguments = binder(job["arguments"])
        arguments.update(job["injected"])
        if job["context_params"]:
            context = context_of(job["context"], services)
            arguments.update(dict.fromkeys(job["context_params"], context))
        self._link.send("began", services.number)
        try:
            value = function(**arguments)
            return services.run(value) if inspect.isawaitable(value) else value
        finally:
            services.close()

    def _has_more_threads(self) -> bool:
        """Return whether the tool left a thread running, which could see the next call's data.

        A thread that is about to end gets a moment.
        """
        until = time.monotonic() + _LAST_MOMENT
        while _threads() > self._threads:
            if time.monotonic() >= until:
                return True
            time.sleep(_LAST_MOMENT / 10)
        return False

    def _load(self, record: list[Any]) -> Loaded:
        address = FunctionAddress(*record)
        if address not in self._known:
            found = load(address, listed=self._listed)
            if isinstance(found, Tool):
                self._known[address] = (found.function, found.binder)
            else:
                self._known[address] = (found, read_signature(found).bind)
        return self._known[address]


def _move_to(files: str) -> None:
    """Use the directory of a call, which had another name when a spare sandbox was started."""
    os.environ.update(HOME=files, TMPDIR=files)
    if tempfile := sys.modules.get("tempfile"):
        tempfile.tempdir = None  # type: ignore[attr-defined] # documented: forgets the directory


def _threads() -> int:
    """Return the number of threads that run Python code."""
    return len(sys._current_frames())  # noqa: SLF001 - `threading` does not know all of them


def _left_behind() -> bool:
    """Return whether the tool left processes running. Ended ones are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


# --- answers --------------------------------------------------------------------------------------


def _value(value: Any, cover: Cover) -> dict[str, Any]:
    kind = "value"
    if isinstance(value, Partial):
        kind = "partial"
        value = {"completed": value.completed, "failed": value.failed, "data": value.data}
    try:
        return {"kind": kind, "json": _as_json(value)}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a tool's own classes may raise anything here
        return {"kind": "unserialisable", "trace": _trace(error, cover)}


def _as_json(value: Any) -> bytes:
    if hasattr(value, "__next__"):
        raise TypeError("a stream is no output")
    try:
        return to_json(value, fallback=_plain)
    except ValueError:
        # Most likely bytes that are not text, or text with unpaired surrogates.
        plain = to_jsonable_python(value, fallback=_plain, bytes_mode="base64")
        return json.dumps(plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return {"error": type(value).__name__}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _trace(error: BaseException, cover: Cover) -> str:
    try:
        trace = "".join(traceback.format_exception(error))
        return cover.ending(trace, _LONGEST_TRACE).encode(errors="replace").decode()
    except BaseException:  # noqa: BLE001 - an exception's own code may raise while it is shown
        return type(error).__name__


def _fault(error: BaseException, cover: Cover = NO_COVER) -> dict[str, Any]:
    words = error.words if isinstance(error, SpokenError) else ""
    return {
        "kind": "fault",
        "fault": describe(error).record(),
        "trace": _trace(error, cover),
        "words": cover.beginning(words, _LONGEST_TRACE),
        "spent": isinstance(error, MemoryError),
    }


def _sized(answer: dict[str, Any], *, left: bool) -> bytes:
    value = answer.pop("json", None)
    if value is not None and (len(value) > LONGEST_VALUE or is_too_much(value)):
        error = ResponseTooLargeError(
            f"the tool returned {len(value)} bytes of JSON; at most {LONGEST_VALUE} are read, and "
            "less if they are mostly lists and objects"
        )
        answer, value = _fault(error), None
    rest = to_json({**answer, "spent": answer.get("spent", False) or left})
    return rest if value is None else b'%b,"value":%b}' % (rest[:-1], value)
