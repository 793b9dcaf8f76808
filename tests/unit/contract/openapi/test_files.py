"""Documents are read from files that may be odd, and contracts written for people to review."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from counterseal.contract.files import read_contracts
from counterseal.contract.lint import examine
from counterseal.contract.model import Contract
from counterseal.contract.sources.openapi import (
    ImportedTool,
    Review,
    contracts_from_openapi,
    read_openapi,
    to_yaml,
)
from counterseal.contract.sources.openapi import document as reading
from counterseal.documents import read_document
from counterseal.errors import ContractError, Severity

from .conftest import body, document

# --- reading --------------------------------------------------------------------------------------


def test_json_and_yaml_give_the_same_document(tmp_path):
    made = document()
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps(made), encoding="utf-8")
    (tmp_path / "b.txt").write_text(json.dumps(made), encoding="utf-8")
    with (tmp_path / "c.yaml").open("w", encoding="utf-8") as stream:
        YAML().dump(made, stream)
    assert all(read_openapi(tmp_path / name) == made for name in ("a.json", "b.txt", "c.yaml"))


def test_what_only_yaml_can_hold_becomes_text(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: {200: 2020-01-02, 1.5: 2020-01-02T03:04:05Z, true: ~}\n")
    assert read_openapi(file) == {
        "a": {"200": "2020-01-02", "1.5": "2020-01-02T03:04:05+00:00", "True": None}
    }


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a]", "too many values"),
        (BOMB, "too many values"),
        ("- 1", "the document must be a mapping"),
        ("a: [", "not valid YAML"),
        ("a: 1\na: 2", "not valid YAML"),
        ('{"a": 1, "a": 2}', "duplicate key"),
        ("{", "can't be read"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML"),
    ],
)
def test_a_file_that_makes_no_document_is_refused(tmp_path, monkeypatch, text, says):
    monkeypatch.setattr(reading, "_MOST_VALUES", 10_000)
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(ContractError, match=says):
        read_openapi(file)


def test_a_file_that_is_too_long_missing_or_no_text_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    with pytest.raises(ContractError, match="No such file"):
        read_openapi(file)
    file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ContractError, match="utf-8"):
        read_openapi(file)
    monkeypatch.setattr(reading, "MAX_BYTES", 3)
    with pytest.raises(ContractError, match="longer than 3 bytes"):
        read_openapi(file)


# --- writing --------------------------------------------------------------------------------------


def written(tmp_path, tool):
    file = tmp_path / "tool.yaml"
    file.write_text(to_yaml(tool, source="shop.json"), encoding="utf-8")
    return file


def test_a_written_file_is_the_contract_that_was_imported(tmp_path):
    shared = {"type": "string", "maxLength": 3, "description": "Shared: on, yes, ~, #5."}
    schema = {"type": "object", "properties": {"a": shared, "b": shared, "on": {"type": "string"}}}
    made = document(method="post", operation={"requestBody": body(schema)})
    (tool,) = contracts_from_openapi(made).tools
    (loaded,) = read_contracts(written(tmp_path, tool))
    assert loaded.contract.hash == Contract.model_validate(tool.data).hash


def test_what_to_review_stands_above_what_was_guessed(tmp_path):
    made = document(
        operation={"parameters": [{"name": "q", "in": "query"}], "callbacks": {"c": {}}}
    )
    (tool,) = contracts_from_openapi(made).tools
    lines = written(tmp_path, tool).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Imported from shop.json: GET /things"
    assert any(line.startswith("# review: the callback c") for line in lines[:4])
    for guessed in ("effect: retrieve", "  owner: unassigned", "      q:", "usage: "):
        index = next(i for i, line in enumerate(lines) if line.startswith(guessed))
        indent = len(guessed) - len(guessed.lstrip())
        assert lines[index - 1].startswith(f"{' ' * indent}# review: ")
    assert max(map(len, lines)) <= 110


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.lists(st.text(max_size=200)))
@example(["?0", "? -", ": 0"], [])
def test_any_data_and_any_words_survive_being_written(tmp_path_factory, value, texts):
    data = {"a": value, "b": [value, {"c": value}]}
    places = ["", "/a", "/b", "/b/1/c", "/nowhere"]
    reviews = tuple(Review(place, text) for place in places for text in texts)
    tool = ImportedTool(name="t", method="GET", path="/x\n# y", data=data, reviews=reviews)
    file = written(tmp_path_factory.mktemp("written"), tool)
    assert read_document(file).data == data


# --- whatever comes -------------------------------------------------------------------------------

BASE = document(
    method="post",
    path="/things/{id}",
    operation={
        "parameters": [{"name": "id", "in": "path", "schema": {"type": "string"}}],
        "requestBody": body({"allOf": [{"$ref": "#/components/schemas/A"}, {"nullable": True}]}),
        "responses": {"200": {"content": {"application/json": {"schema": {}}}}},
        "security": [{"key": []}],
    },
    components={
        "schemas": {
            "A": {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}}
        },
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
    },
)
PLACES = [
    ("paths", "/things/{id}", "post", "parameters", 0),
    ("paths", "/things/{id}", "post", "parameters", 0, "schema"),
    ("paths", "/things/{id}", "post", "requestBody"),
    ("paths", "/things/{id}", "post", "requestBody", "content", "application/json", "schema"),
    ("paths", "/things/{id}", "post", "responses"),
    ("paths", "/things/{id}", "post", "security"),
    ("paths", "/things/{id}", "post", "operationId"),
    ("paths", "/things/{id}", "post"),
    ("paths", "/things/{id}"),
    ("paths",),
    ("components", "schemas", "A"),
    ("components", "schemas", "A", "properties", "a"),
    ("components", "securitySchemes", "key"),
    ("components",),
    ("servers",),
    ("info",),
]
WORDS = """type $ref properties items allOf anyOf oneOf required enum default nullable name in
    schema content application/json url additionalProperties pattern maxLength password get 200
    style"""
TEXTS = ["object", "string", "array", "#/components/schemas/A", "#", "x.yaml", "{", ""]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(TEXTS) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=3))
def test_no_document_however_odd_breaks_the_import_or_gives_a_bad_contract(changes):
    made = json.loads(json.dumps(BASE))
    for place, value in changes:
        part = made
        for step in place[:-1]:
            part = part.get(step, {}) if isinstance(part, dict) else {}
        if isinstance(part, dict):
            part[place[-1]] = value
    for tool in contracts_from_openapi(made).tools:
        problems = examine(tool.data)[1]
        assert [p for p in problems if p.severity is Severity.ERROR] == []
        to_yaml(tool, source="odd.json")
