"""What programs read of Counterseal does not change by accident: every output is as it was.

After a change on purpose: `python -m tests.golden --write`.
"""

import pytest
import typer

from counterseal.cli.app import app
from tests.golden import commands
from tests.golden.outputs import PRODUCERS, differences, kept

pytestmark = pytest.mark.slow
"""A gateway and the demo have to start for them."""


@pytest.mark.parametrize("name", PRODUCERS)
def test_outputs_are_as_they_were(name):
    found = differences(name, PRODUCERS[name]())
    if found:
        pytest.fail(found, pytrace=False)


def test_every_command_that_prints_json_has_a_golden_output():
    text = "".join(kept("commands").values())
    missing = [name for name in leaves(typer.main.get_command(app)) if f'"{name}": [' not in text]
    assert set(missing) == commands.ELSEWHERE


def leaves(command, path=()):
    """The words of every command that does something."""
    inside = getattr(command, "commands", {})
    if path and (not inside or command.invoke_without_command):
        yield " ".join(path)
    for name, one in inside.items():
        yield from leaves(one, (*path, name))
