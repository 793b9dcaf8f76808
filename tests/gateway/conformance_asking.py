"""The tools of the fixture server that ask their client: see `conformance_tools`.

The names and the keys are the suite's; those with `input_required_result` in their name are for
2026-07-28, and ask a client of an earlier revision by a request, as the others do.
"""

from __future__ import annotations

import mcp_types as types
from conformance_tools import STRING, answer, ask, can, form, sampling, tool

ROOTS = types.ListRootsRequest()
WHO = form("What is your name?", name=STRING)
OPTIONS = ["option1", "option2", "option3"]


def titled(word):
    return [
        {"const": f"value{n}", "title": f"{count} {word}"}
        for n, count in enumerate(("First", "Second", "Third"), 1)
    ]


@tool("test_sampling", "Has the client's model answer.", properties={"prompt": STRING})
async def legacy_sampling(call):
    said = (await ask(call, said=sampling(call.arguments["prompt"])))["said"]
    return answer(f"LLM response: {said.content.text}")


@tool("test_elicitation", "Asks the user.", properties={"message": STRING})
async def legacy_elicitation(call):
    wanted = form(call.arguments["message"], username=STRING, email=STRING)
    given = (await ask(call, given=wanted))["given"]
    return answer(f"User response: {given.action}, {given.content}")


@tool("test_elicitation_sep1034_defaults", "Asks the user, with defaults.")
async def elicitation_defaults(call):
    wanted = form(
        "Are these right?",
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    given = (await ask(call, given=wanted))["given"]
    return answer(f"Elicitation completed: action={given.action}, content={given.content}")


@tool("test_elicitation_sep1330_enums", "Asks the user to choose, in five ways.")
async def elicitation_enums(call):
    legacy = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]}
    wanted = form(
        "Which ones?",
        untitledSingle={"type": "string", "enum": OPTIONS},
        titledSingle={"type": "string", "oneOf": titled("Option")},
        legacyEnum={"type": "string", **legacy},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        titledMulti={"type": "array", "items": {"anyOf": titled("Choice")}},
    )
    given = (await ask(call, given=wanted))["given"]
    return answer(f"Elicitation completed: action={given.action}, content={given.content}")


@tool("test_missing_capability", "Takes a client that declares sampling.")
async def missing_capability(call):
    await ask(call, said=sampling("Are you there?"))
    return answer("The client can sample.")


@tool("test_streaming_elicitation", "Asks the user while its answer streams.")
async def streaming_elicitation(call):
    await call.ctx.session.report_progress(0, 1)
    given = (await ask(call, given=form("Go on?", ok={"type": "boolean"})))["given"]
    return answer(f"The user said: {given.action}.")


@tool("test_input_required_result_elicitation", "Greets the user by name.")
async def input_elicitation(call):
    given = (await ask(call, user_name=WHO))["user_name"]
    return answer(f"Hello, {(given.content or {}).get('name', given.action)}!")


@tool("test_input_required_result_sampling", "Has the client's model answer a question.")
async def input_sampling(call):
    question = sampling("What is the capital of France?")
    said = (await ask(call, capital_question=question))["capital_question"]
    return answer(f"The model says: {said.content.text}")


@tool("test_input_required_result_list_roots", "Tells the client's roots.")
async def input_list_roots(call):
    found = (await ask(call, client_roots=ROOTS))["client_roots"]
    return answer(f"Roots: {', '.join(str(one.uri) for one in found.roots)}")


@tool("test_input_required_result_request_state", "Remembers by what the client sends back.")
async def input_request_state(call):
    await ask(call, "asked", confirm=form("Please confirm", ok={"type": "boolean"}))
    return answer("state-ok")


@tool("test_input_required_result_tampered_state", "Refuses a state that somebody changed.")
async def input_tampered_state(call):
    await ask(call, "asked", confirm=form("Please confirm", ok={"type": "boolean"}))
    return answer("state-ok")


@tool("test_input_required_result_multiple_inputs", "Asks for three things at once.")
async def input_multiple(call):
    greeting = sampling("Generate a greeting", 50)
    given = await ask(call, "asked", user_name=WHO, greeting=greeting, client_roots=ROOTS)
    return answer(f"{given['greeting'].content.text} {len(given['client_roots'].roots)} roots.")


@tool("test_input_required_result_multi_round", "Asks twice, the second time for more.")
async def input_multi_round(call):
    if call.params.request_state != "named":
        await ask(call, "started", step1=form("Step 1: What is your name?", name=STRING))
    colour = form("Step 2: What is your favorite color?", color=STRING)
    given = (await ask(call, "named", step2=colour))["step2"]
    return answer(f"Done: {given.content}")


@tool("test_input_required_result_capabilities", "Asks for all that the client can answer.")
async def input_capabilities(call):
    every = {"user_name": WHO, "greeting": sampling("Generate a greeting", 50)}
    given = await ask(call, **{key: one for key, one in every.items() if can(call, one)})
    return answer(f"Got {', '.join(sorted(given))}.")
