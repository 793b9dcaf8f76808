"""Defects that are put into a tool, a rule or a policy on purpose: each is found by its mode."""

from dataclasses import replace
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from counterseal import Config, Context, Contract, Grant, Invariant, Runtime, Secret, tool
from counterseal.call.call import Tenant
from counterseal.evaluation.evaluator import evaluate, subjects_of
from counterseal.evaluation.modes import MODES
from counterseal.policy import Policy
from counterseal.testing import MemoryStore, fake_tool

Room = Annotated[str, Field(max_length=10, description="Which room.")]
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


# --- idempotency and retry ------------------------------------------------------------------------


class Bank:
    """A service that charges, and may or may not honour keys."""

    def __init__(self, *, honours):
        self.honours = honours
        self.charges = {}

    def reset(self):
        self.charges.clear()

    def charge(self, key, amount):
        known = self.charges.get(key) if self.honours else None
        if known is None:
            known = {"charge_id": f"ch_{len(self.charges) + 1}", "amount": amount}
            self.charges[key if self.honours else len(self.charges)] = known
        return known


class Charged(BaseModel):
    charge_id: str
    amount: int


def charging(bank, **declared):
    async def charge(amount: Amount, ctx: Context) -> Charged:
        """Charge an amount."""
        return Charged(**bank.charge(ctx.key, amount))

    return tool(**{**READS, "effect": "draft", "on_unknown": "retry_same_key", **declared})(charge)


@pytest.mark.parametrize("honours", [True, False])
async def test_a_tool_that_ignores_its_key_is_found(failures, honours):
    bank = Bank(honours=honours)
    found = await failures(charging(bank), reset=bank.reset)
    assert modes_of(found) == (set() if honours else {"idempotency", "retry"})
    assert honours or "ignores its key" in found[0][2]


async def test_a_tool_whose_read_back_does_not_find_its_calls_is_found(failures):
    bank = Bank(honours=True)

    def find(ctx: Context) -> Charged | None:
        return None

    mutant = charging(bank, on_unknown="read_back", read_back=find)
    found = await failures(mutant, reset=bank.reset, mode="idempotency")
    assert [name for _, name, _ in found] == ["a worker dies before it writes the outcome"]


# --- observations ---------------------------------------------------------------------------------


async def test_an_output_that_breaks_its_schema_is_found(failures):
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["price"],
        "properties": {"price": {"type": "integer"}},
    }
    found = await failures(fake_tool("quote", {"price": "seven"}, output_schema=schema))
    assert {"observation"} <= modes_of(found)
    own = next(message for _, name, message in found if name.startswith("its own answer"))
    assert "OBSERVATION_NORMALIZATION_FAIL" in own


async def test_a_tool_that_leaks_a_secret_is_found(failures):
    @tool(**READS)
    async def connect(token: Annotated[str, Secret("api_token")]) -> dict[str, str]:
        """Connect."""
        return {"url": f"https://example.org/?token={token}"}

    found = await failures(connect, secrets={"api_token": "a-long-secret-value"})
    assert modes_of(found) == {"observation"}
    assert "holds the secret" in found[0][2]


# --- compensation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("works", [True, False])
async def test_a_compensation_that_does_nothing_is_found(failures, works):
    rooms = {}

    def look(room: str) -> dict[str, str]:
        return {"status": rooms.get(room, "free")}

    @tool(**{**READS, "effect": "draft", "exposed": False})
    async def free_room(room: Room) -> dict[str, bool]:
        """Free a room again."""
        if works:
            rooms.pop(room, None)
        return {"freed": True}

    @tool(
        **{**READS, "effect": "draft"},
        resource="room:{room}",
        probe=look,
        expected={"status": "booked"},
        compensation_tool="free_room",
    )
    async def book_room(room: Room) -> dict[str, bool]:
        """Book a room."""
        rooms[room] = "booked"
        return {"booked": True}

    declared = {"book_room": {"run": "real"}}
    found = await failures(free_room, book_room, declared=declared, reset=rooms.clear, stubbed=True)
    assert modes_of(found) == (set() if works else {"compensation"})
    assert works or "still finds what the call did" in found[0][2]


# --- drift ----------------------------------------------------------------------------------------


async def test_a_function_that_no_longer_fits_its_contract_is_found(failures):
    async def other(amount: Amount, currency: str) -> dict[str, int]:
        """Quote a price."""
        return {"price": amount}

    drifted = replace(quote(), function=other)
    found = await failures(drifted, mode="drift", stubbed=True)
    assert [name for _, name, _ in found] == ["the function takes what the contract declares"]


# --- HTTP tools -----------------------------------------------------------------------------------


def ticket_tool(**http):
    return Contract.model_validate(
        {
            "effect": "read_only",
            "usage": "In tests.",
            "identity": {"name": "get_ticket", "version": "1.0.0", "owner": "tests"},
            "affordance": {
                "model_description": "Look up a ticket.",
                "input_schema": {"type": "object", "additionalProperties": False},
                "output_schema": {"type": "object", "required": ["id"]},
            },
            "egress": ["api.example.org"],
            "http": {"url": "https://api.example.org/ticket", **http},
        }
    )


@pytest.mark.parametrize("mapped", [True, False])
async def test_a_503_that_is_not_worth_a_retry_is_found_on_the_wire(mapped):
    contract = ticket_tool(**({"statuses": {"503": "SEMANTIC_INVALIDITY"}} if mapped else {}))
    runtime = Runtime(MemoryStore())
    runtime.register(contract, grants=[Grant(agent="agent", tool="get_ticket")])
    chosen = [mode for mode in MODES if mode.name == "retry"]
    report = await evaluate(await subjects_of(runtime), modes=chosen)
    found = [case.name for _, case in report.failures]
    assert found == (["an HTTP answer of 503, once"] if mapped else [])
    assert any(case.name.startswith("no HTTP answer") for case in report.cells[0].cases)


# --- tenants --------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [True, False])
async def test_a_tool_that_shows_one_tenants_data_to_another_is_found(failures, apart):
    rooms = {"north": {"blue": "booked"}}

    @tool(**READS, resource="room:{room}")
    async def read_room(room: Room, ctx: Context) -> dict[str, str]:
        """Read a room."""
        own = rooms.get(ctx.tenant, {}) if apart else rooms["north"]
        return {"status": own.get(room, "unknown")}

    found = await failures(
        read_room,
        declared={"read_room": {"run": "real", "arguments": {"room": "blue"}}},
        tenants={"north": Tenant(), "east": Tenant()},
        mode="permissions",
    )
    assert [name for _, name, _ in found] == (
        [] if apart else ["another tenant sees nothing of it"]
    )


# --- replay ---------------------------------------------------------------------------------------


async def test_a_rule_that_looks_outside_of_the_call_is_found(failures):
    quoted = []

    async def quote(amount: Amount) -> dict[str, int]:
        """Quote a price."""
        quoted.append(amount)
        return {"price": amount}

    def not_yet(call, _state, _config):
        return call["amount"] not in quoted

    rule = Invariant(id="once", rule="An amount is quoted once.", check=not_yet)
    mutant = tool(**READS, invariants=[rule])(quote)
    found = await failures(mutant, mode="replay", reset=quoted.clear)
    assert modes_of(found) == {"replay"}
    assert "the gate semantics decided" in found[0][2]
