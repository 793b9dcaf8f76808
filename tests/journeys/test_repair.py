"""A scripted model that errs in many ways: most are mended, the rest end within bounds."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from counterseal import Budgets, Invariant, Path, Policy, Proposal, RepairLoop
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.ledger.records import HeldStatus
from counterseal.testing import FakeClock, MemoryStore, fake_tool, runtime_for, someone

VISIT = {
    "type": "object",
    "properties": {
        "patient": {"type": "string", "pattern": "^pat_[0-9]{3}$", "description": "Whose."},
        "date": {"type": "string", "format": "date", "description": "When."},
        "minutes": {"type": "integer", "minimum": 5, "maximum": 120, "description": "How long."},
        "kind": {"enum": ["office", "phone", "home"], "description": "Where."},
        "notes": {
            "type": "array",
            "items": {"type": "string", "maxLength": 50},
            "maxItems": 3,
            "description": "What to bring.",
        },
    },
    "required": ["patient", "date", "minutes"],
    "additionalProperties": False,
}
PATIENT = {
    "type": "object",
    "properties": {"patient": VISIT["properties"]["patient"]},
    "required": ["patient"],
    "additionalProperties": False,
}
GOOD = {"patient": "pat_001", "date": "2030-05-01", "minutes": 20}
POLICY = Policy.from_data(
    {
        "rules": [
            {"id": "all", "then": "allow", "when": "true", "reason": "So."},
            {
                "id": "no-home-visits",
                "then": "deny",
                "when": "has(call.kind) && call.kind == 'home'",
                "reason": "Home visits are made by people.",
            },
        ]
    }
)
SHORT_CALLS = Invariant(
    id="SHORT_CALLS",
    rule="A visit by phone takes 30 minutes at most.",
    check="!has(call.kind) || call.kind != 'phone' || call.minutes <= 30",
)
NO_SUNDAYS = Invariant(
    id="NO_SUNDAYS",
    rule="The office is closed on Sundays.",
    check="call.date != '2030-05-05'",
    correct="drop_step",
)


def double_booked(**visit):
    if visit["date"] == "2030-05-02":
        raise FileExistsError("that day is full")
    return {"visit_id": "vis_1"}


def clinic():
    """The tools of a small practice."""
    return (
        fake_tool(
            "book_visit",
            double_booked,
            input_schema=VISIT,
            invariants=[SHORT_CALLS, NO_SUNDAYS],
            effect="draft",
            observability={"error_taxonomy_mapping": {"FileExistsError": "SEMANTIC_INVALIDITY"}},
        ),
        fake_tool("find_patient", {"name": "A"}, input_schema=PATIENT, budget=1),
        fake_tool("find_record", ConnectionError("down"), input_schema=PATIENT),
        fake_tool("read_scan", {"wrong": 1}, output_schema={"type": "object", "required": ["x"]}),
        fake_tool("open_safe", scopes=["safe:open"]),
        fake_tool("send_reminder", effect="external_notification", input_schema=PATIENT),
        fake_tool("close_file", effect="draft", input_schema=PATIENT, probe=lambda: {"version": 2}),
    )


def visit(**other):
    return {"arguments": {**GOOD, **other}}


def tool(name, **arguments):
    return {"tool": name, "arguments": arguments}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model errs: what it proposes one after the other, and how that must end."""

    name: str
    says: tuple[dict[str, Any], ...]
    first: Code
    wrong: set[str] = field(default_factory=lambda: {""})
    """The fields that the first refusal names."""
    attempts: int
    ends: str = "ok"
    path: Path | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """What its caller says beside that."""


def mended(name, first, wrong, *says, **more):
    """A model that gets it right with its last proposal."""
    says = (*says, more.pop("last", visit()))
    return Way(name=name, says=says, first=first, wrong=wrong, attempts=len(says), **more)


def stopped(name, first, attempts, path, *says, **more):
    """A model that would go on with its last proposal for ever."""
    return Way(
        name=name,
        says=says,
        first=first,
        wrong=more.pop("wrong", {""}),
        attempts=attempts,
        ends=more.pop("ends", "path"),
        path=path,
        **more,
    )


