"""Runs every command of the program with `--json`, in the fixed project, and keeps what it prints.

The commands are a story: keys are made, calls are tried, people decide, operators change things.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer.main

import counterseal
from counterseal.cli import main
from tests.golden.normalise import Mask, as_text

HERE = Path(__file__).parent
PROJECT = HERE / "project"
PACKAGE = HERE.parents[1] / "src" / "counterseal"
SERVER = Path(__file__).parents[1] / "unit" / "cli" / "listed_server.py"
BY = ("--reason", "a test", "--by", "root")
PASSWORD = "correct horse battery"
ELSEWHERE = {"serve", "mcp", "approvals watch"}
"""Commands that go on until they are stopped: `serve` is in the transcripts of the gateway."""


LOWERED = """\
identity: {name: wipe_sandbox, version: 1.0.0, owner: shop}
effect: irreversible
transactional: {side_effect_class: LOW_RISK_INTERNAL}
risk_justification: The sandbox is filled again every night.
usage: Call it to empty the sandbox.
consequence: The sandbox is emptied.
affordance:
  model_description: Empty the sandbox.
  input_schema: {type: object, additionalProperties: false}
  output_schema: {type: object, additionalProperties: false}
"""


class Shell:
    """The command line inside a copy of the project; keeps what each command printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, list[dict[str, Any]]] = {}
        python = Path(sys.executable)
        self._mask = Mask({folder: "<project>", PACKAGE: "<package>", SERVER: "<server>"})
        self._python = str(python)

    def run(self, *words: str, stdin: str = "", keep: bool = True) -> Any:
        """Run a command, keep its masked output, and return what it printed, as data."""
        words = (*words, "--json") if "--json" not in words else words
        code, printed = invoke(*words, stdin=stdin)
        data = parsed(printed)
        if keep:
            name = command_name(words)
            shown = [self._mask.text(word.replace(self._python, "<python>")) for word in words]
            entry = {"command": " ".join(shown), "exit": code, "output": self._mask(data)}
            self.outputs.setdefault(name, []).append(entry)
        return data


def invoke(*words: str, stdin: str = "") -> tuple[int, str]:
    """Run the program in this process: its exit code, and what it printed on stdout."""
    out = io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["counterseal", *words], io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as errors:
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if code == 2:
            raise AssertionError(f"{' '.join(words)}: {errors.getvalue()}") from None
        return code, out.getvalue()
    finally:
        sys.argv, sys.stdin = before
    return 0, out.getvalue()


def parsed(printed: str) -> Any:
    """Return printed JSON, or the lines of JSON Lines."""
    try:
        return json.loads(printed)
    except ValueError:
        return [json.loads(line) for line in printed.splitlines()]


GROUPS = {
    *("approvals", "audit", "grants", "import", "keys", "policy", "registry", "scenarios"),
    "users",
}


def command_name(words: tuple[str, ...]) -> str:
    """Return a command's words without its arguments: `approvals list`."""
    if words[0] in GROUPS:
        return f"{words[0]} {words[1]}"
    if words[0] == "reconcile" and words[1] in ("list", "settle", "undo", "again", "dismiss"):
        return f"reconcile {words[1]}"
    return words[0]


@contextlib.contextmanager
def project() -> Iterator[Path]:
    """A copy of the project in a folder of its own, which is the current one meanwhile."""
    before, env = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="counterseal-golden-") as name:
        folder = Path(name).resolve() / "project"
        shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
        os.chdir(folder)
        os.environ.pop("COUNTERSEAL_STORE", None)
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(env)


def outputs() -> dict[str, str]:
    """The golden files of the commands, one for each command or group of commands."""
    # The tree of commands is made once, and not for every command anew.
    once = patch("typer.main.get_command", cache(typer.main.get_command))
    with once, project() as folder:
        shell = Shell(folder)
        declared(shell)
        called(shell)
        decided(shell)
        reconciled(shell)
        operated(shell)
        recorded(shell)
        imported(shell)
    files: dict[str, dict[str, Any]] = {}
    for name, entries in shell.outputs.items():
        files.setdefault(name.split()[0], {})[name] = entries
    return {f"commands/{group}.json": as_text(found) for group, found in files.items()}


# --- the story ------------------------------------------------------------------------------------


