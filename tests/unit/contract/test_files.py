"""Contract files: what they hold, and what broken ones say."""

import json

import pytest

from counterseal import ContractError, load_contracts
from counterseal.contract.files import read_contracts
from counterseal.documents import MAX_BYTES

GOOD = """\
effect: retrieve
identity: {name: search_policy, version: 1.0.0, owner: policy-team}
affordance:
  model_description: Search the policy library.
  input_schema:
    type: object
    properties:
      words: {type: string, maxLength: 200, description: What to look for.}
    required: [words]
    additionalProperties: false
  output_schema:
    type: object
    properties: {hits: {type: array, items: {type: string}}}
    required: [hits]
    additionalProperties: false
usage: When a rule must be cited.
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="contract.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def problem_of(path):
    with pytest.raises(ContractError) as caught:
        load_contracts(path)
    return caught.value.problems[0]


def test_a_good_file_gives_its_contract_without_a_problem(write):
    (loaded,) = read_contracts(write(GOOD))
    assert loaded.problems == ()
    assert loaded.contract.name == "search_policy"


def test_a_file_may_hold_several_contracts(write):
    one = json.loads(json.dumps(read_contracts(write(GOOD))[0].contract.record()))
    two = {**one, "identity": {**one["identity"], "name": "search_law"}}
    path = write(json.dumps([one, two]), "both.json")
    assert [contract.name for contract in load_contracts(path)] == ["search_policy", "search_law"]


def test_a_problem_carries_file_line_and_column(write):
    path = write(GOOD.replace("maxLength: 200, description: What to look for.", "maxLength: 200"))
    (problem,) = read_contracts(path)[0].problems
    assert (problem.rule, str(problem.source)) == ("parameter-undescribed", f"{path}:8:7")


def test_a_problem_of_a_missing_field_points_at_what_surrounds_it(write):
    path = write(GOOD.replace(", owner: policy-team", ""))
    (problem,) = read_contracts(path)[0].problems
    assert (problem.rule, problem.source.line) == ("owner-unassigned", 2)


def test_a_problem_in_json_carries_its_place_even_behind_tabs(write):
    record = read_contracts(write(GOOD))[0].contract.record()
    record["effect"] = "zap"
    text = json.dumps(record, indent="\t")
    path = write(text, "contract.json")
    problem = problem_of(path)
    line = text.splitlines()[problem.source.line - 1]
    assert line[problem.source.column - 1 :].startswith('"effect"')


def test_the_problems_of_all_files_are_reported_at_once(write):
    first = write(GOOD.replace("retrieve", "zap"), "a.yaml")
    second = write("effect: [", "b.yaml")
    with pytest.raises(ContractError) as caught:
        load_contracts(first, second)
    assert {problem.source.file for problem in caught.value.problems} == {str(first), str(second)}


def test_dates_and_versions_stay_what_they_look_like(write):
    text = GOOD.replace(
        "version: 1.0.0", "version: 1.0.0, lifecycle: {status: deprecated, sunset_date: 2027-01-31}"
    )
    (loaded,) = read_contracts(write(text))
    assert loaded.contract.identity.lifecycle.sunset_date.isoformat() == "2027-01-31"


def test_a_number_where_a_version_belongs_is_named(write):
    problem = problem_of(write(GOOD.replace("version: 1.0.0", "version: 1.0")))
    assert problem.pointer == "/identity/version"
    assert "valid string" in problem.message


DEEP = "[" * 1000 + "]" * 1000
BROKEN = {
    "broken YAML": ("effect: [read_only\n", "contract.yaml", "not YAML", 2),
    "a tab as indentation": ("identity:\n\tname: x\n", "contract.yaml", "not YAML", 2),
    "broken JSON": ('{\n  "effect": "draft"\n  "x": 1}', "contract.json", "not JSON", 3),
    "duplicate keys": (GOOD + "effect: draft\n", "contract.yaml", "twice", 17),
    "duplicate keys in JSON": ('{\n"a": 1,\n"a": 2}', "contract.json", "twice", 3),
    "a deep document": (f"effect: draft\nx: {DEEP}", "contract.yaml", "deeper than 64", 2),
    "a deep JSON document": (f'{{\n"x": {DEEP}}}', "contract.json", "deeper than 64", 2),
    "bytes that are no text": (b"effect: draft\nusage: \xff", "contract.yaml", "not UTF-8", 2),
    "an alias": ("effect: &e draft\nx: *e\n", "contract.yaml", "aliases", 1),
    "a tag that names code": ("effect: !!python/name:os.system x", "contract.yaml", "tag", 1),
    "a number beyond reason": (
        "effect: draft\nbudget: " + "9" * 5000,
        "contract.yaml",
        "digits",
        2,
    ),
    "a number beyond reason in JSON": ('{"budget": ' + "9" * 5000 + "}", "c.json", "digits", 1),
    "an empty file": ("", "contract.yaml", "not empty", 1),
    "a list of words": ("- a\n- b\n", "contract.yaml", "a mapping, not a text", 1),
    "a file of another kind": ("x", "contract.txt", "suffix", 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_its_place(case, write):
    text, name, says, line = BROKEN[case]
    problem = problem_of(write(text, name))
    assert says in problem.message.replace("not a mapping", "")
    assert problem.source.line == line


def test_a_ten_megabyte_file_is_refused_unread(write):
    problem = problem_of(write(b"x: " + b"a" * 10_000_000))
    assert f"the limit is {MAX_BYTES:,}" in problem.message


def test_a_missing_file_is_named(tmp_path):
    problem = problem_of(tmp_path / "nowhere.yaml")
    assert "can't be opened" in problem.message


def test_a_deep_schema_inside_a_file_is_refused_with_its_place(write):
    schema = '{"type": "string"}'
    for _ in range(1000):
        schema = f'{{"type": "object", "properties": {{"a": {schema}}}}}'
    path = write(f'{{"affordance": {{"input_schema":\n{schema}}}}}', "contract.json")
    problem = problem_of(path)
    assert "deeper than 64" in problem.message
    assert problem.source.line == 2


@pytest.mark.parametrize("name", ["../evil", "a/b", "a b", "bell\\x07", "x\\n"])
def test_a_name_with_a_path_or_control_characters_is_refused(name, write):
    problem = problem_of(write(GOOD.replace("name: search_policy", f'name: "{name}"')))
    assert (problem.rule, problem.source.line) == ("name-invalid", 2)
    assert "\x07" not in str(problem)


def test_a_file_cannot_name_code(write):
    text = GOOD + "invariants:\n- {id: A, rule: r, check: {python: 'os:system'}}\n"
    with pytest.raises(ContractError) as caught:
        load_contracts(write(text))
    assert {problem.source.line for problem in caught.value.problems} == {18}


def test_json_that_yaml_cannot_read_is_read_all_the_same(write):
    record = read_contracts(write(GOOD))[0].contract.record()
    record["usage"] = "Use \x7f it"
    text = json.dumps(record, ensure_ascii=False)
    (loaded,) = read_contracts(write(text, "contract.json"))
    assert loaded.contract.usage == "Use \x7f it"
