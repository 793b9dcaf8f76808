"""The tables of the example's README, made from the contracts, the grants, the rules and the stock.

`python -m tests.examples.case_assistant.tables` writes them into it anew; a test says when that is
due. What no contract knows (events, names of tests) stands here, and is tested itself.
"""

import re

from counterseal.policy import Policy
from tests.examples.case_assistant.office import FOLDER, PLANTED, ROLES, TOOLS

README = FOLDER / "README.md"
RULES = FOLDER / "rules.yaml"

READ = ("tool.succeeded",)
WRITE = ("tool.requested", "tool.started", "tool.succeeded")
ASKED = ("approval.required", "approval.voted", "approval.granted")
EVENTS = {
    "get_case_summary": READ,
    "search_case_evidence": READ,
    "fetch_policy_excerpt": READ,
    "create_notice_draft": WRITE,
    "request_human_approval": (*WRITE, "tool.verified"),
    "send_approved_notice": (*ASKED, *WRITE, "tool.verified"),
    "update_case_status": (*WRITE, "tool.verified"),
}
"""What is on record of a call with which all goes well."""

FAILURES = {
    ("all", "test_every_tool.py"): {
        "wrong type": "a_value_of_a_wrong_type_is_told_by_its_field",
        "missing field": "a_field_that_is_missing_is_named",
        "out of range": "a_value_out_of_range_is_refused",
        "undeclared field": "an_undeclared_field_is_refused",
        "missing scope": "an_agent_without_the_scope_is_refused",
        "no grant": "an_agent_without_a_grant_is_refused",
        "kill switch": "a_kill_switch_stops_each_tool_and_a_reason_is_kept",
    },
    ("reads", "test_every_tool.py"): {
        "budget spent": "a_budget_of_a_run_is_an_end",
    },
    ("all", "test_two_offices.py"): {
        "other tenant": "a_case_of_the_other_office_is_answered_like_an_unknown_one",
    },
    ("reads", "test_reading.py"): {
        "unknown case": "an_unknown_case_is_reported_in_words",
        "timeout": "a_database_that_does_not_answer_is_a_timeout_and_then_it_goes_on",
    },
    ("fetch_policy_excerpt", "test_reading.py"): {
        "unknown policy": "an_unknown_policy_is_reported_in_words",
    },
    ("search_case_evidence", "test_reading.py"): {
        "injected text": "a_demand_in_the_evidence_comes_as_untrusted_data",
    },
    ("all", "test_injection.py"): {
        "injected text, obeyed": "an_agent_that_obeys_is_stopped_where_the_list_says",
    },
    ("create_notice_draft", "test_drafting.py"): {
        "wrong, but mendable": "an_invitation_to_a_hearing_is_corrected_to_registered_mail",
        "duplicate": "the_same_draft_again_is_the_same_draft",
        "foreign evidence": "evidence_of_another_case_is_not_cited",
        "stale version": "a_case_that_was_changed_since_it_was_read_gets_no_draft",
        "timeout": "a_draft_that_timed_out_is_made_once",
    },
    ("request_human_approval", "test_drafting.py"): {
        "duplicate": "asking_again_is_one_request",
        "timeout": "a_request_that_timed_out_is_made_once",
    },
    ("request_human_approval", "test_injection.py"): {
        "approving by text": "no_words_in_the_evidence_or_in_a_reason_approve_anything",
    },
    ("send_approved_notice", "test_sending.py"): {
        "unapproved": "nothing_is_sent_without_an_approval",
        "rejected": "a_rejected_notice_is_not_sent_and_the_agent_reads_why",
        "one of two approvals": "a_penalty_takes_two_people",
        "attacker's address": "an_address_outside_of_the_register_is_against_policy",
        "wrong recipient": "the_mailbox_of_another_company_is_refused_without_a_request",
        "duplicate": "asked_for_often_it_goes_out_once",
        "answer lost": "an_answer_that_was_lost_is_found_in_the_books_of_the_mail_server",
        "timeout": "a_timeout_is_unknown_until_the_books_are_asked",
        "mail server down": "a_mail_server_that_is_down_has_sent_nothing_and_says_so",
        "stopped after approval": "a_kill_between_approval_and_sending_holds",
    },
    ("update_case_status", "test_status.py"): {
        "stale version": "a_version_that_is_gone_is_refused_read_again_and_then_taken",
        "forbidden transition": "no_step_is_left_out",
        "beyond the agent's role": "intake_takes_a_case_in_and_no_further",
        "duplicate": "the_same_change_again_is_made_once",
        "two at once": "several_at_once_under_one_version_make_one_change",
        "timeout": "a_change_that_timed_out_is_made_once",
        "did not last": "a_change_that_did_not_last_is_found_out",
        "reversal": "a_person_has_a_change_taken_back_and_the_history_says_so",
    },
}
"""Which failure of which tool is shown by which test."""


def tables():
    """Each table by the name that it has in the README."""
    return {
        "effects": effects(),
        "inputs": inputs(),
        "outputs": outputs(),
        "scopes": scopes(),
        "keys": keys(),
        "approval": approval(),
        "grants": grants(),
        "policy": policy(),
        "rules": rules(),
        "events": events(),
        "limits": limits(),
        "failures": failures(),
        "planted": planted(),
    }


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def code(*words, sep=", "):
    return sep.join(f"`{word}`" for word in words)


