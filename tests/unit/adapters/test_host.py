"""The part that all adapters share, without a framework."""

import asyncio
import json
import warnings
from dataclasses import replace
from importlib import import_module
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import (
    ContractError,
    Grant,
    Principal,
    Proposal,
    StoreError,
    load_contracts,
    tool,
)
from counterseal.adapters.host import (
    Host,
    HostCall,
    HostTool,
    NotRecordedError,
    check_versions,
    contract_of,
    current_call,
    host_executed,
    missing_extra,
)
from counterseal.codes import Code
from counterseal.contract.approval_terms import Then
from counterseal.testing import fake_tool, runtime_for, someone

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTE = HostTool("note", "Write a note.", SCHEMA)
ACTED = []


@pytest.fixture(autouse=True)
def _forget():
    ACTED.clear()


def made(runtime, **options):
    defaults = {"principal": lambda _: someone(), "effects": {"note": "draft"}, "grants": "agent"}
    return Host(runtime, [NOTE], **{**defaults, **options})


def called(execute=None, **fields):
    async def act(arguments):
        ACTED.append(arguments)
        return "noted"

    own = {"tool": "note", "arguments": {"text": "x"}, "call_id": "c_1", "run_id": "run_1"}
    return HostCall(**{**own, "context": None, "execute": execute or act, **fields})


async def test_the_frameworks_function_runs_once_and_its_result_comes_back_again():
    host = made(runtime_for())
    first, second = await host.submit(called()), await host.submit(called())
    assert first.native == ("noted",)
    assert (second.native, second.value, second.observation.idempotency_hit) == (
        None,
        "noted",
        True,
    )
    assert ACTED == [{"text": "x"}]


async def test_another_call_id_is_another_operation_unless_the_intent_is_what_counts():
    host = made(runtime_for())
    await host.submit(called())
    await host.submit(called(call_id="c_2"))
    assert len(ACTED) == 2
    host = made(runtime_for(), same="intent")
    await host.submit(called())
    await host.submit(called(call_id="c_2"))
    assert len(ACTED) == 3


async def test_a_tool_of_a_framework_runs_only_from_its_framework():
    runtime = runtime_for()
    made(runtime)
    proposal = Proposal(tool="note", arguments={"text": "x"}, run_id="run_1")
    answer = await runtime.submit(proposal, someone())
    assert (answer.ok, answer.code) == (False, Code.DEPENDENCY_UNAVAILABLE)


async def test_a_function_is_handed_over_for_its_own_call_only():
    """A tool that submits another call must not pass its own function on."""
    runtime = runtime_for()
    host = made(runtime)

    async def nested(_arguments):
        proposal = Proposal(tool="note", arguments={"text": "inner"}, run_id="run_1")
        return (await runtime.submit(proposal, someone())).code.value

    answer = await host.submit(called(nested))
    assert answer.value == "DEPENDENCY_UNAVAILABLE"


async def test_a_running_call_can_pass_its_key_to_the_destination():
    async def keyed(_arguments):
        return current_call().key

    answer = await made(runtime_for()).submit(called(keyed))
    assert answer.value.startswith("cs_")
    assert current_call() is None


async def test_a_result_that_is_redacted_is_not_shown_as_the_framework_made_it():
    async def leaks(_arguments):
        return "key sk_live_4eC39HqLyjWDarjtT1zdp7dc ends"

    answer = await made(runtime_for()).submit(called(leaks))
    assert answer.native is None
    assert "4eC39" not in answer.text


@pytest.mark.parametrize("result", [object(), {"a": {1, 2}, "b": object()}, b"\xff", float("inf")])
async def test_a_result_without_a_json_form_is_no_failure(result):
    async def odd(_arguments):
        ACTED.append(1)
        return result

    host = made(runtime_for())
    first, again = await host.submit(called(odd)), await host.submit(called(odd))
    assert first.native == (result,)
    assert (again.ok, again.native, ACTED) == (True, None, [1])


async def test_text_that_is_json_fits_a_contract_that_declares_an_object():
    output = {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "required": ["id"],
        "additionalProperties": False,
    }
    contract = contract_of(NOTE, effect="draft", version="2.0.0").model_copy(
        update={
            "affordance": {
                "model_description": "Write a note.",
                "input_schema": contract_of(NOTE, effect="draft").affordance.input_schema,
                "output_schema": output,
            }
        }
    )

    async def told(_arguments):
        return '{"id": 7}'

    host = made(runtime_for(), contracts=[contract], effects={})
    answer = await host.submit(called(told))
    assert answer.native == ('{"id": 7}',)
    assert answer.observation.data == {"id": 7}


