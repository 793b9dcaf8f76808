"""`counterseal show`: the card, the other forms, and finding the right contract."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

import counterseal.cli

CARD = Path(__file__).with_name("card_80.txt")


@pytest.fixture(autouse=True)
def project(write):
    """A project whose contracts are all files of its folder."""
    write("counterseal.toml", '[tools]\npaths = ["."]\n')


FULL = """\
identity:
  name: close_case
  version: 2.1.0
  owner: case-team
  lifecycle: {status: deprecated, sunset_date: 2031-01-31, replacement: end_case}
effect: internal_mutation
usage: Call it when everything about a case is done and its file can be put away for good.
consequence: Case {case_id} is closed.
affordance:
  model_description: Close one case. Does not delete it.
  allowed_use_cases: [closing a case that is done]
  forbidden_use_cases: [deleting a case, reopening one]
  input_schema:
    type: object
    additionalProperties: false
    required: [case_id, outcome]
    properties:
      case_id: {type: string, pattern: "^case_[0-9]{4}$", description: The case to close.}
      outcome: {enum: [settled, withdrawn], description: How it ended.}
      score:
        {type: [integer, "null"], minimum: 0, maximum: 10, default: null, description: A grade.}
      tags: {type: array, maxItems: 5, items: {type: string, maxLength: 20}, description: Labels.}
      letter: {$ref: "#/$defs/Letter", description: What is sent along.}
    $defs:
      Letter:
        type: object
        additionalProperties: false
        required: [text]
        properties:
          text: {type: string, maxLength: 500, description: Its text.}
          copies:
            type: array
            maxItems: 3
            items:
              type: object
              additionalProperties: false
              properties: {to: {type: string, format: email, description: Who gets a copy.}}
            description: Who else.
  output_schema:
    type: object
    additionalProperties: false
    required: [version]
    properties: {version: {type: integer, description: Of the case afterwards.}}
  examples:
    - description: A settled case
      arguments: {case_id: case_0001, outcome: settled}
runtime: {timeout_ms: 5000, cost_profile: {cost_per_call: 0.02}}
cost: {day: {USD: 5}}
security: {required_scopes: [case:close, case:read], data_classification: confidential}
transactional: {compensation_tool: reopen_case}
observability: {error_taxonomy_mapping: {locked: STALE_STATE}}
secrets: [archive_token]
config_params: [{key: region, default: eu}]
state_reads: [{key: open_cases}]
state_effects: [{key: closed_cases, type_hint: array, merge: append}]
resource: "case:{case_id}"
version_from: /version
probe: get_case
read_back: get_case
expected: {status: closed, outcome: "{outcome}", version: "{output.version}"}
verify_after: 120
compensation: {case_id: "{case_id}", reason: "closed with {outcome}"}
business_key: [case_id]
invariants:
  - {id: outcome-known, rule: The outcome is one that the case allows., check: "true"}
  - id: no-empty-tags
    rule: Tags are left out when there are none.
    check: "true"
    correct: drop_step
