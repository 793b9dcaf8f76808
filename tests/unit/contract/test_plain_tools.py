"""Tools written to the plain protocol register as they are."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from counterseal import ContractError, Effect, Registry, lint
from counterseal.contract.declare import is_plain_tool, wrap_plain_tool
from counterseal.errors import Severity, SpokenError, ToolFailedError


@dataclass
class Result:
    success: bool = True
    output: Any = None
    error: dict[str, Any] | None = None


class ReadNote:
    name = "read_note"
    description = "Read one note of the case file."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "note_id": {"type": "string", "description": "Which note."},
                "limit": {"type": "integer", "default": 10},
            },
            "required": ["note_id"],
        }

    async def execute(self, input):
        if input["note_id"] == "missing":
            return Result(success=False, error={"message": "no such note", "secret": "s3cr3t"})
        return Result(output={"text": f"{input['note_id']}!"})


class WithSchema(ReadNote):
    effect = "read_only"
    version = "2.0.0"
    input_schema: ClassVar = {"type": "object", "properties": {}}


class FunctionStyle(ReadNote):
    def get_schema(self):
        return {"type": "function", "name": self.name, "parameters": super().get_schema()}


def test_an_undeclared_effect_is_the_strictest_that_an_agent_may_see():
    contract = wrap_plain_tool(ReadNote()).contract
    assert contract.effect is Effect.IRREVERSIBLE
    assert (contract.approvers, contract.budget) == (2, 0)


def test_a_declared_effect_is_taken():
    assert wrap_plain_tool(ReadNote(), effect="read_only").contract.effect is Effect.READ_ONLY
    declared = wrap_plain_tool(WithSchema()).contract
    assert (declared.effect, declared.version) == (Effect.READ_ONLY, "2.0.0")


def test_its_schema_is_closed_and_nothing_keeps_it_from_being_registered():
    contract = wrap_plain_tool(ReadNote()).contract
    assert contract.affordance.input_schema["additionalProperties"] is False
    assert [p for p in lint(contract) if p.severity is Severity.ERROR] == []


def test_a_function_style_schema_is_understood():
    plain, function = wrap_plain_tool(ReadNote()), wrap_plain_tool(FunctionStyle())
    assert plain.contract.affordance == function.contract.affordance


async def test_it_is_called_with_its_input_and_its_output_is_unwrapped():
    tool = wrap_plain_tool(ReadNote())
    assert await tool(**tool.binder({"note_id": "n1"})) == {"text": "n1!"}


async def test_a_failure_that_it_reports_keeps_its_message_for_the_caller_and_no_details():
    with pytest.raises(SpokenError) as caught:
        await wrap_plain_tool(ReadNote())(note_id="missing")
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.words == "no such note"
    assert caught.value.details["secret"] == "s3cr3t"


class Reports(ReadNote):
    """Returns what it was made with."""

    effect = "read_only"

    def __init__(self, result):
        self.result = result

    async def execute(self, input):
        return self.result


@pytest.mark.parametrize(
    ("error", "words", "reported"),
    [
        ({"message": "gone", "type": "KeyError"}, "gone", ("KeyError",)),
        ({"message": "busy", "type": "Busy", "code": "E_BUSY"}, "busy", ("E_BUSY", "Busy")),
        ({"type": "TimeoutError"}, "", ("TimeoutError",)),
        ("in words", "in words", ()),
        ({"message": {"not": "text"}, "code": 7}, None, None),
        (ValueError("of Python"), None, None),
        ({}, None, None),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("form", [Result, dict])
async def test_a_reported_error_gives_its_message_and_its_own_names(error, words, reported, form):
    tool = wrap_plain_tool(Reports(form(success=False, error=error)))
    with pytest.raises(ToolFailedError) as caught:
        await tool(note_id="n1")
    assert caught.value.details is error
    said = (getattr(caught.value, "words", None), getattr(caught.value, "reported", None))
    assert said == (words, reported)


async def test_a_result_written_as_a_dictionary_is_unwrapped_and_other_dictionaries_are_not():
    done, other = {"success": True, "output": {"a": 1}}, {"success": False, "rows": 0}
    assert await wrap_plain_tool(Reports(done))(note_id="n1") == {"a": 1}
    assert await wrap_plain_tool(Reports(other))(note_id="n1") == other


def test_a_tool_without_a_schema_is_refused():
    class Bare:
        name = "bare"
        description = "Bare."

        async def execute(self, input):
            return input

    with pytest.raises(ContractError, match="has no input schema"):
        wrap_plain_tool(Bare())


@pytest.mark.parametrize("schema", [{"properties": {"a": object()}}, {"properties": 3}, "text"])
def test_a_tool_with_a_nonsensical_schema_is_refused_or_found_out(schema):
    odd = ReadNote()
    odd.input_schema = schema
    try:
        problems = lint(wrap_plain_tool(odd).contract)
    except ContractError as error:
        problems = error.problems
    assert "schema-invalid" in {problem.rule for problem in problems}


def test_classes_and_other_things_are_not_mistaken_for_tools():
    assert is_plain_tool(ReadNote())
    assert not is_plain_tool(ReadNote)
    assert not is_plain_tool(object())


def test_a_tool_that_raises_when_it_is_looked_at_does_not_hide_the_problems_of_others():
    class Broken(ReadNote):
        def get_schema(self):
            raise RuntimeError("db down")

    class Unnamed(ReadNote):
        name = "a b"

    with pytest.raises(ContractError) as caught:
        Registry().register(Broken(), Unnamed())
    assert {problem.rule for problem in caught.value.problems} == {"not-a-tool", "name-invalid"}


async def test_a_sync_execute_and_a_nested_function_schema_are_understood():
    class Plain(ReadNote):
        def get_schema(self):
            return {"type": "function", "function": {"parameters": super().get_schema()}}

        def execute(self, input):
            return {"got": input["note_id"]}

    made = wrap_plain_tool(Plain())
    assert "note_id" in made.contract.affordance.input_schema["properties"]
    assert await made(note_id="n") == {"got": "n"}
