"""Addresses: what a process that starts from nothing finds again, and what it could not."""

import functools
import importlib
import json
import os.path
import subprocess
import sys
from pathlib import Path

import pytest

from counterseal.config.discovery import import_files
from counterseal.contract.declare import Tool, tool
from counterseal.errors import IsolationError
from counterseal.execution.isolation.messages import FunctionAddress, address_of
from counterseal.execution.isolation.worker import CodeIn, load

READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}
FOLDER = Path(__file__).parent / "tools"
MODULE = '''
import functools
from counterseal import tool

READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}


def loud(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs).upper()
    return wrapper


@tool(**READS)
def decorated(text: str) -> str:
    """Say it."""
    return text


@tool(**READS)
@loud
def wrapped(text: str) -> str:
    """Say it."""
    return text


def plain(text: str) -> str:
    """Say it."""
    return text


renamed = tool(**READS)(plain)


class Shop:
    @staticmethod
    def static(text: str) -> str:
        """Say it."""
        return text

    @classmethod
    def of_class(cls, text: str) -> str:
        """Say it."""
        return cls.__name__ + text
'''


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Writes a module into a folder and imports it, as a program would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text=MODULE):
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        file.write_text(text)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        for part in [name.rpartition(".")[0], name]:
            monkeypatch.delitem(sys.modules, part, raising=False)
        return module

    return write


def found_elsewhere(address, *arguments):
    """What the address leads to in a fresh process, called."""
    program = (
        "import json, sys\n"
        "from counterseal.execution.isolation.worker import FunctionAddress, load\n"
        "address, arguments = json.loads(sys.argv[1])\n"
        "print(json.dumps(load(FunctionAddress(*address))(*arguments)))"
    )
    command = [sys.executable, "-I", "-c", program, json.dumps([address, arguments])]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_tool_and_its_function_have_one_address(imported, tmp_path):
    module = imported("address_one")
    address = address_of(module.decorated)
    assert address == FunctionAddress("address_one", "decorated", str(tmp_path))
    assert address_of(module.decorated.function) == address
    assert str(address) == "address_one:decorated"
    assert isinstance(load(address), Tool)


@pytest.mark.slow
def test_a_module_in_a_package_is_found_from_the_folder_above(imported, tmp_path):
    module = imported("shelf.inner.address_two")
    address = address_of(module.decorated)
    assert address == FunctionAddress("shelf.inner.address_two", "decorated", str(tmp_path))
    assert found_elsewhere(address, "hello") == "hello"


def test_a_tool_under_another_name_leads_to_its_plain_function(imported):
    module = imported("address_three")
    address = address_of(module.renamed)
    assert address.qualname == "plain"
    assert not isinstance(load(address), Tool)
    assert address_of(module.plain) == address


@pytest.mark.slow
def test_a_wrapper_that_says_what_it_wraps_is_found(imported):
    module = imported("address_four")
    address = address_of(module.wrapped)
    assert address.qualname == "wrapped"
    assert found_elsewhere(address, "hello") == "HELLO"


@pytest.mark.slow
def test_methods_that_need_no_object_are_found(imported):
    module = imported("address_five")
    assert found_elsewhere(address_of(module.Shop.static), "x") == "x"
    assert found_elsewhere(address_of(module.Shop.of_class), "x") == "Shopx"


def test_a_file_that_left_sys_modules_is_found_by_its_folder():
    file = FOLDER / "kind_tools.py"
    (echo, *_) = import_files([file], lambda _: None)[file].declarations
    assert "kind_tools" not in sys.modules
    assert address_of(echo.value) == FunctionAddress("kind_tools", "echo", str(FOLDER))


@pytest.mark.slow
def test_a_module_under_a_foreign_name_is_found_by_its_file(tmp_path, monkeypatch):
    file = tmp_path / "json.py"  # its own name belongs to somebody else here
    file.write_text(MODULE)
    found = import_files([file], lambda _: None)[file].declarations
    address = address_of(next(d.value for d in found if d.value.contract.name == "decorated"))
    assert address.file == str(file)
    assert address.module != "json"
    assert found_elsewhere(address, "hello") == "hello"


def test_what_is_part_of_python_is_found_anywhere():
    address = address_of(os.path.basename)
    assert found_elsewhere(address, "/a/b") == "b"
    assert address_of(len) == FunctionAddress("builtins", "len")