def declared(shell: Shell) -> None:
    """What is written in the project, before any call."""
    shell.run("init", "new")
    shell.run("lint")
    shell.run("check")
    shell.run("validate", "--as", "amplifier", ".")
    shell.run("show")
    shell.run("show", "send_letter")
    for form in ("mcp", "openai", "openai-responses", "anthropic", "envelope", "record"):
        shell.run("show", "send_letter", "--as", form)
    shell.run("schema", "contract")
    shell.run("schema", "envelope")
    shell.run("schema", "observation")
    shell.run("schema", "settings")
    shell.run("explain", "CONFIRMATION_MISSING")
    shell.run("explain", "input-unbounded")
    shell.run("policy", "test", "policy.yaml")
    shell.run("evaluate", "find_order", "--mode", "permissions")
    shell.run("evaluate", "find_order", "--mode", "permissions", "--list")
    shell.run("policy", "show")
    shell.run("scenarios", "run", "scenarios.yaml", "--save", "report.json")
    shell.run("scenarios", "compare", "report.json", "report.json")
    shell.run("scenarios", "export", "trajectories", "report.json", "--out", "did.jsonl")
    shell.run("scenarios", "import", "trajectories", "did.jsonl")
    for purpose in ("vault", "audit", "approval", "session"):
        shell.run("keys", "new", purpose)
    shell.run("keys", "list")
    shell.run("keys", "export", "audit")


def called(shell: Shell) -> None:
    shell.run("plan", "plan.json", "--as", "clerk", "--run", "run_0")
    for tool, arguments in (
        ("find_order", {"order_id": "ord_1"}),
        ("find_order", {"order_id": 1}),
        ("find_order", {}),
        ("find_orders", {}),
        ("search", {"text": "news"}),
        ("draft_reply", {"text": "hello"}),
        ("draft_reply", {"text": "hello"}),
        ("send_letter", {"to": "nobody"}),
        ("send_letter", {"to": "ann"}),
        ("send_letter", {"to": "ben"}),
        ("charge", {"order_id": "ord_1"}),
        ("book_room", {"text": "blue"}),
        ("book_room", {"text": "red"}),
        ("file_return", {"text": "shoes"}),
        ("file_return", {"text": "hats"}),
    ):
        shell.run("call", tool, json.dumps(arguments), "--as", "clerk", "--run", "run_1")
    shell.run("call", "find_order", "{", "--as", "clerk")
    shell.run("call", "draft_reply", '{"text": "a"}', "--as", "clerk", "--plan", "--run", "run_1")
    shell.run("call", "draft_reply", '{"text": "a"}', "--as", "clerk", "--key", "k", "--run", "r")


def decided(shell: Shell) -> None:
    waiting = shell.run("approvals", "list")
    charge, ben, ann = sorted(waiting, key=lambda row: (row["tool"], row["consequence"]))[:3]
    if ben["consequence"] == "A letter goes to ann.":
        ann, ben = ben, ann
    shell.run("approvals", "show", ann["approval_id"])
    shell.run("approvals", "approve", ann["approval_id"], "--as", "ada", "--yes")
    shell.run("approvals", "approve", ann["approval_id"], "--as", "ada", "--yes")
    shell.run("approvals", "reject", ben["approval_id"], "--as", "ada", "--yes", "--reason", "no")
    confirm = ("--yes", "--confirm", "charge", "--justification", "ordered by phone")
    for name in ("ada", "ben"):
        shell.run("approvals", "approve", charge["approval_id"], "--as", name, *confirm)
    for status in ("approved", "rejected", "spent"):
        shell.run("approvals", "list", "--status", status)


def reconciled(shell: Shell) -> None:
    why = ("--tenant", "acme", *BY)
    for text in ("stuck-1", "stuck-2", "hello"):
        call = ("call", "draft_reply", json.dumps({"text": text}), "--as", "clerk")
        seen = shell.run(*call, "--run", "run_1", keep=False)
        shell.run("reconcile", "undo", seen["tool_identity"]["call_id"], *why)
        shell.run("reconcile")
    rows = shell.run("reconcile", "list")
    failed = [row["key"] for row in rows if row["kind"] == "compensate"]
    unknown = [row["key"] for row in rows if row["kind"] == "unknown"]
    shell.run("reconcile", "again", "compensate", failed[0], *why)
    shell.run("reconcile", "dismiss", "compensate", failed[1], *why)
    shell.run("reconcile", "settle", unknown[0], "--happened", "--data", '{"a": "b"}', *why)
    shell.run("reconcile", "settle", unknown[1], "--did-not-happen", *why)
    shell.run("reconcile")
    shell.run("reconcile", "list")


