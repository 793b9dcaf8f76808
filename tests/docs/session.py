"""The shell of a page: its commands, what they print, and what it leaves running behind.

Each command has a process of its own. What a person's shell would remember between them is kept
here: the folder (`cd`), variables (`export NAME=…`), and programs that go on in the background
(`… &`), which `kill %1` ends and the page's end does at the latest.

A server in the foreground (`counterseal serve`) is started, waited for until it has printed its URL
and what the page shows, and stopped as Ctrl-C would: a reader goes on only after that.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HANGS_AFTER_SECONDS = 120
EXPORT = re.compile(r"export (?P<name>[A-Za-z_]\w*)=")
KILL = re.compile(r"kill(?P<surely> -9)? %(?P<job>\d+)")
SERVER = re.compile(r"counterseal serve\b")
URL = re.compile(r"^Health +http://", re.MULTILINE)
ELLIPSIS = "..."


class HangsError(Exception):
    """Something did not come to its end, or did not say what it should, in time."""


class Session:
    """Lasts for a page. Used as a context, it takes away what the page has left running.

    Commands are looked for in the folder `programs`, and then beside this interpreter.
    """

    def __init__(self, programs=None):
        self._jobs = []
        self._surroundings = dict(os.environ)
        self._first = [str(programs)] if programs else []

    def __enter__(self):
        places = [*self._first, str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        os.environ["PATH"] = os.pathsep.join(places)
        return self

    def __exit__(self, *_):
        for job in self._jobs:
            job.end()
        for name in set(os.environ) - set(self._surroundings):
            del os.environ[name]
        os.environ.update(self._surroundings)

    def run(self, command, expected):
        """The exit code and what was printed. HangsError, OSError."""
        # Each command has a shell of its own, so a change of folder is made here.
        if command.startswith("cd "):
            os.chdir(command[3:].strip())
            return 0, []
        export = EXPORT.match(command)
        if export:
            return self._export(export["name"], command)
        if command.endswith(" &"):
            self._jobs.append(Job(command.removesuffix(" &")))
            return 0, self._jobs[-1].until(expected)
        kill = KILL.fullmatch(command)
        if kill:
            self._jobs[int(kill["job"]) - 1].tell(signal.SIGKILL if kill["surely"] else None)
            return 0, []
        return _served(command, expected) if SERVER.match(command) else _ended(command)

    def _export(self, name, command):
        code, lines = _ended(f'{command} && printf "%s" "${name}"')
        if code == 0:
            os.environ[name] = "\n".join(lines)
            return 0, []
        return code, lines


class Job:
    """A program that goes on in the background."""

    def __init__(self, command):
        self._output = Path(f".job-{time.monotonic_ns()}").absolute()
        self._command = command
        with self._output.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                shell=True,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, expected, ready=None):
        """What it has printed, once that is what is expected, or as much as there will be.

        With `ready`, this pattern must have been printed, too.
        """
        until = time.monotonic() + HANGS_AFTER_SECONDS
        while not matches(expected, self._printed()) or (ready and not self._has_printed(ready)):
            if self._process.poll() is not None:
                return self._printed()
            if time.monotonic() > until:
                raise HangsError("\n".join(["it has not printed this so far:", *self._printed()]))
            time.sleep(0.02)
        return self._printed()

    def _printed(self):
        return _lines(self._output.read_text(encoding="utf-8"))

    def _has_printed(self, pattern):
        return pattern.search(self._output.read_text(encoding="utf-8")) is not None

    def ended(self):
        """Its exit code, a while after it was told to stop."""
        try:
            return self._process.wait(HANGS_AFTER_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise HangsError(f"`{self._command}` does not stop") from error

    def tell(self, number=None):
        """Send a signal to it and to all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number or signal.SIGTERM)

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.tell(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
                break


def _served(command, expected):
    job = Job(command)
    try:
        printed = job.until(expected, URL)
        job.tell(signal.SIGINT)
        return job.ended(), printed
    finally:
        job.end()


def _ended(command):
    try:
        done = subprocess.run(
            command,
            shell=True,
            check=False,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=HANGS_AFTER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise HangsError(str(error)) from error
    return done.returncode, _lines(done.stdout)


def _lines(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _environment():
    forced = {"FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS"}
    kept = {name: value for name, value in os.environ.items() if name not in forced}
    return kept | {"NO_COLOR": "1", "COLUMNS": "80"}


def matches(expected, actual):
    """Compare lines, where `...` stands for any number of them, and `…` for some of a line."""
    parts = [
        r"(?:.*\n)*" if text == ELLIPSIS else re.escape(text).replace("…", ".*") + r"\n"
        for text in expected
    ]
    return re.fullmatch("".join(parts), "".join(f"{text}\n" for text in actual)) is not None
