"""The rules of a sandboxed process, and how one is started. The sandbox itself is sandlock's.

The process has no network, reads the system and the tool's code, and writes into one directory. Of
a package it can read only the modules, so `importlib.resources` finds no data files. Landlock does
not hide metadata: the process can see that a path exists, and its size. Each file that it writes is
bounded by the kernel; the sum of all files is checked a few times a second while it runs.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from counterseal.errors import IsolationError
from counterseal.execution.isolation import processes
from counterseal.execution.isolation.messages import OWN_MB, FunctionAddress
from counterseal.execution.isolation.seal import MACHINES

PACKAGE = Path(__file__).absolute().parents[2]
"""The folder of this package."""

_MOST_PROCESSES = 32
_MOST_FILES = 256

_FOLDER_MB = 256
_MOST_ENTRIES = 10_000
"""The limits for the directory: files in all, deleted ones that are still open included."""

_CODE = frozenset({".py", ".pyc", ".so"})
_MOST_CODE = 10_000
_DEEPEST = 32

_LIBRARIES = ("site-packages", "dist-packages")

_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    # Not the whole of /usr: projects may live in /usr/src and similar places.
    *(
        f"{top}/{part}"
        for top in ("/usr", "/usr/local")
        for part in ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "share")
    ),
    *("/etc/ld.so.cache", "/etc/localtime"),
    *("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"),
)

_REFUSED = (
    # Landlock does not cover these: they would change files that can't even be read.
    *("fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat", "file_setattr"),
    *("utimensat", "inotify_add_watch", "fanotify_init", "fanotify_mark"),
    # Nor these, which create devices or mount file systems.
    *("mknodat", "chroot", "pivot_root", "mount", "umount2", "mount_setattr", "move_mount"),
    *("open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("open_by_handle_at", "quotactl", "quotactl_fd", "swapon", "swapoff", "acct"),
    # Nor these, which reach other processes of the same user.
    *("setpriority", "ioprio_set", "sched_setaffinity", "sched_setattr"),
    *("sched_setparam", "sched_setscheduler", "migrate_pages", "move_pages"),
    *("mq_open", "mq_unlink", "add_key", "request_key", "keyctl", "setns", "unshare"),
    # These affect the whole machine: its clock, log, terminal, kernel.
    *("clock_settime", "settimeofday", "adjtimex", "clock_adjtime", "syslog", "vhangup"),
    *("reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("bpf", "perf_event_open", "userfaultfd"),
    # Memory that no limit counts.
    *("memfd_create", "memfd_secret"),
)

_REFUSED_OLD = ("chmod", "chown", "lchown", "utime", "utimes", "futimesat", "mknod")
"""Older names of these calls, which exist only on one processor architecture."""


class Process(NamedTuple):
    """A process in a sandbox: sandlock's handle, and our ends of its pipes."""

    process: Any
    ends: list[int]


