"""Which contracts some paths lead to, and what is wrong with them, alone and together."""

import sys
from pathlib import Path

import pytest

from counterseal.config import ConfigError, discover

CONTRACT = """\
identity: {{name: {name}, version: {version}, owner: shop}}
effect: {effect}
usage: Call it.
consequence: It happens.
affordance:
  model_description: Do one thing.
  input_schema: {{type: object, additionalProperties: false}}
  output_schema: {{type: object, additionalProperties: false}}
"""
TOOL = """\
from counterseal import tool

@tool(effect="compute", owner="shop")
def {name}() -> dict[str, int]:
    \"\"\"Count.\"\"\"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, content):
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def contract(name, *, version="1.0.0", effect="read_only", more=""):
    return CONTRACT.format(name=name, version=version, effect=effect) + more


def names(*paths):
    return [item.name for item in discover([Path(path) for path in paths or ["."]])]


def problems(*paths):
    found = discover([Path(path) for path in paths or ["."]])
    return [problem for item in found for problem in item.problems]


# Which files -------------------------------------------------------------------------------------


def test_folders_are_walked_in_order_for_contracts_and_tools():
    write("b.yaml", contract("from_b"))
    write("a/tools.py", TOOL.format(name="from_tools"))
    write("a/c.json", '{"identity": {"name": "from_c"}}')
    assert names() == ["from_b", "from_c", "from_tools"]


@pytest.mark.parametrize(
    "name",
    [
        ".hidden/a.yaml",
        "__pycache__/a.yaml",
        ".venv/a.yaml",
        "venv/a.yaml",
        "node_modules/x/a.yaml",
        "tests/test_tools.py",
        "conftest.py",
        "setup.py",
    ],
)
def test_what_belongs_to_others_is_passed_over(name):
    write(name, TOOL.format(name="hidden") if name.endswith(".py") else contract("hidden"))
    write("seen.yaml", contract("seen"))
    assert names() == ["seen"]


def test_environment_under_any_name_is_passed_over():
    write("env/pyvenv.cfg", "home = /usr")
    write("env/a.yaml", contract("hidden"))
    assert names() == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package.json", '{"name": "x", "dependencies": {"effect": "1", "identity": "2"}}'),
        ("list.json", '["a", 1]'),
        ("compose.yaml", "services:\n  web:\n    identity:\n      name: x\n"),
        ("broken.json", '{"name": '),
        ("script.py", "raise SystemExit('this must not run')\n"),
    ],
)
def test_file_that_is_plainly_none_is_read_only_when_named(name, content):
    write(name, content)
    assert discover([Path()]) == ()
    assert len(problems(name)) >= 1


@pytest.mark.parametrize(
    "content",
    [
        '[{"identity": {"name": "x"}}]',
        '{"affordance": {}}',
        '{"identity": ',
    ],
)
def test_json_that_may_be_a_contract_is_read(content):
    write("a.json", content)
    assert problems()


@pytest.mark.parametrize(
    "content",
    [
        "affordance: {}\n",
        "'identity': 3\n",
        "- effect: draft\n  identity: {name: x}\n",
        "- identity: {name: x}\n",
        "{effect: draft, identity: {name: x}}\n",
    ],
)
def test_yaml_that_may_be_a_contract_is_read(content):
    write("a.yaml", content)
    assert problems()


def test_contract_without_a_name_has_none():
    write("a.yaml", "affordance: {}\n")
    assert names() == [""]


def test_list_of_contracts_gives_each():
    one, two = (contract(name).replace("\n", "\n  ").rstrip() for name in ("one", "two"))
    write("many.yaml", f"- {one}\n- {two}\n")
    assert [(item.name, item.source.line) for item in discover([Path()])] == [
        ("one", 1),
        ("two", 9),
    ]


def test_missing_path_is_named():
    with pytest.raises(ConfigError, match="There is no file or folder gone"):
        discover([Path("gone")])


def test_file_that_is_reached_twice_counts_once(folder):
    write("a/x.yaml", contract("x"))
    assert names("a", "a/x.yaml", str(folder / "a" / "x.yaml"), "a/../a") == ["x"]


def test_paths_are_told_from_the_working_folder(folder):
    write("a/x.yaml", contract("x", effect="nonsense"))
    assert {str(p.source) for p in problems(str(folder / "a"))} == {f"{Path('a', 'x.yaml')}:2:1"}


# Python files ------------------------------------------------------------------------------------


def test_tools_contracts_and_plain_tools_are_found_in_their_order():
    write(
        "tools.py",
        TOOL.format(name="first")
        + """
