"""Finds every contract in files and folders, and in the lock of upstreams, with all its problems.

Contract files are read, Python files are imported, folders are searched for both. Then all
contracts are checked together, as a registry would do it. Nothing is registered. Importing is
executing: only paths that a person or the configuration has named are ever given to `discover`.

A Python file is imported under the name that it has in its author's program, because records name
code by its module, and a contract's hash covers that name. The modules leave `sys.modules` again,
so that two folders may both have a `tools.py`. An import that fails is a problem with a place, not
a traceback.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from counterseal.canonical import pointer
from counterseal.config.settings import ConfigError, Settings
from counterseal.contract.declare import PlainTool, Tool, is_plain_tool, wrap_plain_tool
from counterseal.contract.files import read_contracts
from counterseal.contract.lint import lint, raised
from counterseal.contract.model import Contract
from counterseal.documents import SUFFIXES, read_document
from counterseal.errors import ContractError, Problem, Source
from counterseal.registry import RegistryRecord, checks
from counterseal.registry.records import parse_version

if TYPE_CHECKING:
    from counterseal.contract.sources.mcp.lock import Lock

FileProgress = Callable[[Path], None]

_HEAD = 64 * 1024
_KEYS = ("identity", "affordance")
_KEY = rf"[\"']?(?:{'|'.join(_KEYS)})[\"']?\s*:"
_FLOW_KEY = re.compile(_KEY)
_BLOCK_KEY = re.compile(rf"^(?:- +)?{_KEY}", re.MULTILINE)
_BLOCK_LIST_KEY = re.compile(rf"^- (?s:.*)^ {{1,4}}{_KEY}", re.MULTILINE)
_PYTHON_TOOL = re.compile(
    r"^\s*(?:from|import)\s+counterseal\b|def\s+execute\b(?s:.*)(?:input_schema|get_schema)|"
    r"(?:input_schema|get_schema)(?s:.*)def\s+execute\b",
    re.MULTILINE,
)
_NOT_TOOLS = re.compile(r"^(?:test_.*|.*_test|conftest|setup)\.py$")
_NOT_WALKED = {"__pycache__", "node_modules", "site-packages", "venv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """A contract, or a file in which none could be read."""

    name: str = ""
    """Empty if the name could not be read."""
    contract: Contract | None = None
    tool: Tool[..., Any] | None = None
    problems: tuple[Problem, ...] = ()
    path: Path
    source: Source
    """Where the contract begins."""
    index: int = 0
    """Its position among the contracts of a contract file."""


def discover(
    paths: Iterable[Path],
    *,
    beside: Iterable[Path] = (),
    strict: bool = False,
    progress: FileProgress = lambda _: None,
) -> tuple[Discovered, ...]:
    """Return what these files and folders declare, in order.

    With `strict`, parameters without a description are errors, as in `lint`.
    Contracts in `beside` are only used to resolve references. Raises ConfigError if a path does not
    exist.
    """
    wanted = dict.fromkeys(contract_files(paths))
    files = [*wanted, *(file for file in contract_files(beside) if file not in wanted)]
    modules = import_files([file for file in files if file.suffix == ".py"], progress)
    included: set[int] = set()
    items: list[Discovered] = []
    for file in files:
        if file not in modules:
            progress(file)
            items.extend(_from_contract_file(file))
            continue
        for declared in modules[file].declarations:
            if id(declared.value) not in included:
                included.add(id(declared.value))
                items.append(_from_declaration(file, declared))
        if modules[file].problems:
            problems = tuple(map(_placed_from_here, modules[file].problems))
            items.append(_unreadable(file, problems))
    checked = [item for item in _checked_together(items) if item.path in wanted]
    if strict:
        checked = [replace(item, problems=raised(item.problems)) for item in checked]
    return tuple(checked)


def pinned_contracts(settings: Settings) -> dict[str, list[Discovered]]:
    """Return the accepted tools of each upstream, from lock and overlays, with their problems.

    Hidden tools are left out. No upstream is contacted. Raises ConfigError or LockError if a file
    is missing or can't be read.
    """
    if not settings.upstreams:
        return {}
    from counterseal.contract.sources.mcp.lock import Lock  # noqa: PLC0415 - only with upstreams

    lock = Lock.load(settings.lock_path())
    return {server: list(_pinned(settings, server, lock)) for server in settings.upstreams}


def _pinned(settings: Settings, server: str, lock: Lock) -> Iterator[Discovered]:
    from counterseal.contract.sources.mcp.overlay import contract_of  # noqa: PLC0415 - as above
    from counterseal.contract.sources.mcp.overlay_files import read_overlay  # noqa: PLC0415 - as above

    table, file = settings.upstreams[server], settings.overlay_path(server)
    path = _relative(file or settings.lock_path())
    try:
        overlay = None if file is None else read_overlay(path)
    except ContractError as error:
        yield _unreadable(path, error.problems)
        return
    for name, pin in lock.servers.get(server, {}).items():
        try:
            contract = contract_of(
                pin.definition,
                overlay,
                server=server,
                prefix=table.prefix,
                unlisted=table.unlisted,
                revision=pin.revision,
            )
        except ContractError as error:
            yield _unreadable(path, error.problems)
            continue
        if contract is not None:
            listed = overlay is not None and name in overlay.tools
            source = overlay.source(pointer("tools", name)) if overlay and listed else None
            source = source or Source(file=str(path))
            yield Discovered(name=contract.name, contract=contract, path=path, source=source)


# Which files -------------------------------------------------------------------------------------


def contract_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that may hold contracts, Python files included.

    ConfigError if a path does not exist.
    """
    files: dict[Path, None] = {}
    for path in map(_relative, paths):
        if not path.exists():
            raise ConfigError(f"There is no file or folder {path}.")
        if not path.is_dir():
            files[path] = None
        for folder, inside, names in os.walk(path):
            inside[:] = sorted(
                name
                for name in inside
                if not name.startswith(".")
                and name not in _NOT_WALKED
                and not Path(folder, name, "pyvenv.cfg").exists()
            )
            for file in (Path(folder, name) for name in sorted(names)):
                if _may_hold_contracts(file):
                    files[file] = None
    return list(files)


