"""`counterseal lint`: what it prints in each format, and how it ends."""

import json

import pytest

BAD = """\
identity: {name: send_note, version: 1.0.0, owner: shop}
effect: external_notification
usage: Call it to send.
consequence: A note goes to {who}.
affordance:
  model_description: Send a note.
  input_schema:
    type: object
    additionalProperties: false
    properties:
      to: {type: string, maxLength: 99}
      note: {type: string, description: The note.}
  output_schema: {type: object, additionalProperties: false}
"""

EXPECTED = """\
bad.yaml:1:1  warning  verification-blind  nothing verifies calls: no probe, no read_back (probe)
    Declare a probe and the `expected` state, or a read_back.
bad.yaml:4:1  error  template-field-unknown  {who} is not an argument of send_note (consequence)
    Use one of: note, to.
bad.yaml:11:7  warning  parameter-undescribed  to has no description
    Say what it is and where its value comes from.
bad.yaml:12:7  warning  input-unbounded  the text can have any length (input_schema/properties/note)
    Give it a "maxLength", an "enum" or a bounded "pattern".

2 contracts, 1 error, 3 warnings
"""


def test_clean_contract_is_said_to_be_clean(run, write):
    write("good.yaml")
    result = run("lint", ".")
    assert (result.exit_code, result.stdout) == (0, "1 contract, no problems\n")


def test_problems_carry_place_severity_rule_message_and_fix(run, write):
    write("bad.yaml", BAD)
    write("good.yaml")
    result = run("lint", ".")
    assert (result.exit_code, result.stdout, result.stderr) == (1, EXPECTED, "")


def test_files_are_set_apart(run, write, good):
    write("a.yaml", good.replace("owner: shop", "owner: unassigned"))
    write(
        "b.yaml", good.replace("find_order", "find_b").replace("owner: shop", "owner: unassigned")
    )
    lines = run("lint", ".").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == [
        "a.yaml",
        "",
        "b.yaml",
        "",
        "2 contracts, 2 warnings",
    ]


def test_warnings_fail_only_when_strict(run, write, good):
    write("a.yaml", good.replace("owner: shop", "owner: unassigned"))
    assert run("lint", ".").exit_code == 0
    assert run("lint", ".", "--strict").exit_code == 1


def test_json_holds_every_problem_and_the_summary(run, write):
    from counterseal.contract.files import read_contracts

    write("bad.yaml", BAD)
    result = run("lint", ".", "--json")
    printed = json.loads(result.stdout)
    records = [problem.record() for item in read_contracts("bad.yaml") for problem in item.problems]
    by_line = sorted(records, key=lambda record: record["line"])
    assert printed == {
        "problems": by_line,
        "summary": {"contracts": 1, "errors": 1, "warnings": 3},
    }
    assert result.exit_code == 1
    assert run("lint", ".", "--format", "json").stdout == result.stdout


def test_github_gets_workflow_commands(run, write):
    write("bad.yaml", BAD)
    result = run("lint", ".", "--format", "github")
    assert result.exit_code == 1
    _, _, undescribed, unbounded = result.stdout.splitlines()
    assert undescribed == (
        "::warning file=bad.yaml,line=11,col=7,title=parameter-undescribed::to has no description"
        "%0ASay what it is and where its value comes from."
    )
    assert unbounded == (
        "::warning file=bad.yaml,line=12,col=7,title=input-unbounded::the text can have any length"
        '%0AGive it a "maxLength", an "enum" or a bounded "pattern".'
    )


def test_github_escapes_what_would_end_a_property_or_a_message(run, write, good):
    write("50%, a:b.yaml", good.replace("effect: read_only", '"100%\\r\\nx,y:z": 1'))
    lines = run("lint", ".", "--format", "github").stdout.splitlines()
    unknown = next(line for line in lines if "field-unknown" in line)
    assert unknown.startswith("::error file=50%25%2C a%3Ab.yaml,line=2,col=1,title=field-unknown::")
    assert "100%25%0D%0Ax,y:z is not a field" in unknown


def test_contradicting_formats_are_refused(run, write):
    write("good.yaml")
    result = run("lint", ".", "--json", "--format", "github")
    assert result.exit_code == 2
    assert "contradict" in result.stderr


def test_rules_are_listed_with_severity_and_summary(run):
    from counterseal.contract.lint import RULES

    listed = {
        rule["id"]: rule for rule in json.loads(run("lint", "--rules", "--json").stdout)["rules"]
    }
    for rule in RULES.values():
        shown = {"id": rule.id, "severity": rule.severity.value, "summary": rule.summary}
        assert listed[rule.id] == shown
    text = run("lint", "--rules").stdout
    assert all(rule in text for rule in RULES)


