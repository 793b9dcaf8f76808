"""What was asked is on record: for executed, refused and unknown calls alike, on a real file."""

import sqlite3
from datetime import UTC, datetime

import pytest

from counterseal import Budgets, Principal, Proposal, Reconciler
from counterseal.accounts.users import Person
from counterseal.codes import Code
from counterseal.config import load_settings, open_runtime
from counterseal.keys import Purpose, new_key
from counterseal.ledger.requests import EventFilter
from counterseal.operations.auditor import (
    NotKeptError,
    open_capture,
    read_arguments,
    verify_store,
)
from counterseal.reconcile import Retention
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError, RoleRequiredError

TOOLS = '''
from typing import Annotated
from pydantic import Field
from counterseal import tool

Iban = Annotated[str, Field(pattern="^[A-Z]{{2}}[0-9]{{8}}$", description="Account.")]
Cents = Annotated[int, Field(ge=1, le=100_000, description="Amount.")]
Note = Annotated[str, Field(max_length=20_000, description="Reason.")]


@tool(effect="internal_mutation", version="1.0.0", owner="payments", usage="To refund.",
      resource="account:{{iban}}", consequence="Refunds {{cents}} cents to {{iban}}.",
      on_unknown="escalate", budget=3 {more})
async def refund(iban: Iban, cents: Cents, note: Note = "") -> dict[str, str]:
    """Refund an amount."""
    if note == "lost":
        raise ConnectionError("no answer")
    return {{"status": "done"}}


@tool(effect="read_only", version="1.0.0", owner="payments", usage="To look.")
async def balance(iban: Iban) -> dict[str, int]:
    """Return a balance."""
    return {{"cents": 12}}
'''
CONFIG = """
[store]
url = "sqlite:///counterseal.db"
{keys}
[tools]
paths = ["tools.py"]

[[grants]]
agent = "clerk"
tool = "refund"
max_calls_per_run = 300

[[grants]]
agent = "clerk"
tool = "balance"
max_calls_per_run = 300
"""
CLERK = Principal(tenant="acme", agent="clerk", user="u_1")
OTHER = Principal(tenant="umbrella", agent="clerk", user="u_1")
GOOD = {"iban": "DE00001111", "cents": 250, "note": "thanks"}


def person(*roles, tenant="acme"):
    return Person(name="vic", tenant=tenant, roles=frozenset(roles))


@pytest.fixture
def project(tmp_path):
    def project(extra="", more="", *, sealed=True):
        if sealed and not (tmp_path / "keys").exists():
            new_key(tmp_path / "keys", Purpose.VAULT, datetime(2026, 7, 31, tzinfo=UTC))
        keys = '\n[keys]\npath = "keys"\n' if sealed else ""
        (tmp_path / "tools.py").write_text(TOOLS.format(more=more))
        (tmp_path / "counterseal.toml").write_text(CONFIG.format(keys=keys) + extra)
        return open_runtime(load_settings(tmp_path / "counterseal.toml"))

    return project


async def submit(runtime, arguments, tool="refund", principal=CLERK, **more):
    more.setdefault("run_id", "run_1")
    return await runtime.submit(Proposal(tool=tool, arguments=arguments, **more), principal)


async def events(runtime, call_id, tenant="acme"):
    return [event for _, event in await runtime.store.events(tenant, call_id=call_id)]


async def refusal(runtime, call_id, tenant="acme"):
    told = await events(runtime, call_id, tenant)
    return next(event for event in told if event.type == "tool.denied")


async def arguments(runtime, call_id):
    return await TenantView(runtime, person("operator")).calls.arguments(call_id)


def on_disk(folder):
    return b"".join(file.read_bytes() for file in folder.glob("counterseal.db*"))