async def test_contracts_of_decorators_and_files_are_taken_by_name(tmp_path):
    """The contract is the declared one, the function is the framework's."""

    @tool(
        name="note", effect="draft", version="3.0.0", owner="tests", consequence="A note: {text}."
    )
    async def declared(text: Annotated[str, Field(max_length=9, description="The note.")]) -> str:
        """Write a note."""
        raise AssertionError(text)

    (tmp_path / "note.json").write_text(json.dumps(declared.contract.record()))
    for contracts in ([declared], load_contracts(tmp_path / "note.json")):
        runtime = runtime_for()
        host = made(runtime, contracts=contracts, effects={})
        answer = await host.submit(called())
        assert (answer.native, answer.observation.version) == (("noted",), "3.0.0")
        refused = await host.submit(called(arguments={"text": "x" * 10}))
        assert refused.observation.code is Code.OUT_OF_BOUNDS


async def test_an_approved_call_waits_for_its_framework():
    contract = contract_of(NOTE, effect="external_notification")
    assert contract.approval.then is Then.EXECUTE
    assert host_executed(contract).contract.approval.then is Then.RESUBMIT


def test_a_framework_can_not_run_a_tool_that_wants_its_own_process():
    with pytest.raises(ContractError, match="1 problem") as caught:
        host_executed(contract_of(NOTE, effect="draft", isolation="process"))
    assert caught.value.problems[0].rule == "host-isolation"


async def test_a_contract_without_code_is_given_to_the_adapter_and_not_registered():
    runtime = runtime_for()
    runtime.register(contract_of(NOTE, effect="draft"))
    with pytest.raises(ContractError) as caught:
        made(runtime, effects={})
    assert caught.value.problems[0].rule == "host-unregistered"


async def test_two_adapters_of_one_runtime_may_share_a_tool():
    runtime = runtime_for()
    await made(runtime).submit(called())
    await made(runtime).submit(called())
    assert len(ACTED) == 1


async def test_options_with_unknown_words_are_refused():
    with pytest.raises(ValueError, match="pause must be one of"):
        made(runtime_for(), pause="maybe")
    with pytest.raises(ValueError, match="same must be one of"):
        made(runtime_for(), same="thing")


async def test_a_principal_may_be_found_asynchronously():
    async def principal(context):
        return someone(user=context)

    host = made(runtime_for(), principal=principal)
    assert (await host.submit(called(context="u_9"))).ok


async def test_an_answer_without_the_id_of_its_approval_decides_nothing():
    asked = []

    def voter(_context, answer):
        asked.append(answer)

    host = made(runtime_for(), voter=voter)
    for answer in (True, None, {"type": "approve"}, {"type": "maybe", "approval_id": "appr_1"}):
        assert await host.vote(answer, None) is None
    assert asked == []
    answer = {"type": "approve", "approval_id": "appr_1"}
    assert await host.vote(answer, None) == "The host does not say who decided."


# --- sub-agents -----------------------------------------------------------------------------------


def test_parents_are_names_in_order():
    assert Principal(tenant="a", agent="b", parents=["x", "y"]).parents == ("x", "y")
    with pytest.raises(TypeError, match="parents must be a list of strings"):
        Principal(tenant="a", agent="b", parents="x")
    with pytest.raises(ValueError, match="parents must not contain an empty string"):
        Principal(tenant="a", agent="b", parents=[" "])


async def test_a_call_needs_a_grant_of_every_agent_in_the_chain():
    runtime = runtime_for(fake_tool("look"))
    runtime.registry.grant(Grant(agent="helper", tool="look"))
    asked = Proposal(tool="look", arguments={}, run_id="run_1")
    allowed = await runtime.submit(asked, someone("helper", parents=["agent"]))
    denied = await runtime.submit(asked, someone("helper", parents=["agent", "stranger"]))
    assert (allowed.ok, denied.code) == (True, Code.PERMISSION_DENIED)
    assert "stranger" not in denied.for_model()
    bodies = [event.body for _, event in await runtime.store.events("acme")]
    assert {tuple(body["parents"]) for body in bodies if "gates" in body} == {
        ("agent",),
        ("agent", "stranger"),
    }


async def test_a_sub_agent_makes_no_more_calls_than_its_parent_could():
    runtime = runtime_for(fake_tool("look"), agent="other")
    runtime.registry.grant(Grant(agent="helper", tool="look", max_calls_per_run=5))
    runtime.registry.grant(Grant(agent="agent", tool="look", max_calls_per_run=2))
    helper, asked = someone("helper", parents=["agent"]), Proposal(tool="look", arguments={})
    seen = [(await runtime.submit(replace(asked, run_id="run_1"), helper)).code for _ in range(3)]
    assert seen == [Code.SUCCESS, Code.SUCCESS, Code.BUDGET_EXHAUSTED]
    alone = someone("helper")
    seen = [(await runtime.submit(replace(asked, run_id="run_2"), alone)).code for _ in range(3)]
    assert seen == [Code.SUCCESS] * 3


