"""Four ways on, apart: retry, repair, replan, escalate. None of them turns into another."""

import itertools
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Context, Observation, Path, Proposal, RepairLoop, tool
from counterseal.audit import EventType
from counterseal.call.events import escalated, response_for
from counterseal.codes import FAILURES, FINAL, RESPONSES, Code
from counterseal.gates.base import deny
from counterseal.observation import Observed, answer, profile
from counterseal.observation.observe import refine
from counterseal.testing import HANG, MemoryStore, fake_tool, runtime_for, someone

CODES = sorted(code.value for code in FAILURES)
LISTS = ("repairable_errors", "retryable_errors", "fail_closed_errors", "escalation_errors")
SAID = [
    None,
    "drop_step",
    "replan",
    "escalate",
    "use_new_operation",
    "retry_same_key",
    "retry_later",
]
"""What a gate, the ledger or the executor may say of a call beside its code."""
EVENTS = {
    Path.RETRY: EventType.RETRIED,
    Path.REPAIR: EventType.REPAIR_ASKED,
    Path.REPLAN: EventType.REPLAN_ASKED,
    Path.ESCALATE: EventType.ESCALATED,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "code": {"enum": CODES, "description": "How to fail."},
        "items": {
            "type": "array",
            "maxItems": 3,
            "items": {"type": "string", "maxLength": 9},
            "description": "Something to change.",
        },
    },
    "additionalProperties": False,
}
KINDS = {code: type(f"Fails{number}Error", (Exception,), {}) for number, code in enumerate(CODES)}
"""An exception for every code."""


def fail(code, items):
    items.append("changed")
    raise KINDS[code]("no")


def failing(called, lists, effect="read_only"):
    """A tool that fails in any way, and whose contract puts all codes on these lists."""
    return fake_tool(
        called,
        fail,
        effect=effect,
        input_schema=SCHEMA,
        max_retries=2,
        budget=1000,
        runtime={"rate_limits": {"window_sec": 60, "max_requests": 1000}},
        observability={
            "error_taxonomy_mapping": {kind.__name__: code for code, kind in KINDS.items()}
        },
        error_contract={name: CODES if name in lists else [] for name in LISTS},
    )


SUBSETS = [
    chosen for size in range(len(LISTS) + 1) for chosen in itertools.combinations(LISTS, size)
]
TOOLS = {f"read_{number}": failing(f"read_{number}", some) for number, some in enumerate(SUBSETS)}
TOOLS |= {
    f"save_{number}": failing(f"save_{number}", some, "draft")
    for number, some in enumerate(SUBSETS)
}
TOOLS["as_usual"] = fake_tool(
    "as_usual",
    fail,
    input_schema=SCHEMA,
    budget=1000,
    observability={"error_taxonomy_mapping": {kind.__name__: code for code, kind in KINDS.items()}},
)
RUNTIME = runtime_for(*TOOLS.values())


@pytest.fixture
def runtime():
    RUNTIME.store = MemoryStore()
    for made in TOOLS.values():
        made.calls.clear()
    return RUNTIME


def ask(name, code, **more):
    arguments = {"code": code, "items": ["a"]}
    return Proposal(tool=name, arguments=arguments, run_id=f"run_{name}_{code}", **more)


def fields_of(seen: Observation):
    """The four fields, by their names."""
    return {path: getattr(seen, path.value) for path in Path}


def agree(response):
    """One flag at most, and the one that the path is named by."""
    asks = response.escalate or response.requires_approval
    flags = (asks, response.retryable, response.repairable)
    assert sum(flags) <= 1
    if response.path is not None and response.path is not Path.REPLAN:
        assert flags == tuple(
            response.path is one for one in (Path.ESCALATE, Path.RETRY, Path.REPAIR)
        )
    if response.path is Path.REPLAN:
        assert not asks
        assert not response.retryable


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_no_contract_leads_a_code_down_two_paths(code):
    for made in TOOLS.values():
        response = refine(Code(code), made.contract)
        agree(response)
        if code in FINAL:
            assert response.path in (None, Path.ESCALATE), "no agent goes on by itself"
        if response.requires_approval:
            assert response.path is Path.ESCALATE, "a person has to act"


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("code", CODES)
def test_nothing_that_is_said_beside_a_code_adds_a_second_path(code, said):
    for made in TOOLS.values():
        response = response_for(
            refine(Code(code), made.contract), deny("gate", Code(code), "So.", next_action=said)
        )
        agree(response)
        assert escalated(response).path is Path.ESCALATE
        agree(escalated(response))


