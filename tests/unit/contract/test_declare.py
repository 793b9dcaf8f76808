"""`@tool`: a typed function read as a contract."""

import enum
import json
import os
import subprocess
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from counterseal import (
    Config,
    Context,
    Contract,
    ContractError,
    Effect,
    Invariant,
    Secret,
    State,
    Tool,
    tool,
)


class Channel(enum.StrEnum):
    EMAIL = "email"
    LETTER = "letter"


class Address(BaseModel):
    street: str = Field(max_length=80, description="Street and number.")
    country: Literal["DE", "FR"] = "DE"


class Sent(BaseModel):
    notice_id: str
    status: str


@tool(
    effect=Effect.EXTERNAL_NOTIFICATION,
    version="1.0.0",
    owner="case-platform",
    scopes=["notice:send"],
    consequence="Notice {draft_id} is sent.",
)
async def send_notice(
    draft_id: Annotated[str, Field(pattern=r"^drf_[0-9a-f]{8}$", description="Draft to send.")],
    address: Address,
    channel: Channel,
    due: date,
    ctx: Context,
    smtp_password: Annotated[str, Secret("smtp_password")],
    mode: Annotated[str, Config("mode", default="Fast", normalizer="lower")],
    seen: Annotated[list[str], State("seen")],
    copies: Annotated[int, Field(ge=1, le=3)] = 1,
    note: str | None = None,
    target: int | str = 3,
    schema: bool = False,
) -> Sent:
    """Send an approved notice.

    Does not create or edit drafts.

    Args:
        address: Where it goes.
        channel: How it goes.
        due: The day by which it must arrive.
        copies: How many.
        note: A remark for the file.
        target: A number or a name.
        schema: Whether to attach the schema.
    """
    return Sent(notice_id=f"{ctx}{smtp_password}{mode}{seen}{draft_id}", status="sent")


def test_hints_bounds_and_docstring_become_the_input_schema():
    schema = send_notice.contract.record()["affordance"]["input_schema"]
    assert schema == {
        "type": "object",
        "properties": {
            "draft_id": {
                "type": "string",
                "pattern": "^drf_[0-9a-f]{8}$",
                "description": "Draft to send.",
            },
            "address": {"$ref": "#/$defs/Address", "description": "Where it goes."},
            "channel": {"$ref": "#/$defs/Channel", "description": "How it goes."},
            "due": {
                "type": "string",
                "format": "date",
                "description": "The day by which it must arrive.",
            },
            "copies": {
                "type": "integer",
                "minimum": 1,
                "maximum": 3,
                "default": 1,
                "description": "How many.",
            },
            "note": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "default": None,
                "description": "A remark for the file.",
            },
            "target": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "default": 3,
                "description": "A number or a name.",
            },
            "schema": {
                "type": "boolean",
                "default": False,
                "description": "Whether to attach the schema.",
            },
        },
        "required": ["draft_id", "address", "channel", "due"],
        "additionalProperties": False,
        "$defs": {
            "Address": {
                "type": "object",
                "properties": {
                    "street": {
                        "type": "string",
                        "maxLength": 80,
                        "description": "Street and number.",
                    },
                    "country": {"type": "string", "enum": ["DE", "FR"], "default": "DE"},
                },
                "required": ["street"],
                "additionalProperties": False,
            },
            "Channel": {"type": "string", "enum": ["email", "letter"]},
        },
    }


def test_injected_parameters_are_declared_and_never_in_the_models_schema():
    contract = send_notice.contract
    shown = json.dumps(contract.record()["affordance"])
    for hidden in ("ctx", "smtp_password", "mode", "seen"):
        assert f'"{hidden}"' not in shown
    assert contract.secrets == ("smtp_password",)
    assert contract.security.secrets_boundary == "gateway_injected"
    assert [(param.key, param.default) for param in contract.config_params] == [("mode", "Fast")]
    assert [read.key for read in contract.state_reads] == ["seen"]
    assert set(send_notice.injected) == {"ctx", "smtp_password", "mode", "seen"}


def test_the_docstring_is_description_and_usage():
    contract = send_notice.contract
    assert contract.affordance.model_description == (
        "Send an approved notice.\n\nDoes not create or edit drafts."
    )
    assert contract.usage == contract.affordance.model_description


def test_a_usage_text_of_its_own_stays_apart_from_the_description():
    @tool(effect="compute", usage="When a total is asked for.")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert add.contract.usage == "When a total is asked for."
    assert add.contract.affordance.model_description == "Add two numbers."


