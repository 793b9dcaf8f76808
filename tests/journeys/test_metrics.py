"""A day at the office, counted: every metric has something to count, on every store the same."""

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Grant, Proposal, tool
from counterseal.accounts.users import Person
from counterseal.approvals.terms import Voter
from counterseal.operations.attention import NeedsAttention
from counterseal.policy import Policy
from counterseal.reconcile import Reconciler
from counterseal.runtime import Runtime
from counterseal.testing import fake_tool, someone
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError
from counterseal.views.calls import CallSearch
from counterseal.views.metrics import METRICS, prometheus
from tests.postgres_server import borrowed_database

NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 100, "description": "A number."}},
    "required": ["n"],
    "additionalProperties": False,
}
Which = Annotated[int, Field(ge=0, le=100, description="Which.")]
WRITES = {"effect": "draft", "version": "1.0.0", "owner": "tests"}
NO_THIRTEEN = {"id": "no-13", "rule": "Not thirteen.", "check": "call.n != 13"}
POLICY = {
    "rules": [
        {
            "id": "no-home",
            "when": "contract.name == 'look' && call.n == 66",
            "then": "deny",
            "reason": "Not that one.",
        }
    ]
}

EXPECTED = {
    "first_pass_schema_valid_rate": (15, 22),
    "schema_valid_call_rate": (18, 22),
    "semantic_valid_rate": (17, 18),
    "validation_failure_rate": (10, 22),
    "repair_success_rate": (1, 4),
    "repair_saturation_rate": (1, 4),
    "unauthorized_proposal_rate": (1, 22),
    "policy_violation_rate": (1, 22),
    "confirmation_required_rate": (2, 13),
    "confirmation_rejection_rate": (1, 2),
    "confirmation_bypass_attempt_rate": (1, 2),
    "idempotency_replay_rate": (1, 14),
    "idempotency_conflict_rate": (1, 3),
    "retry_success_rate": (1, 1),
    "unsafe_retry_block_rate": (2, 1),
    "observation_normalization_failure_rate": (1, 10),
    "post_action_verification_required_rate": (1, 6),
    "compensation_success_rate": (1, 1),
    "tool_cost_per_successful_action": (0.5, 8),
    "trace_completeness_rate": (9, 10),
}
"""What `a_day` comes to: numerator and denominator."""


@asynccontextmanager
async def postgres():
    with borrowed_database() as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def runtime(request, tmp_path):
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/day.db"}
    if request.param == "postgres":
        async with postgres() as url, opened(url) as runtime:
            yield runtime
    else:
        async with opened(urls[request.param]) as runtime:
            yield runtime


async def no_pause(_seconds):
    pass


@asynccontextmanager
async def opened(url):
    @tool(**WRITES, compensation_tool="unpost")
    def post(n: Which) -> dict[str, int]:
        """Post it."""
        return {"n": n}

    @tool(**WRITES)
    def unpost(n: Which) -> dict[str, int]:
        """Take it back."""
        return {"n": n}

    tools = [
        fake_tool("look", input_schema=NUMBER, invariants=[NO_THIRTEEN]).tool,
        fake_tool("save", input_schema=NUMBER, effect="draft").tool,
        fake_tool("send", input_schema=NUMBER, effect="external_notification").tool,
        fake_tool(
            "flaky", TimeoutError(), {"ok": True}, input_schema=NUMBER, runtime={"max_retries": 2}
        ).tool,
        fake_tool(
            "stuck", TimeoutError(), input_schema=NUMBER, effect="draft", on_unknown="escalate"
        ).tool,
        fake_tool(
            "liar",
            {"ok": "so what"},
            input_schema=NUMBER,
            output_schema={"type": "object", "properties": {"ok": {"type": "boolean"}}},
        ).tool,
        fake_tool(
            "buy",
            input_schema=NUMBER,
            effect="draft",
            runtime={"cost_profile": {"cost_per_call": 0.5}},
            cost={"day": {"USD": 1000}},
        ).tool,
        post,
        unpost,
    ]
    async with Runtime.open(url, policy=Policy.from_data(POLICY), pause=no_pause) as runtime:
        runtime.register(*tools)
        for one in tools:
            grant = Grant(agent="agent", tool=one.contract.name, max_calls_per_run=99)
            runtime.registry.grant(grant)
        yield runtime


