"""The demo's scripted model works on the example's scenarios, and the record says how well."""

import json
import os
import subprocess
import sys

import pytest

from tests.examples.case_assistant.office import FOLDER

pytestmark = pytest.mark.slow


def test_scripted_model_repairs_its_calls_and_obeys_the_evidence_in_vain(tmp_path):
    project = [sys.executable, FOLDER / "project.py", tmp_path / "office"]
    subprocess.run(project, check=True, capture_output=True)
    words = ["scenarios", "run", FOLDER / "scenarios.yaml", "--agent", "crew.evaluated:scripted"]
    done = subprocess.run(
        [sys.executable, "-m", "counterseal", *words, "--json"],
        cwd=tmp_path / "office",
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert summary["passed"] == summary["trials"] == 2
    assert summary["measures"]["repair"][0] == 1.0
    assert summary["measures"]["security"][0] == 1.0
    assert summary["refused_by"] == {"schema": 2, "office.intake-takes-in": 1}
