"""What is installed from the wheel does what the README and the demo say, without the checkout."""

import json
import os
import shutil
import subprocess

import pytest

from tests.wheel_tools import ROOT, wheel_python

pytestmark = pytest.mark.slow
PATIENCE = 240.0
PAGE = """
import sys
from pathlib import Path
from pages.runner import run_page
run_page(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def python():
    return wheel_python()


def run(python, *words, cwd, **more):
    """A program of the wheel's environment; nothing of this one is on its way."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", **more}
    env.pop("VIRTUAL_ENV", None)
    return subprocess.run(
        [python, *words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_package_comes_from_the_wheel_and_brings_what_it_needs(python, tmp_path):
    show = "import counterseal, json; print(json.dumps(counterseal.__file__))"
    found = run(python, "-c", show, cwd=tmp_path)
    assert "site-packages" in json.loads(found.stdout), found.stderr
    for missing in ("pytest", "hypothesis", "fastmcp"):
        assert run(python, "-c", f"import {missing}", cwd=tmp_path).returncode != 0


def test_the_examples_of_the_readme_run_on_the_wheel(python, tmp_path):
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "tests" / "docs", tmp_path / "pages")
    work = tmp_path / "work"
    work.mkdir()
    ended = run(python, "-c", PAGE, str(tmp_path / "README.md"), str(work), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_the_demo_runs_on_the_wheel(python, tmp_path):
    shutil.copytree(
        ROOT / "examples" / "case_assistant",
        tmp_path / "case_assistant",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    ended = run(python, "case_assistant", "--auto", "--port", "0", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