async def test_a_change_says_what_it_does_to_what_and_under_which_contract(project):
    async with project() as runtime:
        observation = await submit(runtime, GOOD)
        requested, _, succeeded = await events(runtime, observation.call_id)
        contract = runtime.registry.get("refund", "1.0.0").contract
    assert requested.body["consequence"] == "Refunds 250 cents to DE00001111."
    assert requested.body["resource"] == "account:DE00001111"
    assert requested.body["effect"] == "internal_mutation"
    assert requested.body["contract_hash"] == contract.hash
    assert len(requested.body["payload_hash"]) == len(requested.body["key_fingerprint"]) == 16
    assert succeeded.body["payload_hash"] == requested.body["payload_hash"]
    assert succeeded.body["consequence"] == requested.body["consequence"]
    assert isinstance(succeeded.body["latency_ms"], int)
    assert "captured" in requested.body
    assert "captured" not in succeeded.body


async def test_arguments_of_a_refused_call_are_kept_and_reading_them_is_on_record(project):
    async with project() as runtime:
        refused = await submit(runtime, {**GOOD, "iban": "attacker@evil.example"})
        assert not refused.ok
        row = await arguments(runtime, refused.call_id)
        assert row.arguments["iban"] == "attacker@evil.example"
        assert row.principal["agent"] == "clerk"
        *_, read = await events(runtime, refused.call_id)
        assert (read.type, read.caller.user, read.body["by"]) == ("arguments.read", "vic", "vic")
        page = await TenantView(runtime, person("viewer")).calls.page(refused.call_id)
        assert page.call.type == "tool.denied"
        assert page.asked.kept
        with pytest.raises(RoleRequiredError):
            await TenantView(runtime, person("viewer")).calls.arguments(refused.call_id)
        assert (await verify_store(runtime.store, "acme", runtime.keys)).ok


async def test_the_risk_level_and_the_tokens_that_a_decision_saw_are_kept(project):
    risky = Principal(tenant="acme", agent="clerk", user="u_1", risk_level="high")
    async with project() as runtime:
        done = await submit(runtime, GOOD, principal=risky, tokens=120)
        row = await arguments(runtime, done.call_id)
    assert row.principal["risk_level"] == "high"
    assert row.proposal["tokens"] == 120


async def test_text_that_is_no_json_is_kept_as_it_came(project):
    async with project() as runtime:
        refused = await submit(runtime, '{"iban": "DE00001111", "cents":')
        row = await arguments(runtime, refused.call_id)
    assert row.arguments == '{"iban": "DE00001111", "cents":'


async def test_a_read_keeps_its_arguments_with_its_one_event(project):
    async with project() as runtime:
        seen = await submit(runtime, {"iban": "DE00001111"}, tool="balance")
        (event,) = await events(runtime, seen.call_id)
        assert "consequence" not in event.body
        assert (await arguments(runtime, seen.call_id)).arguments == {"iban": "DE00001111"}


async def test_on_disk_the_arguments_are_sealed(project, tmp_path):
    async with project() as runtime:
        await submit(runtime, {**GOOD, "note": "between-us-only"})
    assert b"between-us-only" not in on_disk(tmp_path)


async def test_without_a_key_only_the_redacted_form_is_kept(project, tmp_path):
    secret = "ghp_" + "a1B2" * 9
    async with project(sealed=False) as runtime:
        refused = await submit(runtime, {**GOOD, "cents": -1, "note": f"use {secret}"})
        row = await arguments(runtime, refused.call_id)
        assert secret not in row.arguments["note"]
        assert row.redactions
    assert secret.encode() not in on_disk(tmp_path)


async def test_a_long_refused_proposal_is_cut_at_8_kb(project):
    async with project() as runtime:
        refused = await submit(runtime, {**GOOD, "cents": -1, "note": "x" * 19_000})
        row = await arguments(runtime, refused.call_id)
    assert row.cut
    assert len(row.arguments) == 8 * 1024