TEXT = '{"patient": "pat_001", "date": "2030-05-01", "minutes": 20'
SHAPE, TYPE, BOUNDS = Code.STRUCTURAL_VIOLATION, Code.TYPE_MISMATCH, Code.OUT_OF_BOUNDS
JSON, RULE = Code.SYNTACTIC_PARSE_FAIL, Code.SEMANTIC_INVALIDITY
MINUTES = {"", "/minutes"}

WAYS = (
    mended("a wrong type", TYPE, MINUTES, visit(minutes="20")),
    mended(
        "a missing field", SHAPE, {"", "/date", "/minutes"}, {"arguments": {"patient": "pat_001"}}
    ),
    mended("an extra field", SHAPE, {""}, visit(colour="red")),
    mended("a typo in a choice", BOUNDS, {"", "/kind"}, visit(kind="phne")),
    mended("too much", BOUNDS, MINUTES, visit(minutes=500)),
    mended("a day that does not exist", BOUNDS, {"", "/date"}, visit(date="2030-02-31")),
    mended("an id of another kind", BOUNDS, {"", "/patient"}, visit(patient="Mr. Smith")),
    mended("one where a list belongs", TYPE, {"", "/notes"}, visit(notes="insurance card")),
    mended("nothing where a value belongs", TYPE, {"", "/date"}, visit(date=None)),
    mended("JSON that breaks off", JSON, {""}, {"arguments": TEXT}),
    mended("JSON with a key twice", JSON, {""}, {"arguments": TEXT + ', "minutes": 30}'}),
    mended("JSON in a sentence", JSON, {""}, {"arguments": f"Here you are: {TEXT}}}"}),
    mended("a list of arguments", JSON, {""}, {"arguments": f"[{TEXT}}}]"}),
    mended(
        "a tool's name misspelt",
        SHAPE,
        {""},
        tool("book-visit", **GOOD),
        last=tool("book_visit", **GOOD),
    ),
    mended("a rule of the tool broken", RULE, {""}, visit(kind="phone", minutes=60)),
    mended("what only the service knew", RULE, {""}, visit(date="2030-05-02")),
    mended(
        "several mistakes, mended one by one",
        TYPE,
        {"", "/minutes", "/kind"},
        visit(minutes="9", kind="x"),
        visit(minutes=1, kind="x"),
        visit(minutes=9, kind="x"),
    ),
    mended(
        "a new mistake made while mending one",
        TYPE,
        MINUTES,
        visit(minutes="60"),
        visit(minutes=60, kind="phone"),
        visit(minutes=60, kind="telephone"),
    ),
    stopped("the same payload again", TYPE, 2, Path.ESCALATE, visit(minutes="20"), wrong=MINUTES),
    stopped(
        "the same payload, spelt otherwise",
        BOUNDS,
        2,
        Path.ESCALATE,
        {"arguments": '{"patient": "pat_001", "minutes": 500, "date": "2030-05-01"}'},
        visit(minutes=500),
        wrong=MINUTES,
    ),
    stopped(
        "the same mistake in other words",
        TYPE,
        3,
        Path.ESCALATE,
        *(visit(minutes=word) for word in ("20", "twenty", "a third of an hour", "short")),
        wrong=MINUTES,
    ),
    stopped(
        "to and fro between two mistakes",
        TYPE,
        3,
        Path.ESCALATE,
        *[visit(minutes="20"), visit(kind="phne")] * 4,
        wrong=MINUTES,
    ),
    stopped(
        "another mistake each time",
        TYPE,
        5,
        Path.REPAIR,
        visit(minutes="20"),
        visit(kind="phne"),
        visit(date="soon"),
        visit(colour="red"),
        visit(patient="Mr. Smith"),
        visit(minutes=500),
        wrong=MINUTES,
        ends="attempts",
    ),
    stopped(
        "one invented tool after another",
        SHAPE,
        3,
        Path.ESCALATE,
        *(tool(f"cure_{n}", **GOOD) for n in range(9)),
    ),
    stopped("no permission", Code.PERMISSION_DENIED, 1, None, tool("open_safe")),
    stopped("against the policy", Code.POLICY_VIOLATION, 1, None, visit(kind="home")),
    stopped(
        "a key that was used for something else",
        Code.SIGNATURE_MISMATCH,
        1,
        None,
        visit(minutes=40),
        more={"key": "taken"},
    ),
    stopped(
        "a file that has changed",
        Code.STALE_STATE,
        1,
        Path.REPLAN,
        tool("close_file", patient="pat_001"),
        more={"expected_version": 1},
    ),
    stopped("a step that should not be taken", RULE, 1, Path.REPLAN, visit(date="2030-05-05")),
    stopped(
        "a budget that is spent",
        Code.BUDGET_EXHAUSTED,
        1,
        Path.ESCALATE,
        tool("find_patient", patient="pat_001"),
    ),
    stopped(
        "an approval that is needed",
        Code.CONFIRMATION_MISSING,
        1,
        Path.ESCALATE,
        tool("send_reminder", patient="pat_001"),
    ),
    stopped(
        "a service that is down",
        Code.DEPENDENCY_UNAVAILABLE,
        1,
        Path.RETRY,
        tool("find_record", patient="pat_001"),
    ),
    stopped(
        "an answer that can't be read",
        Code.OBSERVATION_NORMALIZATION_FAIL,
        1,
        Path.ESCALATE,
        tool("read_scan"),
    ),
    stopped("giving up", TYPE, 1, Path.REPAIR, visit(minutes="20"), wrong=MINUTES, ends="model"),
)


