"""The two sides of a comparison of contracts: files, a git revision, a package, a version.

A revision is read through `git`, and its files are written to a temporary folder. Only contract
files of a revision are read: its Python files are never executed. Python files that a path names,
and those of an installed package, are imported like everywhere else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from counterseal.config.discovery import Discovered, contract_files, discover, place_of
from counterseal.config.settings import ConfigError
from counterseal.contract.model import Contract
from counterseal.documents import SUFFIXES
from counterseal.errors import ContractError, Source

PACKAGE: Final = "package:"
FORMS: Final = (
    "a file or folder, a git revision (main, main:contracts, main..HEAD), "
    "package:NAME, or TOOL@VERSION of the project or its store"
)
_TOOL_VERSION: Final = re.compile(r"([A-Za-z0-9_.-]{1,128})@([0-9][0-9A-Za-z.!+-]{0,63})")
_MODE_AND_ID: Final = re.compile(rb"(100644|100755) blob ([0-9a-f]{40,64})")

Registered = Callable[[str, str], Sequence[Discovered]]
"""Returns the contract of this tool and version in the project; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """The contracts of one side, each with its place."""

    name: str
    found: tuple[Discovered, ...] = ()
    not_read: tuple[str, ...] = ()
    """Python files of a revision that seem to declare tools."""
    temporary: str = ""
    """The folder that the files of a revision were written to."""

    @property
    def contracts(self) -> list[Contract]:
        return [item.contract for item in self.found if item.contract is not None]

    def place(self, contract: Contract, pointer: str) -> Source | None:
        """Return the place of a contract's field in its file, seen from the working folder."""
        item = next((one for one in self.found if one.contract is contract), None)
        if item is None or not item.path.exists():
            return None
        source = place_of(item, pointer)
        return replace(source, file=source.file.removeprefix(self.temporary))


@contextmanager
def read_sides(
    old: str, new: str | None, default: Sequence[Path], registered: Registered
) -> Iterator[tuple[ComparedSide, ComparedSide]]:
    """Read both sides; `OLD..NEW` names both at once. Files of revisions are deleted at the end.

    `default` has the paths that are read in a revision without a path, if the other side names none
    either. ConfigError if a side can't be found or read.
    """
    if new is None:
        first, dots, second = old.partition("..")
        if not dots or not first:
            raise ConfigError(f"{old!r} is one side; name two, each {FORMS}.")
        old, new = first, second.removeprefix(".") or "HEAD"
    with TemporaryDirectory(prefix="counterseal-diff-") as folder:
        texts, sides = (old, new), []
        for index, text in enumerate(texts):
            other = texts[1 - index]
            paths = [Path(other)] if Path(other).exists() else list(default)
            sides.append(_side(text, Path(folder, str(index)), paths, registered))
        yield sides[0], sides[1]


def _side(text: str, folder: Path, default: Sequence[Path], registered: Registered) -> ComparedSide:
    if Path(text).exists():
        return _readable(text, discover([Path(text)]))
    version = _TOOL_VERSION.fullmatch(text)
    if version is not None:
        found = registered(version[1], version[2])
        if not found:
            raise ConfigError(f"{text}: neither the project nor its store has this version.")
        return _readable(text, found)
    if text.startswith(PACKAGE):
        return _readable(text, discover(_package_paths(text.removeprefix(PACKAGE))))
    revision, colon, path = text.partition(":")
    paths = [Path(path or ".")] if colon else default
    return _of_revision(text, revision, folder, paths)


def _readable(
    name: str, found: Sequence[Discovered], temporary: str = "", not_read: tuple[str, ...] = ()
) -> ComparedSide:
    """Return a side whose contracts can all be read. ContractError has the reasons if not."""
    problems = [one for item in found if item.contract is None for one in item.problems]
    if problems:
        raise ContractError(
            one.at(replace(one.source, file=f"{name}: {one.source.file.removeprefix(temporary)}"))
            if one.source
            else one
            for one in problems
        )
    if not found and not not_read and not temporary:
        raise ConfigError(f"No contracts found in {name}.")
    return ComparedSide(name=name, found=tuple(found), not_read=not_read, temporary=temporary)


def _package_paths(name: str) -> list[Path]:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(f"The package {name!r} is not installed beside counterseal.")
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


# Git ---------------------------------------------------------------------------------------------


def _of_revision(name: str, revision: str, folder: Path, paths: Sequence[Path]) -> ComparedSide:
    commit = _commit(name, revision)
    top = Path(_git("rev-parse", "--show-toplevel").decode().strip())
    inside = [_inside(top, path) for path in paths]
    listed = _git("ls-tree", "-r", "-z", commit, "--", *inside, folder=top).split(b"\0")
    names: dict[str, str] = {}
    for line in filter(None, listed):
        about, _, path = line.partition(b"\t")
        entry, file = _MODE_AND_ID.match(about), path.decode("utf-8", "surrogateescape")
        if entry and file.endswith((*SUFFIXES, ".py")):
            names[file] = entry[2].decode()
    # Paths are relative to the working folder, as on every other side.
    here = Path.cwd().resolve()
    for file, content in zip(names, _contents(list(names.values()), top), strict=True):
        shown = top / file
        target = folder / (shown.relative_to(here) if shown.is_relative_to(here) else Path(file))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    files = contract_files([folder]) if names else []
    temporary = f"{folder.resolve()}/"
    code = [str(file).removeprefix(temporary) for file in files if file.suffix == ".py"]
    found = discover(file for file in files if file.suffix != ".py")
    return _readable(name, found, temporary, tuple(code))


def _commit(name: str, revision: str) -> str:
    try:
        _git("rev-parse", "--git-dir")
        resolved = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{}}")
    except ConfigError:
        raise ConfigError(f"{name!r} was not found. Expected: {FORMS}.") from None
    return resolved.decode().strip()


def _inside(top: Path, path: Path) -> str:
    whole = Path(path).absolute().resolve()
    if not whole.is_relative_to(top):
        raise ConfigError(f"{path} is not in the git repository {top}.")
    return str(whole.relative_to(top))


def _contents(ids: Sequence[str], top: Path) -> Iterator[bytes]:
    """Yield the contents of these objects, read by one process."""
    if not ids:
        return
    raw = _git("cat-file", "--batch", folder=top, given="\n".join(ids).encode() + b"\n")
    start = 0
    for _ in ids:
        head = raw.index(b"\n", start)
        size = int(raw[start:head].rsplit(b" ", 1)[1])
        yield raw[head + 1 : head + 1 + size]
        start = head + size + 2


def _git(*arguments: str, folder: Path | None = None, given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program; revisions can't become options
            ["git", *arguments],  # noqa: S607 - the user's own git
            cwd=folder,
            input=given,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError("git is not installed; compare files or folders instead.") from None
    if done.returncode != 0:
        fault = done.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        raise ConfigError(f"git {arguments[0]}: {fault or 'failed'}")
    return done.stdout
