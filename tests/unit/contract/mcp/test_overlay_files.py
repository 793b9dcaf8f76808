"""Overlay files: every problem at once, each with its place."""

from pathlib import Path

import pytest

from counterseal.contract.sources.mcp.overlay_files import DECLARED, read_overlay
from counterseal.errors import ContractError

WHOLE = """\
server: git
defaults: {scopes: [repo:use]}
tools:
  git_status: {effect: retrieve, trust: untrusted}
  git_commit:
    effect: internal_mutation
    rename: commit
    description: Commits what is staged.
    consequence: "Commits to {repo_path}: {message}"
    scopes: [repo:write]
    business_key: [repo_path, message]
    approval: {pattern: operator_review, roles: [lead]}
    approvers: 1
    invariants:
      - {id: short, rule: Be brief., check: "size(call.message) < 80"}
    budget: 5
    arguments:
      repo_path: {maxLength: 200}
      sign: {remove: true}
    redact: [/author/email, /files/*/owner]
  git_reset: {hidden: true}
rules:
  - {id: no-merge, then: deny, reason: No.}
"""


def problems(overlay, text):
    with pytest.raises(ContractError) as refused:
        overlay(text)
    return [
        (f"{problem.source.line}:{problem.source.column}", problem.message, problem.fix)
        for problem in refused.value.problems
    ]


def test_an_overlay_is_read_whole(overlay, tmp_path):
    read = overlay(WHOLE)
    assert read.server == "git"
    assert read.path == tmp_path / "git.yaml"
    assert read.defaults.declared == {"scopes": ["repo:use"]}
    assert list(read.tools) == ["git_status", "git_commit", "git_reset"]
    commit = read.tools["git_commit"]
    assert commit.rename == "commit"
    assert commit.arguments == {"repo_path": {"maxLength": 200}, "sign": {"remove": True}}
    assert commit.redact == ("/author/email", "/files/*/owner")
    assert not commit.hidden
    assert set(commit.declared) == {
        "effect",
        "description",
        "consequence",
        "scopes",
        "business_key",
        "approval",
        "approvers",
        "invariants",
        "budget",
    }
    assert read.tools["git_reset"].hidden
    assert read.rules == [{"id": "no-merge", "then": "deny", "reason": "No."}]
    assert (read.source("/rules/0").line, read.source(commit.place).line) == (23, 5)


def test_everything_that_is_wrong_is_told_at_once_with_its_place(overlay):
    text = """\
server: Git
default: {}
tools:
  one: {efect: retrieve}
  two:
    effect: readonly
    scopes: repo
    hidden: maybe
    rename: a b
    redact: [email, "/a~2"]
    arguments:
      x: {remove: false}
  three: 7
  four: {effect: retrieve, isolation: sandbox, name: other, identity: {name: x}}
rules: {}
"""
    found = problems(overlay, text)
    assert [(place, message) for place, message, _ in found] == [
        ("2:1", "default is not a field of an overlay"),
        ("1:1", "'Git' is not a valid upstream name"),
        ("4:9", "efect is not a field of an entry"),
        ("4:3", "one has no effect"),
        ("9:5", "'a b' is not a tool name"),
        ("8:5", "hidden must be true or false, not a text"),
        ("12:11", "remove must be true, without other keywords"),
        ("10:14", "'email' is not a JSON Pointer"),
        ("10:21", "'/a~2' is not a JSON Pointer"),
        ("7:5", "scopes: input should be a valid tuple"),
        ("6:5", found[10][1]),
        ("13:3", "an entry must be a mapping, not a number"),
        ("14:28", "isolation is not a field of an entry"),
        ("14:48", "name is not a field of an entry"),
        ("14:72", "name can't be set here"),
        ("15:1", "`rules` must be a list, not a mapping"),
    ]
    assert found[10][1].startswith("effect: input should be 'read_only'")
    fixes = {message: fix for _, message, fix in found}
    assert fixes["default is not a field of an overlay"] == "Did you mean defaults?"
    assert fixes["efect is not a field of an entry"] == "Did you mean effect?"
    assert fixes["name is not a field of an entry"] == "Write `rename`."


def test_a_fault_of_the_defaults_is_told_once(overlay):
    text = """\
server: git
defaults: {effect: retrieve, budget: many}
tools: {a: {}, b: {timeout_ms: soon}}
"""
    assert [
        (place, message.partition(":")[0]) for place, message, _ in problems(overlay, text)
    ] == [
        ("2:30", "budget"),
        ("3:20", "timeout_ms"),
    ]


@pytest.mark.parametrize("field", ["rename", "hidden", "arguments", "redact"])
def test_defaults_take_what_a_contract_takes_and_no_more(overlay, field):
    found = problems(overlay, f"server: git\ndefaults: {{{field}: 1}}\n")
    assert [(place, message) for place, message, _ in found] == [
        ("2:12", f"{field} is not a field of `defaults`")
    ]


def test_two_tools_can_not_be_seen_under_one_name(overlay):
    text = """\
server: git
defaults: {effect: retrieve}
tools:
  a/b: {}
  a_b: {}
  c: {rename: d}
  d: {hidden: true}
  e: {rename: d}
"""
    assert [(place, message) for place, message, _ in problems(overlay, text)] == [
        ("5:3", "a/b and a_b would both be called a_b"),
        ("8:7", "c and e would both be called d"),
    ]


def test_keys_with_nothing_behind_them_are_as_good_as_none(overlay):
    read = overlay("server: git\ndefaults:\n  effect: retrieve\ntools:\n  a:\nrules:\n")
    assert read.tools["a"].declared == {}
    assert read.rules == []


@pytest.mark.parametrize("text", ["", "[]", "tools"])
def test_a_file_that_is_no_mapping_is_refused(overlay, text):
    ((_, message, _),) = problems(overlay, text)
    assert message.startswith("an overlay must be a mapping")


def test_a_file_that_is_not_there_is_told():
    with pytest.raises(ContractError, match="can't be opened"):
        read_overlay(Path("no-such-overlay.yaml"))


def test_entries_of_tools_that_are_not_listed_are_found(overlay):
    read = overlay("server: git\ntools: {git_comit: {hidden: true}, git_log: {hidden: true}}\n")
    (stray,) = read.strays(["git_commit", "git_log"])
    assert (stray.tool, stray.fix) == ("git_comit", "Did you mean git_commit?")
    assert (stray.source.line, stray.source.column) == (2, 9)


def test_an_entry_takes_what_a_decorated_tool_takes():
    assert {"scopes", "effect", "approval", "invariants", "probe", "timeout_ms"} <= set(DECLARED)
    assert not {"name", "version", "http", "isolation", "egress", "secrets"} & set(DECLARED)
