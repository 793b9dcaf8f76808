"""One command for everything a contributor does: `python3 dev.py test`, and a few more verbs.

Makes `.venv`, installs the project into it, and runs the tools inside. It holds no test and no
build logic of its own: what the tools do is written in `pyproject.toml`. Only the standard library
is used here, because nothing else is installed when it starts, and only syntax that Python 3.7 can
read, so that an older Python gets as far as the message that it is too old.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - it may be started with an older one
    sys.exit(
        "Counterseal needs Python 3.11 or newer; this is {}.{}.\n"
        "Fix: run dev.py with a newer one, e.g. `python3.11 dev.py test`.".format(*sys.version_info)
    )

import tomllib  # new in 3.11, so only after the check

ROOT = Path(__file__).resolve().parent
PROGRAMS = "Scripts" if os.name == "nt" else "bin"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEWER = ("3.14", "3.13", "3.12")
"""Newer CPythons that the quick suite also runs on: the first one that is installed."""

EVERYTHING = "all,dev"
"""The extras for tests and tools. The demo alone does with fewer, and starts sooner."""

Step = tuple[str, list[str]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- environments ---------------------------------------------------------------------------------


class Environment:
    """A virtual environment with the project in it; made when it is missing or out of date."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.folder = folder
        self.interpreter = interpreter
        self.programs = folder / PROGRAMS
        self.python = self.programs / ("python.exe" if os.name == "nt" else "python")
        self._stamp = folder / "counterseal-stamp"

    def ensure(self, extras: str = EVERYTHING) -> None:
        """Make it, with the project's `extras`, unless its stamp says that it is current."""
        wanted = self._fingerprint()
        stamp = self._stamp.read_text(encoding="utf-8") if self._stamp.exists() else ""
        current, _, installed = stamp.partition(" ")
        usable = current == wanted and self.python.exists()
        if usable and installed in (extras, EVERYTHING):
            return
        name, started = self.folder.name, time.monotonic()
        say(f"Preparing {name} with the packages for counterseal[{extras}]; only the first time,")
        say("and when the dependencies change. Nothing outside of this folder is changed.")
        # The stamp is removed first and written last: an install that breaks off leaves none.
        self._stamp.unlink(missing_ok=True)
        try:
            if not usable:
                self._make()
            self._install(["--editable", f"{ROOT}[{extras}]"])
        except subprocess.CalledProcessError:
            sys.exit(f"Could not prepare {name}; the reason is above. The next run starts again.")
        self._stamp.write_text(f"{wanted} {extras}", encoding="utf-8")
        say(f"Prepared in {time.monotonic() - started:.0f} seconds.")

    def _fingerprint(self) -> str:
        """Return a hash of everything that decides what is installed; lint settings do not."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        installed = {name: project[name] for name in ("build-system", "project")}
        parts = [json.dumps(installed, sort_keys=True), Path(__file__).read_text(encoding="utf-8")]
        parts += [self.interpreter, sys.version, str(ROOT)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _make(self) -> None:
        """Make the environment without the project."""
        uv = shutil.which("uv")
        if uv:
            os.environ["UV_PYTHON_DOWNLOADS"] = "never"
            made = [uv, "venv", "--quiet", "--clear", "--python", self.interpreter]
            subprocess.run([*made, str(self.folder)], check=True)
            return
        if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
            sys.exit(
                "This Python has no venv or ensurepip module, so .venv cannot be made.\n"
                "Fix: `apt-get install python3-venv` on Debian and Ubuntu, or install uv."
            )
        subprocess.run([self.interpreter, "-m", "venv", "--clear", self.folder], check=True)

    def _install(self, requirement: list[str]) -> None:
        uv = shutil.which("uv")
        if uv:
            command = [uv, "pip", "install", "--python", str(self.python), *requirement]
            with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as process:
                for line in process.stderr or ():
                    if not line.startswith((" + ", " - ", " ~ ")):  # a line for each package
                        say(f"  {line.rstrip()}")
        else:
            options = ["--progress-bar", "off", "--no-color"]
            command = [str(self.python), "-m", "pip", "install", *options, *requirement]
            with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
                PipProgress(self.folder).follow(process.stdout or ())
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)


class PipProgress:
    """Prints a line every few seconds that says how far pip is; pip itself can be silent long."""

    EVERY_SECONDS = 3

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = time.monotonic()
        self._before = self._there()
        self._found: list[str] = []
        self._total = 0

    def follow(self, lines: Iterable[str]) -> None:
        """Read pip's output to its end."""
        reader = threading.Thread(target=self._read, args=[lines], daemon=True)
        reader.start()
        ended = False
        while not ended:
            reader.join(self.EVERY_SECONDS)
            ended = not reader.is_alive()
            self.tell()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            collecting = re.match(r"Collecting ([\w.-]+)", line)
            if collecting:
                self._found.append(collecting[1])
            elif line.startswith("Installing collected packages:"):
                self._total = line.count(",") + 1

    def tell(self) -> None:
        """Print where it is."""
        if self._total:
            words = f"installed {self._there() - self._before} of {self._total} packages"
        elif self._found:
            words = f"found {len(self._found)} packages; now {self._found[-1]}"
        else:
            words = "pip has started"
        say(f"  {time.monotonic() - self._started:3.0f} s  {words}")

    def _there(self) -> int:
        return sum(1 for _ in self._folder.glob("**/site-packages/*.dist-info"))