"""


def test_settings_of_every_template_fit_the_schema_that_is_printed_for_them(run):
    fits = jsonschema_rs.validator_for(json.loads(run("schema", "settings").stdout)).is_valid
    templates = Path(counterseal.cli.__file__).with_name("templates")
    files = list(templates.glob("*/counterseal.toml"))
    assert files
    for file in files:
        assert fits(tomllib.loads(file.read_text())), file
    assert not fits({"tools": {"path": ["tools.py"]}})
    assert not fits({"grants": [{"agent": "a"}]})


def test_contract_files_fit_the_schema_that_is_printed_for_them(run, write, good):
    printed = json.loads(run("schema", "contract").stdout)
    fits = jsonschema_rs.validator_for(printed).is_valid
    read = YAML(typ="safe").load
    documented = Path(__file__).parents[3] / "docs" / "contracts.md"
    on_page = re.findall(r'```yaml title="\w+.yaml"\n(.*?)```', documented.read_text(), re.DOTALL)
    assert on_page
    for text in (good, FULL.replace("2031-01-31", "'2031-01-31'"), *on_page):
        assert fits(read(text))
    named = "config_params: [{key: a, normalizer: lower}]\n"
    assert fits(read(good + named))
    write("a.yaml", good + named)
    whole = json.loads(run("show", "find_order", "--as", "record").stdout)
    assert fits(whole), "a contract that spells everything out"
    assert fits(json.loads(run("show", "find_order", "--as", "envelope").stdout))
    for wrong in ("effect: reads", "side_effect_class: READ_ONLY", "runtime: {timeout_ms: soon}"):
        assert not fits(read(f"{good.replace('effect: read_only', wrong)}\n"))


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        (
            "side_effect_class: READ_ONLY",
            "`transactional: {side_effect_class: …}`. In @tool it is `risk`.",
        ),
        ("risk: READ_ONLY", "`transactional: {side_effect_class: …}`. In @tool it is `risk`."),
        ("scopes: [a]", "`security: {required_scopes: …}`. In @tool it is `scopes`."),
        ("audit_required: true", "`observability: {audit_required: …}`."),
        ("security: {usage: x}", "Write `usage:` beside the sections"),
    ],
)
def test_field_at_the_wrong_place_is_refused_with_its_place(run, write, good, written, fix):
    write("a.yaml", f"{good}{written}\n")
    result = run("lint", "a.yaml")
    assert result.exit_code == 1
    assert fix in result.stdout


def test_wrong_keyword_of_the_decorator_is_refused_with_the_right_one(run, write):
    options = "effect='read_only', side_effect_class='MEDIUM_RISK_WRITE'"
    write("a.py", f"from counterseal import tool\n@tool({options})\ndef f(): ...\n")
    result = run("lint", "a.py")
    assert result.exit_code == 1
    assert "In @tool it is `risk`." in result.stdout


def test_card_at_80_columns_says_everything_that_a_contract_holds(run, write):
    write("close_case.yaml", FULL)
    result = run("show", "close_case")
    assert result.exit_code == 0
    shown = re.sub(r"sha256:[0-9a-f]{64}", "sha256:…", result.stdout)
    assert shown == CARD.read_text(encoding="utf-8")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_card_stays_readable_when_it_is_narrow(run, write, monkeypatch):
    write("close_case.yaml", FULL)
    monkeypatch.setenv("COLUMNS", "50")
    lines = run("show", "close_case").stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 50


def test_record_envelope_and_json_are_the_contracts_own(run, write):
    from counterseal.contract.files import read_contracts

    write("close_case.yaml", FULL)
    contract = read_contracts("close_case.yaml")[0].contract
    assert json.loads(run("show", "close_case", "--as", "record").stdout) == contract.record()
    assert json.loads(run("show", "close_case", "--as", "envelope").stdout) == contract.envelope()
    whole = json.loads(run("show", "close_case", "--json").stdout)
    assert whole["record"] == contract.record()
    assert whole["hash"] == contract.hash
    assert whole["versions"] == ["2.1.0"]
    assert {problem["rule"] for problem in whole["problems"]} == {
        "compensation-unknown",
        "hook-unknown",
    }


@pytest.mark.parametrize("form", ["mcp", "openai", "openai-responses", "anthropic"])
def test_providers_form_goes_to_stdout_and_its_warnings_to_stderr(run, write, form):
    from counterseal.contract.files import read_contracts
    from counterseal.contract.formats import FORMATS

    write("close_case.yaml", FULL)
    view = FORMATS[form](read_contracts("close_case.yaml")[0].contract)
    result = run("show", "close_case", "--as", form)
    assert json.loads(result.stdout) == view.tool
    assert result.stderr == "".join(f"Warning: {warning}\n" for warning in view.warnings)


def test_newest_version_is_shown_unless_another_is_named(run, write, good):
    write("a.yaml", good.replace("1.0.0", "1.9.0"))
    write("b.yaml", good.replace("1.0.0", "1.10.0"))
    newest = run("show", "find_order").stdout
    assert newest.startswith("find_order 1.10.0\n")
    assert re.search(r"Other versions +1\.9\.0\n", newest)
    assert run("show", "find_order", "--version", "1.9.0").stdout.startswith("find_order 1.9.0\n")
    missing = run("show", "find_order", "--version", "2.0.0")
    assert missing.exit_code == 2
    assert "Known versions: 1.10.0, 1.9.0." in missing.stderr


def test_unknown_tool_exits_2_with_the_nearest_names(run, write):
    write("a.yaml")
    result = run("show", "find_ordre")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: There is no tool 'find_ordre'.\nDid you mean find_order?\n"


def test_unknown_tool_mentions_files_that_could_not_be_read(run, write):
    write("a.yaml")
    write("b.yaml", "identity: [\n")
    assert "Can't read b.yaml" in run("show", "other").stderr


def test_contract_that_makes_none_exits_1_with_its_problems(run, write, good):
    write("a.yaml", good.replace("effect: read_only", "effect: nonsense"))
    result = run("show", "find_order")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a.yaml:2:1" in result.stderr


def test_problems_are_mentioned_beside_the_card(run, write, good):
    write("a.yaml", good.replace("owner: shop", "owner: unassigned"))
    result = run("show", "find_order")
    assert result.exit_code == 0
    assert "1 problem: `counterseal lint a.yaml`" in result.stderr


def test_without_a_name_all_tools_are_listed(run, write, good):
    write("a.yaml")
    write("sub/b.yaml", good.replace("find_order", "find_customer"))
    result = run("show")
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "Tool",
        "find_order",
        "find_customer",
    ]
    assert [row["file"] for row in json.loads(run("show", "--json").stdout)["tools"]] == [
        "a.yaml",
        str(Path("sub", "b.yaml")),
    ]


def test_tools_are_looked_for_where_from_says(run, write, good):
    write("one/a.yaml")
    write("two/b.yaml", good.replace("find_order", "find_customer"))
    assert run("show", "find_order", "--from", "one").exit_code == 0
    assert run("show", "find_order", "--from", "two").exit_code == 2
    assert run("show", "find_order", "--from", "one", "--from", "two").exit_code == 0


def test_text_of_a_contract_cannot_command_the_terminal(run, write, good):
    write("a.yaml", good.replace("Find one order.", '"Find \\e[2J\\u202e order."'))
    result = run("show", "find_order")
    assert "Find \\x1b[2J\\u202e order." in result.stdout


def test_python_tool_is_shown_with_the_hash_that_its_program_has(run, write):
    import importlib.util

    code = """\
