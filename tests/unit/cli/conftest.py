"""A folder to work in, and the command run inside it."""

import itertools
import json
import sys
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from typer.testing import CliRunner

GOOD = """\
identity: {name: find_order, version: 1.0.0, owner: shop}
effect: read_only
usage: Call it to look at an order.
affordance:
  model_description: Find one order.
  input_schema:
    type: object
    additionalProperties: false
    required: [order_id]
    properties:
      order_id: {type: string, maxLength: 20, description: The order.}
  output_schema: {type: object, additionalProperties: false, properties: {total: {type: number}}}
"""


@pytest.fixture(scope="package", autouse=True)
def built_once():
    """The tree of commands is made once, as in a program, and not for every command anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def write(folder):
    def write(name, content=GOOD):
        file = Path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content, encoding="utf-8")
        return file

    return write


@pytest.fixture
def run(folder):
    from counterseal.cli.app import app

    def run(*arguments):
        result = CliRunner().invoke(app, list(arguments), prog_name="counterseal")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def slowly(monkeypatch):
    """Work takes long: whenever progress looks at its clock, ten seconds have passed."""
    from counterseal.cli.render import ProgressBar

    seconds = itertools.count(0.0, 10.0)
    monkeypatch.setitem(ProgressBar.__init__.__kwdefaults__, "clock", lambda: next(seconds))


@pytest.fixture
def good():
    return GOOD


def definition(name, description="", **more):
    """A tool as an MCP server lists it."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"name": name, "description": description, "inputSchema": schema, **more}


@pytest.fixture
def server(write):
    """A command that starts an MCP server; called with definitions, it says what that lists."""

    def lists(*definitions, file="tools.json"):
        write(file, json.dumps(definitions))
        return [sys.executable, str(Path(__file__).with_name("listed_server.py")), file]

    lists.tool = definition
    return lists
