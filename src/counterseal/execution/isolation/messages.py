"""Messages between the runtime and a process that runs tools: framing, jobs, replies, masking.

A message is four bytes of length, then JSON: a list of the message's kind, the call's number, and
the content. Both sides bound what they send and read, in bytes and in parsed size. A job names its
function by an address, `module:qualname`, by which the other process imports it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from counterseal.contract.declare import Tool
from counterseal.errors import IsolationError
from counterseal.masking import SHORTEST, Mask

LONGEST_VALUE: Final = 16 * 1024 * 1024
LONGEST_MESSAGE: Final = LONGEST_VALUE + 1024 * 1024
OWN_MB: Final = 128
"""Memory for a process itself (interpreter, this package), in addition to a tool's limit.

Well above what they take (about 40), so that a tool meets its own limit first, and can report it.
"""
_MOST_CONTAINERS: Final = 1_000_000
_MAIN = "__counterseal_main__"
"""The main module's name in a new process, where the program must not start again."""


def framed(body: bytes) -> bytes:
    """Return the message with its length before it."""
    return len(body).to_bytes(4, "big") + body


def is_too_much(json: bytes) -> bool:
    """Return whether parsing would take far more memory than the text: `[]` is two bytes."""
    return json.count(b"[") + json.count(b"{") > _MOST_CONTAINERS


# --- addresses of functions -----------------------------------------------------------------------


class FunctionAddress(NamedTuple):
    """A function, and what a new process needs to import it."""

    module: str
    qualname: str
    folder: str | None = None
    """The folder that has to be on `sys.path`."""
    file: str | None = None
    """The file to run under the module's name, if the name can't be imported."""

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


def address_of(function: Callable[..., Any]) -> FunctionAddress:
    """Return the address of a tool's function. Raise IsolationError with the reason and the fix."""
    if isinstance(function, Tool):
        function = function.function
    _refuse_the_nameless(function)
    module, qualname = function.__module__, function.__qualname__
    namespace = _namespace(function)
    _check_found(function, f"{module}:{qualname}", namespace)
    file = namespace.get("__file__")
    if module == "__main__":
        return _in_main(qualname, namespace)
    if not isinstance(file, str):
        return FunctionAddress(module, qualname)  # built into the interpreter
    here = Path(file).absolute()
    root = _root(here, module)
    if root is None:
        return FunctionAddress(module, qualname, str(here.parent), str(here))
    return FunctionAddress(module, qualname, str(root))


def _refuse_the_nameless(function: Callable[..., Any]) -> None:
    what = ""
    qualname = getattr(function, "__qualname__", "")
    if isinstance(function, partial):
        what = "a functools.partial has no name of its own"
    elif inspect.ismethod(function) and not inspect.isclass(function.__self__):
        what = f"{qualname} belongs to an object that only this process has"
    elif not inspect.isroutine(function):
        what = f"an object of type {type(function).__name__} is no function"
    elif "<lambda>" in qualname:
        what = "a lambda has no name"
    elif "<locals>" in qualname:
        what = f"{qualname} is defined inside a function"
    if what:
        raise IsolationError(
            f"{what}, so a process of its own can't find it; define the tool with def at the top "
            "level of a module (a decorator must use functools.wraps), or choose another isolation"
        )


