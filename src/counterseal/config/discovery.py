"""Every contract that some files and folders hold, with everything that is wrong with it.

Contract files are read, Python files are imported, folders are walked for both; then all of it is
looked at together, as a registry would. Nothing is registered.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from counterseal.config.modules import Declaration, import_files
from counterseal.config.settings import ConfigError
from counterseal.contract.declare import Tool, wrap_plain_tool
from counterseal.contract.files import read_contracts
from counterseal.contract.lint import lint
from counterseal.contract.model import Contract
from counterseal.documents import SUFFIXES, read_document
from counterseal.errors import ContractError, Problem, Source
from counterseal.registry import RegistryRecord, checks
from counterseal.registry.records import parse_version

__all__ = ["Discovered", "discover"]

Progress = Callable[[Path], None]

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
    """One contract, or one file that should have held one."""

    name: str = ""
    """Empty when nothing could be read that far."""
    contract: Contract | None = None
    tool: Tool[..., Any] | None = None
    problems: tuple[Problem, ...] = ()
    path: Path
    source: Source
    """Where the contract begins."""
    index: int = 0
    """Which one it is among the contracts of a contract file."""


def discover(
    paths: Iterable[Path], *, beside: Iterable[Path] = (), progress: Progress | None = None
) -> tuple[Discovered, ...]:
    """What these files and folders declare, in their order.

    `beside` is looked at too, so that names which lead there are known, but is not reported on.
    ConfigError when a path does not exist.
    """
    wanted = dict.fromkeys(_files(paths))
    others = [file for file in _files(beside) if file not in wanted]
    items = _read([*wanted, *others], progress or (lambda _: None))
    return tuple(item for item in _checked_together(items) if item.path in wanted)


# Which files -------------------------------------------------------------------------------------


def _files(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in map(_shown, paths):
        if path.is_dir():
            found.update(dict.fromkeys(_walk(path)))
        elif path.exists():
            found[path] = None
        else:
            raise ConfigError(f"There is no file or folder {path}.")
    return list(found)


def _shown(path: Path) -> Path:
    """As it is written best in a message: from the working folder, if it is below that."""
    absolute = Path(os.path.normpath(path.absolute()))
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def _walk(root: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(root):
        inside[:] = sorted(name for name in inside if _is_walked(Path(folder, name)))
        for file in (Path(folder, name) for name in sorted(files)):
            if _may_hold_contracts(file):
                yield file


def _is_walked(folder: Path) -> bool:
    ignored = folder.name.startswith(".") or folder.name in _NOT_WALKED
    return not ignored and not (folder / "pyvenv.cfg").exists()


def _may_hold_contracts(file: Path) -> bool:
    """Folders hold other files as well. What can't be told is read, and reported."""
    if file.suffix not in (*SUFFIXES, ".py") or _NOT_TOOLS.match(file.name):
        return False
    head = _head(file)
    if head is None:
        return True
    if file.suffix == ".py":
        # Importing runs a file, so one that nobody named is run only when it speaks of tools.
        return _PYTHON_TOOL.search(head) is not None
    if file.suffix == ".json":
        return _json_may_be_contract(head)
    flow = head.lstrip().startswith(("{", "["))
    patterns = (_FLOW_KEY,) if flow else (_BLOCK_KEY, _BLOCK_LIST_KEY)
    return any(pattern.search(head) for pattern in patterns)


def _json_may_be_contract(head: str) -> bool:
    try:
        data = json.loads(head)
    except (ValueError, RecursionError):
        return _FLOW_KEY.search(head) is not None
    items = data if isinstance(data, list) else [data]
    return any(isinstance(item, dict) and not item.keys().isdisjoint(_KEYS) for item in items)