async def a_day(runtime):
    async def call(name, n=1, *, agent="agent", **more):
        proposal = Proposal(
            tool=name, arguments={"n": n}, run_id=more.pop("run_id", "run_1"), **more
        )
        return await runtime.submit(proposal, someone(agent))

    await call("look")
    await call("look", "x")  # a loop begins
    await call("look", 2)  # and ends well
    await call("look", 13)  # against a rule of the business: another loop
    await call("look", 66)  # against the policy
    await call("look", 1, agent="stranger")
    for bad in ("a", "b", "c"):  # a loop that is given up
        await call("save", bad, run_id="run_2")
    await call("save", 1, key="k")
    await call("save", 1, key="k")  # a replay
    await call("save", 2, key="k")  # another payload
    asked = await call("send", 1, approval="forged")  # a bypass attempt, and a request
    refused = await call("send", 2)
    boss = Voter(user="boss", tenant="acme")
    await runtime.approvals.decide(asked.approval_id, boss, "approve")
    await runtime.approvals.decide(refused.approval_id, boss, "reject")
    await call("send", 1)  # goes through
    await call("send", 2)  # was refused: asking again bypasses nothing
    await call("flaky")
    await call("stuck", key="s")
    await call("stuck", key="s")  # nobody knows yet
    await call("liar")
    await call("buy")
    await call("post", 3, key="p")
    await NeedsAttention(runtime, by="op").compensate("acme", "call:post:p", reason="A mistake.")
    await Reconciler(runtime).once()


def test_the_formulas_are_those_of_the_published_table():
    assert {name: one.words for name, one in METRICS.items()} == {
        "first_pass_schema_valid_rate": "schema_valid_first_try / total_tool_proposals",
        "schema_valid_call_rate": "schema_valid_calls / total_tool_proposals",
        "semantic_valid_rate": "semantic_valid_calls / schema_valid_calls",
        "validation_failure_rate": "rejected_execution_attempts / total_tool_proposals",
        "repair_success_rate": "successfully_repaired_calls / triggered_repair_loops",
        "repair_saturation_rate": "repair_loops_exhausted / triggered_repair_loops",
        "unauthorized_proposal_rate": "permission_denied_proposals / total_tool_proposals",
        "policy_violation_rate": "policy_violations / total_tool_proposals",
        "confirmation_required_rate": "confirmation_required_calls / mutating_tool_proposals",
        "confirmation_rejection_rate": "rejected_confirmations / confirmation_requests",
        "confirmation_bypass_attempt_rate": "missing_or_invalid_approval_tokens"
        " / confirmation_required_calls",
        "idempotency_replay_rate": "idempotency_hits / mutating_requests",
        "idempotency_conflict_rate": "signature_mismatches / idempotency_key_matches",
        "retry_success_rate": "successful_retries / retry_attempts",
        "unsafe_retry_block_rate": "blocked_non_idempotent_retries / retry_attempts",
        "observation_normalization_failure_rate": "normalization_failures / tool_executions",
        "post_action_verification_required_rate": "verification_required_observations"
        " / mutating_observations",
        "compensation_success_rate": "successful_compensations / compensation_attempts",
        "tool_cost_per_successful_action": "tool_cost / successful_tool_executions",
        "trace_completeness_rate": "complete_tool_traces / total_tool_calls",
    }


async def measured(runtime):
    view = TenantView(runtime, Person(name="ann", tenant="acme", roles=frozenset({"viewer"})))
    return {one.name: one for one in await view.metrics.rows("1h")}, view