async def test_refused_proposals_of_one_caller_do_not_fill_the_vault(project):
    async with project() as runtime:
        for number in range(201):
            refused = await submit(runtime, {"iban": str(number)}, run_id=f"run_{number}")
        denied = await refusal(runtime, refused.call_id)
        assert denied.body["not_captured"] == "limit"
        with pytest.raises(NotKeptError, match="Too many proposals"):
            await arguments(runtime, refused.call_id)
        another = await submit(runtime, {"iban": "?"}, principal=OTHER)
        assert "captured" in (await refusal(runtime, another.call_id, "umbrella")).body


async def test_a_call_that_the_admission_refuses_is_kept_as_a_refused_one(project):
    extra = '\n[[grants]]\nagent = "other"\ntool = "refund"\nmax_calls_per_run = 1\n'
    other = Principal(tenant="acme", agent="other", user="u_1")
    async with project(extra) as runtime:
        await submit(runtime, GOOD, principal=other)
        over = await submit(runtime, {**GOOD, "note": "x" * 19_000}, principal=other)
        assert over.code is Code.BUDGET_EXHAUSTED
        row = await arguments(runtime, over.call_id)
    assert row.cut
    assert row.memory["charge"] == {"budget": "run.tool.refund", "limit": 1, "spent": 1}


async def test_a_call_beyond_the_runs_tokens_is_kept_with_what_was_spent(project):
    async with project() as runtime:
        await runtime.run(CLERK, "run_1", budgets=Budgets(tokens=100))
        await submit(runtime, GOOD, tokens=70)
        over = await submit(runtime, GOOD, tokens=40, key="k-2")
        assert over.code is Code.BUDGET_EXHAUSTED
        row = await arguments(runtime, over.call_id)
    assert row.memory["charge"] == {"budget": "run.tokens", "limit": 100, "spent": 70}


@pytest.mark.parametrize(
    ("extra", "more"),
    [
        ("\n[observations]\nkeep_arguments_days = 0\n", ""),
        ("\n[tenants.acme]\nkeep_arguments_days = 0\n", ""),
        ("", ", keep_arguments_days=0"),
    ],
    ids=["operator", "tenant", "contract"],
)
async def test_each_of_operator_tenant_and_contract_can_opt_out(project, tmp_path, extra, more):
    async with project(extra, more, sealed=False) as runtime:
        done = await submit(runtime, {**GOOD, "note": "between-us-only"})
        requested, *_ = await events(runtime, done.call_id)
        assert requested.body["not_captured"] == "opted_out"
        assert requested.body["payload_hash"]
        with pytest.raises(NotKeptError, match="keep_arguments_days is 0"):
            await arguments(runtime, done.call_id)
    with sqlite3.connect(tmp_path / "counterseal.db") as file:
        assert file.execute("SELECT count(*) FROM vault").fetchone() == (0,)
        texts = file.execute("SELECT body FROM events").fetchall()
    file.close()
    assert not any("DE00001111" in str(body) for (body,) in texts)


async def test_the_shortest_retention_applies_and_the_events_stay(project, tmp_path):
    async with project(more=", keep_arguments_days=3") as runtime:
        done = await submit(runtime, GOOD)
        await Reconciler(runtime, retention=Retention(vault_days=30)).once()
        assert (await arguments(runtime, done.call_id)).arguments == GOOD
    with sqlite3.connect(tmp_path / "counterseal.db") as file:
        rows = file.execute("SELECT forget_at - kept_at FROM vault").fetchall()
        file.execute("UPDATE vault SET forget_at = kept_at")
    file.close()
    assert [round(days / 86_400) for (days,) in rows] == [3]
    async with project(more=", keep_arguments_days=3") as runtime:
        await Reconciler(runtime, retention=Retention(vault_days=30)).once()
        with pytest.raises(NotKeptError, match="no longer kept"):
            await arguments(runtime, done.call_id)
        assert len(await events(runtime, done.call_id)) == 4


