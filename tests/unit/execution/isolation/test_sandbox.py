"""Sandboxes: what code that nobody trusts can't reach, and how little of it stays."""

import asyncio
import os
import platform
import signal
import socket
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import anyio
import pytest

from counterseal.config.discovery import import_files
from counterseal.errors import IsolationError
from counterseal.execution.failures import Fault
from counterseal.execution.isolation import sandbox
from counterseal.execution.isolation.messages import IsolatedJob, Reply, address_of
from counterseal.execution.isolation.sandboxes import Sandboxes
from tests.waiting import until

pytestmark = pytest.mark.slow  # starts sandboxes

FOLDER = Path(__file__).parent / "tools"
PLENTY = 60.0
CONTEXT = {"principal": {"tenant": "acme", "agent": "a"}, "run_id": "run_1", "call_id": "call_1"}
FILE = FOLDER / "code_tools.py"
TOOLS = {
    found.value.contract.name: found.value
    for found in import_files([FILE], lambda _: None)[FILE].declarations
}


@pytest.fixture(scope="module")
async def sandboxes():
    made = Sandboxes(most=2)
    yield made
    await made.aclose()


def job(code=None, *, name="run_code", files=None, memory_mb=512):
    tool = TOOLS[name]
    return IsolatedJob(
        address=address_of(tool),
        arguments={} if code is None else {"code": textwrap.dedent(code)},
        injected={},
        context_params=["ctx"] if "ctx" in tool.injected else [],
        context=CONTEXT,
        egress={"policy": "none", "entries": []},
        files=None if files is None else str(files),
        memory_mb=memory_mb,
    )


async def result(pool, code, **more):
    reply = await pool.run(job(code, **more), seconds=PLENTY)
    assert reply.kind == "value", reply
    return reply.value


TRY = """
def attempt(action):
    try:
        return action()
    except BaseException as error:
        return type(error).__name__

"""


async def attempts(pool, code, **more):
    """What became of each of several attempts: its value, or the name of an exception."""
    actions = [line.strip() for line in code.strip().splitlines()]
    listed = ", ".join(f"attempt(lambda: {action})" for action in actions)
    setup = "import os, socket, resource, ctypes, signal, shutil\n"
    found = await result(pool, f"{setup}{TRY}result = [{listed}]", **more)
    return dict(zip(actions, found, strict=True))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def gone(*pids):
    await until(lambda: not any(map(is_alive, pids)))


# --- the ordinary case ----------------------------------------------------------------------------


async def test_a_sandbox_computes_and_keeps_its_files_to_itself(sandboxes, tmp_path, monkeypatch):
    code = """
    import shutil, sys, tempfile, zlib
    from pathlib import Path
    Path("a.txt").write_text("kept")
    shutil.copy("a.txt", "b.txt")
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    ctx.files.write_text("c.txt", "kept too")
    result = [sum(range(10)), str(Path.cwd()), str(Path.home())]
    """
    monkeypatch.chdir(tmp_path)
    found = await result(sandboxes, code, files="run")
    assert found == [45, str(tmp_path / "run"), str(tmp_path / "run")]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["a.txt", "b.txt", "c.txt"]


async def test_each_call_has_a_sandbox_and_a_directory_of_its_own(sandboxes):
    code = """
    import os
    from pathlib import Path
    found = sorted(os.listdir())
    Path("left.txt").write_text("behind")
    result = [os.getpid(), os.getcwd(), found]
    """
    first, second = await asyncio.gather(result(sandboxes, code), result(sandboxes, code))
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first[2] == second[2] == []
    assert not os.access(first[1], os.F_OK)


async def test_modules_beside_a_tool_can_be_imported(sandboxes):
    reply = await sandboxes.run(job(name="greet"), seconds=PLENTY)
    assert reply.value == "hello from beside"