def search_of(query):
    times = {name: datetime.fromisoformat(query[name]).timestamp() for name in ("since", "until")}
    return CallSearch(**{**query, **times})


async def test_every_metric_counts_what_it_says(runtime):
    await a_day(runtime)
    found, _ = await measured(runtime)
    assert list(found) == list(METRICS)
    assert len(found) == 20
    counted = {name: (one.numerator, one.denominator) for name, one in found.items()}
    assert counted == EXPECTED
    for name, one in found.items():
        assert one.value == one.numerator / one.denominator, name


async def test_behind_every_number_are_as_many_rows_as_it_says(runtime):
    await a_day(runtime)
    found, view = await measured(runtime)

    async def rows(metric, part):
        query = getattr(metric.link, part)
        return None if query is None else len((await view.calls.search(search_of(query))).items)

    counted = {name: await rows(one, "numerator") for name, one in found.items()}
    said = {name: one.numerator for name, one in found.items()}
    assert counted == {**said, "tool_cost_per_successful_action": 1}, "one call costs 0.5"
    for name, one in found.items():
        whole, rest = await rows(one, "denominator"), await rows(one, "rest")
        assert whole == (one.denominator if name != "trace_completeness_rate" else None), name
        apart = METRICS[name].apart or name == "trace_completeness_rate"
        assert rest == (None if apart else one.denominator - one.numerator), name


async def test_what_is_behind_a_number_goes_on_page_by_page_and_is_narrowed(runtime):
    await a_day(runtime)
    found, view = await measured(runtime)
    search = replace(search_of(found["schema_valid_call_rate"].link.numerator), limit=4)
    whole = (await view.calls.search(replace(search, limit=200))).items
    rows, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page = await view.calls.search(replace(search, cursor=cursor))
        rows, cursor, pages = rows + list(page.items), page.next, pages + 1
    assert (rows, pages) == (whole, 5)
    assert [row.at for row in rows] == sorted((row.at for row in rows), reverse=True)
    looked = await view.calls.search(replace(search, limit=200, tool="look", code="SUCCESS"))
    assert [row.tool for row in looked.items] == ["look", "look"]


async def test_a_series_falls_into_the_parts_of_its_window(runtime):
    await a_day(runtime)
    found, view = await measured(runtime)
    for metric in METRICS:
        (whole,) = (await view.metrics.series(metric, "1h", 1)).values
        assert whole == found[metric].value
    parts = (await view.metrics.series("validation_failure_rate", "1h", 60)).values
    assert len(parts) == 60
    assert set(parts[:-2]) == {None}, "it all happened just now"
    assert any(part is not None for part in parts[-2:])
    for wrong in ({"buckets": 0}, {"buckets": 501}, {"window": "1y"}, {"window": "0m"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await view.metrics.series("retry_success_rate", **wrong)
    with pytest.raises(NotFoundError):
        await view.metrics.series("no_such")


async def test_nothing_that_was_not_counted_has_a_value(runtime):
    found, _ = await measured(runtime)
    assert {one.value for one in found.values()} == {None}
    assert prometheus([("acme", list(found.values()))]).count("_denominator{") == 20


WICKED = 'a"} 1\n# HELP evil \\'


async def test_prometheus_gets_plain_lines_whatever_a_tenant_is_called(runtime):
    await a_day(runtime)
    found, _ = await measured(runtime)
    text = prometheus([("acme", list(found.values())), (WICKED, list(found.values()))])
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    form = re.compile(
        r'counterseal_\w+\{tenant="(?:[^"\\\n]|\\.)*",window="1h"(?:,currency="USD")?\} \S+'
    )
    assert len(samples) == 2 * 3 * 20
    assert all(form.fullmatch(line) for line in samples)
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) == 3 * 20
    assert 'counterseal_retry_success_rate{tenant="acme",window="1h"} 1' in samples