def _head(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            return stream.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return None


# What is in them ---------------------------------------------------------------------------------


def _read(files: Sequence[Path], progress: Progress) -> list[Discovered]:
    modules = import_files([file for file in files if file.suffix == ".py"], progress)
    seen: set[int] = set()
    items: list[Discovered] = []
    for file in files:
        if file not in modules:
            progress(file)
            items.extend(_from_contract_file(file))
            continue
        for declared in modules[file].declarations:
            if id(declared.value) not in seen:
                seen.add(id(declared.value))
                items.append(_from_declaration(file, declared))
        if modules[file].problems:
            problems = tuple(map(_placed_from_here, modules[file].problems))
            items.append(_unread(file, problems))
    return items


def _unread(file: Path, problems: tuple[Problem, ...]) -> Discovered:
    return Discovered(
        name=problems[0].tool, problems=problems, path=file, source=Source(file=str(file))
    )


def _from_contract_file(file: Path) -> Iterator[Discovered]:
    try:
        loaded = read_contracts(file)
    except ContractError as error:
        yield _unread(file, error.problems)
        return
    document = read_document(file) if len(loaded) > 1 else None
    for index, item in enumerate(loaded):
        if item.contract is None:
            yield _unread(file, item.problems)
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
    try:
        contract, tool = _parts(declared.value)
    except ContractError as error:
        return _unread(file, tuple(problem.at(declared.source) for problem in error.problems))
    # A plain tool's schema comes from its author's code, which may raise anything.
    except Exception as error:  # noqa: BLE001 - a plain tool is code too
        message = f"can't be read as a tool: {type(error).__name__}: {str(error)[:200]}"
        problem = Problem(rule="import-failed", message=message, source=declared.source)
        return _unread(file, (problem,))
    item = Discovered(
        name=contract.name, contract=contract, tool=tool, path=file, source=declared.source
    )
    return replace(item, problems=tuple(_placed(item, problem) for problem in lint(contract)))


def _parts(value: Any) -> tuple[Contract, Tool[..., Any] | None]:
    if isinstance(value, Contract):
        return value, None
    tool = value if isinstance(value, Tool) else wrap_plain_tool(value)
    return tool.contract, tool


def _placed(item: Discovered, problem: Problem) -> Problem:
    """With its place in the file; a plain tool's parts stand where the tool got its name."""
    if problem.source is not None:
        return problem
    if item.path.suffix in SUFFIXES:
        # Read once more: only what contracts say of one another comes here, and that is rare.
        document = read_document(item.path)
        prefix = f"/{item.index}" if isinstance(document.data, list) else ""
        return problem.at(document.source(f"{prefix}{problem.pointer}"))
    found = item.tool.source_of(problem.pointer) if item.tool is not None else None
    foreign = found is None or Path(found.file).resolve() != item.path.resolve()
    return problem.at(item.source) if foreign else _placed_from_here(problem.at(found))


def _placed_from_here(problem: Problem) -> Problem:
    if problem.source is None:
        return problem
    return problem.at(replace(problem.source, file=str(_shown(Path(problem.source.file)))))


# How they fit together ---------------------------------------------------------------------------


def _checked_together(items: Sequence[Discovered]) -> Iterator[Discovered]:
    lines: defaultdict[str, list[RegistryRecord]] = defaultdict(list)
    records: dict[int, RegistryRecord] = {}
    first: dict[tuple[str, Version], Source] = {}
    for index, item in enumerate(items):
        if item.contract is not None and parse_version(item.contract.version) is not None:
            records[index] = record = RegistryRecord(contract=item.contract)
            lines[item.name].append(record)
            first.setdefault((item.name, record.parsed), item.source)
    # What could not be read may hold the tools that seem to be missing.
    complete = all(item.contract is not None for item in items)
    for index, item in enumerate(items):
        joint = _joint_problems(records[index], lines) if index in records else ()
        kept = [p for p in joint if complete or not p.rule.endswith("-unknown")]
        placed = [_placed(item, problem.of(item.name)) for problem in kept]
        if index in records:
            earlier = first[item.name, records[index].parsed]
            placed = [_pointing_to(earlier, problem) for problem in placed]
        yield replace(item, problems=(*item.problems, *placed))


def _pointing_to(earlier: Source, problem: Problem) -> Problem:
    """A duplicate is only half told without the place of the other one."""
    if problem.rule != "version-duplicate":
        return problem
    return replace(problem, message=f"{problem.message}, in {earlier}")


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
    # Only the step that leads to this version: every step is reported once, by its later end.
    yield from checks.missing_bumps([record], up_to_this)