@cache
def check() -> None:
    """Raise IsolationError if this machine can't run a sandbox, with the reason and the fix.

    Success is cached: it does not change while a program runs.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise IsolationError(
            f"isolation sandbox needs Linux on {' or '.join(MACHINES)}, and this is {sys.platform} "
            f"on {platform.machine()}; run the tool there, or choose isolation process"
        )
    try:
        sandlock = import_module("sandlock")  # a large library, and few need it
    except (ImportError, OSError, RuntimeError) as error:
        raise IsolationError(
            f"isolation sandbox needs the package sandlock, which can't be loaded ({error}); "
            'install it: pip install "counterseal[sandbox]"'
        ) from None
    has, needs = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
    if has < needs:
        raise IsolationError(
            f"isolation sandbox needs Landlock version {needs} in the kernel, and this one has "
            f"{max(has, 0) or 'none'}; use Linux 6.12 or newer with Landlock switched on"
        )
    with tempfile.TemporaryDirectory(prefix="counterseal-") as directory:
        walls = _walls(None, directory, 64)
        trial = sandlock.Sandbox(**walls).run([sys.executable, "-I", "-S", "-c", ""], timeout=30)
    if not trial.success:
        raise IsolationError(
            "isolation sandbox can't be had here, though the kernel knows it: a trial failed "
            f"({trial.error or f'exit code {trial.exit_code}'}); in a container, let it use "
            "landlock and seccomp"
        )


def start(program: list[str], address: FunctionAddress, directory: str, memory_mb: int) -> Process:
    """Start a program that may write into the directory. Blocks for a moment.

    Returns the process and our ends of its pipes: its input, its output, its standard error.
    """
    sandlock = import_module("sandlock")
    piped = sandlock.StdioMode.PIPED
    box = sandlock.Sandbox(**_walls(address, directory, memory_mb))
    try:
        process = box.popen(program, stdin=piped, stdout=piped, stderr=piped)
    except RuntimeError as error:
        raise IsolationError(f"the sandbox could not be started: {error}") from None
    ends = []
    for stream in (process.stdin, process.stdout, process.stderr):
        # We close our own ends: waiting for a process would close the rest.
        ends.append(os.dup(stream.fileno()))
        stream.close()
    return Process(process, ends)


def excess(directory: str, pid: int | None = None) -> str | None:
    """Return which limit the files of a sandbox exceed, or None. `pid` is its running process."""
    size = entries = 0
    for top, folders, files in os.walk(directory):
        for name in (*folders, *files):
            with suppress(OSError):  # it was deleted meanwhile
                size += os.lstat(f"{top}/{name}").st_blocks * 512
        entries += len(folders) + len(files)
        if entries > _MOST_ENTRIES:
            return f"its directory held more than {_MOST_ENTRIES:,} files"
    if pid is not None:
        size += processes.hidden_files(pid, Path(directory).stat().st_dev)
    too_much = size > _FOLDER_MB * 1024 * 1024
    return f"its files took up more than {_FOLDER_MB} MB" if too_much else None


def _walls(address: FunctionAddress | None, directory: str, memory_mb: int) -> dict[str, Any]:
    _, code = search_path()
    folders = dict.fromkeys(code)
    readable = _system()
    if address is not None and address.folder and not _is_in(address.folder, readable):
        folders[address.folder] = None
    if address is not None and address.file:
        readable.append(address.file)
    found = (str(part) for folder in folders for part in _code_in(Path(folder)))
    readable += islice(found, _MOST_CODE)
    if next(found, None) is not None:
        raise IsolationError(
            f"there are more than {_MOST_CODE} files of code in {', '.join(folders)}, and a "
            "sandbox is shown each of them; keep tools for sandboxes in a folder of their own"
        )
    return {
        "fs_readable": list(dict.fromkeys(readable)),
        "fs_writable": [directory, "/dev/null"],
        "extra_deny_syscalls": _REFUSED + (_REFUSED_OLD if platform.machine() == "x86_64" else ()),
        "max_memory": (memory_mb + OWN_MB) * 1024 * 1024,
        "max_processes": _MOST_PROCESSES,
        "max_open_files": _MOST_FILES,
        "no_coredump": True,
        "clean_env": True,
        "env": {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": directory,
            "TMPDIR": directory,
        },
        "cwd": directory,
    }


def _system() -> list[str]:
    """Return the paths that running Python needs."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    inside = ("bin", "lib", "lib64", "pyvenv.cfg")
    wanted = [
        *_SYSTEM,
        *(f"{prefix}/{part}" for prefix in sorted(prefixes) for part in inside),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(entry for entry in sys.path if Path(entry).name in _LIBRARIES),
        str(PACKAGE),
    ]
    return [entry for entry in wanted if os.access(entry, os.R_OK)]


def search_path() -> tuple[list[str], list[str]]:
    """Split `sys.path` into folders that may be listed and folders that expose only code."""
    readable = _system()
    path, code = [], []
    for entry in (Path(entry).absolute() for entry in sys.path):
        if _is_in(entry, readable):
            path.append(str(entry))
        else:
            code.append(str(entry))
    return path, code


def _is_in(path: str | Path, folders: list[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _code_in(folder: Path) -> Iterator[Path]:
    """Yield the modules of a folder and of its packages, never other files."""
    with suppress(OSError):  # not a folder, or not readable
        for entry in folder.iterdir():
            if _is_code(entry) or entry.name == "__pycache__":
                yield entry
            elif os.access(entry / "__init__.py", os.R_OK):
                yield from _code_below(entry)


def _is_code(file: Path) -> bool:
    # An editor's lock may look like code, and be a link to nowhere.
    return file.suffix in _CODE and file.is_file() and os.access(file, os.R_OK)


def _code_below(package: Path) -> Iterator[Path]:
    """Yield the modules of a package one by one: its other files may be secrets."""
    seen: set[str] = set()
    for top, folders, files in os.walk(package, followlinks=True):
        here = Path(top)
        real = os.path.realpath(top)
        if real in seen or len(here.parts) - len(package.parts) > _DEEPEST:
            folders.clear()  # a link that leads back, most likely
            continue
        seen.add(real)
        yield from filter(_is_code, (here / name for name in files))
        if "__pycache__" in folders:
            yield here / "__pycache__"
        folders[:] = [name for name in folders if name.isidentifier() and name != "__pycache__"]