async def test_progress_logs_and_prints_come_through(sandboxes):
    said = []
    code = """
    ctx.progress(1, 2, "half")
    ctx.log.error("trouble")
    print("printed")
    """
    reply = await sandboxes.run(
        job(code), seconds=PLENTY, tell=lambda kind, content: said.append((kind, content))
    )
    assert reply.kind == "value"
    assert ("progress", [1, 2, "half"]) in said
    assert ("log", [40, "trouble"]) in said
    assert ("log", [20, "printed"]) in said


@pytest.mark.slow
async def test_an_exception_comes_back_as_data(sandboxes):
    reply = await sandboxes.run(job("1 / 0"), seconds=PLENTY)
    assert Fault.from_record(reply.fault).kinds[0] == "builtins.ZeroDivisionError"
    assert reply.began


# --- the network ----------------------------------------------------------------------------------


async def test_no_packet_leaves_by_any_protocol_or_trick(sandboxes, tmp_path):
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unix.bind(str(tmp_path / "door"))
    unix.setblocking(False)
    with unix, socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        host, port = server.getsockname()
        there = f"('{host}', {port})"
        found = await attempts(
            sandboxes,
            f"""
            socket.create_connection({there}, 2)
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", {there})
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect({there})
            socket.socket().sendto(b"x", 0x20000000, {there})
            socket.socket().listen()
            socket.socket(socket.AF_INET6)
            socket.socket(socket.AF_UNIX)
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
            socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
            socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", "{tmp_path}/door")
            """,
        )
        assert set(found.values()) == {"PermissionError"}, found
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            unix.recv(1)


@pytest.mark.slow
async def test_a_pair_of_sockets_within_the_process_is_allowed(sandboxes):
    code = """
    import asyncio
    async def wait():
        return await asyncio.to_thread(lambda: "looped")
    result = asyncio.run(wait())
    """
    assert await result(sandboxes, code) == "looped"


# --- files ----------------------------------------------------------------------------------------


async def test_nothing_is_read_but_the_system_and_code(sandboxes, monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_SMTP", "hunter2")
    project = Path(__file__).parents[4]
    assert (FOLDER / "diary.txt").is_file()
    found = await attempts(
        sandboxes,
        f"""
        open("/etc/shadow").read()
        open("/etc/passwd").read()
        open("{FOLDER}/diary.txt").read()
        open("{project}/pyproject.toml").read()
        open("{__file__}").read()
        os.listdir("{FOLDER}")
        os.listdir("{project}")
        os.listdir("/")
        open("/proc/{os.getpid()}/environ").read()
        open("/proc/{os.getpid()}/cmdline").read()
        os.listdir("/proc")
        os.symlink("/etc/shadow", "link") or open("link").read()
        os.link("/etc/hostname", "hard") or open("hard").read()
        """,
    )
    refused = {"PermissionError", "OSError"}  # a hard link may lead to another file system
    assert set(found.values()) <= refused, found


PACKAGE = """
from counterseal import tool
from .below.helper import value

@tool(effect="compute", version="1.0.0", owner="tests", isolation="sandbox")
def look(paths: list[str]) -> list[str]:
    '''Read what can be read.'''
    from .loose import later
    found = [value, later.value]
    for path in paths:
        try:
            found.append(open(path).read())
        except OSError as error:
            found.append(type(error).__name__)
    return found
"""


async def test_of_a_package_the_code_is_read_and_nothing_else(sandboxes, tmp_path, monkeypatch):
    package = tmp_path / "shelf_tools"
    for folder in ("below", "loose", "data.d"):
        (package / folder).mkdir(parents=True)
    written = {
        "__init__.py": "",
        "tools.py": PACKAGE,
        "below/__init__.py": "",
        "below/helper.py": "value = 'helped'",
        "loose/later.py": "value = 'later'",
        ".env": "TOKEN=hunter2",
        "below/.env": "TOKEN=hunter3",
        "below/data.json": "{}",
        "data.d/notes.py": "hunter4",
    }
    for name, text in written.items():
        (package / name).write_text(text)
    (package / ".#tools.py").symlink_to("nowhere")
    (package / "below" / "back").symlink_to(package)
    monkeypatch.syspath_prepend(tmp_path)
    look = import_module("shelf_tools.tools").look
    hidden = [".env", "below/.env", "below/data.json", "data.d/notes.py"]
    paths = [str(package / name) for name in hidden]
    asked = job()._replace(address=address_of(look), arguments={"paths": paths}, context_params=[])
    reply = await sandboxes.run(asked, seconds=PLENTY)
    assert reply.value == ["helped", "later", *["PermissionError"] * len(hidden)], reply


async def test_more_code_than_a_sandbox_can_be_shown_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "_MOST_CODE", 1)
    sandboxes = Sandboxes()  # without a spare, which was started before
    reply = await sandboxes.run(job("result = 1"), seconds=PLENTY)
    await sandboxes.aclose()
    assert (reply.kind, reply.began) == ("unavailable", False)
    assert "folder of their own" in reply.trace