def test_person_at_a_terminal_gets_wrapped_lines_and_colours(write, monkeypatch, folder):
    from rich.console import Console

    from counterseal.cli import lint as command
    from counterseal.config import discover

    monkeypatch.delenv("NO_COLOR")
    write("bad.yaml", BAD)
    problems = discover([folder / "bad.yaml"], strict=True)[0].problems
    problem = next(one for one in problems if one.rule == "parameter-undescribed")
    terminal = Console(force_terminal=True, width=60, color_system="standard", highlight=False)
    with terminal.capture() as captured:
        for line in command._lines(problem, terminal.width):
            terminal.print(line, soft_wrap=True)
    printed = captured.get()
    assert "\x1b[31merror\x1b[0m" in printed
    assert "\n    to has no description" in printed
    assert "\x1b[2m    Say what it is" in printed


# Which contracts ---------------------------------------------------------------------------------


def test_paths_come_from_the_configuration_even_below_its_folder(run, write, folder, monkeypatch):
    write("counterseal.toml", '[tools]\npaths = ["contracts"]\n')
    write("contracts/good.yaml")
    write("elsewhere/bad.yaml", BAD)
    monkeypatch.chdir(folder / "elsewhere")
    assert run("lint").stdout == "1 contract, no problems\n"


def test_given_paths_win_but_may_refer_to_the_rest_of_the_project(run, write, good):
    write("counterseal.toml", '[tools]\npaths = ["contracts"]\n')
    write("contracts/good.yaml")
    asking = good.replace("find_order", "find_total") + "probe: find_order\n"
    write("contracts/asking.yaml", asking)
    assert run("lint", "contracts/asking.yaml").stdout == "1 contract, no problems\n"


def test_path_that_is_not_there_exits_2(run):
    result = run("lint", "nothing.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: There is no file or folder nothing.yaml.\n"


def test_folder_without_contracts_exits_2_and_says_what_to_do(run, write):
    write("package.json", '{"name": "web", "dependencies": {"effect": "3"}}')
    result = run("lint", ".")
    assert result.exit_code == 2
    assert "No contracts found in ." in result.stderr
    assert "Python files with tools" in result.stderr


RUNS = """\
from pathlib import Path
from counterseal import tool
Path("was_run").touch()
"""


@pytest.mark.parametrize("command", [["lint"], ["show"], ["show", "find_order"]])
def test_without_configuration_and_path_it_stops_and_no_file_is_run(run, write, folder, command):
    write("tools.py", RUNS)
    write("below/more.py", RUNS)
    result = run(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No PATH is given, and there is no counterseal.toml" in result.stderr
    assert "imported, that is executed" in " ".join(result.stderr.split())
    assert not (folder / "was_run").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["lint"],
        ["show"],
        ["call", "find_order", "--as", "bot"],
        ["registry", "list"],
        ["reconcile"],
        ["lint", "good.yaml"],
    ],
)
@pytest.mark.parametrize("tools", ["", '[tools]\npaths = ["good.yaml"]\n'])
def test_file_that_the_configuration_does_not_name_is_not_run(run, write, folder, tools, command):
    more = '[store]\nurl = "sqlite:///a.db"\n[agents.bot]\ntenant = "acme"\n'
    write("counterseal.toml", tools + more)
    write("good.yaml")
    write("tools.py", RUNS)
    run(*command)
    assert not (folder / "was_run").exists()
    write("counterseal.toml", '[tools]\npaths = ["."]\n')
    run("lint")
    assert (folder / "was_run").exists(), "a named folder names what is in it"


def test_project_without_contracts_says_where_to_name_them(run, write):
    write("counterseal.toml", "")
    write("good.yaml")
    result = run("lint")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'Write [tools] paths = ["tools.py"]' in result.stderr


# Tools of upstreams -------------------------------------------------------------------------------


@pytest.fixture
def upstream(run, write, server):
    """A project that has nothing but an upstream."""
    command = json.dumps(server(server.tool("read_file", "Read a file.")))
    write("counterseal.toml", f'[upstreams.files]\ncommand = {command}\nunlisted = "gated"\n')


def test_gateway_project_with_nothing_accepted_says_what_to_do(run, upstream):
    for command in ("lint", "show"):
        result = run(command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "No tool of files is accepted yet." in result.stderr
        assert "counterseal diff --accept" in result.stderr


def test_accepted_tools_of_upstreams_are_checked_and_shown(run, write, upstream):
    assert run("diff", "--accept", "--yes").exit_code == 0
    (write("tools.json", "[]")).unlink()  # the upstream is not asked again
    result = run("lint")
    assert (result.exit_code, result.stdout) == (0, "1 contract, no problems\n")
    listed = json.loads(run("show", "--json").stdout)["tools"]
    assert [row["name"] for row in listed] == ["read_file"]
    assert "Declared in      counterseal.lock:1" in run("show", "read_file").stdout
    write("overlays/files.yaml", "server: files\ntools:\n  read_file: {effect: read_only, no: 1}\n")
    result = run("lint")
    assert result.exit_code == 1
    assert result.stdout.startswith("overlays/files.yaml:3:")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["lint", "show"])
