"""The tools that the conformance suite calls, as tools of this project: those that ask the client.

One way for both revisions of the protocol: a tool asks and is answered, whether its client is sent
a request meanwhile or is told to call again with the answers. The names of the questions are the
suite's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from counterseal import Context, tool
from counterseal.contract.outputs import Blocks, text

Words = Annotated[str, Field(max_length=2000, description="What is asked.")]
Question = tuple[str, Mapping[str, Any]]

STRING = {"type": "string"}
OPTIONS = ["option1", "option2", "option3"]


def form(message: str, **properties: Any) -> Question:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return "elicitation/create", {"message": message, "requestedSchema": schema}


def sampling(prompt: str, most: int = 100) -> Question:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return "sampling/createMessage", {"messages": [message], "maxTokens": most}


ROOTS: Question = ("roots/list", {})
WHO = form("What is your name?", name=STRING)
CONFIRM = form("Please confirm", ok={"type": "boolean"})


async def ask(ctx: Context, **questions: Question) -> dict[str, dict[str, Any]]:
    """The answers to several questions, which are asked at once."""
    answers = await asyncio.gather(
        *(ctx.client.ask(method, params, name=name) for name, (method, params) in questions.items())
    )
    return dict(zip(questions, answers, strict=True))


def answer(words: str) -> Blocks:
    return Blocks(content=[text(words)])


def titled(word: str) -> list[dict[str, str]]:
    counts = enumerate(("First", "Second", "Third"), 1)
    return [{"const": f"value{n}", "title": f"{count} {word}"} for n, count in counts]


# Earlier revisions --------------------------------------------------------------------------------


@tool(effect="read_only")
async def test_sampling(ctx: Context, prompt: Words) -> Blocks:
    """Have the client's model answer."""
    said = (await ask(ctx, said=sampling(prompt)))["said"]
    return answer(f"LLM response: {said['content']['text']}")


@tool(effect="read_only")
async def test_elicitation(ctx: Context, message: Words) -> Blocks:
    """Ask the user."""
    given = (await ask(ctx, given=form(message, username=STRING, email=STRING)))["given"]
    return answer(f"User response: {given['action']}, {given.get('content')}")


@tool(effect="read_only")
async def test_elicitation_sep1034_defaults(ctx: Context) -> Blocks:
    """Ask the user, with defaults."""
    wanted = form(
        "Are these right?",
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    given = (await ask(ctx, given=wanted))["given"]
    return answer(f"Elicitation completed: {given['action']}, {given.get('content')}")


@tool(effect="read_only")
async def test_elicitation_sep1330_enums(ctx: Context) -> Blocks:
    """Ask the user to choose, in five ways."""
    legacy = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]}
    wanted = form(
        "Which ones?",
        untitledSingle={"type": "string", "enum": OPTIONS},
        titledSingle={"type": "string", "oneOf": titled("Option")},
        legacyEnum={"type": "string", **legacy},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        titledMulti={"type": "array", "items": {"anyOf": titled("Choice")}},
    )
    given = (await ask(ctx, given=wanted))["given"]
    return answer(f"Elicitation completed: {given['action']}, {given.get('content')}")


# 2026-07-28 ---------------------------------------------------------------------------------------


@tool(effect="read_only")
async def test_missing_capability(ctx: Context) -> Blocks:
    """Need a client that can sample."""
    await ask(ctx, said=sampling("Are you there?"))
    return answer("The client can sample.")


@tool(effect="read_only")
async def test_streaming_elicitation(ctx: Context) -> Blocks:
    """Ask the user while the answer streams."""
    ctx.progress(0, 1)
    given = (await ask(ctx, given=CONFIRM))["given"]
    return answer(f"The user said: {given['action']}.")


@tool(effect="read_only")
async def test_input_required_result_elicitation(ctx: Context) -> Blocks:
    """Greet the user by name."""
    given = (await ask(ctx, user_name=WHO))["user_name"]
    return answer(f"Hello, {given.get('content', {}).get('name', given['action'])}!")


@tool(effect="read_only")
async def test_input_required_result_sampling(ctx: Context) -> Blocks:
    """Have the client's model answer a question."""
    question = sampling("What is the capital of France?")
    said = (await ask(ctx, capital_question=question))["capital_question"]
    return answer(f"The model says: {said['content']['text']}")


@tool(effect="read_only")
async def test_input_required_result_list_roots(ctx: Context) -> Blocks:
    """Tell the client's roots."""
    found = (await ask(ctx, client_roots=ROOTS))["client_roots"]
    return answer(f"Roots: {', '.join(one['uri'] for one in found['roots'])}")


@tool(effect="read_only")
async def test_input_required_result_request_state(ctx: Context) -> Blocks:
    """Go on where it was when the client comes back."""
    await ask(ctx, confirm=CONFIRM)
    return answer("state-ok")


@tool(effect="read_only")
async def test_input_required_result_tampered_state(ctx: Context) -> Blocks:
    """Be found again only by an unchanged state."""
    await ask(ctx, confirm=CONFIRM)
    return answer("state-ok")


@tool(effect="read_only")
async def test_input_required_result_multiple_inputs(ctx: Context) -> Blocks:
    """Ask for three things at once."""
    greeting = sampling("Generate a greeting", 50)
    given = await ask(ctx, user_name=WHO, greeting=greeting, client_roots=ROOTS)
    words = given["greeting"]["content"]["text"]
    return answer(f"{words} {len(given['client_roots']['roots'])} roots.")


@tool(effect="read_only")
async def test_input_required_result_multi_round(ctx: Context) -> Blocks:
    """Ask twice, the second time for more."""
    await ask(ctx, step1=form("Step 1: What is your name?", name=STRING))
    colour = form("Step 2: What is your favorite color?", color=STRING)
    given = (await ask(ctx, step2=colour))["step2"]
    return answer(f"Done: {given.get('content')}")


@tool(effect="read_only")
async def test_input_required_result_capabilities(ctx: Context) -> Blocks:
    """Ask for all that the client can answer."""
    every = {"elicitation": ("user_name", WHO), "sampling": ("greeting", sampling("Greet", 50))}
    asked = dict(question for can, question in every.items() if ctx.client.can(can))
    return answer(f"Got {', '.join(sorted(await ask(ctx, **asked)))}.")
