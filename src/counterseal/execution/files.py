"""`ctx.files`: a directory for each run and tool that no path can leave.

Paths are relative text with slashes. Each part is opened relative to the directory before it, never
through a link, and checked after it was opened, so that it can't be swapped in between. Only
regular files with a single name are read and written; links, pipes, sockets and devices are
refused.

A missing file raises FileNotFoundError; a path that is not allowed raises FilesError.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from counterseal.errors import FilesError

Paths = list[str]

_DEEPEST = 32
_LONGEST_NAME = 255
_UNFINISHED = ".unfinished-"
_FLAGS: Final = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
}
# A link, a file where a directory is expected or vice versa, a pipe or socket without a reader.
_NOT_PLAIN: Final = {errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO}


def directory_for(base: Path, tenant: str, run_id: str, tool: str) -> Path:
    """Return the directory of one tool in one run of one tenant; no two names share one."""
    return base / _name_for(tenant) / _name_for(run_id) / _name_for(tool)


def _name_for(name: str) -> str:
    """Return a short file name for a name, safe on every file system and unique per name."""
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower())[:24].strip("-")
    return f"{readable}-{mark}" if readable else mark


class Files:
    """The files of one tool in one run. `root` is created with the first file."""

    def __init__(self, root: Path, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        functions = {os.open, os.mkdir, os.rename, os.stat, os.unlink}
        flags = hasattr(os, "O_NOFOLLOW") and hasattr(os, "O_DIRECTORY")
        lists = functions <= os.supports_dir_fd and os.listdir in os.supports_fd
        if not flags or not lists:
            raise FilesError(
                "this platform can't open files relative to a directory, so a tool's paths can't "
                "be kept inside one; run tools that use ctx.files on Linux or macOS"
            )
        self.root = Path(root)
        self.max_bytes = max_bytes

    def read_bytes(self, path: str) -> bytes:
        with self.open(path, "rb") as file:
            data: bytes = file.read(os.fstat(file.fileno()).st_size + 1)
        self._bound(path, len(data))
        return data

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return self.read_bytes(path).decode(encoding)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Replace the whole file at once: a reader sees the old content or the new."""
        self._bound(path, len(data))
        with self._parent(path, create=True) as (at, name):
            part = _UNFINISHED + secrets.token_hex(8)
            try:
                made = _open(path, part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at)
                with io.FileIO(made, "w") as raw, io.BufferedWriter(raw) as file:
                    file.write(data)
                os.replace(part, name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException as error:
                with suppress(OSError):
                    os.unlink(part, dir_fd=at)
                if isinstance(error, IsADirectoryError):
                    raise _refused(path, "is a directory") from error
                raise

    def write_text(self, path: str, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(path, text.encode(encoding))

    def open(self, path: str, mode: str = "rb", *, encoding: str = "utf-8") -> IO[Any]:
        """Open a file to read (r), replace (w) or append (a), as text, or with b as bytes."""
        letter, kind = mode[:1], mode[1:]
        if letter not in _FLAGS or kind not in {"", "b", "t"}:
            raise ValueError(f"unknown mode {mode!r}; expected one of rb, wb, ab, r, w, a")
        if kind != "b":
            codecs.lookup(encoding)
        with self._parent(path, create=letter != "r") as (at, name):
            opened = _open(path, name, _FLAGS[letter], at)
        try:
            size = _size(path, os.fstat(opened))
            if letter != "w":
                self._bound(path, size)
            elif size:
                # Truncated only after the check: it might have been a link to another file.
                os.ftruncate(opened, 0)
        except BaseException:
            os.close(opened)
            raise
        raw = _Raw(opened, letter, path, self)
        file = io.BufferedReader(raw) if letter == "r" else io.BufferedWriter(raw)
        return file if kind == "b" else io.TextIOWrapper(file, encoding=encoding)

    def exists(self, path: str) -> bool:
        """Return whether a regular file of that name exists."""
        with suppress(FileNotFoundError), self._parent(path) as (at, name):
            return _plain(os.stat(name, dir_fd=at, follow_symlinks=False))
        return False

    def size(self, path: str) -> int:
        with self._parent(path) as (at, name):
            return _size(path, os.stat(name, dir_fd=at, follow_symlinks=False))

    def list(self, prefix: str = "") -> Paths:
        """Return the sorted paths of all files that begin with `prefix`."""
        try:
            at = self._root()
        except FileNotFoundError:
            return []
        return sorted(path for path in _walk(at, "", _DEEPEST) if path.startswith(prefix))

    def delete(self, path: str) -> None:
        with self._parent(path) as (at, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                raise _refused(path, "is a directory")
            os.unlink(name, dir_fd=at)

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory of a path; yield its descriptor and the file's name."""
        *folders, name = _parts(path)
        at = self._root(create=create)
        try:
            for folder in folders:
                inner = _enter(path, folder, at, create=create)
                os.close(at)
                at = inner
            yield at, name
        finally:
            os.close(at)

    def _root(self, *, create: bool = False) -> int:
        root = str(self.root)
        try:
            return _enter(root, root, None)
        except FileNotFoundError:
            if not create:
                raise
        for folder in reversed(self.root.parents):
            if not folder.exists():
                _make(str(folder), None)
        return _enter(root, root, None, create=True)

    def _bound(self, path: str, size: int) -> None:
        if size > self.max_bytes:
            raise _refused(path, f"is larger than {self.max_bytes:,} bytes")


class _Raw(io.FileIO):
    """An open file that can't grow beyond the size limit."""

    def __init__(self, fd: int, mode: str, path: str, files: Files) -> None:
        super().__init__(fd, mode)
        self._appends = mode == "a"
        self._path = path
        self._files = files

    def write(self, data: Any) -> int:
        begin = os.fstat(self.fileno()).st_size if self._appends else self.tell()
        self._files._bound(self._path, begin + memoryview(data).nbytes)  # noqa: SLF001 - its own
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._files._bound(self._path, size or 0)  # noqa: SLF001 - its own
        return super().truncate(size)


def _refused(path: str, why: str) -> FilesError:
    return FilesError(f"the path {path[:80]!r} {why}")


def _parts(path: str) -> list[str]:
    """Return the parts of a path. Raise FilesError if the path is not allowed."""
    if not isinstance(path, str):
        raise FilesError(f"a path must be text, got {type(path).__name__}")
    if path.startswith("/"):
        raise _refused(path, "is absolute; paths begin in the tool's own directory")
    parts = path.split("/")
    if len(parts) > _DEEPEST:
        raise _refused(path, f"is deeper than {_DEEPEST} directories")
    for part in parts:
        why = _why_not(part)
        if why:
            raise _refused(path, why)
    return parts


def _why_not(name: str) -> str:
    """Return what is wrong with one part of a path; empty if nothing is."""
    if not name:
        return "has an empty part"
    if name in {".", ".."}:
        return f"holds {name!r}; it may only lead downwards"
    if "\0" in name or "\\" in name:
        return "holds a NUL or a backslash"
    if name.startswith(_UNFINISHED):
        return f"holds a name that begins with {_UNFINISHED!r}, which is reserved"
    try:
        long = len(os.fsencode(name)) > _LONGEST_NAME
    except UnicodeEncodeError:
        return "is not valid text"
    return f"holds a name of more than {_LONGEST_NAME} bytes" if long else ""


def _enter(path: str, name: str, at: int | None, *, create: bool = False) -> int:
    """Open a directory inside another one, creating it if asked to."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        return _open(path, name, flags, at)
    except FileNotFoundError:
        if not create:
            raise
    _make(name, at)
    return _open(path, name, flags, at)


def _make(name: str, at: int | None) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=at)


def _open(path: str, name: str, flags: int, at: int | None) -> int:
    """Open a name in the directory `at`, never through a link and without blocking."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(name, flags | safe, 0o600, dir_fd=at)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise _refused(
                path, "leads through or to something other than a regular file"
            ) from error
        raise


def _plain(info: os.stat_result) -> bool:
    # A file with a second name could be any file of the same disk.
    return stat.S_ISREG(info.st_mode) and info.st_nlink <= 1


def _size(path: str, info: os.stat_result) -> int:
    if not _plain(info):
        raise _refused(path, "is not a regular file with a single name")
    return info.st_size


def _walk(at: int, before: str, depth: int) -> Iterator[str]:
    """Yield the regular files below an open directory, and close it."""
    try:
        for name in os.listdir(at):
            if _why_not(name):
                continue
            with suppress(FileNotFoundError, FilesError):
                info = os.stat(name, dir_fd=at, follow_symlinks=False)
                if _plain(info):
                    yield before + name
                elif stat.S_ISDIR(info.st_mode) and depth > 1:
                    inside = f"{before}{name}/"
                    yield from _walk(_enter(inside, name, at), inside, depth - 1)
    finally:
        os.close(at)