async def test_nothing_is_written_outside_the_directory(sandboxes, tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("whole")
    before = victim.stat()
    found = await attempts(
        sandboxes,
        f"""
        open("{victim}", "w")
        open("{tmp_path}/new.txt", "w")
        open("/usr/bin/new", "w")
        open("{FOLDER}/beside.py", "a")
        os.mkdir("{tmp_path}/new")
        os.remove("{victim}")
        os.rename("{victim}", "mine.txt")
        os.truncate("{victim}", 0)
        os.chmod("{victim}", 0o777)
        os.chown("{victim}", 0, 0)
        os.utime("{victim}", (1, 1))
        os.setxattr("{victim}", "user.note", b"x")
        os.fchmod(os.open("{sys.executable}", os.O_RDONLY), 0o777)
        """,
        files=tmp_path / "run",
    )
    assert set(found.values()) <= {"PermissionError", "OSError"}, found
    assert victim.read_text() == "whole"
    assert (before.st_mode, before.st_mtime) == (victim.stat().st_mode, victim.stat().st_mtime)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "victim.txt"]


async def test_the_environment_is_clean(sandboxes, monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_SMTP", "hunter2")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter3")
    seen = await result(sandboxes, "import os; result = dict(os.environ)")
    assert set(seen) <= {"PATH", "HOME", "TMPDIR", "LANG", "USER", "TERM", "LC_CTYPE"}


# --- other processes ------------------------------------------------------------------------------


async def test_the_runtime_can_not_be_touched(sandboxes):
    me = os.getpid()
    before = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    found = await attempts(
        sandboxes,
        f"""
        os.kill({me}, signal.SIGURG)
        os.kill({me}, 0)
        resource.prlimit({me}, resource.RLIMIT_CORE, (0, 0))
        os.setpriority(os.PRIO_PROCESS, {me}, 5)
        os.sched_setaffinity({me}, {{0}})
        """,
    )
    assert set(found.values()) == {"PermissionError"}, found
    assert before == (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0))


CAPABILITIES = """
import ctypes, json, subprocess, sys
def held():
    libc, sets = ctypes.CDLL(None), (ctypes.c_uint * 6)()
    libc.capget(ctypes.byref((ctypes.c_uint * 2)(0x20080522, 0)), sets)
    return [*sets, sum(libc.prctl(23, number, 0, 0, 0) == 1 for number in range(41))]
"""


async def test_no_privilege_of_the_runtime_is_left_nor_comes_back(sandboxes):
    code = f"""{CAPABILITIES}
code = CODE + "print(json.dumps(held()))"
started = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
result = [held(), json.loads(started.stdout)]
"""
    found = await result(sandboxes, f"CODE = {CAPABILITIES!r}\n{code}")
    own, started = found
    assert own[:6] == started[:6] == [0] * 6
    if os.geteuid() == 0:  # for everybody else, what root could have had does not matter
        assert own[6] == started[6] == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are this processor's")
