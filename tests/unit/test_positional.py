"""Records that are made by position have all their fields."""

import ast
import importlib
from pathlib import Path

import counterseal
from counterseal.execution.attempt import Outcome
from counterseal.execution.executor import _NOTHING_ELSE
from counterseal.positional import made

SOURCE = Path(counterseal.__file__).parent


def makings():
    """Each place where one is made: the module, the record's name, its values."""
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "positional import made" not in text:
            continue
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        for node in ast.walk(ast.parse(text)):
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if named and node.func.id == "made":
                yield ".".join(parts), node.args[0].id, node.args[1]


def test_every_record_that_is_made_by_position_is_given_all_its_fields():
    found = list(makings())
    assert len(found) >= 9
    for module, name, values in found:
        assert isinstance(values, ast.Tuple), f"{module}: {name} is not given its values one by one"
        record = getattr(importlib.import_module(module), name)
        given = sum(not isinstance(one, ast.Starred) for one in values.elts)
        if given < len(values.elts):  # the rest comes from a record of the same kind
            assert record is Outcome
            given += len(_NOTHING_ELSE)
        assert given == len(record._fields), f"{module}: {name}"


def test_it_is_the_same_record():
    plain = Outcome("SUCCESS", 1)
    assert made(Outcome, tuple(plain)) == plain
    assert type(made(Outcome, tuple(plain))) is Outcome