class Scripted:
    """Says its lines; goes on with the last one for ever, unless it is one that gives up."""

    def __init__(self, way):
        self.way = way
        self.fed = []

    def line(self, number):
        says = self.way.says
        return says[min(number, len(says) - 1)]

    async def __call__(self, feedback):
        self.fed.append(feedback)
        return None if self.way.ends == "model" else self.line(len(self.fed))


CLINIC = runtime_for(*clinic(), policy=POLICY)


@pytest.fixture
async def runtime():
    CLINIC.store = MemoryStore()
    run = await CLINIC.run(someone(), "run_1")
    assert (await run.submit("book_visit", GOOD, key="taken")).ok
    assert (await run.submit("find_patient", {"patient": "pat_001"})).ok
    return CLINIC


def proposed(line, **more):
    named = {"tool": "book_visit", **line}
    return Proposal(**named, run_id="run_1", **{"operation_id": "op_1", **more})


def test_the_model_errs_in_more_than_twenty_ways_and_most_are_mended():
    kinds = [way.ends for way in WAYS]
    assert len({way.name for way in WAYS}) == len(WAYS) == 34
    assert (kinds.count("ok"), len(kinds) - kinds.count("ok")) == (18, 16)
    assert {way.first for way in WAYS} == {
        SHAPE,
        TYPE,
        BOUNDS,
        JSON,
        RULE,
        Code.PERMISSION_DENIED,
        Code.POLICY_VIOLATION,
        Code.SIGNATURE_MISMATCH,
        Code.STALE_STATE,
        Code.BUDGET_EXHAUSTED,
        Code.CONFIRMATION_MISSING,
        Code.DEPENDENCY_UNAVAILABLE,
        Code.OBSERVATION_NORMALIZATION_FAIL,
    }


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_a_loop_mends_what_can_be_mended_and_ends_within_bounds(runtime, way):
    model, refused = Scripted(way), []
    loop = RepairLoop(model, attempts=5, on_refusal=refused.append)
    end = await loop.run(runtime, proposed(model.line(0), **way.more), someone())

    first = refused[0].observation
    assert first.code is way.first
    assert {error.field for error in first.errors} == way.wrong
    assert (end.attempts, end.stopped) == (way.attempts, None if way.ends == "ok" else way.ends)
    assert end.ok is (way.ends == "ok")
    assert end.observation.path is way.path
    # The model was asked after every refusal that it could mend, and after no other.
    assert len(model.fed) == way.attempts - (way.ends != "model")
    for feedback, attempt in zip(model.fed, refused, strict=False):
        assert feedback == attempt.observation.feedback()
        assert feedback["repairable"] is True
        assert feedback["path"] == "repair"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_an_agent_without_a_loop_meets_the_same_bounds(runtime, way):
    """It goes on as long as it is told that it can mend its call, and knows nothing else."""
    model, seen = Scripted(way), []
    for number in range(50):
        seen.append(await runtime.submit(proposed(model.line(number), **way.more), someone()))
        if seen[-1].ok or not seen[-1].repair:
            break
    # Whoever would give up, or has no loop to end it, is stopped by the runtime instead.
    longer = {"model": 2, "attempts": 6}
    assert len(seen) == longer.get(way.ends, way.attempts)
    assert seen[-1].ok is (way.ends == "ok")
    assert seen[-1].path is (Path.ESCALATE if way.ends in longer else way.path)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_an_agent_that_heeds_nothing_is_told_so_and_executes_nothing_wrong(runtime, way):
    """It says its lines until one is accepted, and the last of them for ever."""
    seen, model, tools = [], Scripted(way), {}
    for number in range(20):
        seen.append(await runtime.submit(proposed(model.line(number), **way.more), someone()))
        if seen[-1].ok:
            break
    paths = [one.path for one in seen]
    assert paths.count(Path.REPAIR) <= 5
    if Path.ESCALATE in paths:
        since = paths[paths.index(Path.ESCALATE) :]
        assert set(since) == {Path.ESCALATE}, "who was told to stop is not told to go on"
    for event in [event for _, event in await runtime.store.events("acme", run_id="run_1")]:
        tools.setdefault(event.type, []).append(event.caller.tool)
    assert len(tools.get(EventType.REPAIR_ASKED, [])) == paths.count(Path.REPAIR)
    assert len(tools.get(EventType.REPLAN_ASKED, [])) == paths.count(Path.REPLAN)
    allowed = {"book_visit", "find_patient"}
    assert set(tools[EventType.SUCCEEDED]) <= allowed


