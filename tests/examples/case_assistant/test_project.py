"""The project as a user meets it: written to a folder, and opened by the `counterseal` command."""

import json
import os
import stat
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from counterseal.cli.app import app
from counterseal.config import load_settings
from tests.examples.case_assistant.office import FOLDER, NORTH, ROLES, TOOLS, example


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("office")
    example.project.write_project(folder)
    return folder


@pytest.fixture
def run(home, monkeypatch):
    """The command, in the project's folder; nothing else says where it is."""
    monkeypatch.chdir(home)
    monkeypatch.delenv("CASE_ASSISTANT_HOME", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        done = CliRunner().invoke(app, list(arguments), prog_name="counterseal")
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


def test_its_contracts_have_neither_errors_nor_warnings(run):
    done = run("lint", "--strict")
    assert (done.exit_code, done.stdout) == (0, "8 contracts, no problems\n"), done.stderr


def test_every_rule_of_its_policy_is_tried_and_does_what_it_should(run):
    done = run("policy", "test", str(FOLDER / "rules.yaml"), "--require-coverage")
    assert done.exit_code == 0, done.stdout
    assert "5 of 5 rules matched" in done.stdout


def test_a_call_from_the_shell_goes_through_every_gate(run):
    asked = ["get_case_summary", '{"case_id": "case_100004"}', "--as", "intake-agent", "--json"]
    done = run("call", *asked)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert "Saltmarsh Fish Processing" in json.dumps(told)


def test_a_call_that_needs_a_person_ends_with_three_and_one_that_is_forbidden_with_one(run):
    closing = {
        "case_id": "case_100008",
        "status": "closed",
        "expected_version": 1,
        "reason": "The parties were told.",
    }
    held = run("call", "update_case_status", json.dumps(closing), "--as", "notice-agent")
    assert held.exit_code == 3, held.stdout
    assert "office.closing-asks" in held.stdout
    denied = run("call", "update_case_status", json.dumps(closing), "--as", "intake-agent")
    assert denied.exit_code == 1
    assert "office.intake-takes-in" in denied.stdout


def test_what_is_there_is_kept_when_it_is_written_again(tmp_path):
    example.project.write_project(tmp_path)
    kept = {
        file.relative_to(tmp_path): file.read_bytes()
        for file in tmp_path.rglob("*")
        if file.is_file() and file.name not in ("counterseal.toml", "smtp.txt")
    }
    assert {path.parts[0] for path in kept} == {"cases.db", "keys", "secrets"}
    file = example.project.write_project(tmp_path, port=9000, smtp=("127.0.0.1", 2600))
    assert kept == {path: (tmp_path / path).read_bytes() for path in kept}
    assert load_settings(file).gateway.port == 9000
    assert (tmp_path / "smtp.txt").read_text(encoding="utf-8") == "127.0.0.1:2600\n"


def test_passwords_are_readable_by_their_owner_only(home):
    for file in (home / "secrets").rglob("smtp_password"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(file.read_text(encoding="utf-8")) >= 32
    assert "secret" not in (home / "counterseal.toml").read_text(encoding="utf-8").replace(
        'path = "secrets"', ""
    ).replace("[secrets]", "")


def test_grants_scopes_and_tenants_are_those_of_the_roles(home):
    settings = load_settings(home / "counterseal.toml")
    granted = {(one.agent, one.tool): one.max_calls_per_run for one in settings.grants}
    assert len(granted) == sum(len(role.tools) for role in ROLES.values())
    for who, role in ROLES.items():
        assert {tool: granted[who, tool] for tool in role.tools} == role.tools
        needed = {scope for tool in role.tools for scope in TOOLS[tool].security.required_scopes}
        assert set(role.scopes) == needed, "no scope that no tool needs"
        assert set(settings.agents[who].scopes) == needed
        assert settings.agents[who].tenant == NORTH
    assert {name: table.facts for name, table in settings.tenants.items()} == {
        tenant: {"mailboxes": f"register.{tenant}.example"} for tenant in ("eastvale", "northshore")
    }


def test_a_store_and_people_of_your_own(tmp_path):
    file = example.project.write_project(
        tmp_path,
        store_url="postgresql://office@127.0.0.1/office",
        approvers={"officer-1": ["case-officer"]},
        public_url="https://desk.example",
    )
    settings = load_settings(file)
    assert settings.store_url() == "postgresql://office@127.0.0.1/office"
    assert settings.approvers["officer-1"].roles == ("case-officer",)
    assert settings.gateway.public_url == "https://desk.example"


def test_as_programs_they_work_from_a_copy_of_the_folder(tmp_path):
    """Nothing in it looks for the repository around it, or at the environment."""
    copy = tmp_path / "copied"
    copy.mkdir()
    for file in FOLDER.rglob("*"):
        if file.suffix in (".py", ".json", ".sql", ".yaml") and "__pycache__" not in file.parts:
            place = copy / file.relative_to(FOLDER)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    environment = {**os.environ, "NO_COLOR": "1"}
    environment.pop("CASE_ASSISTANT_HOME", None)
    told = {"env": environment, "capture_output": True, "text": True}
    write = [sys.executable, copy / "project.py", tmp_path / "home"]
    written = subprocess.run(write, cwd=tmp_path, check=True, **told)
    assert written.stdout == "home/counterseal.toml is written.\n"
    call = [sys.executable, "-m", "counterseal", "call", "get_case_summary"]
    call += ['{"case_id": "case_100001"}', "--as", "risk-agent", "--json"]
    called = subprocess.run(call, cwd=tmp_path / "home", check=True, **told)
    assert "Harbour Street Bakery" in called.stdout