from counterseal import Contract

class Plain:
    name = "second"
    description = "Do one thing."
    input_schema = {"type": "object"}

    async def execute(self, input):
        return None

second = Plain()
alias = second
THIRD = Contract.model_validate({
    "identity": {"name": "third"},
    "affordance": {"model_description": "x", "input_schema": {"type": "object"}},
})
also = [first]
""",
    )
    found = discover([Path("tools.py")])
    assert [item.name for item in found] == ["first", "second", "third"]
    assert [item.tool is not None for item in found] == [True, True, False]
    assert [item.source.line for item in found] == [4, 17, 19]
    assert {str(p.source) for p in found[1].problems} == {"tools.py:14:5"}


def test_problem_of_a_parameter_stands_at_the_parameter():
    write("tools.py", TOOL.format(name="count").replace("count()", "count(\n    text: str,\n)"))
    places = {p.rule: str(p.source) for p in problems("tools.py")}
    assert places["parameter-undescribed"] == "tools.py:5:5"


def test_siblings_and_packages_resolve():
    write("app/helper.py", "LIMIT = 3\n")
    write("app/tools.py", "from helper import LIMIT\n" + TOOL.format(name="plain_file"))
    write("package/__init__.py", "")
    write("package/inner/__init__.py", "")
    write("package/inner/limits.py", "LIMIT = 3\n")
    write("package/inner/tools.py", "from .limits import LIMIT\n" + TOOL.format(name="in_package"))
    assert names() == ["plain_file", "in_package"]
    assert [p for p in problems() if p.rule == "import-failed"] == []


def test_tool_that_another_file_imports_is_listed_once():
    write("a.py", "from b import shared\nfrom b import shared as again\nimport counterseal\n")
    write("b.py", TOOL.format(name="shared"))
    write("c.py", "from b import *\nimport counterseal\n")
    assert names() == ["shared"]
    assert names("a.py") == []


def test_tool_that_is_passed_on_by_all_counts():
    write("a.py", "from b import shared\n__all__ = ['shared']\n")
    write("b.py", TOOL.format(name="shared"))
    assert names("a.py") == ["shared"]
    assert names("a.py", "b.py") == ["shared"]


def test_folders_with_files_of_the_same_name_are_kept_apart():
    for folder in ("one", "two"):
        write(f"{folder}/helper.py", f"OWNER = '{folder}'\n")
        code = TOOL.format(name=f"count_{folder}").replace('"shop"', "OWNER")
        write(f"{folder}/tools.py", "from helper import OWNER\n" + code)
    found = discover([Path()])
    assert [item.contract.identity.owner for item in found] == ["one", "two"]


def test_importing_leaves_no_trace():
    write("helper.py", "X = 1\n")
    write("tools.py", "import helper\n" + TOOL.format(name="count"))
    path, modules = list(sys.path), set(sys.modules)
    assert names() == ["count"]
    assert sys.path == path
    assert {"tools", "helper"}.isdisjoint(set(sys.modules) - modules)


def test_file_named_like_a_library_does_not_replace_it():
    import json

    write("json.py", TOOL.format(name="count"))
    assert names() == ["count"]
    assert sys.modules["json"] is json


def test_file_whose_name_is_no_identifier_is_imported_all_the_same():
    write("case-tools.v2.py", TOOL.format(name="count"))
    assert names() == ["count"]


def test_plain_tool_whose_schema_raises_is_a_problem():
    write(
        "tools.py",
        """
