"""A definition under an overlay: the contract that comes of it, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Registry
from counterseal.canonical import thaw
from counterseal.contract.effects import Effect, Trust
from counterseal.contract.outputs import BLOCKS
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.overlay import contract_of
from counterseal.errors import ContractError

HEAD = "server: git\ntools:\n"


def refused(definition, overlay, **how):
    with pytest.raises(ContractError) as error:
        contract_of(definition, overlay, server="git", **how)
    return [
        (problem.source and f"{problem.source.line}:{problem.source.column}", problem.message)
        for problem in error.value.problems
    ]


# --- a contract -----------------------------------------------------------------------------------


def test_an_entry_makes_a_contract_of_a_definition(define, overlay):
    definition = define()
    read = overlay(
        """\
server: git
defaults: {scopes: [repo:use], owner: tools}
tools:
  git_commit:
    effect: internal_mutation
    rename: commit
    description: Commits what is staged.
    consequence: "Commits to {repo_path}: {message}"
    business_key: [repo_path, message]
    approval: {pattern: operator_review}
    budget: 5
    arguments:
      repo_path: {maxLength: 200}
      sign: {remove: true}
"""
    )
    contract = contract_of(definition, read, server="git", prefix="git.", revision=3)
    Registry().register(contract)
    assert (contract.name, contract.version) == ("git.commit", "3.0.0")
    assert contract.effect is Effect.INTERNAL_MUTATION
    assert contract.trust is Trust.UNTRUSTED
    assert contract.security.required_scopes == ("repo:use",)
    assert contract.identity.owner == "tools"
    assert contract.affordance.model_description == contract.usage == "Commits what is staged."
    assert (contract.approvers, contract.budget) == (1, 5)
    assert contract.affordance.output_schema == BLOCKS
    schema = contract.affordance.input_schema
    assert set(schema["properties"]) == {"repo_path", "message"}
    assert schema["properties"]["repo_path"]["maxLength"] == 200
    assert schema["additionalProperties"] is False
    assert contract.mcp.model_dump() == {
        "server": "git",
        "tool": "git_commit",
        "kind": "tool",
        "definition": definition.hash,
    }


def test_an_entry_lies_upon_the_defaults(define, overlay):
    text = "defaults: {effect: retrieve, scopes: [a], budget: 3}\n" + HEAD
    read = overlay(text + "  git_commit: {effect: draft, scopes: [b]}\n")
    contract = contract_of(define(), read, server="git")
    assert (contract.effect, contract.budget) == (Effect.DRAFT, 3)
    assert contract.security.required_scopes == ("b",)


def test_an_output_schema_is_the_upstreams(define, overlay):
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    read = overlay(HEAD + "  git_commit: {effect: draft, trust: trusted}\n")
    contract = contract_of(define(outputSchema=schema), read, server="git")
    assert thaw(contract.affordance.output_schema) == schema
    assert contract.trust is Trust.TRUSTED


def test_a_strangers_text_is_cleaned_and_bounded_for_models(define, overlay):
    read = overlay(HEAD + "  git_commit: {effect: draft}\n")
    contract = contract_of(define(description="Do\u200b it.\u202e"), read, server="git")
    assert contract.affordance.model_description == contract.usage == "Do it."
    contract = contract_of(define(description="x" * 20_000), read, server="git")
    assert len(contract.affordance.model_description) == 8_000
    contract = contract_of(define(description="\u200b"), read, server="git")
    told = contract.affordance.model_description
    assert told == "Commit (its author gave no description)"


def test_a_name_that_no_contract_can_have_is_made_one(define, overlay):
    read = overlay(HEAD + "  notes/find.v2: {effect: retrieve}\n")
    definition = define(name="notes/find.v2", annotations=None)
    contract = contract_of(definition, read, server="git")
    assert (contract.name, contract.mcp.tool) == ("notes_find.v2", "notes/find.v2")


def test_an_optional_credential_is_not_for_a_model_to_write(takes, overlay):
    read = overlay(HEAD + "  git_commit: {effect: draft}\n")
    text = {"type": "string"}
    nested = {"type": "object", "properties": {"api_key": text, "b": text}}
    either = {"anyOf": [text, {"type": "object", "properties": {"secret": text}}]}
    given = {"password": text, "credential": either, "a": nested}
    made = contract_of(takes(given), read, server="git")
    assert list(made.affordance.input_schema["properties"]) == ["a"]
    assert list(made.affordance.input_schema["properties"]["a"]["properties"]) == ["b"]
    needed = takes({"password": text}, ["password"])
    ((place, message),) = refused(needed, read)
    assert place == "3:3"
    assert "password would let a model see and pass a credential" in message


def test_code_that_an_upstream_runs_needs_no_sandbox_here(takes, overlay):
    read = overlay(HEAD + "  git_commit: {effect: irreversible}\n")
    command = {"type": "string", "description": "The shell command to run."}
    assert (
        contract_of(takes({"command": command}), read, server="git").effect is Effect.IRREVERSIBLE
    )


# --- hidden and gated -----------------------------------------------------------------------------


def test_what_is_hidden_has_no_contract(define, overlay):
    read = overlay(HEAD + "  git_commit: {hidden: true}\n")
    for unlisted in ("hidden", "gated"):
        assert contract_of(define(), read, server="git", unlisted=unlisted) is None
    assert contract_of(define(name="other"), read, server="git") is None
    assert contract_of(define(), None, server="git") is None


def test_a_tool_without_an_entry_is_gated_where_that_is_asked_for(define):
    contract = contract_of(define(), None, server="git", unlisted="gated")
    Registry().register(contract)
    assert contract.effect is Effect.EXTERNAL_NOTIFICATION
    assert (contract.approvers, contract.budget) == (1, 5)
    assert contract.consequence == (
        "git_commit of git with repo_path {repo_path}, message {message}."
    )
    destructive = define(annotations={"destructiveHint": True})
    contract = contract_of(destructive, None, server="git", unlisted="gated")
    assert contract.effect is Effect.IRREVERSIBLE
    assert (contract.approvers, contract.budget) == (2, 0)


def test_defaults_make_a_gated_tool_stricter_and_never_looser(define, overlay):
    loose = "effect: retrieve, approvers: 0, budget: 99, trust: trusted, risk: READ_ONLY"
    read = overlay(f"server: git\ndefaults: {{scopes: [a], owner: b, {loose}}}\n")
    contract = contract_of(define(), read, server="git", unlisted="gated")
    assert contract.effect is Effect.EXTERNAL_NOTIFICATION
    assert (contract.approvers, contract.budget, contract.trust) == (1, 5, Trust.UNTRUSTED)
    assert contract.security.required_scopes == ("a",)


def test_there_is_no_third_way_for_what_is_unlisted(define):
    with pytest.raises(ValueError, match="hidden or gated"):
        contract_of(define(), None, server="git", unlisted="open")


HINTS = st.dictionaries(
    st.sampled_from(["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]),
    st.booleans(),
)


@given(hints=HINTS, name=st.sampled_from(["get_it", "delete_it", "x"]))
def test_nothing_that_a_stranger_says_lets_a_gated_tool_run_without_a_person(hints, name):
    wire = {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}
    contract = contract_of(Definition.of(wire), None, server="git", unlisted="gated")
    assert contract.approvers >= (2 if hints.get("destructiveHint") else 1)
    assert contract.transactional.confirmation_required
    assert contract.idempotency.required
    assert contract.trust is Trust.UNTRUSTED


# --- annotations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read_only", "retrieve", "compute"])
@pytest.mark.parametrize("hint", [{"destructiveHint": True}, {"readOnlyHint": False}])
def test_annotations_contradict_an_effect_that_is_too_harmless(define, overlay, effect, hint):
    definition = define(annotations=hint)
    read = overlay(HEAD + f"  git_commit: {{effect: {effect}}}\n")
    ((place, message),) = refused(definition, read)
    assert place == "3:16"
    assert f"{effect} says that it changes nothing, but git says {next(iter(hint))}" in message
    reviewed = HEAD + f"  git_commit: {{effect: {effect}, annotations_reviewed: true}}\n"
    assert contract_of(definition, overlay(reviewed), server="git").effect == effect


def test_annotations_that_reassure_change_nothing(define, overlay):
    read = overlay(HEAD + "  git_commit: {effect: irreversible}\n")
    said = contract_of(define(annotations={"readOnlyHint": True}), read, server="git")
    bare = contract_of(define(annotations=None), read, server="git")
    assert said.record() | {"mcp": None} == bare.record() | {"mcp": None}


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "ours"),
    [
        ({"type": "string"}, "{maxLength: 5}"),
        ({"type": "string", "maxLength": 9}, "{maxLength: 5}"),
        ({"type": "string"}, "{enum: [a, b]}"),
        ({"type": "string"}, "{pattern: '^a{1,3}$'}"),
        ({"enum": ["a", "b", "c"]}, "{enum: [a, b]}"),
        ({"type": ["string", "null"]}, "{type: string}"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "{maxLength: 5}"),
        ({"type": "string"}, "{description: Another., default: a}"),
        ({"type": "array", "items": {"type": "string"}}, "{items: {maxLength: 3}}"),
        ({"$ref": "#/$defs/T"}, "{maxLength: 5}"),
        ({}, "{type: string}"),
    ],
)
def test_an_argument_can_be_tightened(takes, overlay, upstream, ours):
    definition = takes({"a": upstream}, **{"$defs": {"T": {"type": "string"}}})
    read = overlay(HEAD + f"  git_commit: {{effect: draft, arguments: {{a: {ours}}}}}\n")
    contract = contract_of(definition, read, server="git")
    bare = contract_of(definition, overlay(HEAD + "  git_commit: {effect: draft}\n"), server="git")
    assert contract.affordance.input_schema != bare.affordance.input_schema


@pytest.mark.parametrize(
    ("upstream", "ours", "word"),
    [
        ({"type": "string", "maxLength": 5}, "{maxLength: 9}", "maxLength"),
        ({"type": "string", "enum": ["a"]}, "{enum: [a, b]}", "enum"),
        ({"type": "string"}, "{type: [string, 'null']}", "type"),
        ({"type": "string", "pattern": "^a$"}, "{pattern: '^b$'}", "pattern"),
        ({"type": "array", "items": {"minLength": 3}}, "{items: {minLength: 0}}", "minLength"),
    ],
)
def test_an_argument_can_not_be_loosened(takes, overlay, upstream, ours, word):
    read = overlay(HEAD + f"  git_commit: {{effect: draft, arguments: {{a: {ours}}}}}\n")
    ((place, message),) = refused(takes({"a": upstream}), read)
    assert message == f"git_commit: {word} does not make a stricter than the upstream has it"
    assert place.startswith("3:")


def test_arguments_that_are_not_there_or_are_needed_are_told_together(define, overlay):
    read = overlay(
        HEAD
        + "  git_commit:\n    effect: draft\n    arguments:\n"
        + "      repo_pth: {maxLength: 5}\n      message: {remove: true}\n"
    )
    assert refused(define(), read) == [
        ("6:7", "git_commit: it has no argument repo_pth"),
        ("7:7", "git_commit: message can't be removed: the tool requires it"),
    ]


def test_an_argument_that_other_parts_name_too_can_not_be_removed(takes, overlay):
    text = {"type": "string"}
    definition = takes({"a": text}, anyOf=[{"properties": {"a": text}}, {"required": ["b"]}])
    read = overlay(HEAD + "  git_commit: {effect: draft, arguments: {a: {remove: true}}}\n")
    ((_, message),) = refused(definition, read)
    assert "a can't be removed" in message


# --- redaction ------------------------------------------------------------------------------------

OUTPUT = {
    "type": "object",
    "properties": {
        "author": {"$ref": "#/$defs/Person"},
        "files": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
        "more": {"type": "object"},
        "either": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]},
        "by_name": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Person"}},
    },
    "$defs": {"Person": {"type": "object", "properties": {"email": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    "place",
    [
        "/author",
        "/author/email",
        "/files/*/email",
        "/more/x/y",
        "/either/email",
        "/by_name/b/email",
    ],
)
def test_a_redaction_leads_to_a_field(define, overlay, place):
    read = overlay(HEAD + f"  git_commit: {{effect: draft, redact: ['{place}']}}\n")
    assert contract_of(define(outputSchema=OUTPUT), read, server="git") is not None


@pytest.mark.parametrize(
    "place", ["/autor", "/author/mail", "/files/email", "/author/email/x", "/either/mail", "/*"]
)
def test_a_redaction_that_leads_nowhere_is_refused(define, overlay, place):
    read = overlay(HEAD + f"  git_commit: {{effect: draft, redact: ['{place}']}}\n")
    found = refused(define(outputSchema=OUTPUT), read)
    assert found == [("3:40", f"git_commit: {place} leads to no field of its output")]


def test_blocks_have_no_fields_to_redact(define, overlay):
    read = overlay(HEAD + "  git_commit: {effect: draft, redact: [/content]}\n")
    ((place, message),) = refused(define(), read)
    assert (place, message) == ("3:40", "git_commit: it answers in blocks, which have no fields")


# --- problems -------------------------------------------------------------------------------------


def test_what_does_not_fit_the_tool_is_told_where_the_overlay_says_it(define, overlay):
    read = overlay(
        """\
server: git
defaults:
  tenant_argument: org
tools:
  git_commit:
    effect: internal_mutation
    consequence: "Commits {mesage}"
    business_key: [repo_path, msg]
    approvers: 0
    approval: {pattern: dual_control}
    description: "hid\u200bden"
"""
    )
    places = {place for place, _ in refused(define(), read)}
    assert places == {"3:3", "7:5", "8:31", "9:5", "11:5"}


def test_an_overlay_of_another_server_is_refused(define, overlay):
    read = overlay("server: crm\n")
    assert refused(define(), read) == [("1:1", "this is the overlay of crm, not of git")]


def test_a_definition_that_makes_no_contract_is_refused_with_a_way_out(takes):
    remote = takes({"a": {"$ref": "https://example.org/schema.json"}})
    with pytest.raises(ContractError) as error:
        contract_of(remote, None, server="git", unlisted="gated")
    (problem,) = error.value.problems
    assert "refers outside the contract" in problem.message
    assert "hide the tool in its overlay: git_commit: {hidden: true}" in problem.fix
