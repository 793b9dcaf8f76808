import pytest

from counterseal.contract.model import Contract
from counterseal.contract.schemas import compile_schema
from counterseal.observation import Redactor, observe, profile

CASE = {
    "type": "object",
    "properties": {"case_id": {"type": "string"}, "open": {"type": "boolean"}},
    "required": ["case_id"],
    "additionalProperties": False,
}


def make_contract(output=None, effect="read_only", **more):
    return Contract(
        identity={"name": "read_case", "version": "1.2.0", "owner": "case-platform"},
        affordance={
            "model_description": "Read a case.",
            "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
            "output_schema": output or {"type": "object"},
        },
        effect=effect,
        **more,
    )


@pytest.fixture(scope="session")
def case_schema():
    return CASE


@pytest.fixture(scope="session")
def contract_with():
    return make_contract


@pytest.fixture(scope="session")
def seen():
    redactor = Redactor()

    def look(value, output=None, **more):
        contract = make_contract(output, **more)
        validator = compile_schema(contract.affordance.output_schema)
        return observe(value, profile(contract), validator, redactor)

    return look
