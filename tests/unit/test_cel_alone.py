"""CEL comes without its command line, and keeps it for whoever wants it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def _says(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_runtime_loads_no_terminal() -> None:
    said = _says(
        "import sys, counterseal.runtime, counterseal.policy\n"
        "print(sorted({'cel', 'cel.cli', 'prompt_toolkit'} & set(sys.modules)))"
    )
    assert said == "['cel']"


def test_its_command_line_can_be_had_afterwards() -> None:
    said = _says(
        "import counterseal.policy\n"
        "from cel import cli\n"
        "import cel.cli\n"
        "print(cel.cli is cli, cli.__name__, callable(cli.main))"
    )
    assert said == "True cel.cli True"


def test_who_has_loaded_it_before_keeps_it() -> None:
    said = _says(
        "import cel.cli, sys\n"
        "before = cel.cli\n"
        "from counterseal.cel_alone import cel as ours\n"
        "print(ours.cli is before, sys.modules['cel.cli'] is before, ours.evaluate('1 + 1', {}))"
    )
    assert said == "True True 2"