@pytest.mark.parametrize("code", CODES)
def test_an_observation_has_a_field_for_each_path_and_one_is_true_at_most(code):
    for made in TOOLS.values():
        seen = answer(Observed(Code(code)), profile(made.contract), call_id="c", timestamp=0.0)
        fields = fields_of(seen)
        assert set(fields) == set(Path)
        assert [path for path, true in fields.items() if true] == ([seen.path] if seen.path else [])
        assert Observation.from_record(seen.record()).path is seen.path


@pytest.mark.parametrize("code", [Code.SUCCESS, Code.PARTIAL_SUCCESS])
def test_where_nothing_failed_no_path_is_needed(code):
    own = profile(TOOLS["as_usual"].contract)
    seen = answer(Observed(code, {}), own, call_id="c", timestamp=0.0)
    assert not any(fields_of(seen).values())


def test_the_usual_contract_leads_where_the_table_says():
    assert {code: RESPONSES[code].path for code in FAILURES} == {
        Code.SYNTACTIC_PARSE_FAIL: Path.REPAIR,
        Code.STRUCTURAL_VIOLATION: Path.REPAIR,
        Code.TYPE_MISMATCH: Path.REPAIR,
        Code.OUT_OF_BOUNDS: Path.REPAIR,
        Code.SEMANTIC_INVALIDITY: Path.REPAIR,
        Code.STALE_STATE: Path.REPLAN,
        Code.RATE_LIMITED: Path.RETRY,
        Code.TIMEOUT: Path.RETRY,
        Code.IDEMPOTENCY_CONFLICT: Path.RETRY,
        Code.DEPENDENCY_UNAVAILABLE: Path.RETRY,
        Code.OBSERVATION_NORMALIZATION_FAIL: Path.ESCALATE,
        Code.COMPENSATION_REQUIRED: Path.ESCALATE,
        Code.COMPENSATION_FAILED: Path.ESCALATE,
        Code.UNKNOWN_ERROR: Path.ESCALATE,
        Code.CONFIRMATION_MISSING: Path.ESCALATE,
        Code.BUDGET_EXHAUSTED: Path.ESCALATE,
        Code.PERMISSION_DENIED: None,
        Code.POLICY_VIOLATION: None,
        Code.SIGNATURE_MISMATCH: None,
    }


# --- events, and what is done ---------------------------------------------------------------------


async def recorded(runtime, seen):
    """The events of a call that speak of a path."""
    events = await runtime.store.events("acme", call_id=seen.call_id)
    return [event.type for _, event in events if event.type in EVENTS.values()]


@pytest.mark.parametrize("name", TOOLS)
async def test_the_event_on_record_is_that_of_the_path_and_only_retries_are_made(runtime, name):
    made = TOOLS[name]
    for code in CODES:
        made.calls.clear()
        seen = await runtime.submit(ask(name, code), someone())
        tries = len(made.calls)
        assert seen.code == code
        events = await recorded(runtime, seen)
        if seen.path is Path.RETRY:
            # A change that may have happened is not repeated; the agent is told that it may.
            assert tries in ((1, 3) if made.contract.mutates else (3,))
            assert events == [EventType.RETRIED] * (tries - 1)
        else:
            assert tries == 1
            assert events == ([EVENTS[seen.path]] if seen.path else [])
        assert made.calls == [{"code": code, "items": ["a", "changed"]}] * tries


@pytest.mark.slow
@pytest.mark.parametrize("name", TOOLS)
async def test_however_often_it_happens_a_path_ends_at_most_in_a_persons_hands(runtime, name):
    for code in CODES:
        paths = []
        for number in range(8):
            # Another payload each time, and another key: else the ledger would answer.
            proposal = Proposal(
                tool=name,
                arguments={"code": code, "items": [str(number)]},
                run_id=f"run_{code}",
            )
            seen = await runtime.submit(proposal, someone())
            paths.append(seen.path)
            assert sum(fields_of(seen).values()) == (seen.path is not None)
            agree(seen.response)
            events = set(await recorded(runtime, seen))
            assert events <= ({EVENTS[seen.path]} if seen.path else set())
        moves = {move for move in itertools.pairwise(paths) if move[0] is not move[1]}
        assert moves <= {(first, Path.ESCALATE) for first in (None, Path.REPAIR, Path.REPLAN)}
        if paths[0] in (Path.REPAIR, Path.REPLAN):
            assert paths[2:] == [Path.ESCALATE] * 6


