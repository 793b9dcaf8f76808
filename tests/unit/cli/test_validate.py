"""`counterseal validate --as amplifier`, with modules as their authors write them."""

import json

import pytest
from typer.testing import CliRunner

from counterseal.cli.app import app

GOOD = """
class Result:
    def __init__(self, success=True, output=None, error=None):
        self.success, self.output, self.error = success, output, error


class Upper:
    name = "upper"
    description = "Returns a text in capital letters."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}

    async def execute(self, input):
        if "text" not in input:
            return Result(success=False, error={"message": "text is required"})
        return Result(output=input["text"].upper())


async def mount(coordinator, config):
    tool = Upper()
    await coordinator.mount("tools", tool, name="upper")
    coordinator.register_contributor("observability.events", "upper", lambda: ["upper:done"])
    return tool
"""
PYPROJECT = """
[project]
name = "amplifier-module-tool-upper"
version = "1.0.0"
[project.entry-points."amplifier.modules"]
tool-upper = "{module}:mount"
"""


@pytest.fixture
def check(tmp_path):
    """Runs the command on a module with this code; returns its exit code and its checks."""
    name = f"module_of_{tmp_path.name}"  # no two tests share one

    def run(code=GOOD, *words, pyproject=PYPROJECT):
        (tmp_path / "pyproject.toml").write_text(pyproject.format(module=name))
        (tmp_path / f"{name}.py").write_text(code)
        arguments = ["validate", "--as", "amplifier", str(tmp_path), "--json", *words]
        done = CliRunner().invoke(app, arguments)
        checks = json.loads(done.stdout)["checks"]
        failed = {one["name"]: one for one in checks if not one["passed"]}
        return done.exit_code, failed

    return run


def test_a_good_module_passes_and_its_tool_is_called_only_if_wanted(check):
    assert check() == (0, {})
    assert check(GOOD, "--execute") == (0, {})


@pytest.mark.parametrize(
    ("old", "new", "failed"),
    [
        ("    return tool\n", "    return tool\nmount = print\n", "mount_signature"),
        ("(coordinator, config)", "(coordinator)", "mount_signature"),
        ("async def mount(", "async def load(", "mount_exists"),
        ("    async def execute", "    def execute", "tool_execute"),
        ("    async def execute(self, input)", "    async def execute(self)", "tool_execute"),
        ('    name = "upper"', '    name = ""', "tool_name"),
        ("class Result:", "import nothing_like_it", "module_importable"),
        ("    tool = Upper()", "    raise ValueError('x')", "mount_succeeds"),
        ("    tool = Upper()", "    return None", "protocol_compliance"),
        ("class Upper", "def on_session_ready(x): ...\nclass Upper", "on_session_ready"),
    ],
)
def test_what_amplifier_requires_is_an_error(check, old, new, failed):
    code, problems = check(GOOD.replace(old, new))
    assert code == 1
    assert problems[failed]["severity"] == "error"


def test_an_exception_of_a_tool_is_an_error_with_execute(check):
    code = GOOD.replace('if "text" not in input:', "if False:")
    status, problems = check(code, "--execute")
    assert (status, set(problems)) == (1, {"tool_result"})
    assert "KeyError" in problems["tool_result"]["message"]


def test_what_amplifier_recommends_is_a_warning(check):
    code = GOOD.replace("    input_schema = ", "    other = ")
    code = code.replace("    coordinator.register_contributor", "    print")
    status, problems = check(code)
    assert (status, set(problems)) == (0, {"tool_schema", "observability"})
    assert {one["severity"] for one in problems.values()} == {"warning"}


def test_a_module_without_an_entry_point_is_not_imported(check):
    status, problems = check("raise SystemExit", pyproject="[project]\nname = 'x'\n")
    assert (status, set(problems)) == (1, {"entry_point"})


def test_a_cleanup_is_called_and_a_config_is_passed(check, tmp_path):
    code = """
async def mount(coordinator, config):
    async def cleanup():
        open(config["file"], "w").close()
    return cleanup
"""
    status, problems = check(code, "--config", json.dumps({"file": str(tmp_path / "closed")}))
    assert (status, set(problems)) == (0, {"protocol_compliance", "observability"})
    assert (tmp_path / "closed").exists()


def test_text_names_each_check_and_wrong_use_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    done = CliRunner().invoke(app, ["validate", "--as", "amplifier", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.startswith("error    entry_point")
    assert "1 error, 0 warnings" in done.stdout
    for words in (["/nowhere"], [str(tmp_path), "--config", "{"]):
        assert CliRunner().invoke(app, ["validate", "--as", "amplifier", *words]).exit_code == 2