def base_interpreter() -> str:
    """Return the interpreter that this one is based on: the running one may be in .venv itself."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    if os.name == "nt":
        return str(Path(sys.base_prefix) / "python.exe")
    return str(Path(sys.base_exec_prefix) / "bin" / "python{}.{}".format(*sys.version_info))


OWN = Environment(ROOT / ".venv", base_interpreter())


def newer_environment() -> Environment | None:
    """Return an environment on the newest CPython that is installed, if one is newer than 3.11."""
    for version in NEWER:
        if sys.version_info >= tuple(map(int, version.split("."))):
            return None
        for interpreter in interpreters(version):
            if runs(interpreter, version):
                return Environment(ROOT / f".venv-{version}", interpreter)
    return None


def interpreters(version: str) -> Iterator[str]:
    """Yield where an interpreter of a version may be: on PATH, and where pyenv and uv put them."""
    name = f"python{version}"
    found = shutil.which(name)
    if found:
        yield found
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    for folder in (Path.home() / ".pyenv" / "versions", data / "uv" / "python"):
        yield from map(str, sorted(folder.glob(f"*/bin/{name}"), reverse=True))


def runs(interpreter: str, version: str) -> bool:
    """Return whether this is a CPython of that version; a shim of pyenv may be none."""
    wanted = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    done = subprocess.run([interpreter, "-c", wanted], capture_output=True, text=True, check=False)
    return done.stdout.split() == ["cpython", version]


def activate() -> None:
    """Put the environment's programs first, for every process started from here."""
    os.environ["VIRTUAL_ENV"] = str(OWN.folder)
    os.environ["PATH"] = f"{OWN.programs}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.pop("PYTHONHOME", None)
    # Hundreds of programs are started from here: without bytecode each compiles everything again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def find_browser() -> str:
    """Return a Chromium for the console's tests; install Debian's where that is possible."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found:
        return found
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        say("Installing Debian's chromium for the browser tests")
        options = ["--yes", "--quiet", "--no-install-recommends"]
        subprocess.run(["apt-get", "update", "--quiet"], check=True)
        subprocess.run(["apt-get", "install", *options, "chromium"], check=True)
        found = shutil.which("chromium")
        if found:
            return found
    sys.exit(
        "The console's tests need a Chromium, and none was found on PATH.\n"
        "Fix: `sudo apt-get install chromium`, or install Google Chrome, and run again."
    )


# --- verbs ----------------------------------------------------------------------------------------


def run_steps(steps: list[Step], notes: list[str] | None = None) -> int:
    """Run every step, also after a failure; close with a summary of results and times."""
    results: list[tuple[str, bool, float]] = []
    for name, command in steps:
        say(f"\n== {name}")
        started = time.perf_counter()
        succeeded = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        results.append((name, succeeded, time.perf_counter() - started))
    say("")
    for name, succeeded, seconds in results:
        say(f"{'ok  ' if succeeded else 'FAIL'}  {name:<30}{seconds:7.1f} s")
    for note in notes or ():
        say(note)
    failures = [name for name, succeeded, _ in results if not succeeded]
    say(f"Failed: {', '.join(failures)}." if failures else "All steps succeeded.")
    return 1 if failures else 0


def lint_steps() -> list[Step]:
    return [
        ("lint", ["ruff", "check"]),
        ("format", ["ruff", "format", "--check"]),
        ("types", ["mypy"]),
        ("import directions", ["lint-imports", "--no-logo"]),
    ]


def script(path: str, *arguments: str) -> list[str]:
    if not (ROOT / path).is_file():
        sys.exit(f"There is no {path} here.")
    return [str(OWN.python), path, *arguments]


def workers(*, quick: bool) -> list[str]:
    """Return pytest's options for tests side by side.

    Much of the whole suite waits for programs and servers, so it takes more workers than there are
    processors. Tests of one file stay together; an idle worker takes some from the others.
    """
    allowed = getattr(os, "sched_getaffinity", None)
    processors = len(allowed(0)) if allowed else os.cpu_count() or 1
    count = processors if quick else max(processors, min(2 * processors, 8))
    return ["-n", str(count), "--dist", "worksteal"]


def test(options: argparse.Namespace, rest: list[str]) -> int:
    if options.quick:
        tests = ["pytest", *workers(quick=True), "--quick", *rest]
        return run_steps([*lint_steps(), ("tests and docs examples", tests), *docs_steps()])
    frameworks = [str(OWN.python), "-m", "tests.adapter_tools"]
    if options.adapters:
        chosen = ["pytest", *workers(quick=False), "--adapters", "tests/adapters", *rest]
        prepare = ("environments of all agent frameworks", [*frameworks, "all"])
        return run_steps([prepare, ("adapters", chosen)])
    os.environ["COUNTERSEAL_TEST_BROWSER"] = find_browser()
    steps = [
        *lint_steps(),
        # Fetched before the tests begin: while they run, nothing leaves this machine.
        ("programs from npm", [str(OWN.python), "-m", "tests.node_tools"]),
        ("an environment with the wheel", [str(OWN.python), "-m", "tests.wheel_tools"]),
        ("environments of agent frameworks", frameworks),
        ("tests and docs examples", ["pytest", *workers(quick=False), *rest]),
        *docs_steps(),
    ]
    newer = newer_environment()
    if newer is None:
        note = "no CPython newer than 3.11 found: the quick suite was not run on one"
        return run_steps(steps, [note])
    newer.ensure()
    name = f"quick suite on CPython {newer.folder.name.partition('-')[2]}"
    quick = [str(newer.python), "-m", "pytest", *workers(quick=True), "--quick", *rest]
    return run_steps([*steps, (name, quick)])


def docs_steps() -> list[Step]:
    return [
        ("generated docs pages", script("docs/generate.py", "--check")),
        ("docs site", script("docs/build.py", "--check")),
    ]


def run_program(words: list[str]) -> int:
    """Run a program and wait for it, also after Ctrl-C: it gets the signal too, and may report."""
    with subprocess.Popen([str(OWN.python), *words], cwd=ROOT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def main() -> int:
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    top, rest = parser(), arguments[cut + 1 :]
    options, words = top.parse_known_args(arguments[:cut])
    programs = {  # these have options of their own
        "bench": ["-m", "benchmarks"],
        "chaos": ["-m", "tests.chaos"],
        "demo": ["examples/case_assistant"],
    }
    if words and options.verb not in programs:
        top.error(f"unrecognized arguments: {' '.join(words)}")
    OWN.ensure("demo" if options.verb == "demo" else EVERYTHING)
    activate()
    if options.verb == "test":
        return test(options, rest)
    if options.verb == "lint":
        return run_steps(lint_steps())
    if options.verb in programs:
        say(f"Starting `{options.verb}`.")
        return run_program([*programs[options.verb], *words, *rest])
    return subprocess.run(script("docs/build.py", *rest), cwd=ROOT, check=False).returncode


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dev.py",
        description="Prepare .venv and run a tool in it. Options after `--` go to that tool.",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    testing = verbs.add_parser("test", help="lint, types, import directions, tests, docs examples")
    testing.add_argument("--quick", action="store_true", help="leave out the slow tests")
    testing.add_argument(
        "--adapters", action="store_true", help="only the adapters, of all agent frameworks"
    )
    verbs.add_parser("demo", add_help=False, help="run the case assistant, with a console to try")
    verbs.add_parser("lint", help="lint, format, types, import directions")
    verbs.add_parser("bench", add_help=False, help="measure it beside others, in one table")
    verbs.add_parser("docs", help="write the generated pages, and build the site into site/")
    verbs.add_parser("chaos", add_help=False, help="run many rounds of the kill test")
    return top


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