class Plain:
    name = "plain"
    description = "Do one thing."

    @property
    def input_schema(self):
        raise RuntimeError("not ready")

    async def execute(self, input):
        return None

plain = Plain()
""",
    )
    (problem,) = problems("tools.py")
    assert str(problem.source) == "tools.py:13:1"
    assert "not ready" in problem.message


def test_failure_in_a_sibling_is_placed_where_it_is_imported():
    write("helper.py", "x = (\n")
    write("tools.py", "import counterseal\nimport helper\n")
    (problem,) = problems("tools.py")
    assert str(problem.source) == "tools.py:2:1"
    assert "helper.py:1" in problem.message


def test_package_member_that_is_shadowed_says_by_what():
    write("pydantic/__init__.py", "")
    write("pydantic/tools.py", TOOL.format(name="count"))
    (problem,) = problems("pydantic/tools.py")
    assert problem.rule == "import-failed"


# Together ----------------------------------------------------------------------------------------


def test_same_name_and_version_twice_is_reported_at_the_second():
    write("a.yaml", contract("x"))
    write("b.yaml", contract("x", version="'1.0'"))
    (problem,) = problems()
    assert (problem.rule, problem.source.file) == ("version-duplicate", "b.yaml")
    assert problem.message.endswith("in a.yaml:1:1")


def test_names_that_lead_nowhere_are_reported():
    undo = "transactional: {compensation_tool: undo_it}\n"
    write("a.yaml", contract("do_it", effect="draft", more=undo + "probe: look\n"))
    assert {(p.rule, p.tool, str(p.source)) for p in problems()} == {
        ("compensation-unknown", "do_it", "a.yaml:9:17"),
        ("hook-unknown", "do_it", "a.yaml:10:1"),
    }
    write("b.yaml", contract("undo_it", effect="draft"))
    write("c.yaml", contract("look"))
    assert problems() == []


def test_problem_between_contracts_is_placed_inside_a_list():
    one, two = (contract(name, more="probe: look\n") for name in ("one", "two"))
    items = [text.replace("\n", "\n  ").rstrip() for text in (one, two)]
    write("many.yaml", "".join(f"- {item}\n" for item in items))
    assert [str(p.source) for p in problems()] == ["many.yaml:9:3", "many.yaml:18:3"]


def test_missing_names_are_not_blamed_while_a_file_cannot_be_read():
    write("a.yaml", contract("x", more="probe: look\n"))
    write("b.yaml", "identity: [\n")
    assert {p.rule for p in problems()} == {"file-unreadable"}


def test_what_lies_beside_is_known_but_not_reported():
    write("a.yaml", contract("x", more="probe: look\n"))
    write("rest/look.yaml", contract("look").replace("owner: shop", "owner: unassigned"))
    (item,) = discover([Path("a.yaml")], beside=[Path()])
    assert (item.name, item.problems) == ("x", ())


def test_breaking_step_between_versions_is_reported_once():
    write("a.yaml", contract("x"))
    needs = "{type: object, additionalProperties: false, required: [a], properties: "
    needs += "{a: {type: integer, description: A number.}}}"
    closed = "input_schema: {type: object, additionalProperties: false}"
    write("b.yaml", contract("x", version="1.1.0").replace(closed, f"input_schema: {needs}"))
    write("c.yaml", contract("x", version="1.2.0").replace(closed, f"input_schema: {needs}"))
    assert [(p.rule, p.source.file) for p in problems()] == [("version-bump-missing", "b.yaml")]


def test_progress_hears_of_every_file():
    write("a.yaml", contract("x"))
    write("tools.py", TOOL.format(name="count"))
    heard = []
    discover([Path()], progress=heard.append)
    assert sorted(map(str, heard)) == ["a.yaml", "tools.py"]
