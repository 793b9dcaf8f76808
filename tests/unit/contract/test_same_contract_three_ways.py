"""The decorator, the value and the file give the same record."""

import json
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Contract, Tool, load_contracts, tool

YAML = """
effect: internal_mutation
identity:
  name: update_case_status
  version: 1.4.0
  owner: case-platform
affordance:
  model_description: Move a case to another status. Does not notify anybody.
  forbidden_use_cases: [Closing a case that has open notices.]
  input_schema:
    type: object
    properties:
      case_id:
        type: string
        pattern: ^case_[0-9]{6}$
        description: The case to move.
      status:
        type: string
        enum: [open, in_review, closed]
        description: Where to move it.
      note:
        type: string
        maxLength: 500
        description: Why, for the file.
        default: ""
    required: [case_id, status]
    additionalProperties: false
  output_schema:
    type: object
    properties:
      result: {type: integer}
    required: [result]
    additionalProperties: false
  examples:
    - description: Close a case.
      arguments: {case_id: case_000042, status: closed}
usage: When the review of a case has ended.
security:
  required_scopes: ["case:write"]
consequence: "Case {case_id} becomes {status}, it was {state.status}."
approval: {pattern: review_queue, roles: [clerk], expires_seconds: 3600}
resource: case:{case_id}
version_from: /result
business_key: [case_id, status]
probe: get_case
expected:
  status: "{status}"
  version: "{output.result}"
  link: /cases/{case_id}
verify_after: 30
transactional:
  compensation_tool: reopen_case
compensation: {case_id: "{case_id}", reasons: ["{{mistake}}"]}
invariants:
  - id: CLOSING_NEEDS_A_NOTE
    rule: Closing a case needs a note.
    check: call.status != 'closed' || (has(call.note) && call.note != '')
config_params:
  - key: region
    default: EU
    normalizer: [strip, lower]
state_effects:
  - key: statuses
    merge: merge_dict
"""

DATA = {
    "effect": "internal_mutation",
    "usage": "When the review of a case has ended.",
    "consequence": "Case {case_id} becomes {status}, it was {state.status}.",
    "approval": {"pattern": "review_queue", "roles": ["clerk"], "expires_seconds": 3600},
    "resource": "case:{case_id}",
    "version_from": "/result",
    "business_key": ["case_id", "status"],
    "probe": "get_case",
    "expected": {
        "status": "{status}",
        "version": "{output.result}",
        "link": "/cases/{case_id}",
    },
    "verify_after": 30,
    "compensation": {"case_id": "{case_id}", "reasons": ["{{mistake}}"]},
    "invariants": [
        {
            "id": "CLOSING_NEEDS_A_NOTE",
            "rule": "Closing a case needs a note.",
            "check": "call.status != 'closed' || (has(call.note) && call.note != '')",
        }
    ],
    "config_params": [{"key": "region", "default": "EU", "normalizer": ["strip", "lower"]}],
    "state_effects": [{"key": "statuses", "merge": "merge_dict"}],
}
EXAMPLE = {
    "description": "Close a case.",
    "arguments": {"case_id": "case_000042", "status": "closed"},
}


def by_decorator():
    from typing import Literal

    @tool(
        name="update_case_status",
        version="1.4.0",
        owner="case-platform",
        scopes=["case:write"],
        forbidden_use_cases=["Closing a case that has open notices."],
        examples=[EXAMPLE],
        compensation_tool="reopen_case",
        **DATA,
    )
    def update(
        case_id: Annotated[str, Field(pattern="^case_[0-9]{6}$", description="The case to move.")],
        status: Annotated[
            Literal["open", "in_review", "closed"], Field(description="Where to move it.")
        ],
        note: Annotated[str, Field(max_length=500, description="Why, for the file.")] = "",
    ) -> int:
        """Move a case to another status. Does not notify anybody."""
        return len(case_id + status + note)

    return update


def by_value():
    declared = by_decorator().contract.record()["affordance"]
    return Contract.model_validate(
        {
            **DATA,
            "identity": {
                "name": "update_case_status",
                "version": "1.4.0",
                "owner": "case-platform",
            },
            "affordance": {
                "model_description": "Move a case to another status. Does not notify anybody.",
                "forbidden_use_cases": ["Closing a case that has open notices."],
                "input_schema": declared["input_schema"],
                "output_schema": declared["output_schema"],
                "examples": [EXAMPLE],
            },
            "security": {"required_scopes": ["case:write"]},
            "transactional": {"compensation_tool": "reopen_case"},
        }
    )


@pytest.fixture
def by_yaml(tmp_path):
    path = tmp_path / "contract.yaml"
    path.write_text(YAML)
    (contract,) = load_contracts(path)
    return contract


def test_the_three_ways_give_equal_records_and_equal_hashes(by_yaml):
    decorated = by_decorator().contract
    assert decorated.record() == by_value().record() == by_yaml.record()
    assert decorated.hash == by_value().hash == by_yaml.hash
    assert decorated == by_value() == by_yaml


def test_a_json_file_gives_the_same_contract_as_the_yaml_one(by_yaml, tmp_path):
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(by_yaml.record()))
    assert load_contracts(path) == (by_yaml,)


def test_a_contract_from_a_file_is_joined_with_a_function(by_yaml):
    joined = Tool.of(by_yaml, by_decorator().function)
    assert joined.contract == by_decorator().contract
    assert joined("a", "b", "c") == 3


def test_an_envelope_with_its_effect_beside_it_is_a_contract_file(by_yaml, tmp_path):
    path = tmp_path / "envelope.json"
    path.write_text(
        json.dumps(
            {**by_yaml.envelope(), "effect": "draft", "usage": "u", "risk_justification": "none"}
        )
    )
    (read,) = load_contracts(path)
    assert read.envelope() == by_yaml.envelope()
