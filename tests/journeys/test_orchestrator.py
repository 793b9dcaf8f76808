"""Two products on one orchestrator, which imports no tool and is the same for both."""

import ast
import hashlib
import importlib.util
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from counterseal import Invariant, Runtime, Voter
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.testing import fake_tool, runtime_for, someone

FOLDER = Path(__file__).parents[2] / "examples" / "orchestrator"
PRODUCTS = ("clinic", "claims")


def load(name):
    """A file of the example, under a name that nothing else has."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # type hints are looked up there
    spec.loader.exec_module(module)
    return module


orchestrator = load("orchestrator")


class Product:
    """One product, ready to take turns."""

    def __init__(self, name):
        self.module = load(name)
        self.runtime = Runtime.open("memory:")
        self.module.register(self.runtime)
        self.model = self.module.Script()
        self.run = None

    async def turn(self):
        self.run = self.run or await self.runtime.run(self.module.WHO)
        return await orchestrator.take_turn(self.runtime, self.run, self.model, self.module.PROMPT)


def imports_of(name):
    """Every module that a file imports, wherever in it."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module


def test_the_orchestrator_imports_no_tool_and_loads_none_by_another_way():
    roots = {module.partition(".")[0] for module in imports_of("orchestrator")}
    assert roots <= {"counterseal"} | set(sys.stdlib_module_names)
    assert roots.isdisjoint({"importlib", "runpy", "pkgutil", "sys"})
    tree = ast.parse((FOLDER / "orchestrator.py").read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if hasattr(getattr(node, "func", 0), "id")}
    assert called.isdisjoint({"__import__", "exec", "eval", "compile", "getattr"})


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_orchestrator_names_nothing_of_a_product(name):
    text = (FOLDER / "orchestrator.py").read_text(encoding="utf-8")
    module = load(name)
    names = {name, *(one.contract.name for one in module.TOOLS)}
    names |= {effect.key for one in module.TOOLS for effect in one.contract.state_effects}
    assert len(names) > 4
    assert not [word for word in names if word in text]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_knows_neither_the_orchestrator_nor_the_other(name):
    assert {"orchestrator", *PRODUCTS}.isdisjoint(imports_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_either_product_runs_alone_on_the_very_same_file(name, tmp_path):
    for part in ("orchestrator", name):
        (tmp_path / f"{part}.py").write_bytes((FOLDER / f"{part}.py").read_bytes())
    program = f"""
import asyncio, hashlib, logging, orchestrator, {name} as product
from counterseal import Runtime

async def main():
    logging.disable()
    runtime = Runtime.open("memory:")
    product.register(runtime)
    run = await runtime.run(product.WHO)
    turn = await orchestrator.take_turn(runtime, run, product.Script(), product.PROMPT)
    print(turn.ended, hashlib.sha256(open(orchestrator.__file__, "rb").read()).hexdigest())

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    same = hashlib.sha256((FOLDER / "orchestrator.py").read_bytes()).hexdigest()
    assert done.stdout.split() == ["done", same]


# --- what it does ---------------------------------------------------------------------------------


async def test_it_binds_what_the_run_may_use_and_nothing_else():
    bound = {}
    for name in PRODUCTS:
        product = Product(name)

        async def plan(prompt, tools, feedback, name=name):
            bound[name] = [tool["name"] for tool in tools]
            return []

        product.model.plan = plan
        await product.turn()
    assert bound == {
        "clinic": ["draft_answer", "find_evidence", "grade_evidence"],
        "claims": ["get_claim", "make_offer", "pay_out"],
    }


async def test_a_plan_is_judged_mended_by_its_planner_injected_and_collected():
    clinic = Product("clinic")
    turn = await clinic.turn()
    fates = [[step.fate.value for step in plan.steps] for plan in turn.plans]
    assert fates == [
        ["reject", "keep", "drop", "keep", "keep"],
        ["keep", "keep", "drop", "keep", "keep"],
    ]
    assert [seen.tool for seen in turn.observations] == [
        "find_evidence",
        "find_evidence",
        "grade_evidence",
        "draft_answer",
    ]
    assert turn.ended == "done"
    assert turn.observations[2].data == {"grade": "high", "sources": 2}, (
        "it was given what was found"
    )
    assert turn.observations[3].data["text"].endswith("(evidence: high)")
    state = await clinic.run.state()
    assert (len(state["evidence"]), state["grade"]) == (2, "high")


async def test_what_was_collected_stands_in_the_next_prompt_and_what_is_over_does_not():
    clinic = Product("clinic")
    await clinic.turn()
    prompt = (await clinic.turn()).prompts[0]
    assert "4 g a day (who, nice)" in prompt
    assert "untrusted data from outside" in prompt
    assert prompt.endswith("Its grade: \n"), "a grade is for its turn only"


async def test_the_other_product_repairs_waits_for_a_person_and_goes_on():
    claims = Product("claims")
    first = await claims.turn()
    assert [(seen.tool, seen.ok) for seen in first.observations] == [
        ("get_claim", True),
        ("make_offer", True),
    ]
    assert first.observations[-1].data == {"offers": {"clm_042": 600}}, (
        "900 was refused, and mended"
    )
    second = await claims.turn()
    assert (second.ended, second.observations[-1].ok) == ("await_approval", False)
    held = second.observations[-1].approval_id
    approver = Voter(user="approver", tenant="insurer")
    await claims.runtime.approvals.decide(held, approver, "approve")
    third = await claims.turn()
    assert third.ended == "done"
    assert third.observations[-1].data == {"payment_id": "pay_clm_042", "amount": 600}


async def test_a_planner_that_never_gets_it_right_is_given_up_on():
    clinic = Product("clinic")

    async def plan(prompt, tools, feedback):
        return [{"tool": "find_evidence", "arguments": {}}]

    clinic.model.plan = plan
    turn = await clinic.turn()
    assert (turn.ended, len(turn.plans), turn.observations) == ("no plan", 3, [])


async def test_a_step_that_was_taken_before_replanning_is_not_taken_twice():
    """Its plan was corrected, and the planner writes it down again as it did at first."""
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "string", "maxLength": 9, "description": "Which."}
            for name in ("case", "text")
        },
        "additionalProperties": False,
    }
    small = Invariant(
        id="SMALL",
        rule="Texts are written small.",
        check="call.text == 'a'",
        correct={"set": {"text": "a"}},
    )
    note = fake_tool(
        "note", effect="draft", business_key=["case"], input_schema=schema, invariants=[small]
    )
    close = fake_tool(
        "close",
        LookupError("changed"),
        {"closed": True},
        observability={"error_taxonomy_mapping": {"LookupError": "STALE_STATE"}},
    )
    runtime = runtime_for(note, close)

    class Model:
        async def plan(self, prompt, tools, feedback):
            return [{"tool": "note", "arguments": {"case": "c", "text": "A"}}, {"tool": "close"}]

        async def repair(self, feedback):
            return None

    run = await runtime.run(someone())
    turn = await orchestrator.take_turn(runtime, run, Model(), "Go.")
    assert [seen.code.value for seen in turn.observations] == ["SUCCESS", "STALE_STATE"] + [
        "SUCCESS"
    ] * 2
    assert (turn.ended, len(turn.plans)) == ("done", 2)
    assert note.calls == [{"case": "c", "text": "a"}]


@pytest.mark.slow
def test_the_example_tells_its_story():
    done = subprocess.run([sys.executable, FOLDER], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    for line in ("clinic: draft_answer", "await_approval", "left in the run: claim, offers"):
        assert line in done.stdout


def test_no_example_decides_through_the_store():
    """A vote goes through `runtime.approvals` or the API, which check who votes, and sign it."""
    for file in FOLDER.parent.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        stores = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assert not [node for node in stores if node.attr == "store" and _is_runtime(node.value)], (
            file
        )


def _is_runtime(node):
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name == "runtime"


async def test_the_examples_votes_are_signed(tmp_path):
    new_key(tmp_path, Purpose.APPROVAL, datetime.now(UTC))
    claims, main = load("claims"), (FOLDER / "__main__.py").read_text(encoding="utf-8")
    assert "keys=keys" in main
    async with Runtime.open("memory:", keys=KeyRing.load(tmp_path)) as runtime:
        claims.register(runtime)
        run, model = await runtime.run(claims.WHO), claims.Script()
        held = None
        while held is None:
            turn = await orchestrator.take_turn(runtime, run, model, claims.PROMPT)
            held = next((one.approval_id for one in turn.observations if one.approval_id), None)
        approver = Voter(user="approver", tenant=claims.WHO.tenant)
        await runtime.approvals.decide(held, approver, "approve")
        stored = await runtime.store.find_held(claims.WHO.tenant, held)
    assert [bool(vote["signature"]) for vote in stored.votes] == [True]