def test_help_says_that_named_files_are_executed(run, command):
    assert "imported, that is executed" in " ".join(run(command, "--help").stdout.split())


def test_broken_configuration_exits_2_with_its_place(run, write):
    write("counterseal.toml", "[tools]\npaths = [\n")
    result = run("lint")
    assert result.exit_code == 2
    assert "counterseal.toml:" in result.stderr
    assert "invalid TOML" in result.stderr


# What can't be read ------------------------------------------------------------------------------

TOOL = "from counterseal import tool\n"
NAMED = """\
identity: {{name: "{}", version: 1.0.0, owner: me}}
effect: read_only
usage: x
affordance: {{model_description: d, input_schema: {{type: object, additionalProperties: false}}}}
"""
DEEP = '{"identity": {"name": "x"}, "affordance": ' + '{"a": ' * 1000 + "{}" + "}" * 1001
CYCLIC = """\
identity: {name: cyclic, version: 1.0.0, owner: me}
effect: read_only
usage: x
affordance:
  model_description: d
  input_schema:
    type: object
    additionalProperties: false
    properties:
      a: {$ref: "#/$defs/a", description: d}
    $defs:
      a: {$ref: "#/$defs/b"}
      b: {$ref: "#/$defs/a"}
"""


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ("identity:\n  name: [x\neffect: y\n", "a.yaml:3:7", "not YAML"),
        ('{"identity": {"name": }}', "a.json:1:23", "not JSON"),
        ("identity: x\n# " + "x" * 10_000_000, "a.yaml:1:1", "the limit is"),
        (DEEP, "a.json:1:", "nested deeper than 64 levels"),
        (CYCLIC, "a.yaml:12:7", "schema-ref-cycle"),
        ("identity:\n  name: a\n  name: b\n", "a.yaml:3:3", "twice"),
        (b"identity:\n  name: caf\xe9\n", "a.yaml:2:12", "byte 0xe9 is not UTF-8"),
        (NAMED.format("../../etc/passwd"), "a.yaml:1:12", "name-invalid"),
        (NAMED.format("a\\e[31m\\u0007"), "a.yaml:1:12", "'a\\x1b[31m\\x07'"),
        ("- identity\n- 3\n", "a.yaml:1:3", "a contract is a mapping"),
        (TOOL + "def x(:\n", "a.py:2:7", "invalid Python"),
        (
            TOOL + "\ndef f():\n    raise ValueError('no')\nf()\n",
            "a.py:4:5",
            "ValueError: no",
        ),
        (TOOL + "import nothing_like_this\n", "a.py:2:1", "No module named"),
        (TOOL + "import sys\nsys.exit(3)\n", "a.py:3:1", "exits when it is imported"),
        (b"x = 'caf\xe9'\n", "a.py:1:", "invalid Python"),
        (
            TOOL + "@tool(effect='draft')\ndef f(*rest): ...\n",
            "a.py:3:8",
            "parameter-variadic",
        ),
        (TOOL + "@tool(effect='x')\ndef f(): ...\n", "a.py:3:1", "field-invalid"),
        ("identity: x", "a.txt:1:1", "suffix is .txt"),
    ],
)
def test_what_cannot_be_read_gives_a_line_with_its_place(run, write, content, place, words):
    name = place.partition(":")[0]
    write(name, content)
    result = run("lint", name)
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if words in line)
    assert line.startswith(place)
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output


def test_unreadable_file_does_not_hide_the_others(run, write):
    write("a.yaml", "identity: [\n")
    write("b.py", TOOL + "1 / 0\n")
    write("good.yaml")
    result = run("lint", ".")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stdout
    assert result.stdout.endswith("1 contract, 2 errors\n")


def test_what_a_module_prints_stays_out_of_the_results(run, write):
    write("tools.py", TOOL + "print('hello')\n")
    write("good.yaml")
    result = run("lint", ".", "--json")
    assert json.loads(result.stdout)["summary"]["contracts"] == 1
    assert "hello" in result.stderr


def test_a_call_of_an_upstreams_tool_is_sent_to_the_gateway(run, write, folder, upstream):
    write(
        "counterseal.toml",
        (folder / "counterseal.toml").read_text() + '[agents.planner]\ntenant = "acme"\n',
    )
    assert run("diff", "--accept", "--yes").exit_code == 0
    result = run("call", "read_file", "{}", "--as", "planner")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "read_file is a tool of the upstream files, which only the gateway" in result.stderr
    assert "counterseal serve" in result.stderr