def test_the_return_type_is_the_output_schema():
    assert send_notice.contract.record()["affordance"]["output_schema"] == {
        "type": "object",
        "properties": {"notice_id": {"type": "string"}, "status": {"type": "string"}},
        "required": ["notice_id", "status"],
        "additionalProperties": False,
    }


def test_an_output_that_is_no_object_is_wrapped():
    @tool(effect="compute")
    def sizes() -> list[Address]:
        """List sizes."""
        return []

    output = sizes.contract.record()["affordance"]["output_schema"]
    assert output["properties"]["result"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Address"},
    }
    assert output["required"] == ["result"]
    assert "Address" in output["$defs"]


def test_a_recursive_output_stays_an_object():
    @tool(effect="read_only")
    def tree() -> Node:
        """Show the tree."""
        return Node(name="a")

    output = tree.contract.record()["affordance"]["output_schema"]
    assert output["type"] == "object"
    assert output["$ref"] == "#/$defs/Node"


class Node(BaseModel):
    name: str
    children: list["Node"] = []


def test_arguments_are_bound_to_the_types_that_the_function_expects():
    bound = send_notice.binder(
        {
            "draft_id": "drf_00000000",
            "address": {"street": "Main Street 1"},
            "channel": "letter",
            "due": "2026-12-24",
        }
    )
    assert bound["address"] == Address(street="Main Street 1")
    assert bound["channel"] is Channel.LETTER
    assert bound["due"] == date(2026, 12, 24)
    assert (bound["copies"], bound["note"], bound["schema"]) == (1, None, False)


async def test_a_declared_function_is_still_called_like_a_function():
    @tool(effect="compute")
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    @tool(effect="compute")
    async def triple(number: int) -> int:
        """Triple a number."""
        return 3 * number

    assert double(4) == 8
    assert await triple(4) == 12
    assert (double.is_async, triple.is_async) == (False, True)
    assert repr(double) == "<tool double 0.1.0>"


def test_a_schema_built_twice_is_the_same_to_the_byte():
    def build():
        @tool(effect="draft")
        def make(address: Address, when: date, tags: dict[str, int] | None = None) -> Sent:
            """Make one."""
            return Sent(notice_id=f"{address}{when}{tags}", status="")

        return json.dumps(make.contract.record())

    assert build() == build()


def test_a_field_can_stand_where_the_default_stands():
    @tool(effect="compute")
    def scale(factor: float = Field(default=1.0, ge=0, description="By how much.")) -> float:
        """Scale."""
        return factor

    properties = scale.contract.record()["affordance"]["input_schema"]["properties"]
    assert properties["factor"] == {
        "type": "number",
        "minimum": 0,
        "default": 1.0,
        "description": "By how much.",
    }


def test_short_names_and_sections_land_in_the_same_record():
    @tool(effect="draft", timeout_ms=500, scopes=["a"], risk="MEDIUM_RISK_WRITE")
    def short(case_id: str) -> None:
        """Do it."""

    @tool(
        effect="draft",
        name="short",
        runtime={"timeout_ms": 500},
        security={"required_scopes": ["a"]},
        transactional={"side_effect_class": "MEDIUM_RISK_WRITE"},
    )
    def long(case_id: str) -> None:
        """Do it."""

    assert short.contract == long.contract


def test_a_function_that_no_caller_could_fill_is_refused_with_every_reason_and_place():
    class Opaque:
        pass

    with pytest.raises(ContractError) as caught:

        @tool(effect="compute")
        def broken(a: Opaque, /, *args: int, **kwargs: int) -> Opaque:
            """Break."""
            return a

    rules = [problem.rule for problem in caught.value.problems]
    assert sorted(rules) == ["parameter-untyped", *["parameter-variadic"] * 3]
    assert all(p.source and p.source.file == __file__ for p in caught.value.problems)


def test_a_problem_in_the_declaration_points_at_the_function():
    with pytest.raises(ContractError) as caught:

        @tool(effect="zap", version=3)
        def broken() -> None:
            """Break."""

    places = {(problem.pointer, problem.source.file) for problem in caught.value.problems}
    assert places == {("/effect", __file__), ("/identity/version", __file__)}


def test_a_parameter_can_be_found_in_its_file():
    source = send_notice.source_of("/affordance/input_schema/properties/due")
    line = Path(source.file).read_text(encoding="utf-8").splitlines()[source.line - 1]
    assert line[source.column - 1 :].startswith("due: date")