# --- what is counted, and for how long ------------------------------------------------------------

NUMBER = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "description": "A number."} for name in ("n", "m", "k")
    },
    "additionalProperties": False,
}


def ask(name="look_up", arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=name, arguments=arguments or {}, **more)


async def told(runtime, *arguments, tool="look_up", **more):
    """The path that each of these proposals is pointed to, one after the other."""
    return [(await runtime.submit(ask(tool, one, **more), someone())).path for one in arguments]


REPAIR, REPLAN, ESCALATE, RETRY = Path.REPAIR, Path.REPLAN, Path.ESCALATE, Path.RETRY


async def test_who_was_told_to_stop_gets_no_new_attempts_by_another_mistake():
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    assert await told(runtime, {"n": "a"}, {"n": "a"}) == [REPAIR, ESCALATE]
    assert await told(runtime, {"m": "a"}, {"k": "a"}, {"x": 1}) == [ESCALATE] * 3


async def test_a_call_that_is_right_is_carried_out_all_the_same_and_ends_the_count():
    made = fake_tool(input_schema=NUMBER)
    runtime = runtime_for(made)
    wrong = [{"n": "a"}, {"n": "a"}, {"m": "a"}]
    assert await told(runtime, *wrong) == [REPAIR, ESCALATE, ESCALATE]
    assert await told(runtime, {"n": 1}) == [None]
    assert made.calls == [{"n": 1}]
    assert await told(runtime, *wrong) == [REPAIR, ESCALATE, ESCALATE]


async def test_a_spent_refusal_says_so_in_every_form():
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    await runtime.submit(ask(arguments={"n": "a"}), someone())
    seen = await runtime.submit(ask(arguments={"n": "a"}), someone())
    assert seen.code is Code.TYPE_MISMATCH
    assert (seen.response.repairable, seen.response.retryable) == (False, False)
    assert (seen.response.escalate, seen.escalate) == (True, True)
    assert seen.envelope()["status"]["repairable"] is False
    assert seen.record()["path"] == "escalate"
    feedback = seen.feedback()
    assert (feedback["repairable"], feedback["next_action"]) == (False, "escalate")
    assert "n" in {error["field"] for error in feedback["field_errors"]}, "it still says why"
    assert "next action: escalate" in seen.for_model()