async def test_a_sub_agent_of_another_user_is_denied():
    runtime = runtime_for()
    users = iter(["u_1", "u_2"])
    host = made(runtime, principal=lambda _: someone(user=next(users)))

    async def delegate(_arguments):
        return (await host.submit(called(call_id="c_2"))).observation.code.value

    assert (await host.submit(called(delegate))).value == "PERMISSION_DENIED"


async def test_a_tool_that_the_runtime_executes_limits_the_agents_that_it_starts():
    """A name that is registered with code of its own keeps it; the chain holds all the same."""
    runtime = runtime_for()
    inner = made(runtime, principal=lambda _: someone("helper", scopes=["money"]), grants="helper")

    async def delegate():
        return {"code": (await inner.submit(called())).observation.code.value}

    plain = fake_tool("delegate", effect="compute")
    runtime.register(
        replace(plain.tool, function=delegate), grants=[Grant(agent="agent", tool="delegate")]
    )
    described = HostTool("delegate", "Delegate.", {"type": "object", "properties": {}})
    outer = Host(runtime, [described], principal=lambda _: someone())
    refused = await outer.submit(called(tool="delegate", arguments={}))
    assert refused.value == {"code": "PERMISSION_DENIED"}  # its parent has no grant for the note
    runtime.registry.grant(Grant(agent="agent", tool="note"))
    allowed = await outer.submit(called(tool="delegate", arguments={}))
    assert allowed.value == {"code": "SUCCESS"}
    assert len(ACTED) == 1


async def test_sub_agents_without_a_conversation_share_the_run_of_their_parent():
    runtime = runtime_for()
    host = made(runtime)

    async def delegate(_arguments):
        return (await host.submit(called(call_id="c_2", run_id="another"))).value

    assert (await host.submit(called(delegate, run_id=None))).value == "noted"
    events = [event for _, event in await runtime.store.events("acme")]
    assert len({event.caller.run_id for event in events}) == 1


class Paused(Exception):  # noqa: N818 - like the frameworks' own
    pass


@pytest.mark.parametrize("effect", ["read_only", "draft"])
async def test_a_tool_that_pauses_itself_is_executed_after_the_pause(effect):
    runtime = runtime_for()
    contract = contract_of(NOTE, effect=effect, max_retries=2)
    host = made(runtime, contracts=[contract], effects={})
    answers = iter([Paused(), "noted"])

    async def pausing(arguments):
        ACTED.append(arguments)
        answer = next(answers)
        if isinstance(answer, Paused):
            raise answer
        return answer

    call = called(pausing, passes=(Paused,))
    with pytest.raises(Paused):
        await host.submit(call)
    assert len(ACTED) == 1
    assert (await host.submit(call)).value == "noted"


# --- packages -------------------------------------------------------------------------------------


def test_a_version_outside_of_the_tested_ones_warns_with_the_range():
    with pytest.warns(RuntimeWarning, match=r"pytest \S+ is outside of the tested versions \(<1\)"):
        check_versions({"pytest": "<1", "no-such-package": "<1"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_versions({"pytest": ">=1"})


def test_a_missing_extra_says_the_pip_line():
    error = missing_extra("openai-agents", ImportError("No module named 'agents'"))
    assert "pip install 'counterseal[openai-agents]'" in str(error)


def test_a_framework_is_imported_with_its_own_adapter_only():
    with pytest.raises(ImportError, match=r"pip install 'counterseal\[langgraph\]'"):
        import_module("counterseal.adapters.langgraph")


# --- sync hosts -----------------------------------------------------------------------------------


async def test_a_sync_host_runs_in_a_thread_of_its_own():
    host = made(runtime_for())

    def blocking(arguments):
        ACTED.append(arguments)
        return "noted"

    call = called(blocking, threaded=True)
    answer = await asyncio.to_thread(lambda: host.from_thread(host.submit(call)))
    assert (answer.native, ACTED) == (("noted",), [{"text": "x"}])


async def test_a_sync_call_that_blocks_the_loop_is_refused_instead_of_waiting_for_ever(monkeypatch):
    monkeypatch.setattr(Host, "patience", 0.05)
    host = made(runtime_for())
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        host.from_thread(host.submit(called()))


async def test_a_store_that_is_down_stops_the_framework(monkeypatch):
    runtime = runtime_for()
    host = made(runtime)

    async def down(_request):
        raise StoreError("disk gone")

    monkeypatch.setattr(runtime.store, "admit", down)
    with pytest.raises(NotRecordedError, match="the store is down"):
        await host.submit(called())
    assert ACTED == []