from typing import Annotated
from pydantic import Field
from counterseal import Invariant, tool

def positive(call, state, config):
    return call["amount"] > 0

@tool(effect="compute", invariants=[Invariant(id="positive", rule="Positive.", check=positive)])
def double(amount: Annotated[int, Field(description="A number.")]) -> int:
    \"\"\"Double a number.\"\"\"
    return amount * 2
"""
    file = write("doubling.py", code)
    spec = importlib.util.spec_from_file_location("doubling", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = json.loads(run("show", "double", "--json").stdout)
    assert shown["hash"] == module.double.contract.hash
    assert (shown["file"], shown["line"]) == ("doubling.py", 9)


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ("{}", "operator review; open for 10 minutes; then executed"),
        (
            "{pattern: user_consent}",
            "user consent; open for 10 minutes; then the agent sends it again",
        ),
        (
            "{pattern: compliance_gate, roles: [dpo, ciso], accountable_owner: ciso}",
            "compliance gate; by dpo or ciso; open for 1 day; then executed; approvers say why;",
        ),
        (
            "{jurisdiction: EU, expires_seconds: 7200}",
            "operator review; open for 2 hours; then executed; jurisdiction EU",
        ),
    ],
)
def test_card_says_how_calls_are_approved(run, write, good, terms, told):
    sending = good.replace("effect: read_only", f"effect: draft\napproval: {terms}")
    write("sends.yaml", sending)
    shown = " ".join(run("show", "find_order").stdout.split())
    assert f"Approved how {told} " in shown


def test_card_of_a_tool_without_approval_has_no_approval_terms(run, write, good):
    write("reads.yaml", good)
    assert "Approved how" not in run("show", "find_order").stdout