def test_a_contract_and_a_function_that_drifted_apart_are_not_joined():
    def function(case_id: str, extra: int) -> None:
        """Do it."""

    contract = Contract.model_validate(
        {
            "effect": "compute",
            "identity": {"name": "function"},
            "affordance": {
                "model_description": "Do it.",
                "input_schema": {"type": "object", "properties": {"case_id": {}, "other": {}}},
            },
        }
    )
    with pytest.raises(ContractError) as caught:
        Tool.of(contract, function)
    assert {problem.pointer.rpartition("/")[2] for problem in caught.value.problems} == {
        "extra",
        "other",
    }


def test_invariants_are_taken_over_from_the_declaration():
    @tool(
        effect="retrieve",
        invariants=[Invariant(id="ONE", rule="One of them.", check="has(call.a) != has(call.b)")],
    )
    def pick(a: str | None = None, b: str | None = None) -> str:
        """Pick."""
        return a or b or ""

    assert [invariant.id for invariant in pick.contract.invariants] == ["ONE"]


HIDDEN = {
    "in a list": list[Annotated[str, Secret("s")]],
    "in a model": type("M", (BaseModel,), {"__annotations__": {"s": Annotated[str, Secret("s")]}}),
    "as a class": Annotated[str, Secret],
    "a context in a list": list[Context],
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_marker_that_would_not_be_seen_is_refused(where):
    def call(it, plain: str = "x") -> None:
        """Call."""

    call.__annotations__["it"] = HIDDEN[where]
    with pytest.raises(ContractError, match="marker"):
        tool(effect="compute")(call)


def test_a_marker_as_a_default_is_refused():
    with pytest.raises(ContractError, match="marker"):

        @tool(effect="compute")
        def call(token: str = Secret("token")) -> None:
            """Call."""


def test_an_optional_secret_is_a_secret():
    @tool(effect="compute")
    def call(token: Annotated[str, Secret("token")] | None = None) -> None:
        """Call."""

    assert call.contract.secrets == ("token",)
    assert call.contract.affordance.input_schema["properties"] == {}


def test_declared_and_marked_injections_add_up():
    @tool(effect="compute", secrets=["a"], state_reads=[{"key": "x"}])
    def call(b: Annotated[str, Secret("b")], y: Annotated[str, State("y")]) -> None:
        """Call."""

    assert set(call.contract.secrets) == {"a", "b"}
    assert {read.key for read in call.contract.state_reads} == {"x", "y"}


def test_a_function_that_takes_what_its_contract_does_not_declare_is_not_joined():
    def function(password: Annotated[str, Secret("password")]) -> None:
        """Do it."""

    bare = {"identity": {"name": "f"}, "affordance": {"model_description": "D", "input_schema": {}}}
    with pytest.raises(ContractError, match="does not declare"):
        Tool.of(Contract.model_validate({**bare, "effect": "compute"}), function)


def test_generators_and_unbound_methods_say_what_is_wrong():
    with pytest.raises(ContractError, match="generator"):

        @tool(effect="compute")
        def numbers() -> int:
            """Count."""
            yield 1

    with pytest.raises(ContractError, match="without its object"):

        class Office:
            @tool(effect="compute")
            def open(self) -> None:
                """Open."""


def test_partials_and_callable_objects_can_be_tools():
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    class Adder:
        def __call__(self, a: int) -> int:
            """Add."""
            return a

    assert tool(effect="compute", name="add_two")(partial(add, b=2))(1) == 3
    assert tool(effect="compute", name="adder")(Adder())(4) == 4


def test_a_section_that_is_no_section_is_named():
    with pytest.raises(ContractError, match="identity must be a mapping or a section"):
        tool(effect="compute", identity=7)(lambda: None)


@pytest.mark.slow
def test_sets_in_defaults_do_not_change_the_hash_from_one_process_to_the_next():
    code = (
        "from pydantic import BaseModel\n"
        "from counterseal import tool\n"
        "class M(BaseModel):\n    t: set[str] = {'a', 'b', 'c', 'd'}\n"
        "def f(m: M = M(), l: list[frozenset[str]] = [frozenset('abcdef')]) -> None:\n    'F'\n"
        "print(tool(effect='compute')(f).contract.hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(hashes) == 1


def test_a_function_is_not_a_request_as_well():
    with pytest.raises(ContractError, match="function-and-http"):

        @tool(effect="read_only", http={"url": "https://api.example.org/x"})
        def fetch() -> dict[str, str]:
            """Fetch."""
            return {}