async def test_what_is_the_whole_machines_is_refused(sandboxes):
    numbers = {
        "mknod": 133,
        "mknodat": 259,
        "fanotify_init": 300,
        "chroot": 161,
        "pivot_root": 155,
        "mount": 165,
        "open_tree": 428,
        "fsopen": 430,
        "mount_setattr": 442,
        "clock_settime": 227,
        "settimeofday": 164,
        "adjtimex": 159,
        "clock_adjtime": 305,
        "syslog": 103,
        "vhangup": 153,
        "swapon": 167,
        "reboot": 169,
        "kexec_load": 246,
        "kexec_file_load": 320,
        "init_module": 175,
        "finit_module": 313,
        "delete_module": 176,
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "setns": 308,
        "unshare": 272,
        "keyctl": 250,
        "mq_open": 240,
    }
    # With arguments that make no sense: what the kernel looks at was not refused.
    code = f"""
    import ctypes, errno
    libc = ctypes.CDLL(None, use_errno=True)
    result = {{}}
    for name, number in {numbers}.items():
        libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 5)
        result[name] = errno.errorcode.get(ctypes.get_errno())
    """
    found = await result(sandboxes, code)
    assert found == dict.fromkeys(numbers, "EPERM")


async def test_a_device_is_not_made_and_what_is_made_stays_usable(sandboxes, tmp_path):
    found = await attempts(
        sandboxes,
        """
        os.mknod("kmsg", 0o20600, os.makedev(1, 11))
        os.chroot(".")
        os.mkdir("kept") or open("kept/a.txt", "w").write("x") and open("kept/a.txt").read()
        os.rename("kept/a.txt", "b.txt") or os.rmdir("kept") or sorted(os.listdir())
        """,
        files=tmp_path / "run",
    )
    assert list(found.values()) == ["PermissionError", "PermissionError", "x", ["b.txt"]]


def test_no_processor_is_told_of_a_call_that_it_does_not_have(monkeypatch, tmp_path):
    def refused(machine):
        monkeypatch.setattr(platform, "machine", lambda: machine)
        return set(sandbox._walls(None, str(tmp_path), 64)["extra_deny_syscalls"])

    assert "chmod" in refused("x86_64")
    assert not {"chmod", "mknod", "utimes"} & refused("aarch64")


BOMB = """
import os, time
pids = []
try:
    for _ in range(200):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        pids.append(pid)
except OSError:
    pass
"""


async def test_processes_without_end_are_bounded_and_go_with_the_call(sandboxes):
    pids = await result(sandboxes, BOMB + "result = pids")
    assert 0 < len(pids) < 40
    await gone(*pids)


async def test_at_the_deadline_everything_that_was_started_is_killed(sandboxes):
    pids = []

    def tell(kind, content):
        if kind == "progress":
            pids.append(content[0])

    code = """
    import os, time
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open(f"{os.getpid()}.pid", "w"):
                    pass
                while True:
                    time.sleep(1)
            os._exit(0)
    while len(os.listdir()) < 3:
        time.sleep(0.01)
    for name in os.listdir():
        ctx.progress(int(name.split(".")[0]))
    while True:
        pass
    """
    reply = await sandboxes.run(job(code), seconds=3, tell=tell)
    assert (reply.kind, reply.began) == ("late", True)
    assert len(pids) == 3
    await gone(*pids)


@pytest.mark.slow
async def test_an_async_tool_is_cancelled_at_its_deadline(sandboxes):
    reply = await sandboxes.run(job(name="patient"), seconds=2, grace=PLENTY)
    assert reply.kind == "late"


@pytest.mark.slow
async def test_a_caller_who_leaves_takes_the_sandbox_along(sandboxes):
    started = asyncio.Event()
    pids = []

    def tell(kind, content):
        pids.append(content[0])
        started.set()

    code = "import os, time; ctx.progress(os.getpid()); time.sleep(60)"
    call = asyncio.create_task(sandboxes.run(job(code), seconds=PLENTY, tell=tell))
    with anyio.fail_after(PLENTY):
        await started.wait()
    call.cancel()
    reply = await call
    assert (reply.kind, reply.began, reply.interrupted) == ("late", True, True)
    await gone(*pids)