def effects():
    return table(
        ["tool", "effect", "risk class", "its output is"],
        [[code(name), code(c.effect), code(c.risk), c.trust] for name, c in TOOLS.items()],
    )


def inputs():
    rows = []
    for name, contract in TOOLS.items():
        schema = contract.affordance.input_schema
        for field, about in schema["properties"].items():
            need = "" if field in schema.get("required", ()) else " (optional)"
            rows.append([code(name), code(field) + need, bounds(about), about["description"]])
            name = ""  # noqa: PLW2901 - a tool is named once
    return table(["tool", "field", "what it may be", "what it means"], map(_unticked, rows))


def _unticked(row):
    return ["" if row[0] == "``" else row[0], *row[1:]]


def bounds(about):
    """A schema in a few words."""
    (kind,) = [one for one in about.get("anyOf", [about]) if one.get("type") != "null"]
    if "enum" in kind:
        return code(*kind["enum"])
    if kind["type"] == "array":
        items = bounds(kind["items"])
        return f"{kind['minItems']} to {kind['maxItems']} different ones, each {items}"
    if kind["type"] == "integer":
        return f"a whole number from {kind['minimum']:,} to {kind['maximum']:,}"
    if "pattern" in kind:
        return code(kind["pattern"])
    return f"a text of {kind['minLength']} to {kind['maxLength']} characters"


def outputs():
    rows = []
    for name, contract in TOOLS.items():
        fields = contract.affordance.output_schema["properties"]
        rows.append([code(name), code(*fields)])
    return table(["tool", "returns"], rows)


def scopes():
    return table(
        ["tool", "scope", "data"],
        [
            [code(name), code(*c.security.required_scopes), c.security.data_classification]
            for name, c in TOOLS.items()
        ],
    )


def keys():
    rows = []
    for name, contract in TOOLS.items():
        key = code(*contract.business_key, sep=" + ") if contract.idempotency.required else ""
        rows.append([code(name), key or "none: it changes nothing"])
    return table(["tool", "the same thing is meant by the same"], rows)


def approval():
    asking = [rule for rule in _policy().rules if rule.then == "require_approval"]
    rows = []
    for name, contract in TOOLS.items():
        by_rule = [
            f"{_people(rule.approvers)}{_roles(rule.approval)} where {code(rule.id)} says so"
            for rule in asking
            if name in rule.tools
        ]
        always = f"{_people(contract.approvers)}{_roles(contract.approval)}"
        rows.append([code(name), "; ".join([always, *by_rule])])
    return table(["tool", "who is asked"], rows)


def _people(number):
    return {0: "nobody", 1: "one person", 2: "two people"}[number]


def _roles(terms):
    return f" ({' or '.join(terms.roles)})" if terms and terms.roles else ""


def grants():
    rows = [
        [code(name), *(str(role.tools.get(name, "")) for role in ROLES.values())] for name in TOOLS
    ]
    return table(["tool: calls in a run", *(code(who) for who in ROLES)], rows)


def policy():
    rows = [
        [code(rule.id), code(*rule.tools), code(rule.when.text), code(rule.then), rule.reason]
        for rule in _policy().rules
    ]
    return table(["rule", "tool", "when", "then", "because"], rows)


def _policy():
    return Policy.load(RULES, default=False)


def rules():
    rows = []
    for name, contract in TOOLS.items():
        for one in contract.invariants:
            gate = "state" if one.of_target else "semantics"
            rows.append([code(one.id), code(name), one.rule, gate, "yes" if one.correct else ""])
    return table(["rule", "tool", "says", "gate", "mended"], rows)


def events():
    return table(["tool", "on record"], [[code(name), code(*EVENTS[name])] for name in TOOLS])


def limits():
    rows = []
    for name, contract in TOOLS.items():
        runtime = contract.runtime
        unknown = code(contract.on_unknown) if contract.mutates else "can't be: it changes nothing"
        rows.append([code(name), f"{runtime.timeout_ms / 1000:g} s", runtime.max_retries, unknown])
    return table(["tool", "deadline", "further attempts", "an outcome that nobody knows"], rows)


def failures():
    rows = []
    for (who, file), tests in FAILURES.items():
        shown = who if who in ("all", "reads") else code(who)
        for failure, name in tests.items():
            rows.append([failure, shown, code(file), name.replace("_", " ")])
    return table(["failure", "tool", "in", "test"], rows)


def planted():
    rows = [
        [code(one.case_id), code(one.evidence_id), one.kind, one.demand, _stop(one.stopped_by)]
        for one in PLANTED
    ]
    return table(["case", "evidence", "kind", "what it wants", "what stops it"], rows)


def _stop(stopped_by):
    gate, _, rule = stopped_by.partition(": ")
    return "the office has no such case" if gate == "execution" else f"{gate}, {code(rule)}"


BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(text):
    """The README with every table as it should be."""
    made = tables()
    return BLOCK.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", text)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