@pytest.mark.parametrize("name", TOOLS)
async def test_a_loop_asks_its_model_on_one_path_only(runtime, name):
    for code in CODES:
        fed, refused = [], []

        async def model(feedback, fed=fed, code=code):
            fed.append(feedback)
            return {"arguments": {"code": code, "items": [str(len(fed))]}}

        loop = RepairLoop(model, on_refusal=refused.append)
        end = await loop.run(runtime, ask(name, code), someone())
        assert not end.ok
        asked = [one.observation for one in refused if one.observation.repair]
        assert [feedback["path"] for feedback in fed] == ["repair"] * len(fed)
        assert len(fed) == len(asked) <= 2
        assert end.observation.path is not Path.REPAIR
        assert end.stopped == "path"


# --- retry ----------------------------------------------------------------------------------------

Items = Annotated[
    list[dict[str, list[str]]], Field(max_length=3, description="Something to change.")
]


@pytest.mark.parametrize("arguments", [{"items": [{"a": ["b"]}]}, '{"items": [{"a": ["b"]}]}'])
async def test_a_retry_has_the_same_payload_and_the_same_key_whatever_the_tool_does(arguments):
    seen_by_tool = []

    @tool(
        effect="draft",
        version="1.0.0",
        owner="tests",
        on_unknown="retry_same_key",
        max_retries=3,
        description="Save and fail.",
    )
    async def save(items: Items, ctx: Context) -> int:
        seen_by_tool.append((repr(items), ctx.key, ctx.attempt, ctx.call_id))
        items[0]["a"].append("changed")
        items.append({})
        raise ConnectionResetError

    runtime = runtime_for(save)
    asked = Proposal(tool="save", arguments=arguments, run_id="run_1")
    first = await runtime.submit(asked, someone())
    assert (first.retry, first.next_action, first.attempt) == (True, "retry_same_key", 4)
    # The agent takes the same path: it is the same operation still.
    again = await runtime.submit(asked, someone())
    assert again.retry
    payloads, keys, attempts, _ = map(list, zip(*seen_by_tool, strict=True))
    assert set(payloads) == {"[{'a': ['b']}]"}
    assert len(set(keys)) == 1
    assert attempts == [1, 2, 3, 4] * 2


async def test_a_retry_that_changes_its_payload_is_refused_as_another_request():
    made = fake_tool("save", ConnectionResetError(), effect="draft", input_schema=SCHEMA)
    runtime = runtime_for(made)
    first = {"arguments": {"items": ["a"]}, "key": "k_1", "run_id": "run_1"}
    await runtime.submit(Proposal(tool="save", **first), someone())
    other = {**first, "arguments": {"items": ["b"]}}
    seen = await runtime.submit(Proposal(tool="save", **other), someone())
    assert (seen.code, seen.path) == (Code.SIGNATURE_MISMATCH, None)
    assert len(made.calls) == 1


# --- escalate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lists", [("escalation_errors",), LISTS])
async def test_what_is_escalated_is_neither_retried_nor_repaired(lists):
    for code in CODES:
        fed = []

        async def model(feedback, fed=fed):
            fed.append(feedback)

        made = failing("look_up", lists)
        runtime = runtime_for(made)
        proposal = Proposal(tool="look_up", arguments={"code": code, "items": []}, run_id="run_1")
        end = await RepairLoop(model).run(runtime, proposal, someone())
        assert (end.observation.path, end.stopped) == (Path.ESCALATE, "path")
        assert (len(made.calls), fed) == (1, [])


async def test_an_unknown_outcome_without_a_probe_is_left_to_a_person():
    made = fake_tool("save", HANG, effect="draft", timeout_ms=20, max_retries=5)
    runtime = runtime_for(made)
    seen = [
        await runtime.submit(Proposal(tool="save", arguments={}, run_id="run_1"), someone())
        for _ in range(3)
    ]
    assert [one.path for one in seen] == [Path.ESCALATE] * 3
    assert [one.code for one in seen] == [Code.TIMEOUT, *[Code.IDEMPOTENCY_CONFLICT] * 2]
    assert len(made.calls) == 1


OF_THE_PAYLOAD = (
    "SYNTACTIC_PARSE_FAIL",
    "STRUCTURAL_VIOLATION",
    "TYPE_MISMATCH",
    "OUT_OF_BOUNDS",
    "SEMANTIC_INVALIDITY",
)


@pytest.mark.parametrize("code", OF_THE_PAYLOAD)
async def test_what_is_wrong_with_a_payload_is_never_cured_by_sending_it_again(code):
    made = failing("look_up", ("retryable_errors",))
    runtime = runtime_for(made)
    seen = await runtime.submit(ask("look_up", code), someone())
    assert (seen.path, seen.response.retryable, len(made.calls)) == (Path.REPAIR, False, 1)
    again = await runtime.submit(ask("look_up", code), someone())
    assert again.path is Path.ESCALATE