async def _work_once() -> None:
    """Let a worker register the project's contracts."""
    async with counterseal.open_project():
        pass


def operated(shell: Shell) -> None:
    shell.run("registry", "list")
    shell.run("registry", "kill", "charge", "--yes", *BY)
    shell.run("registry", "kill", "--effect", "read_only", "--yes", *BY)
    shell.run("registry", "restore", "kill_1", *BY)
    shell.run("registry", "disable", "search", *BY)
    shell.run("registry", "disable", "book_room", "--version", "1.0.0", *BY)
    shell.run("registry", "enable", "search", *BY)
    shell.run("registry", "list")
    shell.run("registry", "log")
    lowered = shell.folder / "contracts" / "wipe_sandbox.yaml"
    lowered.write_text(LOWERED, encoding="utf-8")
    given = shell.run("grants", "add", "clerk", "search", "--max-calls", "3", *BY)
    shell.run("grants", "list", "--tool", "search")
    shell.run("grants", "revoke", given["id"], *BY)
    accept = ("registry", "accept-risk", "wipe_sandbox", "--version", "1.0.0")
    shell.run(*accept, "--yes", *BY)
    shell.run(*accept, "--withdraw", *BY)
    asyncio.run(_work_once())
    later = LOWERED.replace("1.0.0", "1.1.0").replace("owner: shop", "owner: sales")
    lowered.write_text(later, encoding="utf-8")
    asyncio.run(_work_once())
    shell.run("registry", "accept", "wipe_sandbox", "--version", "1.1.0", "--yes", *BY)
    lowered.unlink()
    made = shell.run("keys", "issue", "--tenant", "acme", "--agent", "clerk", "--scope", "x", *BY)
    shell.run("keys", "issue", "--tenant", "acme", "--agent", "clerk", "--expires", "30", *BY)
    shell.run("keys", "revoke", made["key_id"], *BY)
    shell.run("keys", "issued")
    user = ("ann", "--password-stdin", *BY)
    shell.run("users", "add", *user, "--tenant", "acme", "--role", "approver", stdin=PASSWORD)
    shell.run("users", "roles", "ann", "--tenant", "*", "--role", "viewer", *BY)
    shell.run("users", "set-password", *user, stdin=f"{PASSWORD} staple")
    own = shell.run("users", "key", "ann", "--tenant", "acme", *BY)
    shell.run("users", "list")
    shell.run("users", "revoke-key", own["key_id"], *BY)
    for verb in ("sign-out", "disable", "enable", "remove"):
        shell.run("users", verb, "ann", *BY)


def recorded(shell: Shell) -> None:
    shell.run("audit", "seal")
    shell.run("audit", "verify")
    for tool in ("find_order", "file_return", "charge", "drop_draft"):
        shell.run("audit", "list", "--limit", "200", "--tenant", "acme", "--tool", tool)
    events = shell.run("audit", "list", "--tenant", "acme", "--tool", "send_letter")
    letter = next(row for row in events if row["call_id"])
    shell.run("audit", "show", letter["call_id"], "--tenant", "acme")
    shell.run("audit", "calls", "--tenant", "acme", "--tool", "send_letter", "--version", "1.0.0")
    shell.run("audit", "export", "--tenant", "acme", "--tool", "draft_reply")
    shell.run("audit", "forget", letter["call_id"], "--reason", "asked to", "--tenant", "acme")
    shell.run("metrics", "--tenant", "acme")
    shell.run("replay", "--since", "30d", "--by", "root")


def imported(shell: Shell) -> None:
    shell.run("import", "openapi", "shop-api.json", "--out", "shop")
    definition = {"name": "read_file", "description": "Read a file.", "inputSchema": SCHEMA}
    (shell.folder / "listed.json").write_text(json.dumps([definition]))
    server = [sys.executable, str(SERVER), "listed.json"]
    shell.run("import", "mcp", "--name", "files", "--json", *server)
    with (shell.folder / "counterseal.toml").open("a") as settings:
        settings.write(f"\n[upstreams.files]\ncommand = {json.dumps(server)}\n")
    shell.run("diff")
    shell.run("diff", "--accept", "--yes", "--by", "root")


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
