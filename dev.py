"""One command for everything a contributor does: `python3 dev.py test`, and a few more verbs.

Makes `.venv`, installs the project into it, and runs the tools inside. It holds no test and no
build logic of its own: what the tools do is written in `pyproject.toml`. Only the standard library
is used here, because nothing else is installed when it starts, and syntax that Python 3.7 can read,
so that an older one gets as far as being told what it lacks.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts it may have an older one
    sys.exit(
        "Counterseal needs Python 3.11 or newer; this is {}.{}.\n"
        "Fix: run dev.py with a newer one, e.g. `python3.11 dev.py test`.".format(*sys.version_info)
    )

import tomllib  # new in 3.11, so only after the check

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "counterseal-stamp"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Step = tuple[str, list[str]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the environment ------------------------------------------------------------------------------


def fingerprint() -> str:
    """Name everything that decides what the environment holds; lint settings do not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = {name: project[name] for name in ("build-system", "project")}
    parts = [json.dumps(installed, sort_keys=True), Path(__file__).read_text(encoding="utf-8")]
    parts += [sys.version, str(ROOT)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def ensure_environment() -> None:
    """Make `.venv` anew unless its stamp says that it is complete and current."""
    wanted = fingerprint()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    say("Preparing .venv (the first time, and when the dependencies change)")
    # The stamp goes first and comes back last: an install that breaks off leaves none.
    STAMP.unlink(missing_ok=True)
    try:
        install()
    except subprocess.CalledProcessError:
        sys.exit("Could not prepare .venv; the reason is above. The next run starts it anew.")
    STAMP.write_text(wanted, encoding="utf-8")


def install() -> None:
    # Inside an activated .venv, sys.executable is the very file that is about to be cleared.
    python = getattr(sys, "_base_executable", sys.executable)
    requirement = ["--editable", f"{ROOT}[all,dev]"]
    uv = shutil.which("uv")
    if uv:
        os.environ["UV_PYTHON_DOWNLOADS"] = "never"
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", python, VENV], check=True)
        into = ["--python", str(PYTHON)]
        subprocess.run([uv, "pip", "install", "--quiet", *into, *requirement], check=True)
        return
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        sys.exit(
            "This Python has no venv or ensurepip module, so .venv cannot be made.\n"
            "Fix: `apt-get install python3-venv` on Debian and Ubuntu, or install uv."
        )
    subprocess.run([python, "-m", "venv", "--clear", VENV], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "-qq", *requirement], check=True)


def activate() -> None:
    """Put the environment's programs first, for every process started from here."""
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.pop("PYTHONHOME", None)
    # Hundreds of programs are started from here: without bytecode each compiles everything again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def find_browser() -> str:
    """Return a Chromium for the console's tests, installing Debian's where that is possible."""
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


# --- the verbs ------------------------------------------------------------------------------------


def run_steps(steps: list[Step]) -> int:
    """Run every step, also after a failure, and close with what ran and how long it took."""
    results: list[tuple[str, bool, float]] = []
    for name, command in steps:
        say(f"\n== {name}")
        started = time.perf_counter()
        succeeded = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        results.append((name, succeeded, time.perf_counter() - started))
    say("")
    for name, succeeded, seconds in results:
        say(f"{'ok  ' if succeeded else 'FAIL'}  {name:<30}{seconds:7.1f} s")
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
    return [str(PYTHON), path, *arguments]


def side_by_side(*, quick: bool) -> int:
    """How many tests run at once. Much of the whole suite waits for programs and servers."""
    allowed = getattr(os, "sched_getaffinity", None)
    processors = len(allowed(0)) if allowed else os.cpu_count() or 1
    return processors if quick else max(processors, min(2 * processors, 8))


def test(options: argparse.Namespace, rest: list[str]) -> int:
    if not options.quick and (ROOT / "tests" / "console").is_dir():
        os.environ["COUNTERSEAL_TEST_BROWSER"] = find_browser()
    # Neighbours stay together, and who has nothing left takes some from the others.
    spread = ["-n", str(side_by_side(quick=options.quick)), "--dist", "worksteal"]
    pytest = ["pytest", *spread, *(["--quick"] if options.quick else []), *rest]
    # Fetched before the tests begin: while they run, nothing leaves this machine.
    fetched = [
        ("programs from npm", [str(PYTHON), "-m", "tests.node_tools"]),
        ("an environment with the wheel", [str(PYTHON), "-m", "tests.wheel_tools"]),
    ]
    if options.quick:
        fetched = []
    steps = [*lint_steps(), *fetched, ("tests and docs examples", pytest)]
    steps.append(("generated docs pages", script("docs/generate.py", "--check")))
    steps.append(("docs site", script("docs/build.py", "--check")))
    return run_steps(steps)


def run_program(words: list[str]) -> int:
    """Wait for it also after Ctrl-C, which it hears itself: it still tells what it has found."""
    with subprocess.Popen([str(PYTHON), *words], cwd=ROOT) as process:
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
    programs = {  # which have options of their own
        "bench": ["-m", "benchmarks"],
        "chaos": ["-m", "tests.chaos"],
        "demo": ["examples/case_assistant"],
    }
    if words and options.verb not in programs:
        top.error(f"unrecognized arguments: {' '.join(words)}")
    ensure_environment()
    activate()
    if options.verb == "test":
        return test(options, rest)
    if options.verb == "lint":
        return run_steps(lint_steps())
    if options.verb in programs:
        return run_program([*programs[options.verb], *words, *rest])
    return subprocess.run(script("docs/build.py", *rest), cwd=ROOT, check=False).returncode


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dev.py",
        description="Prepare .venv and run one thing in it. What follows `--` goes to that thing.",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    testing = verbs.add_parser("test", help="lint, types, import directions, tests, docs examples")
    testing.add_argument("--quick", action="store_true", help="leave out tests that are slow")
    verbs.add_parser("demo", add_help=False, help="the case assistant, with a console to try")
    verbs.add_parser("lint", help="lint, format, types, import directions")
    verbs.add_parser("bench", add_help=False, help="measure it beside others, in one table")
    verbs.add_parser("docs", help="write the generated pages, and build the site into site/")
    verbs.add_parser("chaos", add_help=False, help="the kill test, by the thousand")
    return top


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