def program(tmp_path, *, how):
    """Asks for the address of a function of the main module."""
    text = (
        "def shout(text):\n"
        "    return text + '!'\n"
        "if __name__ == '__main__':\n"
        "    import json, sys\n"
        "    from counterseal.execution.isolation.messages import address_of\n"
        "    print(json.dumps(address_of(shout)))\n"
    )
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").touch()
    (tmp_path / "app" / "start.py").write_text(text)
    (tmp_path / "script.py").write_text(text)
    command = {"file": ["script.py"], "module": ["-m", "app.start"], "typed": ["-c", text]}[how]
    return subprocess.run(
        [sys.executable, *command], check=False, cwd=tmp_path, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["file", "module"])
def test_a_function_of_the_program_itself_is_found_without_starting_it_again(tmp_path, how):
    ended = program(tmp_path, how=how)
    address = FunctionAddress(*json.loads(ended.stdout))
    assert address.module != "__main__"
    assert found_elsewhere(address, "hey") == "hey!"


def test_what_was_typed_in_is_refused(tmp_path):
    ended = program(tmp_path, how="typed")
    assert "put the tool into a file and import it" in ended.stderr


def inner():
    def local(text: str) -> str:
        """Say it."""
        return text

    return local


class Holder:
    def method(self, text: str) -> str:
        """Say it."""
        return text

    def __call__(self, text: str) -> str:
        return text


shadowed = inner()
shadowed.__qualname__ = "inner"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda text: text, "a lambda has no name"),
        (inner(), "is defined inside a function"),
        (functools.partial(inner), "a functools.partial has no name"),
        (Holder().method, "belongs to an object that only this process has"),
        (Holder(), "an object of type Holder is no function"),
        (shadowed, "is something else than the tool's function"),
    ],
    ids=["lambda", "local", "partial", "method", "object", "shadowed"],
)
def test_a_function_that_another_process_could_not_find_is_refused_with_a_fix(function, why):
    with pytest.raises(IsolationError, match=why) as raised:
        address_of(function)
    assert any(word in str(raised.value) for word in ("define the tool", "its own name"))


def test_a_local_tool_is_refused_as_its_function_is():
    with pytest.raises(IsolationError, match="defined inside a function"):
        address_of(tool(**READS)(inner()))


def test_an_address_that_leads_nowhere_says_so(imported, tmp_path):
    imported("address_six")
    with pytest.raises(ImportError, match="address_six has no missing"):
        load(FunctionAddress("address_six", "missing", str(tmp_path)))
    with pytest.raises(ModuleNotFoundError):
        load(FunctionAddress("address_none", "missing", str(tmp_path)))
    with pytest.raises(ImportError, match="not a Python file"):
        load(FunctionAddress("odd", "missing", str(tmp_path), str(tmp_path / "odd.txt")))


def test_a_module_that_breaks_is_not_kept(tmp_path):
    file = tmp_path / "address_seven.py"
    file.write_text("raise RuntimeError('no')")
    with pytest.raises(RuntimeError):
        load(FunctionAddress("_odd_seven", "x", str(tmp_path), str(file)))
    assert "_odd_seven" not in sys.modules


def test_code_is_found_in_a_folder_that_can_not_be_listed(tmp_path):
    (tmp_path / "module.py").write_text("x = 1")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "notes").mkdir()
    finder = CodeIn(str(tmp_path))
    assert finder.find_spec("module").origin == str(tmp_path / "module.py")
    assert finder.find_spec("package").submodule_search_locations == [str(tmp_path / "package")]
    assert finder.find_spec("notes") is None
    assert finder.find_spec("package.module", [str(tmp_path)]) is None


def test_within_a_package_that_can_not_be_listed_modules_are_found_too(tmp_path):
    package = tmp_path / "package"
    (package / "sub").mkdir(parents=True)
    (package / "loose").mkdir()
    for name in ("__init__.py", "module.py", "sub/__init__.py", "loose/module.py"):
        (package / name).touch()
    finder, inside = CodeIn(str(tmp_path)), [str(package)]
    assert finder.find_spec("package.module", inside).origin == str(package / "module.py")
    assert finder.find_spec("package.sub", inside).origin == str(package / "sub/__init__.py")
    loose = finder.find_spec("package.loose", inside).submodule_search_locations
    assert loose == [str(package / "loose")]
    found = finder.find_spec("package.loose.module", loose)
    assert found.origin == str(package / "loose/module.py")
    assert finder.find_spec("package.nothing", inside) is None
    assert CodeIn(str(tmp_path / "pack")).find_spec("package.module", inside) is None
