"""The address of a tool's function, `module:qualname`, by which a new process imports it.

`address_of` refuses functions that a new process could not import; `load` imports one there. An
address is plain data, so that it can be sent.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module, invalidate_caches
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ModuleSpec,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from counterseal.contract.declare import Tool
from counterseal.errors import IsolationError

_MAIN = "__counterseal_main__"
"""The main module's name in a new process, where the program must not start again."""

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)


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


# --- in the fresh process -------------------------------------------------------------------------


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
    if address.folder:
        _add(address.folder, listed=listed)
    module = _run(address) if address.file else import_module(address.module)
    target: Any = module
    for part in address.qualname.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise ImportError(f"{address.module} has no {address.qualname}")
    loaded: Tool[..., Any] | Callable[..., Any] = target
    return loaded


def _add(folder: str, *, listed: bool) -> None:
    if listed:
        if folder not in sys.path:
            sys.path.insert(0, folder)
            invalidate_caches()
    elif folder not in {getattr(finder, "folder", None) for finder in sys.meta_path}:
        sys.meta_path.insert(0, CodeIn(folder))


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
