"""The guides of frameworks and the example run in the frameworks' own environments."""

import os
import re
import subprocess

import pytest

from tests.adapter_tools import FRAMEWORKS, ROOT, adapter_python, fast

pytestmark = pytest.mark.slow
RUN_PAGE = """
import sys
from pathlib import Path
from tests.docs.runner import run_page
run_page(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def pytest_generate_tests(metafunc):
    every = metafunc.config.option.adapters
    if "guide" in metafunc.fixturenames:
        metafunc.parametrize("guide", list(FRAMEWORKS) if every else fast())


def test_examples_of_a_guide_work(guide, tmp_path):
    page = ROOT / "docs" / "frameworks" / f"{guide}.md"
    command = [adapter_python(guide), "-c", RUN_PAGE, page, tmp_path]
    quiet = {**os.environ, "CREWAI_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_readme_shows_what_the_example_prints():
    command = [adapter_python("langgraph"), ROOT / "examples" / "double_send"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"$ python examples/double_send\n{done.stdout}```" in (ROOT / "README.md").read_text()


def test_the_example_passes_its_generated_evaluation():
    command = [adapter_python("langgraph"), ROOT / "examples" / "double_send", "--evaluate"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "FAILED" not in done.stdout, done.stdout
    counts = re.search(r"(\d+) of (\d+) cases passed", done.stdout)
    assert counts is not None
    assert counts[1] == counts[2]
    assert "| approval | - | 7 |" in done.stdout