def _relative(path: Path) -> Path:
    """Return the path relative to the working folder, if it is below it."""
    absolute = Path(os.path.normpath(path.absolute()))
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def _may_hold_contracts(file: Path) -> bool:
    """Return whether a file in a folder looks like one with contracts; True if it is unclear."""
    if file.suffix not in (*SUFFIXES, ".py") or _NOT_TOOLS.match(file.name):
        return False
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return True
    if file.suffix == ".py":
        # Importing runs a file, so a file that was only found is run only if it mentions tools.
        return _PYTHON_TOOL.search(head) is not None
    if file.suffix == ".json":
        try:
            data = json.loads(head)
        except (ValueError, RecursionError):
            return _FLOW_KEY.search(head) is not None
        items = data if isinstance(data, list) else [data]
        return any(isinstance(item, dict) and not item.keys().isdisjoint(_KEYS) for item in items)
    flow = head.lstrip().startswith(("{", "["))
    patterns = (_FLOW_KEY,) if flow else (_BLOCK_KEY, _BLOCK_LIST_KEY)
    return any(pattern.search(head) for pattern in patterns)


# Reading -----------------------------------------------------------------------------------------


def _unreadable(file: Path, problems: tuple[Problem, ...]) -> Discovered:
    return Discovered(
        name=problems[0].tool, problems=problems, path=file, source=Source(file=str(file))
    )


def _from_contract_file(file: Path) -> Iterator[Discovered]:
    try:
        loaded = read_contracts(file)
    except ContractError as error:
        yield _unreadable(file, error.problems)
        return
    document = read_document(file) if len(loaded) > 1 else None
    for index, item in enumerate(loaded):
        if item.contract is None:
            yield _unreadable(file, item.problems)
            continue
        yield Discovered(
            name=item.contract.name,
            contract=item.contract,
            problems=item.problems,
            path=file,
            source=document.source(f"/{index}") if document else Source(file=str(file)),
            index=index,
        )


def _from_declaration(file: Path, declared: Declaration) -> Discovered:
    tool: Tool[..., Any] | None = None
    try:
        if isinstance(declared.value, Contract):
            contract = declared.value
        else:
            value = declared.value
            tool = value if isinstance(value, Tool) else wrap_plain_tool(value)
            contract = tool.contract
    except ContractError as error:
        return _unreadable(file, tuple(problem.at(declared.source) for problem in error.problems))
    # The schema of a plain tool comes from its author's code, which may raise anything.
    except Exception as error:  # noqa: BLE001 - runs the author's code
        message = f"not a readable tool: {type(error).__name__}: {str(error)[:200]}"
        problem = Problem(rule="import-failed", message=message, source=declared.source)
        return _unreadable(file, (problem,))
    item = Discovered(
        name=contract.name, contract=contract, tool=tool, path=file, source=declared.source
    )
    return replace(item, problems=tuple(_placed(item, problem) for problem in lint(contract)))


