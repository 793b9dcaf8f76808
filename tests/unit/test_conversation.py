"""Tool calls of OpenAI and Anthropic, answered without a framework; and the synchronous façade."""

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest

import counterseal
from counterseal import Conversation, CountersealError, Proposal
from counterseal.testing import approver, fake_tool, runtime_for, someone

TEXT = {"type": "string", "maxLength": 200, "description": "What it says."}


def schema(**properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


@pytest.fixture
def tools():
    return {
        "notes.save": fake_tool(
            "notes.save", {"saved": True}, effect="draft", input_schema=schema(text=TEXT)
        ),
        "send": fake_tool(
            "send",
            {"sent": True},
            effect="external_notification",
            consequence="{text} is sent.",
            input_schema=schema(text=TEXT),
        ),
    }


@pytest.fixture
def runtime(tools):
    return runtime_for(*tools.values())


# Assistant messages as the providers send them, each with the calls (id, name, arguments as text).


def openai(*calls):
    return {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name, arguments in calls
        ],
    }


def responses(*calls):
    return [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        *(
            {
                "type": "function_call",
                "id": f"fc_{i}",
                "call_id": i,
                "name": name,
                "arguments": arguments,
                "status": "completed",
            }
            for i, name, arguments in calls
        ),
    ]


def anthropic(*calls):
    blocks = [
        {"type": "tool_use", "id": i, "name": name, "input": json.loads(arguments)}
        for i, name, arguments in calls
    ]
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": "I'll save it."}, *blocks],
        "stop_reason": "tool_use",
    }


MESSAGES = {"openai": openai, "openai-responses": responses, "anthropic": anthropic}


