"""Python files as sources of contracts: import them, and find what they declare at module level.

A file is imported under the name that it has in its author's own program: records name code by its
module, and a contract's hash covers that name. The modules leave `sys.modules` again, so that two
folders may both hold a `tools.py`. Whatever goes wrong is a problem with a place, no traceback.
"""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from counterseal.contract.declare import PlainTool, Tool, is_plain_tool
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, Problem, Source

__all__ = ["Declaration", "Module", "import_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A tool or contract, and where it got its name in the module."""

    value: Tool[..., Any] | Contract | PlainTool
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """What one file declares, in its order; or why it could not be imported."""

    declarations: tuple[Declaration, ...] = ()
    problems: tuple[Problem, ...] = ()


def import_files(files: Sequence[Path], progress: Callable[[Path], None]) -> dict[Path, Module]:
    """Every file once, each with what it declares.

    Files that share a root are imported side by side, so that what one takes from another is the
    same object in both.
    """
    by_root: dict[Path, list[tuple[Path, str]]] = {}
    for file in files:
        root, name = _natural_name(file.absolute())
        by_root.setdefault(root, []).append((file, name))
    found: dict[Path, Module] = {}
    for root, members in by_root.items():
        with _modules_of(root):
            for file, name in members:
                progress(file)
                found[file] = _examine(file, name)
    return found


def _natural_name(file: Path) -> tuple[Path, str]:
    """The folder that has to be on the path for a file, and its dotted name seen from there."""
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


@contextmanager
def _modules_of(root: Path) -> Iterator[None]:
    """Imports see `root` first, and leave no module of it behind."""
    before = dict(sys.modules)
    # The working folder stands behind it, for projects that are started from there.
    added = [str(root), str(Path.cwd())]
    sys.path[:0] = added
    importlib.invalidate_caches()
    try:
        # A module that prints must not print into the results.
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for entry in added:
            if entry in sys.path:
                sys.path.remove(entry)
        for name in [name for name in sys.modules if name not in before]:
            if _stands_in(root, name, sys.modules[name]):
                del sys.modules[name]


def _stands_in(root: Path, name: str, module: ModuleType) -> bool:
    """Whether the module was found at `root` itself, and not in a library folder below it."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not Path(file).is_relative_to(root):
        return False
    first = Path(file).relative_to(root).parts[0]
    return first in (top := name.partition(".")[0], f"{top}.py") or name.startswith(_PRIVATE)


_PRIVATE = "_counterseal_file_"


def _examine(file: Path, name: str) -> Module:
    try:
        module = _import(file.absolute(), name)
        return Module(declarations=tuple(_declarations(file, module)))
    except KeyboardInterrupt:
        raise
    # Importing runs its author's code, which may raise anything, an exit included.
    except BaseException as error:  # noqa: BLE001 - a module may do anything
        return Module(problems=_failure(file, error))


def _import(file: Path, name: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and _is_at(known, file):
        return known
    if (file.parent / "__init__.py").is_file():
        module = importlib.import_module(name)
        if not _is_at(module, file):
            raise ImportError(f"{name} is another file here: {getattr(module, '__file__', '?')}")
        return module
    if known is not None:
        name = _PRIVATE + name  # its own name belongs to somebody else in this process
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _is_at(module: ModuleType, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and Path(found).resolve() == file.resolve()


# What a module declares --------------------------------------------------------------------------


def _declarations(file: Path, module: ModuleType) -> Iterator[Declaration]:
    names = _names(ast.parse(file.read_bytes()))
    exported = set(getattr(module, "__all__", ()))
    for name, value in list(vars(module).items()):
        # What is only imported belongs to the file that it comes from, unless it is passed on.
        if name not in names and name not in exported and not _is_made_here(value, module):
            continue
        if isinstance(value, Tool | Contract) or _is_plain_tool(value):
            line, column = names.get(name, (1, 1))
            source = Source(file=str(file), line=line, column=column)
            yield Declaration(value=value, source=source)


def _is_made_here(value: object, module: ModuleType) -> bool:
    """Whether a tool's function is the module's own, though no statement gives it its name."""
    return isinstance(value, Tool) and value.function.__module__ == module.__name__


def _is_plain_tool(value: object) -> bool:
    return not isinstance(value, type | ModuleType) and is_plain_tool(value)


def _names(tree: ast.Module) -> dict[str, tuple[int, int]]:
    """The names that a module's own statements bind, imports left out, and where they do."""
    found: dict[str, tuple[int, int]] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            found[node.name] = (node.lineno, node.col_offset + 1)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = (node.lineno, node.col_offset + 1)
        elif not isinstance(node, _INNER_SCOPES):
            waiting.extend(ast.iter_child_nodes(node))
    return found


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


# What went wrong ---------------------------------------------------------------------------------


def _failure(file: Path, error: BaseException) -> tuple[Problem, ...]:
    source = _place(file, error)
    if isinstance(error, ContractError):
        return tuple(
            problem if problem.source else problem.at(source) for problem in error.problems
        )
    return (
        Problem(
            rule="import-failed",
            message=_told(file, error),
            fix=_fix(error),
            source=source,
        ),
    )


def _told(file: Path, error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the program itself (exit {error.code})"
    if isinstance(error, SyntaxError):
        elsewhere = error.filename and Path(error.filename).resolve() != file.resolve()
        where = f" in {error.filename}:{error.lineno}" if elsewhere else ""
        return f"not Python: {error.msg}{where}"
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "Install it where counterseal is installed, or run from the project's folder."
    if isinstance(error, SyntaxError):
        return ""
    return "Let the file declare tools and do nothing else when it is imported."


def _place(file: Path, error: BaseException) -> Source:
    """The last line of this very file that was running."""
    here = file.resolve()
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == here:
        return Source(file=str(file), line=error.lineno or 1, column=error.offset or 1)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == here
    ]
    if not frames:
        return Source(file=str(file))
    last = frames[-1]
    return Source(file=str(file), line=last.lineno or 1, column=(last.colno or 0) + 1)
