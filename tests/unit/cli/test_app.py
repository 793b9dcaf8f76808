"""What holds for every command: help, exit codes, streams, and ends that are not of its making."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import counterseal
from counterseal.cli.render import print_json, safe

COMMAND = [sys.executable, "-m", "counterseal"]
SOURCE = Path(counterseal.__file__).parent


def start(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        **options,
    )


def test_help_names_every_command_and_the_exit_codes(run):
    result = run("--help")
    assert result.exit_code == 0
    for command in ("init", "lint", "show", "call", "schema", "explain", "policy", "approvals"):
        assert f"  {command} " in result.stdout
    assert "1  problems were found" in result.stdout
    assert "2  wrong use" in result.stdout
    assert "3  the call has to be approved" in result.stdout
    assert "4  too late" in result.stdout


def test_help_fits_into_80_columns(run):
    for command in ((), ("init",), ("lint",), ("show",), ("call",), ("schema",), ("explain",)):
        assert max(map(len, run(*command, "--help").stdout.splitlines())) <= 80


# Tools of a program that uses neither policies nor the network.
TOOL = """\
from typing import Annotated
from pydantic import BaseModel, Field
from counterseal import tool

class Order(BaseModel):
    status: str

@tool(effect="read_only", version="1.0.0", owner="shop")
def find_order(order_id: Annotated[str, Field(max_length=20, description="The order.")]) -> Order:
    "Find one order."
    return Order(status="open")