async def test_mistakes_count_for_one_tool_in_one_run_of_one_tenant():
    runtime = runtime_for(fake_tool(input_schema=NUMBER), fake_tool("other", input_schema=NUMBER))
    wrong = {"n": "a"}
    assert await told(runtime, wrong, wrong) == [REPAIR, ESCALATE]
    assert await told(runtime, wrong, tool="other") == [REPAIR]
    assert await told(runtime, wrong, run_id="run_2") == [REPAIR]
    elsewhere = await runtime.submit(ask(arguments=wrong), someone(tenant="other"))
    assert elsewhere.path is REPAIR
    assert await told(runtime, wrong) == [ESCALATE]


async def test_who_names_no_run_is_bounded_in_its_implicit_one():
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    paths = await told(runtime, *[{"n": "a"}] * 3, run_id=None)
    assert paths == [REPAIR, ESCALATE, ESCALATE]


async def test_inventing_names_does_not_escape_the_count():
    runtime = runtime_for(fake_tool())
    paths = [(await runtime.submit(ask(f"tool_{n}"), someone())).path for n in range(10)]
    assert paths == [REPAIR, REPAIR] + [ESCALATE] * 8
    assert (await runtime.submit(ask(), someone())).ok
    assert (await runtime.submit(ask("tool_11"), someone())).path is REPAIR, "it made progress"


async def test_a_run_has_a_budget_of_repairs_over_all_its_tools():
    tools = [fake_tool(f"look_{n}", input_schema=NUMBER) for n in range(40)]
    runtime = runtime_for(*tools)
    paths = [p for n in range(40) for p in await told(runtime, {"n": "a"}, tool=f"look_{n}")]
    assert paths == [REPAIR] * 30 + [ESCALATE] * 10
    # No success buys new ones.
    assert await told(runtime, {"n": 1}, {"m": "a"}, tool="look_0") == [None, ESCALATE]


@pytest.mark.parametrize("repairs", [0, 1, 3])
async def test_a_runs_own_budget_of_repairs_counts_instead(repairs):
    runtime = runtime_for(*(fake_tool(f"look_{n}", input_schema=NUMBER) for n in range(5)))
    await runtime.run(someone(), "run_1", budgets=Budgets(repairs=repairs))
    paths = [p for n in range(5) for p in await told(runtime, {"n": "a"}, tool=f"look_{n}")]
    assert paths == [REPAIR] * repairs + [ESCALATE] * (5 - repairs)


async def test_a_mistake_that_only_the_service_saw_is_counted_like_any_other():
    mapping = {"error_taxonomy_mapping": {"ValueError": "SEMANTIC_INVALIDITY"}}
    made = fake_tool("look_up", ValueError("no"), input_schema=NUMBER, observability=mapping)
    runtime = runtime_for(made)
    paths = await told(runtime, {"n": 1}, {"n": 2}, {"n": 3}, {"n": 4})
    assert paths == [REPAIR, REPAIR, ESCALATE, ESCALATE]
    assert await told(runtime, {"n": 1}, {"n": 1}, run_id="run_2") == [REPAIR, ESCALATE]


async def test_asking_for_a_failure_again_is_the_same_mistake_again():
    mapping = {"error_taxonomy_mapping": {"ValueError": "SEMANTIC_INVALIDITY"}}
    made = fake_tool(
        "save", ValueError("no"), input_schema=NUMBER, effect="draft", observability=mapping
    )
    runtime = runtime_for(made)
    assert await told(runtime, {"n": 1}, {"n": 1}, tool="save") == [REPAIR, ESCALATE]
    assert len(made.calls) == 1, "the second answer came from memory"
    types = [event.type for _, event in await runtime.store.events("acme")]
    assert types[-3:] == [EventType.REPAIR_ASKED, EventType.REPLAYED, EventType.ESCALATED]