def place_of(item: Discovered, field: str) -> Source:
    """Return the place of a field (a JSON Pointer) in its file, or where the contract begins."""
    problem = Problem(rule="", message="", pointer=field)
    return _placed(item, problem).source or item.source


def _placed(item: Discovered, problem: Problem) -> Problem:
    """Return the problem with its place in the file; for a plain tool, the place of its name."""
    if problem.source is not None:
        return problem
    if item.path.suffix in SUFFIXES:
        # Read again: only problems between contracts get here, and they are rare.
        document = read_document(item.path)
        prefix = f"/{item.index}" if isinstance(document.data, list) else ""
        return problem.at(document.source(f"{prefix}{problem.pointer}"))
    source = item.tool.source_of(problem.pointer) if item.tool is not None else None
    elsewhere = source is None or Path(source.file).resolve() != item.path.resolve()
    return problem.at(item.source) if elsewhere else _placed_from_here(problem.at(source))


def _placed_from_here(problem: Problem) -> Problem:
    if problem.source is None:
        return problem
    return problem.at(replace(problem.source, file=str(_relative(Path(problem.source.file)))))


# Checking contracts together ---------------------------------------------------------------------


def _checked_together(items: Sequence[Discovered]) -> Iterator[Discovered]:
    """Yield the items with the problems that they have with each other."""
    lines: defaultdict[str, list[RegistryRecord]] = defaultdict(list)
    records: dict[int, RegistryRecord] = {}
    first: dict[tuple[str, Version], Source] = {}
    for index, item in enumerate(items):
        if item.contract is not None and parse_version(item.contract.version) is not None:
            records[index] = record = RegistryRecord(contract=item.contract)
            lines[item.name].append(record)
            first.setdefault((item.name, record.parsed), item.source)
    # A tool that seems to be missing may be in a file that could not be read.
    complete = all(item.contract is not None for item in items)
    for index, item in enumerate(items):
        placed = []
        for problem in _joint_problems(records[index], lines) if index in records else ():
            if complete or not problem.rule.endswith("-unknown"):
                one = _placed(item, problem.of(item.name))
                if one.rule == "version-duplicate":
                    earlier = first[item.name, records[index].parsed]
                    one = replace(one, message=f"{one.message}, in {earlier}")
                placed.append(one)
        yield replace(item, problems=(*item.problems, *placed))


def _joint_problems(
    record: RegistryRecord, lines: Mapping[str, list[RegistryRecord]]
) -> Iterator[Problem]:
    def versions(name: str) -> list[RegistryRecord]:
        return lines.get(name, [])

    def up_to_this(name: str) -> list[RegistryRecord]:
        older = [other for other in versions(name) if other.parsed < record.parsed]
        return [*older, record]

    yield from checks.duplicates([record], versions)
    yield from checks.reference_problems([record], versions, lambda _: ())
    # Only the step that leads to this version: each step is reported once, for its later version.
    yield from checks.missing_bumps([record], up_to_this)


# Python files ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A tool or contract, and the place of its name in the module."""

    value: Tool[..., Any] | Contract | PlainTool
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModule:
    """The declarations of a file in order, or why it could not be imported."""

    declarations: tuple[Declaration, ...] = ()
    problems: tuple[Problem, ...] = ()


def import_files(
    files: Sequence[Path], progress: Callable[[Path], None]
) -> dict[Path, ImportedModule]:
    """Import each file once, and return what it declares.

    Files with the same root are imported together, so that an object which one imports from another
    is the same in both.
    """
    by_root: dict[Path, list[tuple[Path, str]]] = {}
    for file in files:
        # The folder that must be on the path, and the dotted name from there.
        parts = [] if file.stem == "__init__" else [file.stem]
        root = file.absolute().parent
        while (root / "__init__.py").is_file() and root != root.parent:
            parts.insert(0, root.name)
            root = root.parent
        by_root.setdefault(root, []).append((file, ".".join(parts)))
    imported: dict[Path, ImportedModule] = {}
    for root, members in by_root.items():
        with _modules_of(root):
            for file, name in members:
                progress(file)
                imported[file] = _examine(file, name)
    return imported