"""
PROJECT = """\
[tools]
paths = ["tools.py"]
[store]
url = "sqlite:///orders.db"
[[grants]]
agent = "clerk"
tool = "find_order"
[agents.clerk]
tenant = "acme"
"""
READING = "annotated_doc annotated_types docstring_parser jsonschema_rs packaging pydantic rich"
READING += " pydantic_core rfc8785 ruamel shellingham typer typing_extensions typing_inspection"
LOADED = {
    "--help": "typer annotated_doc shellingham typing_extensions",
    "lint": READING,
    "show find_order": READING,
    # A call evaluates the default policy (the CEL library loads its own command line), parses JSON,
    # redacts and traces.
    "call find_order {'order_id':'o_1'} --as clerk": f"{READING} asyncio jiter re2 opentelemetry"
    " cel prompt_toolkit pygments wcwidth",
}
"""The packages from PyPI that a command may load, and asyncio: time that a person waits."""


@pytest.mark.parametrize("command", LOADED)
def test_command_loads_no_package_that_it_does_not_need(tmp_path, command):
    (tmp_path / "tools.py").write_text(TOOL)
    (tmp_path / "counterseal.toml").write_text(PROJECT)
    code = (
        "import sys\nfrom counterseal.cli.app import app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit as end: ended = end.code\n"
        "names = {name.split('.')[0] for name in sys.modules} - {'__main__', 'counterseal'}\n"
        "names = {name for name in names - sys.stdlib_module_names if not name.startswith('_')}\n"
        "print(ended, *sorted(names), 'asyncio' * ('asyncio' in sys.modules), file=sys.stderr)"
    )
    words = command.replace("'", '"').split()
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    code, *loaded = result.stderr.splitlines()[-1].split()
    assert code == "0", result.stdout + result.stderr
    assert set(loaded) <= set(LOADED[command].split())


def test_version_is_the_packages(run):
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"counterseal {counterseal.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["lnit"], ["schema", "tool"], ["lint", "-x"]]
)
def test_wrong_use_exits_2_and_says_so_on_stderr(run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr


@pytest.mark.slow
def test_module_runs_as_the_command(tmp_path):
    result = start("explain", "TIMEOUT", "--json", cwd=tmp_path)
    assert result.returncode == 0
    assert json.loads(result.stdout)["next_action"] == "retry_same_key"


@pytest.mark.slow
def test_reader_that_stops_early_causes_no_complaint(tmp_path):
    result = subprocess.run(
        f"{sys.executable} -m counterseal explain | head -n 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""


@pytest.mark.slow
def test_closed_output_causes_no_complaint(tmp_path):
    result = subprocess.run(
        f"{sys.executable} -m counterseal explain >&-",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
def test_interrupt_ends_without_a_traceback(tmp_path):
    waiting = (
        "import counterseal, sys\nprint('ready', file=sys.stderr, flush=True)\nsys.stdin.read()\n"
    )
    (tmp_path / "tools.py").write_text(waiting)
    process = subprocess.Popen(
        [*COMMAND, "lint", "tools.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.slow
def test_stream_that_lacks_a_character_gets_a_substitute(tmp_path):
    (tmp_path / "ünfindbar").mkdir()
    result = start(
        "lint", "ünfindbar", cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert result.returncode == 2
    assert "\\xfcnfindbar" in result.stderr


# explain and schema ------------------------------------------------------------------------------


def test_every_code_is_explained(run):
    from counterseal.cli.explain import words
    from counterseal.codes import RESPONSES, Code

    assert set(words()["codes"]) == set(Code)
    for code, response in RESPONSES.items():
        told = json.loads(run("explain", code.value, "--json").stdout)
        assert told.items() >= {"status": response.status, **response.vector()}.items()
        assert told["cause"].endswith(".")
        assert told["what_to_do"].endswith(".")
        assert told["model_sees"].splitlines()[0].split(" ")[1] == f"{code.value}."


def test_code_is_explained_in_words_that_fit_a_terminal(run):
    from counterseal.codes import Code

    text = run("explain", "confirmation_missing").stdout
    assert text.startswith("CONFIRMATION_MISSING  428\n")
    for title in ("Cause", "The model sees", "What to do", "Response vector"):
        assert f"\n{title}\n" in text
    assert "  requires_approval  yes " in text
    assert "  next_action        await_approval\n" in text
    for code in Code:
        lines = run("explain", code.value).stdout.splitlines()
        assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_every_rule_that_reading_and_linting_can_name_is_explained(run):
    listed = json.loads(run("lint", "--rules", "--json").stdout)["rules"]
    known = {rule["id"] for rule in listed}
    assert _rules_named_in("contract", "config") <= known
    assert {"hook-unknown", "compensation-unknown", "version-duplicate"} <= known
    for rule in known:
        assert run("explain", rule).exit_code == 0


def _rules_named_in(*rooms):
    found = set()
    for room in rooms:
        for file in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "rule":
                    texts = (
                        part for part in ast.walk(node.value) if isinstance(part, ast.Constant)
                    )
                    found |= {text.value for text in texts if "-" in str(text.value)}
    return found


def test_unknown_rule_gets_the_nearest_names(run):
    result = run("explain", "schema-opn")
    assert result.exit_code == 2
    assert "schema-open" in result.stderr


def test_explain_alone_lists_rules_and_codes(run):
    text = run("explain").stdout
    assert "schema-open" in text
    assert "IDEMPOTENCY_CONFLICT" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("subject", "title", "section"),
    [
        ("contract", "ContractFile", "effect"),
        ("envelope", "ToolContract", "idempotency"),
        ("observation", "ObservationObject", "verification"),
    ],
)
def test_schema_is_json_schema(run, subject, title, section):
    schema = json.loads(run("schema", subject).stdout)
    assert schema["title"] == title
    assert section in schema["properties"]
    assert run("schema", subject, "--json").stdout == run("schema", subject).stdout


# Text from elsewhere -----------------------------------------------------------------------------


def test_text_from_elsewhere_cannot_command_the_terminal():
    assert safe("a\x1b[31mb\x07\u202ec\nd") == "a\\x1b[31mb\\x07\\u202ec\nd"


def test_json_keeps_its_meaning_when_invisible_characters_are_spelt_out(capsys):
    value = {"text": "ü \x1b \u202e \U000e0041 \x9b"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "ü" in printed
    assert "\u202e" not in printed
    assert "\x9b" not in printed