async def test_trying_things_out_counts_nothing():
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    for _ in range(10):
        await runtime.preview(ask(arguments={"n": "a"}), someone())
        await runtime.plan([ask(arguments={"n": "a"})], someone(), run_id="run_1")
    assert await told(runtime, {"n": "a"}) == [REPAIR]


async def test_thinking_it_over_twice_is_no_repetition_and_bounded_too():
    versions = iter(range(100))
    made = fake_tool("close", effect="draft", probe=lambda: {"version": next(versions)})
    runtime = runtime_for(made)
    paths = await told(runtime, *[{}] * 4, tool="close", expected_version=-1)
    assert paths == [REPLAN, REPLAN, ESCALATE, ESCALATE]


async def test_waiting_is_never_taken_for_a_mistake():
    limits = {"rate_limits": {"window_sec": 60, "max_requests": 1}}
    runtime = runtime_for(fake_tool(runtime=limits), clock=FakeClock())
    assert await told(runtime, *[{}] * 20) == [None] + [RETRY] * 19


async def test_a_gate_that_can_not_ask_the_world_is_not_asked_for_ever():
    probed = []

    def probe():
        probed.append(1)
        raise ConnectionError("down")

    made = fake_tool("close", effect="draft", probe=probe)
    runtime = runtime_for(made)
    paths = await told(runtime, *[{}] * 22, tool="close")
    assert paths == [RETRY] * 19 + [ESCALATE] * 3
    assert await told(runtime, {}, tool="close", run_id="run_2") == [RETRY]


async def test_no_arguments_are_the_same_however_they_are_spelled():
    required = {**NUMBER, "required": ["n"]}
    runtime = runtime_for(fake_tool(input_schema=required))
    paths = [
        (await runtime.submit(Proposal(tool="look_up", arguments=one, run_id="r"), someone())).path
        for one in ("{}", "{ }")
    ]
    assert paths == [REPAIR, ESCALATE]


async def test_a_step_that_should_not_be_taken_is_not_called_repairable():
    never = Invariant(id="NEVER", rule="Not today.", check="false", correct="drop_step")
    runtime = runtime_for(fake_tool(invariants=[never]))
    seen = await runtime.submit(ask(), someone())
    assert (seen.path, seen.response.repairable) == (REPLAN, False)
    assert seen.feedback()["repairable"] is False


async def test_a_refused_approval_leads_back_to_the_planner_and_a_waiting_one_to_a_person():
    runtime = runtime_for(fake_tool("send", effect="external_notification"))
    waiting = await runtime.submit(ask("send"), someone())
    assert (waiting.path, waiting.response.requires_approval) == (ESCALATE, True)
    await runtime.store.decide("acme", waiting.approval_id, HeldStatus.REJECTED, [])
    refused = await runtime.submit(ask("send"), someone())
    assert (refused.path, refused.response.requires_approval) == (REPLAN, False)


async def test_a_repaired_call_keeps_only_the_origins_that_still_hold():
    text = {"type": "string", "description": "A word."}
    names = ("who", "where", "why", "how")
    schema = {"type": "object", "properties": dict.fromkeys(names, text), "maxProperties": 3}
    schema["additionalProperties"] = False
    runtime = runtime_for(fake_tool(input_schema=schema))

    async def model(_feedback):
        return {"arguments": {"who": "anna", "where": "here", "why": "because"}}

    origins = {"/who": "user", "/where": "untrusted", "/why": "user", "/how": "trusted"}
    first = ask(arguments={"who": "anna", "where": "?", "why": "?", "how": "?"}, origins=origins)
    end = await RepairLoop(model).run(runtime, first, someone())
    assert end.ok, end.observation.errors
    assert end.proposal.origins == {"/who": "user", "/where": "untrusted"}
    wrong = replace(first, arguments='{"how": 1}', origins={"/nowhere": "user"})
    end = await RepairLoop(model, attempts=2).run(runtime, wrong, someone())
    assert end.observation.code is Code.STRUCTURAL_VIOLATION, "wrong ones are not dropped"