@contextmanager
def _modules_of(root: Path) -> Iterator[None]:
    """Put `root` first on the import path, and remove its modules afterwards."""
    before = dict(sys.modules)
    # The working folder comes next, for projects that are started from there.
    added = [str(root), str(Path.cwd())]
    sys.path[:0] = added
    importlib.invalidate_caches()
    try:
        # A module that prints must not print into the command's result.
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for entry in added:
            if entry in sys.path:
                sys.path.remove(entry)
        for name in [name for name in sys.modules if name not in before]:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and Path(file).is_relative_to(root):
                # At `root` itself, not in a library folder below it.
                first, top = Path(file).relative_to(root).parts[0], name.partition(".")[0]
                if first in (top, f"{top}.py") or name.startswith(_PRIVATE):
                    del sys.modules[name]


_PRIVATE = "_counterseal_file_"


def _examine(file: Path, name: str) -> ImportedModule:
    try:
        module = _import(file.absolute(), name)
        return ImportedModule(declarations=tuple(_declarations(file, module)))
    except KeyboardInterrupt:
        raise
    # Importing runs its author's code, which may raise anything, SystemExit included.
    except BaseException as error:  # noqa: BLE001 - a module may do anything
        return ImportedModule(problems=_failure(file, error))


def _import(file: Path, name: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and _is_at(known, file):
        return known
    if (file.parent / "__init__.py").is_file():
        module = importlib.import_module(name)
        if not _is_at(module, file):
            raise ImportError(f"{name} resolves to {getattr(module, '__file__', '?')}")
        return module
    if known is not None:
        name = _PRIVATE + name  # another module of this process has the name
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
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and Path(path).resolve() == file.resolve()


# Declarations of a module ------------------------------------------------------------------------


def _declarations(file: Path, module: ModuleType) -> Iterator[Declaration]:
    names = _names(ast.parse(file.read_bytes()))
    exported = set(getattr(module, "__all__", ()))
    for name, value in list(vars(module).items()):
        # An imported name belongs to the file that it comes from, unless it is exported here.
        # A function of the module may be a tool's though no statement names the tool.
        own = isinstance(value, Tool) and value.function.__module__ == module.__name__
        if not own and name not in names and name not in exported:
            continue
        plain = not isinstance(value, type | ModuleType) and is_plain_tool(value)
        if plain or isinstance(value, Tool | Contract):
            line, column = names.get(name, (1, 1))
            source = Source(file=str(file), line=line, column=column)
            yield Declaration(value=value, source=source)


def _names(tree: ast.Module) -> dict[str, tuple[int, int]]:
    """Return the names that a module's statements bind, except imports, with their places."""
    places: dict[str, tuple[int, int]] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            places[node.name] = (node.lineno, node.col_offset + 1)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            places[node.id] = (node.lineno, node.col_offset + 1)
        elif not isinstance(node, _INNER_SCOPES):
            waiting.extend(ast.iter_child_nodes(node))
    return places


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


# Failed imports ----------------------------------------------------------------------------------


def _failure(file: Path, error: BaseException) -> tuple[Problem, ...]:
    """Return the problems of an import, at the innermost line of this file in the traceback."""
    here, source = file.resolve(), Source(file=str(file))
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).resolve() == here:
            source = replace(source, line=frame.lineno or 1, column=(frame.colno or 0) + 1)
    fix = "The file should only declare tools when it is imported."
    if isinstance(error, ContractError):
        return tuple(one if one.source else one.at(source) for one in error.problems)
    if isinstance(error, SyntaxError):
        elsewhere = error.filename and Path(error.filename).resolve() != here
        where = f" in {error.filename}:{error.lineno}" if elsewhere else ""
        message, fix = f"invalid Python: {error.msg}{where}", ""
        if error.filename and not elsewhere:
            source = Source(file=str(file), line=error.lineno or 1, column=error.offset or 1)
    elif isinstance(error, SystemExit):
        message = f"the file exits when it is imported (exit {error.code})"
    else:
        lines = str(error).splitlines()
        message = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            fix = "Install it beside counterseal, or run from the project's folder."
    return (Problem(rule="import-failed", message=message, fix=fix, source=source),)
