"""Effects are proposed upwards: no word of a stranger makes a tool more harmless."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.sources.effect_guess import propose_mcp_effect, strictest
from counterseal.contract.sources.mcp.definition import HINTS, Definition

ORDER = [
    Effect.COMPUTE,
    Effect.RETRIEVE,
    Effect.INTERNAL_MUTATION,
    Effect.EXTERNAL_NOTIFICATION,
    Effect.IRREVERSIBLE,
]


def tool(name, description="", **hints):
    return Definition.of(
        {
            "name": name,
            "description": description,
            "inputSchema": {"type": "object"},
            "annotations": hints,
        }
    )


@pytest.mark.parametrize(
    "description",
    [
        "Gets a page as text. Tables of more than 20 rows are automatically truncated.",
        "Gets a page. HTML tags are removed, and its output is cleared of advertisements.",
        "Gets a page. Duplicates are removed.",
    ],
)
def test_what_becomes_of_the_answer_makes_no_read_a_change(description):
    assert propose_mcp_effect(tool("read_documentation", description))[0] is Effect.RETRIEVE


def test_the_reason_shows_the_sentence_that_raised_the_effect():
    effect, reasons = propose_mcp_effect(tool("get_it", "Gets it. All other ones are *revoked*."))
    assert effect is Effect.IRREVERSIBLE
    assert reasons[-1] == (
        "raised, for 'revoke' in its description: \"All other ones are revoked\""
    )


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("get_issue", Effect.RETRIEVE),
        ("listRuns", Effect.RETRIEVE),
        ("web-search", Effect.RETRIEVE),
        ("git_status", Effect.RETRIEVE),
        ("get_post", Effect.RETRIEVE),
        ("read_text_file", Effect.RETRIEVE),
        ("convert_time", Effect.COMPUTE),
        ("create_entities", Effect.INTERNAL_MUTATION),
        ("files/write", Effect.INTERNAL_MUTATION),
        ("updateIssue", Effect.INTERNAL_MUTATION),
        ("slack_post_message", Effect.EXTERNAL_NOTIFICATION),
        ("send_email", Effect.EXTERNAL_NOTIFICATION),
        ("notify.team", Effect.EXTERNAL_NOTIFICATION),
        ("delete_entities", Effect.IRREVERSIBLE),
        ("drop-table", Effect.IRREVERSIBLE),
        ("execute_sql", Effect.IRREVERSIBLE),
        ("run_command", Effect.IRREVERSIBLE),
        ("get_and_delete", Effect.IRREVERSIBLE),
        ("frobnicate", Effect.EXTERNAL_NOTIFICATION),
        ("x", Effect.EXTERNAL_NOTIFICATION),
    ],
)
def test_the_verb_of_a_name_decides(name, effect):
    proposed, reasons = propose_mcp_effect(tool(name))
    assert proposed is effect
    assert reasons


def test_a_description_that_admits_more_raises_it():
    effect, reasons = propose_mcp_effect(
        tool("get_report", "Gets the report and deletes the old one.")
    )
    assert effect is Effect.IRREVERSIBLE
    assert reasons == (
        "proposed for 'get' in its name",
        "raised, for 'delete' in its description: \"Gets the report and deletes the old one\"",
    )


def test_annotations_that_confess_are_heard():
    assert propose_mcp_effect(tool("get_it", readOnlyHint=False))[0] is Effect.INTERNAL_MUTATION
    assert propose_mcp_effect(tool("get_it", destructiveHint=True))[0] is Effect.IRREVERSIBLE
    assert propose_mcp_effect(tool("add_it", openWorldHint=True))[0] is Effect.EXTERNAL_NOTIFICATION
    assert propose_mcp_effect(tool("get_it", openWorldHint=True))[0] is Effect.RETRIEVE


def test_annotations_that_reassure_are_not():
    effect, reasons = propose_mcp_effect(
        tool("delete_all", readOnlyHint=True, destructiveHint=False)
    )
    assert effect is Effect.IRREVERSIBLE
    assert reasons[-1] == "its readOnlyHint: true was not followed"


NAMES = st.lists(
    st.sampled_from(["get", "list", "create", "send", "delete", "run", "note", "and", "sum"]),
    min_size=1,
    max_size=4,
).map("_".join)
PROSE = st.sampled_from(["", "Gets it.", "Deletes it.", "Sends it to all.", "Creates one."])
SAID = st.dictionaries(st.sampled_from(HINTS), st.booleans())


@given(name=NAMES, prose=PROSE, hints=SAID)
def test_annotations_only_ever_raise_an_effect(name, prose, hints):
    bare, said = (
        propose_mcp_effect(tool(name, prose))[0],
        propose_mcp_effect(tool(name, prose, **hints))[0],
    )
    assert ORDER.index(said) >= ORDER.index(bare)


@given(name=NAMES, prose=PROSE, hints=SAID)
def test_a_tool_without_an_overlay_entry_needs_a_person_whatever_it_says(name, prose, hints):
    effect = strictest(tool(name, prose, **hints))
    assert EFFECTS[effect].mutates
    expected = hints.get("destructiveHint") is True
    assert effect is (Effect.IRREVERSIBLE if expected else Effect.EXTERNAL_NOTIFICATION)