async def test_erased_arguments_are_gone_and_the_erasure_is_on_record(project):
    async with project() as runtime:
        done = await submit(runtime, GOOD)
        admin = TenantView(runtime, person("admin")).calls
        operator = TenantView(runtime, person("operator")).calls
        with pytest.raises(RoleRequiredError):
            await operator.erase_arguments(done.call_id, "asked to")
        with pytest.raises(ValueError, match="reason"):
            await admin.erase_arguments(done.call_id, " ")
        await admin.erase_arguments(done.call_id, "the customer asked")
        with pytest.raises(NotKeptError):
            await admin.arguments(done.call_id)
        *_, erased = await events(runtime, done.call_id)
        assert (erased.type, erased.body["reason"]) == ("arguments.erased", "the customer asked")
        assert (await verify_store(runtime.store, "acme", runtime.keys)).ok


async def test_an_operator_who_is_asked_what_happened_sees_amount_and_account(project):
    async with project() as runtime:
        lost = await submit(runtime, {**GOOD, "note": "lost"})
        assert not lost.ok
        (row,) = (await TenantView(runtime, person("operator")).attention.rows()).items
    assert row.consequence == "Refunds 250 cents to DE00001111."
    assert row.resource == "account:DE00001111"


async def test_a_fingerprint_is_the_same_in_a_tenant_and_another_one_elsewhere(project):
    async with project() as runtime:
        first, again, elsewhere = [
            await submit(runtime, {"iban": "DE00001111"}, tool="balance", principal=who)
            for who in (CLERK, CLERK, OTHER)
        ]
        hashes = [
            (await events(runtime, seen.call_id, tenant))[0].body["payload_hash"]
            for seen, tenant in ((first, "acme"), (again, "acme"), (elsewhere, "umbrella"))
        ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("first", [Purpose.VAULT, Purpose.SESSION])
async def test_a_fingerprint_stays_the_same_when_keys_are_rotated(project, tmp_path, first):
    day, told = datetime(2026, 7, 31, tzinfo=UTC), []
    for purpose in (first, Purpose.SESSION, first):
        new_key(tmp_path / "keys", purpose, day)
        async with project() as runtime:
            await submit(runtime, GOOD, key="k-1", run_id=f"run_{len(told)}")
            found = await runtime.store.events("acme", run_id=f"run_{len(told)}")
            body = found[-1][1].body
            told.append((body["payload_hash"], body["key_fingerprint"]))
    assert told[0] == told[1] == told[2]


async def test_another_tenants_call_is_not_there(project):
    async with project() as runtime:
        done = await submit(runtime, GOOD)
        stranger = TenantView(runtime, person("admin", tenant="umbrella")).calls
        with pytest.raises(NotFoundError):
            await stranger.arguments(done.call_id)


# --- the manifest ---------------------------------------------------------------------------------

SECRET_NOTE = "token ghp_" + "a1B2" * 9


async def test_what_a_capture_lacks_is_on_record_with_the_reason(project):
    async with project() as runtime:
        whole, redacted = (
            await submit(runtime, GOOD),
            await submit(runtime, {**GOOD, "cents": 1, "note": SECRET_NOTE}),
        )
        requested, _, succeeded = await events(runtime, redacted.call_id)
        assert requested.body["gaps"] == succeeded.body["gaps"] == {"arguments": "redacted"}
        assert all("gaps" not in event.body for event in await events(runtime, whole.call_id))
        page = await TenantView(runtime, person("operator")).calls.page(redacted.call_id)
        assert page.asked.gaps == {"arguments": "redacted"}


async def test_the_trace_completeness_rate_counts_complete_captures_only(project):
    async with project() as runtime:
        await submit(runtime, {"iban": "DE00001111"}, tool="balance")
        await submit(runtime, GOOD)
        await submit(runtime, {**GOOD, "cents": 1, "note": SECRET_NOTE})
        rows = await TenantView(runtime, person("operator")).metrics.rows()
        rate = next(row for row in rows if row.name == "trace_completeness_rate")
    assert (rate.numerator, rate.denominator) == (2, 3)


async def test_a_capture_holds_what_the_gates_read_beside_the_arguments(project):
    facts = '\n[tenants.acme]\nfacts = { tier = "gold" }\n[tenants.acme.budgets]\nwrites = 7\n'
    async with project(facts) as runtime:
        parent = Principal(tenant="acme", agent="clerk", user="u_1", parents=["clerk"])
        await runtime.run(CLERK, "run_1", budgets=Budgets(writes=5), allowed_tools=["refund"])
        observation = await submit(runtime, GOOD, principal=parent)
        capture = await read_arguments(
            runtime.store, runtime.vault, "acme", observation.call_id, by="vic", now=0.0
        )
    assert capture.missing == {}
    assert capture.authority == [{"max_calls_per_run": 300}, None, {}]
    assert capture.tenant == [{"tier": "gold"}, {"writes": 7}]
    assert capture.record()["principal"]["parents"] == ["clerk"]
    settings = capture.record()["run"]["settings"]
    assert settings == {"allowed_tools": ["refund"], "budgets": {"writes": 5}}


async def test_a_repeated_call_is_kept_with_the_entry_that_answered_it(project):
    async with project() as runtime:
        first, again = await submit(runtime, GOOD), await submit(runtime, GOOD)
        repeats = EventFilter(types=["tool.replayed"])
        ((_, replayed),) = await runtime.store.search("acme", repeats)
        assert again.idempotency_hit
        capture = await open_capture(runtime.store, runtime.vault, "acme", replayed)
    call_id, status, *_, same, lapsed, worker, answered = capture.memory["entry"]
    assert (call_id, status, same) == (first.call_id, "COMPLETED", True)
    assert (lapsed, worker, answered) == (False, False, True)


async def test_secret_among_the_facts_about_a_tenant_is_redacted_and_a_gap(project, tmp_path):
    secret = "ghp_" + "a1B2" * 9
    facts = f'\n[tenants.acme]\nfacts = {{ note = "use {secret}" }}\n'
    async with project(facts, sealed=False) as runtime:
        observation = await submit(runtime, GOOD)
        requested, *_ = await events(runtime, observation.call_id)
        assert requested.body["gaps"] == {"tenant": "redacted"}
    assert secret.encode() not in on_disk(tmp_path)


@pytest.mark.parametrize(
    "long",
    [
        {"key": "k" * 100_000},
        {"origins": {"/" + "x" * 100_000: "user"}},
        {"tool": "t" * 100_000},
        {"run_id": "r" * 100_000},
    ],
    ids=lambda long: next(iter(long)),
)
async def test_refused_proposal_is_kept_small_whatever_of_it_is_long(project, long):
    async with project() as runtime:
        refused = await submit(runtime, GOOD, **long)
        denied = await refusal(runtime, refused.call_id)
        kept = await runtime.store.fetch("acme", denied.body["captured"])
        assert len(kept) < 8 * 1024
        assert denied.body["gaps"]["proposal"] == "cut"
        assert (await arguments(runtime, refused.call_id)).arguments == GOOD


async def test_refused_proposal_full_of_secrets_is_kept_small(project):
    async with project() as runtime:
        secrets = [{"password": f"hunter{number}"} for number in range(5000)]
        refused = await submit(runtime, {**GOOD, "note": secrets})
        denied = await refusal(runtime, refused.call_id)
        kept = await runtime.store.fetch("acme", denied.body["captured"])
        assert len(kept) < 24 * 1024
        assert (await arguments(runtime, refused.call_id)).redactions


async def test_budget_of_nothing_is_kept_as_the_limit_that_it_is(project):
    async with project("\n[tenants.acme.budgets]\nwrites = 0\n") as runtime:
        await runtime.run(CLERK, "run_1", budgets=Budgets(reads=0))
        refused = await submit(runtime, GOOD)
        assert refused.code is Code.BUDGET_EXHAUSTED
        capture = await read_arguments(
            runtime.store, runtime.vault, "acme", refused.call_id, by="vic", now=0.0
        )
    assert capture.tenant == [{}, {"writes": 0}]
    assert capture.record()["run"]["settings"] == {"budgets": {"reads": 0}}
