"""The official conformance suite against a server, its findings as plain data.

    with fixture_server() as url:
        outcomes = run_suite(url, "2026-07-28")
    assert unmet(outcomes) == {}

`served` is the same for a Counterseal project.

The suite runs all of a revision's scenarios in one process, in a few seconds. It takes no headers;
where a server wants some, `tests/node/headers.mjs` adds them inside the suite's process.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ruamel.yaml import YAML

from tests.node_tools import CONFORMANCE, node_packages, node_program
from tests.warm import warm

REVISIONS = ("2025-11-25", "2026-07-28")
PATIENCE = 60.0
"""How many seconds one scenario may take."""
HURRIED = frozenset({"server-stateless"})
"""Scenarios that wait only tenths of a second for an answer; a busy machine may take longer."""
AGAIN = 3
"""How often such a one is run once more if it does not pass without a warning."""

_FIXTURE = Path(__file__).with_name("conformance_fixture.py")
_PRELOAD = Path(__file__).parents[1] / "node" / "headers.mjs"


class Outcome(NamedTuple):
    """What the suite found of one scenario."""

    scenario: str
    status: Literal["passed", "failed", "skipped"]
    required: bool
    """Whether the revision requires it; the others are run, and decide nothing."""
    failures: tuple[str, ...] = ()
    """The checks that failed, each with the suite's words."""
    warnings: tuple[str, ...] = ()
    """What the revision recommends, and the server does not do."""


def required(revision: str) -> frozenset[str]:
    """The scenarios that the suite's frozen list requires of a server."""
    path = node_packages() / CONFORMANCE / "requirements" / f"{revision}.yaml"
    return frozenset(YAML(typ="safe").load(path)["server"])


def run_suite(
    url: str,
    revision: str,
    *,
    headers: Mapping[str, str] | None = None,
    scenarios: Collection[str] | None = None,
) -> dict[str, Outcome]:
    """Run the revision's scenarios, or these, against the server at a URL of loopback."""
    found = _run(["--requirements", revision], url, headers) if scenarios is None else {}

    def alone(scenario: str) -> Outcome:
        words = ["--scenario", scenario, "--spec-version", revision, "--force"]
        return _outcome(scenario, revision, _run(words, url, headers).get(scenario))

    def outcome(scenario: str) -> Outcome:
        known = scenarios is None
        last = _outcome(scenario, revision, found.get(scenario)) if known else alone(scenario)
        for _ in range(AGAIN if scenario in HURRIED else 0):
            if last.status == "passed" and not last.warnings:
                break
            last = alone(scenario)
        return last

    wanted = found.keys() | required(revision) if scenarios is None else scenarios
    return {one: outcome(one) for one in sorted(wanted)}


def unmet(outcomes: Mapping[str, Outcome]) -> dict[str, tuple[str, ...]]:
    """The required scenarios that did not pass, each with the reasons."""
    bad = (one for one in outcomes.values() if one.required and one.status == "failed")
    return {one.scenario: one.failures for one in bad}


def passed(outcomes: Mapping[str, Outcome]) -> set[str]:
    """The scenarios that the server passes."""
    return {one.scenario for one in outcomes.values() if one.status == "passed"}


def failed(outcomes: Mapping[str, Outcome]) -> dict[str, tuple[str, ...]]:
    """Those that it does not, each with the reasons."""
    bad = (one for one in outcomes.values() if one.status == "failed")
    return {one.scenario: one.failures for one in bad}


def warned(outcomes: Mapping[str, Outcome]) -> dict[str, tuple[str, ...]]:
    """Those in which it does not do all that is recommended, each with what."""
    return {one.scenario: one.warnings for one in outcomes.values() if one.warnings}


def _run(words: list[str], url: str, headers: Mapping[str, str] | None) -> dict[str, Any]:
    """The checks of every scenario that was run."""
    node, *rest = node_program(CONFORMANCE, "server", "--url", url, *words)
    environment = {**os.environ, "COUNTERSEAL_TEST_HEADERS": json.dumps(dict(headers or {}))}
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--timeout", str(int(PATIENCE * 1000))]
        done = subprocess.run(
            [node, "--import", _PRELOAD.as_uri(), *rest, *limits, "--output-dir", folder],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 5,
            check=False,
        )
        found = {_scenario(one): json.loads(one.read_text()) for one in _results(folder)}
    if not found:
        raise RuntimeError(f"The suite ran nothing:\n{done.stdout}{done.stderr}")
    return found


def _results(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("server-*/checks.json"))


def _scenario(path: Path) -> str:
    """Its folder is called server-SCENARIO-2026-01-31T12-00-00-000Z."""
    return path.parent.name.removeprefix("server-").rsplit("-", 6)[0]


def _outcome(scenario: str, revision: str, checks: list[Any] | None) -> Outcome:
    needed = scenario in required(revision)
    if checks is None:
        return Outcome(scenario, "failed", needed, ("the suite did not run it",))
    told: dict[str, list[str]] = {"FAILURE": [], "WARNING": [], "SUCCESS": []}
    for one in checks:
        words = one.get("errorMessage") or one["description"]
        told.setdefault(one["status"], []).append(f"{one['id']}: {words}")
    status: Any = "failed" if told["FAILURE"] else "passed" if told["SUCCESS"] else "skipped"
    return Outcome(scenario, status, needed, tuple(told["FAILURE"]), tuple(told["WARNING"]))


# --- the fixture ----------------------------------------------------------------------------------


def fixture_command(*words: str) -> list[str]:
    """How the fixture server is started: `--stdio`, or `--port N`, maybe with `--token`."""
    return warm(_FIXTURE, *words)


@contextmanager
def fixture_server(*words: str) -> Iterator[str]:
    """The URL of a fixture server that runs in a process of its own meanwhile."""
    command = fixture_command("--port", "0", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip() if server.stdout else ""
            if not url:
                raise RuntimeError("The fixture server did not start; its reasons are on stderr.")
            yield url
        finally:
            server.kill()


# --- Counterseal ----------------------------------------------------------------------------------

AGENT = "suite"
"""Who the suite is: the agent that a project which is served to it declares."""


@contextmanager
def served(project: Path) -> Iterator[str]:
    """The URL under which `counterseal serve` serves a project meanwhile, to everybody."""
    words = ["serve", "--port", "0", "--anonymous-as", AGENT, "--json"]
    command = warm("-m", "counterseal", *words)
    own = {name: value for name, value in os.environ.items() if "COUNTERSEAL" not in name}
    with subprocess.Popen(
        command, cwd=project, env=own, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            told = "".join(_until_closed(server.stdout or ()))
            if not told:
                raise RuntimeError("It did not start; its reasons are on stderr.")
            yield json.loads(told)["mcp_url"]
            server.terminate()
            server.wait(PATIENCE)
        finally:
            server.kill()
    if server.returncode:
        raise RuntimeError(f"It ended with {server.returncode}; its reasons are on stderr.")


def _until_closed(lines: Iterable[str]) -> Iterator[str]:
    """The lines of one JSON object, as it is printed for people."""
    for line in lines:
        yield line
        if line.rstrip() == "}":
            return
