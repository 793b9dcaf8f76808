"""Defects that are put into a tool, a rule or a policy on purpose: each is found by its mode."""

from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Config, Invariant, tool
from counterseal.call.call import Tenant
from counterseal.policy import Policy

READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}
Amount = Annotated[int, Field(ge=0, le=100, description="How much.")]


def modes_of(found):
    return {mode for mode, _, _ in found}


def quote(**declared):
    async def quote(amount: Amount) -> dict[str, int]:
        """Quote a price."""
        return {"price": amount}

    return tool(**{**READS, **declared})(quote)


async def test_a_sound_tool_passes(evaluated):
    rule = Invariant(id="even", rule="It is even.", check="call.amount % 2 == 0")
    report = await evaluated(quote(invariants=[rule]), declared={"quote": {"run": "real"}})
    assert report.ok
    statuses = {cell.mode: cell.status for cell in report.cells if cell.applies}
    assert set(statuses.values()) == {"passed"}
    assert report.tools[0].ran == "its function"


# --- semantics ------------------------------------------------------------------------------------


async def test_a_corrector_that_loops_is_found(failures):
    rule = Invariant(
        id="even",
        rule="It is even.",
        check="call.amount % 2 == 0",
        correct=lambda call, _state, _config: call.replace(amount=(call["amount"] + 2) % 100),
    )
    found = await failures(
        quote(invariants=[rule]), declared={"quote": {"arguments": {"amount": 4}}}
    )
    assert modes_of(found) == {"semantics"}
    assert "never satisfies its own rule" in found[0][2]


async def test_a_corrector_that_leaves_the_schema_is_found(failures):
    rule = Invariant(
        id="small",
        rule="It is small.",
        check="call.amount < 50",
        correct=lambda call, _state, _config: call.replace(amount=-1),
    )
    found = await failures(quote(invariants=[rule]))
    assert modes_of(found) == {"semantics"}
    assert "does not fit the input schema" in found[0][2]


@pytest.mark.parametrize("drops", [True, False])
async def test_a_normalizer_that_drops_a_field_is_found(failures, drops):
    @tool(**READS)
    async def ship(
        address: Annotated[
            dict[str, str],
            Config(
                "address",
                default={"street": " Main ", "city": "Bern "},
                normalizer=lambda value: {
                    name: text.strip()
                    for name, text in value.items()
                    if name != "city" or not drops
                },
            ),
        ],
    ) -> dict[str, str]:
        """Say where it would go."""
        return address

    found = await failures(ship)
    assert modes_of(found) == ({"semantics"} if drops else set())
    assert not drops or "city is lost" in found[0][2]


# --- permissions ----------------------------------------------------------------------------------


def policy_of(tmp_path, condition):
    file = tmp_path / "policy.yaml"
    file.write_text(
        f"rules:\n  - {{id: ask, when: '{condition}', then: require_approval,"
        " approvers: 1, reason: A person decides.}\n"
    )
    return Policy.load(file)


async def test_a_policy_that_forgets_a_tenant_is_found(failures, tmp_path):
    tenants = {"north": Tenant(), "east": Tenant()}
    lax = policy_of(tmp_path, 'principal.tenant == "north"')
    found = await failures(quote(), policy=lax, tenants=tenants)
    assert modes_of(found) == {"permissions"}
    assert "in the tenant east the call is allow" in found[0][2]
    strict = policy_of(tmp_path, 'principal.tenant in ["north", "east"]')
    assert await failures(quote(), policy=strict, tenants=tenants) == []


async def test_a_policy_that_is_lenient_with_risky_callers_is_found(failures, tmp_path):
    lax = policy_of(tmp_path, 'principal.risk_level == "low"')
    found = await failures(quote(), policy=lax)
    assert modes_of(found) == {"permissions"}
