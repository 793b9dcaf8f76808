"""The demo is run, and tells what it promises."""

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_runs_to_its_end_within_80_columns():
    done = subprocess.run(
        [sys.executable, DEMO],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )
    for line in ("CONFIRMATION_MISSING, await_approval", "from memory", "schema-ref-remote"):
        assert line in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b[" not in done.stdout
