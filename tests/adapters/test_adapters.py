"""Every adapter against its real framework: one test a case, run in the framework's environment.

The driver of a framework runs all of its cases in one process, because importing a framework takes
longer than most cases. With several workers, the first one runs it and the others read the result.
"""

import ast
import fcntl
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.adapter_tools import FRAMEWORKS, adapter_python, fast

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
_CASE = re.compile(r"^@case\nasync def (\w+)", re.MULTILINE)


def cases_of(framework):
    """The names of its cases, without importing it. It may have its own version of a shared one."""
    own = declared(HERE / "frameworks" / f"{framework.replace('-', '_')}.py")
    names = [*_CASE.findall((HERE / "cases.py").read_text(encoding="utf-8")), *own["CASES"]]
    return [name for name in dict.fromkeys(names) if name not in own["LACKS"]]


def declared(path):
    """What a framework's module says of its cases: the names of its own, and those it lacks."""
    found = {"CASES": [], "LACKS": {}}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "CASES":
                found["CASES"] = [each.id for each in node.value.elts]
            elif node.targets[0].id == "LACKS":
                found["LACKS"] = ast.literal_eval(node.value)
    return found


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        chosen = FRAMEWORKS if metafunc.config.option.adapters else fast()
        pairs = [(framework, case) for framework in chosen for case in cases_of(framework)]
        metafunc.parametrize(("framework", "case"), pairs)


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Returns what came of all cases of a framework; the first caller runs them."""
    shared = tmp_path_factory.getbasetemp()
    if "popen-gw" in shared.name:
        shared = shared.parent

    def run(framework):
        path = shared / f"adapters-{framework}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                command = [adapter_python(framework), HERE / "driver.py", framework]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr[-4000:]
                path.write_text(done.stdout.splitlines()[-1])
        return json.loads(path.read_text())["cases"]

    return run


def test_a_case_of_an_adapter(framework, case, results):
    problem = results(framework)[case]
    assert problem is None, problem


def test_a_framework_lacks_only_cases_that_exist_and_says_why():
    every = _CASE.findall((HERE / "cases.py").read_text(encoding="utf-8"))
    faults = re.findall(r"^async def (\w+)", (HERE / "faults.py").read_text(), re.MULTILINE)
    for framework in FRAMEWORKS:
        path = HERE / "frameworks" / f"{framework.replace('-', '_')}.py"
        lacks = declared(path)["LACKS"]
        assert set(lacks) <= {*every, *faults}
        assert all(len(reason) > 10 for reason in lacks.values())


def test_every_framework_has_a_module_and_its_tests():
    adapters = Path(importlib.util.find_spec("counterseal.adapters").origin).parent
    modules = {path.stem for path in adapters.glob("*.py")} - {"__init__", "host"}
    names = {name.replace("-", "_") for name in FRAMEWORKS}
    assert names == modules
    assert names == {path.stem for path in (HERE / "frameworks").glob("*.py")}
