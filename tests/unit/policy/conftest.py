import pytest

from counterseal.contract.model import Contract
from counterseal.policy import Policy, contract_facts


@pytest.fixture
def write(tmp_path):
    def write(text, name="policy.yaml"):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return write


@pytest.fixture
def facts_of():
    """The facts of a contract with this effect; sections by keyword."""

    def facts_of(effect="read_only", **more):
        data = {
            "identity": {"name": "read_case", "version": "1.0.0"},
            "effect": effect,
            "affordance": {"model_description": "A tool.", "input_schema": {"type": "object"}},
        }
        return contract_facts(Contract.model_validate({**data, **more}))

    return facts_of


@pytest.fixture
def facts():
    """A call as conditions see it; names by keyword."""

    def facts(**more):
        principal = {"tenant": "acme", "user": "u_7", "agent": "clerk", "roles": [], "scopes": []}
        principal["risk_level"] = "low"
        run = {"id": "run_1", "objective": None, "allowed_tools": None}
        return {
            "call": {},
            "proposal": {"tool": "read_case", "run_id": None, "version": None, "has_key": False},
            "tenant": {},
            **more,
            "principal": {**principal, **more.get("principal", {})},
            "run": {**run, "age_seconds": 0.0, "state": {}, "calls": 0, **more.get("run", {})},
        }

    return facts


@pytest.fixture
def policy():
    """A policy of these rules, as (then, when) or whole mappings; ids are r0, r1, …"""

    def policy(*rules, default=False):
        whole = [
            {"id": f"r{i}", "reason": f"Because of r{i}.", **_fields(rule)}
            for i, rule in enumerate(rules)
        ]
        return Policy.from_data({"rules": whole}, default=default)

    return policy


def _fields(rule):
    return {"then": rule[0], "when": rule[1]} if isinstance(rule, tuple) else rule


@pytest.fixture
def decide(policy, facts, facts_of):
    """What a policy of these rules says about a call."""

    def decide(*rules, default=False, effect="read_only", **more):
        compiled = policy(*rules, default=default).compile_for(facts_of(effect))
        return compiled.decide(facts(**more))

    return decide