@pytest.mark.slow
async def test_what_a_sandbox_answers_to_a_caller_who_left_is_not_lost(sandboxes):
    started = asyncio.Event()
    code = """
    import time
    ctx.progress(1)
    while not ctx.cancelled:
        time.sleep(0.01)
    result = "stopped"
    """
    running = sandboxes.run(job(code), seconds=PLENTY, grace=PLENTY, tell=lambda *_: started.set())
    call = asyncio.create_task(running)
    with anyio.fail_after(PLENTY):
        await started.wait()
    call.cancel()
    assert await call == Reply("value", "stopped", interrupted=True)


async def test_a_caller_who_leaves_before_a_sandbox_runs_is_told_that_nothing_began(sandboxes):
    call = asyncio.create_task(sandboxes.run(job("result = 1"), seconds=PLENTY))
    await asyncio.sleep(0)
    call.cancel()
    assert await call == Reply("late", began=False, interrupted=True)


# --- limits ---------------------------------------------------------------------------------------


async def test_memory_beyond_the_limit_is_refused(sandboxes):
    code = """
    kept = []
    while len(kept) < 300:
        kept.append(bytearray(2**20))
    """
    reply = await sandboxes.run(job(code, memory_mb=64), seconds=PLENTY)
    assert Fault.from_record(reply.fault).kinds[0] == "builtins.MemoryError"
    assert (await sandboxes.run(job(code, memory_mb=512), seconds=PLENTY)).kind == "value"


@pytest.mark.slow
async def test_much_too_much_memory_at_once_is_death(sandboxes):
    reply = await sandboxes.run(job("bytearray(300 * 2**20)", memory_mb=64), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)
    assert "memory limit" in reply.trace


async def test_memory_is_counted_over_all_processes(sandboxes):
    code = """
    import os, signal
    ends, wait = os.pipe()
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            kept = bytearray(50 * 2**20)
            os.close(wait)
            os.read(ends, 1)
            os._exit(0)
        pids.append(pid)
    killed = os.wait()[1]
    os.close(wait)
    result = os.WIFSIGNALED(killed)
    """
    assert await result(sandboxes, code, memory_mb=64) is True


@pytest.mark.slow
async def test_uncounted_memory_can_not_be_allocated(sandboxes):
    found = await attempts(sandboxes, 'os.memfd_create("hidden")\nos.open("/dev/shm/x", 65)')
    assert set(found.values()) == {"PermissionError"}


async def test_no_file_grows_beyond_its_limit(sandboxes):
    code = """
    import errno, os
    def refused(action):
        try:
            action()
        except OSError as error:
            return errno.errorcode[error.errno]

    with open("large", "wb", buffering=0) as file:
        file.seek(2**26 - 1)
        result = [
            file.write(b"x"),
            refused(lambda: file.write(b"x")),
            refused(lambda: file.truncate(2**26 + 1)),
            refused(lambda: os.posix_fallocate(file.fileno(), 2**26, 1)),
        ]
    """
    assert await result(sandboxes, code) == [1, "EFBIG", "EFBIG", "EFBIG"]
    raised = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))"
    reply = await sandboxes.run(job(raised), seconds=PLENTY)
    assert "not allowed to raise maximum limit" in reply.trace