def read(provider, answers):
    """Return (id, text, is_error) of each answer; OpenAI has no mark for an error."""
    if provider == "anthropic":
        [message] = answers
        assert message["role"] == "user"
        return [
            (block["tool_use_id"], block["content"], block["is_error"])
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
    if provider == "openai":
        assert all(answer["role"] == "tool" for answer in answers)
        return [(answer["tool_call_id"], answer["content"], None) for answer in answers]
    assert all(answer["type"] == "function_call_output" for answer in answers)
    return [(answer["call_id"], answer["output"], None) for answer in answers]


@pytest.fixture(params=MESSAGES)
def provider(request):
    return request.param


async def saver(conversation):
    """Return the provider's name of notes.save, which has a dot."""
    names = [tool.get("function", tool)["name"] for tool in await conversation.tools()]
    [name] = [name for name in names if name.startswith("notes_save_")]
    assert "send" in names
    return name


async def test_calls_are_carried_out_in_order_and_answered_by_their_ids(runtime, tools, provider):
    chat = Conversation(runtime, someone(), "conv_1", provider=provider)
    save = await saver(chat)
    message = MESSAGES[provider](("c1", save, '{"text": "a"}'), ("c2", save, '{"text": "b"}'))
    answers = read(provider, await chat.answer(message))
    assert [answer[0] for answer in answers] == ["c1", "c2"]
    assert all('{"saved":true}' in answer[1] for answer in answers)
    assert all(answer[2] in (None, False) for answer in answers)
    assert tools["notes.save"].calls == [{"text": "a"}, {"text": "b"}]


async def test_repeated_message_executes_nothing_again(runtime, tools, provider):
    chat = Conversation(runtime, someone(), "conv_1", provider=provider)
    message = MESSAGES[provider](("c1", await saver(chat), '{"text": "a"}'))
    first = read(provider, await chat.answer(message))
    again = Conversation(runtime, someone(), "conv_1", provider=provider)
    [(call_id, text, _)] = read(provider, await again.answer(message))
    assert call_id == first[0][0]
    assert "nothing was executed again" in text
    assert len(tools["notes.save"].calls) == 1


async def test_equal_calls_with_different_ids_are_two_operations(runtime, tools, provider):
    chat = Conversation(runtime, someone(), "conv_1", provider=provider)
    save = await saver(chat)
    for call_id in ("c1", "c2"):
        await chat.answer(MESSAGES[provider]((call_id, save, '{"text": "a"}')))
    assert len(tools["notes.save"].calls) == 2


async def test_refusals_are_error_results_in_words_for_the_model(runtime, tools, provider):
    chat = Conversation(runtime, someone(), "conv_1", provider=provider)
    calls = [("c1", "shell", "{}"), ("c2", await saver(chat), '{"text": 7}')]
    if provider != "anthropic":  # there, arguments come parsed
        calls.append(("c3", "send", '{"text": '))
    answers = read(provider, await chat.answer(MESSAGES[provider](*calls)))
    expected = ["STRUCTURAL_VIOLATION", "TYPE_MISMATCH", "SYNTACTIC_PARSE_FAIL"]
    for answer, code in zip(answers, expected, strict=False):
        assert code in answer[1]
        assert answer[2] in (None, True)
    assert len(answers) == len(calls)
    assert tools["send"].calls == tools["notes.save"].calls == []


async def test_held_call_says_so_and_is_carried_out_after_its_approval(runtime, tools, provider):
    chat = Conversation(runtime, someone(), "conv_1", provider=provider)
    message = MESSAGES[provider](("c1", "send", '{"text": "a"}'))
    [(_, text, _)] = read(provider, await chat.answer(message))
    assert "CONFIRMATION_MISSING" in text
    assert "await_approval" in text
    await runtime.approvals.answer(approver())
    await counterseal.Reconciler(runtime).once()
    [(_, text, _)] = read(provider, await chat.answer(message))
    assert '{"sent":true}' in text
    assert len(tools["send"].calls) == 1


@pytest.mark.parametrize(
    "message",
    [None, {}, [], "hello", {"role": "assistant", "content": "Done."}, {"tool_calls": 1}],
)
async def test_message_without_calls_has_no_answer(runtime, provider, message):
    assert await Conversation(runtime, someone(), "c", provider=provider).answer(message) == []


async def test_history_and_objects_of_a_library_are_read_too(runtime, tools):
    chat = Conversation(runtime, someone(), "conv_1")
    function = SimpleNamespace(name=await saver(chat), arguments='{"text": "a"}')
    call = SimpleNamespace(id="c1", type="function", function=function)
    message = SimpleNamespace(role="assistant", content=None, tool_calls=[call])
    [answer] = await chat.answer([{"role": "user", "content": "Save it."}, message])
    assert answer["tool_call_id"] == "c1"
    assert tools["notes.save"].calls == [{"text": "a"}]


async def test_every_call_gets_an_answer_even_one_that_is_no_function(runtime):
    odd = [{"id": "c1", "type": "custom", "custom": {"name": "x", "input": "y"}}, "junk", None]
    answers = await Conversation(runtime, someone(), "conv_1").answer({"tool_calls": odd})
    assert [answer["tool_call_id"] for answer in answers] == ["c1", "", ""]
    assert all("STRUCTURAL_VIOLATION" in answer["content"] for answer in answers)


async def test_other_principal_in_the_same_conversation_gets_no_answer_of_the_first(runtime):
    first = Conversation(runtime, someone(), "conv_1")
    message = openai(("c1", await saver(first), '{"text": "a"}'))
    await first.answer(message)
    other = Conversation(runtime, someone(agent="stranger"), "conv_1")
    [answer] = await other.answer(message)
    assert "saved" not in answer["content"]


def test_unknown_provider_is_refused(runtime):
    with pytest.raises(ValueError, match="provider must be one of openai, openai-responses, anth"):
        Conversation(runtime, someone(), "conv_1", provider="acme")


# The synchronous façade --------------------------------------------------------------------------

PROJECT = """\
[tools]
paths = ["tools.py"]
[store]
url = "sqlite:///calls.db"
[[grants]]
agent = "support"
tool = "add"
[agents.support]
tenant = "acme"
"""
TOOLS = """\
from counterseal import tool

@tool(effect="draft", version="1.0.0", owner="shop")
def add(number: int) -> int:
    \"\"\"Add one.\"\"\"
    return number + 1
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("COUNTERSEAL_STORE", raising=False)
    (tmp_path / "counterseal.toml").write_text(PROJECT)
    (tmp_path / "tools.py").write_text(TOOLS)
    return tmp_path


def use(folder):
    with counterseal.sync.open_project(folder) as project:
        principal = project.principal("support")
        seen = project.submit(Proposal(tool="add", arguments={"number": 1}), principal)
        assert seen.data == {"result": 2}
        chat = project.conversation(principal, "conv_1")
        [tool] = chat.tools()
        assert tool["function"]["name"] == "add"
        [answer] = chat.answer(openai(("c1", "add", '{"number": 2}')))
        assert '{"result":3}' in answer["content"]
        run = project.call(project.runtime.run, principal, "conv_1")
        assert project.call(run.state) == {}
    with pytest.raises(RuntimeError):
        project.submit(Proposal(tool="add", arguments={"number": 1}), principal)


def test_script_uses_a_project_without_a_loop(project):
    use(project)


async def test_notebook_uses_a_project_while_its_loop_runs(project):
    use(project)


def test_thread_ends_with_the_block_and_after_an_error(project):
    before = set(threading.enumerate())
    use(project)
    with pytest.raises(ZeroDivisionError), counterseal.sync.open_project(project):
        raise ZeroDivisionError
    with pytest.raises(CountersealError), counterseal.sync.open_project(project / "absent"):
        pass
    assert set(threading.enumerate()) <= before


def test_runtime_opens_by_url_and_previews(tools):
    with counterseal.sync.Runtime.open("memory:") as runtime:
        add = tools["notes.save"].tool
        runtime.register(add, grants=[counterseal.Grant(agent="agent", tool="notes.save")])
        proposal = Proposal(tool="notes.save", arguments={"text": "a"})
        assert runtime.preview(proposal, someone()).verdict == "allow"
        assert runtime.plan([proposal], someone()).ok
    assert tools["notes.save"].calls == []


def test_runtimes_of_two_threads_do_not_share_a_loop():
    opened = counterseal.sync.Runtime.open
    with opened("memory:") as one, opened("memory:") as two:
        loops = [runtime.call(asyncio.get_running_loop) for runtime in (one, two)]
    assert loops[0] is not loops[1]