def _namespace(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the module's namespace; the module itself may be gone from `sys.modules`."""
    plain = inspect.unwrap(function)
    names: Mapping[str, Any] = getattr(plain, "__globals__", {})
    if names.get("__name__") != function.__module__:
        module = sys.modules.get(function.__module__)
        names = vars(module) if module else names
    return names


def _check_found(function: Callable[..., Any], name: str, namespace: Mapping[str, Any]) -> None:
    """Raise IsolationError if the name leads to something other than this function."""
    first, *rest = function.__qualname__.split(".")
    target = namespace.get(first)
    for part in rest:
        target = getattr(target, part, None)
    if isinstance(target, Tool):
        target = target.function
    if target != function:
        raise IsolationError(
            f"{name} is something else than the tool's function, so a process of its own would run "
            "other code; give each of them its own name"
        )


def _in_main(qualname: str, namespace: Mapping[str, Any]) -> FunctionAddress:
    file, spec = namespace.get("__file__"), namespace.get("__spec__")
    if not isinstance(file, str) or not Path(file).is_file():
        raise IsolationError(
            f"{qualname} was typed into an interactive session, so a process of its own can't find "
            "it; put the tool into a file and import it"
        )
    here = Path(file).absolute()
    root = _root(here, spec.name) if isinstance(spec, ModuleSpec) else None
    if isinstance(spec, ModuleSpec) and root is not None:
        return FunctionAddress(spec.name, qualname, str(root))
    return FunctionAddress(_MAIN, qualname, str(here.parent), str(here))


def _root(file: Path, module: str) -> Path | None:
    """Return the folder from which the module's dotted name leads to its file, or None."""
    parts = module.split(".")
    if file.name == "__init__.py":
        file = file.parent
    names = (file.stem if file.suffix == ".py" else file.name, *(p.name for p in file.parents))
    if list(names[: len(parts)]) != parts[::-1]:
        return None
    return file.parents[len(parts) - 1]


# --- jobs and replies -----------------------------------------------------------------------------

Tell = Callable[[str, Any], None]
"""Receives `"progress"` with `[done, total, message]`, and `"log"` with `[level, text]`."""

Kind = Literal["value", "partial", "unserialisable", "fault", "died", "late", "unavailable"]


class IsolatedJob(NamedTuple):
    """A call for another process, as plain data."""

    address: FunctionAddress
    arguments: Mapping[str, Any]
    injected: Mapping[str, Any]
    """Resolved secrets, config and state, by parameter."""
    context_params: Sequence[str]
    context: Mapping[str, Any]
    """The fields of a `Context`, without its services."""
    egress: Mapping[str, Any]
    files: str | None
    memory_mb: int
    contract: str = ""
    """The hash of the tool's contract."""
    secrets: Mapping[str, str] = {}
    """The injected secrets by name. Both sides mask them in output, logs and errors, before they
    cut long text."""


class Reply(NamedTuple):
    """The result of a job."""

    kind: Kind
    value: Any = None
    """The tool's return value; for `partial`, an object of completed, failed and data."""
    fault: Any = None
    """The record of a `Fault`, as the child sent it."""
    trace: str = ""
    """For operators: a traceback, or how the child died and its last output."""
    words: str = ""
    """The tool's own message about its failure, for the caller."""
    began: bool = True
    """False when the call never reached the tool's function."""
    interrupted: bool = False
    """True if the caller was cancelled meanwhile. The other fields still hold."""


# --- cutting text without exposing half a secret --------------------------------------------------


_WIDEST = 16
"""The factor by which an escaped or wrapped form of a secret is longer than the secret."""
_WIDEST_MARGIN = 256 * 1024


class Cover:
    """Masks one call's secrets in text that is cut, so that no part of a secret is left."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {k: value for k, value in secrets.items() if len(value) >= SHORTEST}
        longest = max(map(len, self._secrets.values()), default=0)
        self.margin = min(longest * _WIDEST + 1024, _WIDEST_MARGIN) if longest else 0
        """How many characters a secret at the edge of a cut can take up."""

    @cached_property
    def _mask(self) -> Mask:  # most calls print nothing
        return Mask(self._secrets)

    def text(self, text: str) -> str:
        """Return the whole text, masked."""
        return self._mask.text(text) if self._secrets else text

    def kept(self, most: int) -> int:
        """Return how many characters to keep in order to show `most` of them."""
        return most + 2 * self.margin

    def beginning(self, text: str, most: int, *, cut: bool = False) -> str:
        """Return the first characters, masked. `cut` means that the text was longer once."""
        kept = self.kept(most)
        clean = self.text(text[:kept])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[: -self.margin]
        return clean[:most]

    def ending(self, text: str, most: int, *, cut: bool = False) -> str:
        """Return the last characters, masked. `cut` means that more came before them."""
        kept = self.kept(most)
        clean = self.text(text[-kept:])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[self.margin :]
        return clean[-most:]


NO_COVER: Final = Cover({})