FILLING = {
    "many files": """
        for number in range(12):
            Path(f"part{number}").write_bytes(bytes(2**20))
    """,
    "folders in folders": """
        for number in range(12):
            place = Path(*("deep" * (number + 1)), "x")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(2**20))
    """,
    "deleted files that are open": """
        kept = [open(f"part{number}", "wb", buffering=0) for number in range(12)]
        for number, file in enumerate(kept):
            os.unlink(f"part{number}")
            file.write(bytes(2**20))
    """,
    "deleted files that are mapped": """
        kept = []
        for number in range(12):
            with open(f"part{number}", "w+b") as file:
                file.truncate(2**20)
                kept.append(mmap.mmap(file.fileno(), 2**20))
            os.unlink(f"part{number}")
            kept[-1].write(bytes(2**20))
    """,
    "deleted files of a process without a parent": """
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                kept = [open(f"part{number}", "wb", buffering=0) for number in range(12)]
                for number, file in enumerate(kept):
                    os.unlink(f"part{number}")
                    file.write(bytes(2**20))
                signal.pause()
            os._exit(0)
    """,
    "names": """
        for number in range(1001):
            Path(f"part{number}").touch()
    """,
}


@pytest.mark.parametrize("how", FILLING)
async def test_a_sandbox_that_fills_its_folder_is_ended(sandboxes, monkeypatch, tmp_path, how):
    monkeypatch.setattr(sandbox, "_FOLDER_MB", 8)
    monkeypatch.setattr(sandbox, "_MOST_ENTRIES", 1000)
    imports = "import mmap, os, signal\nfrom pathlib import Path\n"
    code = f"{imports}{textwrap.dedent(FILLING[how])}\nsignal.pause()"
    reply = await sandboxes.run(job(code, files=tmp_path), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)
    assert ("more than 1,000 files" if how == "names" else "more than 8 MB") in reply.trace
    left = any(tmp_path.iterdir())
    again = await sandboxes.run(job("result = 1", files=tmp_path), seconds=PLENTY)
    assert again.kind == ("unavailable" if left else "value")
    assert not left or f"delete files in {tmp_path}" in again.trace


async def test_files_within_the_limit_stay_for_the_next_call(sandboxes, tmp_path):
    code = "from pathlib import Path\nPath('kept').write_bytes(bytes(2**20))\nresult = 'done'"
    assert await result(sandboxes, code, files=tmp_path) == "done"
    assert (tmp_path / "kept").stat().st_size == 2**20


async def test_open_files_can_not_be_sent_where_they_are_not_counted(sandboxes):
    code = """
    import array, socket
    one, other = socket.socketpair()
    fds = array.array("i", [0])
    try:
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        result = "sent"
    except PermissionError:
        one.sendall(b"plain")
        result = other.recv(8).decode()
    """
    assert await result(sandboxes, code) == "plain"


async def test_a_segfault_is_a_death_of_its_own(sandboxes):
    reply = await sandboxes.run(job("import ctypes; ctypes.string_at(0)"), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)
    assert signal.SIGSEGV.name in reply.trace


@pytest.mark.slow
async def test_nonsense_in_the_pipes_is_a_death_too(sandboxes):
    code = """
    import os
    for number in range(3, 64):
        try:
            os.write(number, b"\\xff" * 64)
        except OSError:
            pass
    """
    reply = await sandboxes.run(job(code), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("died", True)


# --- where none can be had ------------------------------------------------------------------------


@pytest.fixture
def unchecked():
    sandbox.check.cache_clear()
    yield
    sandbox.check.cache_clear()


async def test_without_the_package_a_sandbox_is_refused(unchecked, monkeypatch, sandboxes):
    monkeypatch.setitem(sys.modules, "sandlock", None)
    with pytest.raises(IsolationError, match=r'pip install "counterseal\[sandbox\]"'):
        Sandboxes.available()
    reply = await sandboxes.run(job("result = 1"), seconds=PLENTY)
    assert (reply.kind, reply.began) == ("unavailable", False)
    assert "counterseal[sandbox]" in reply.trace


def test_another_processor_is_refused(unchecked, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(IsolationError, match="riscv64"):
        Sandboxes.available()


def test_an_old_kernel_is_refused(unchecked, monkeypatch):
    import sandlock

    monkeypatch.setattr(sandlock, "landlock_abi_version", lambda: -1)
    with pytest.raises(IsolationError, match="this one has none"):
        Sandboxes.available()
