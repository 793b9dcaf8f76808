"""The plugin in a repository of a user, with a real pytest."""

import os
import subprocess
import sys

import pytest

from counterseal.cli import main

TOOLS = '''
from typing import Annotated

from pydantic import Field

from counterseal import tool


@tool(effect="read_only", version="1.0.0", owner="shop")
async def find_price(name: Annotated[str, Field(max_length=20, description="Of what.")]) -> {hint}:
    """Find a price."""
    return {answer}
'''
CONFIG = """
[tools]
paths = ["tools.py"]

[[grants]]
agent = "clerk"
tool = "find_price"

[evaluation.find_price]
run = "real"
"""
OWN_TEST = """
def test_the_tools_keep_their_contracts(counterseal_cases):
    report = counterseal_cases(None, "find_price", modes=["schema", "permissions"])
    assert report.ok, report.markdown()
    assert report.cell("find_price", "schema").status == "passed"
"""


@pytest.fixture
def repository(tmp_path):
    """Make a repository of a user, and return what runs pytest in it."""

    def make(*, hint="dict[str, int]", answer='{"price": 7}'):
        (tmp_path / "tools.py").write_text(TOOLS.format(hint=hint, answer=answer))
        (tmp_path / "counterseal.toml").write_text(CONFIG)
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests" / "test_tools.py").write_text(OWN_TEST)

        def run(*words):
            env = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
            words = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words)
            return subprocess.run(
                [sys.executable, "-m", "pytest", *words],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        return run

    return make


@pytest.mark.slow
def test_all_generated_cases_run_beside_the_users_own_tests(repository):
    run = repository()
    ended = run("tests", "--counterseal", "-vv")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "test_the_tools_keep_their_contracts PASSED" in ended.stdout
    assert "find_price::schema::the good call succeeds PASSED" in ended.stdout
    assert "find_price::retry::a timeout, once PASSED" in ended.stdout


@pytest.mark.slow
def test_without_the_option_only_the_users_own_tests_run(repository):
    ended = repository()()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


@pytest.mark.slow
def test_a_broken_tool_fails_with_its_reason(repository):
    ended = repository(answer='{"price": "seven"}')("--counterseal", "-k", "observation and own")
    assert ended.returncode == 1, ended.stdout
    assert "OBSERVATION_NORMALIZATION_FAIL" in ended.stdout
    assert "arguments: {'name': 'text'}" in ended.stdout


@pytest.mark.slow
def test_without_a_project_it_says_so(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--counterseal", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 4
    assert "no counterseal.toml" in ended.stderr


def test_the_command_line_speaks_of_the_same_project(repository, tmp_path, monkeypatch, capsys):
    repository(answer='{"price": "seven"}')
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "junit.xml"
    monkeypatch.setattr(sys, "argv", ["counterseal", "evaluate", "--junit", str(file), "--require"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "OBSERVATION_NORMALIZATION_FAIL" in capsys.readouterr().out
    assert "<failure" in file.read_text()
