"""The reference of events: each type, when it is written, and what it carries.

The types come from the catalogue; what their bodies hold stands here, and the tests hold it against
real events.
"""

from __future__ import annotations

from typing import NamedTuple

from _tables import table

from counterseal.audit import EventType
from counterseal.gates import GATES
from counterseal.registry.changes import Op

ASKED = (
    *("payload_hash", "key_fingerprint", "contract_hash", "effect", "resource", "amount"),
    "consequence",
)
KEPT = ("captured", "not_captured", "gaps")
"""What an event tells of the proposal, and of its arguments."""
KIND = (
    *("mutates", "announced", "cost", "currency", "again", "system", "parents", "path", "gates"),
    "config",
)
"""What every event may tell that answers a call."""
END = (
    *KIND,
    "status",
    "corrections",
    "attempts",
    "approval_id",
    "resumed",
    "settled",
    "reported_by",
    *ASKED,
    *KEPT,
    "latency_ms",
)
REFUSED = ("gate", "code", "rule", "fields", "config")

VOTE = ("approver", "decision", "voted_at", "roles", "comment", "justification")


class Told(NamedTuple):
    """What is to be said of a type."""

    when: str
    decision: str
    body: tuple[str, ...] = ()


GROUPS: dict[str, dict[EventType, Told]] = {
    "A call": {
        EventType.REQUESTED: Told(
            "It was admitted: approval and budgets are spent.",
            "`allow`",
            ("gates", "parents", *ASKED, *KEPT),
        ),
        EventType.STARTED: Told(
            "Written with the one above, before the tool runs, or the client gets the call.",
            "`allow`",
            ("executed_by",),
        ),
        EventType.SUCCEEDED: Told(
            "It came to a good end.", "the code", (*END, "verify", "redactions", "seen")
        ),
        EventType.FAILED: Told(
            "The tool failed, or its outcome is unknown.",
            "the code",
            (*END, "began", "unknown", "retry_blocked", "error", "trace", "seen"),
        ),
        EventType.DENIED: Told(
            "A gate refused it, or the ledger.",
            "`deny`",
            (*REFUSED, *KIND[:-1], "reason", "approval_id", *ASKED, *KEPT),
        ),
        EventType.REPLAYED: Told(
            "It was answered from what an earlier call did.",
            "the code",
            (*KIND[:-1], *ASKED, *KEPT, "of"),
        ),
        EventType.CORRECTED: Told(
            "An invariant corrected arguments, in a call or in a plan.",
            "`correct`",
            ("invariant", "before", "after", "fields", "plan", "step"),
        ),
        EventType.DROPPED: Told(
            "A step was dropped by an invariant, or is the same as an earlier step of its plan.",
            "`drop`",
            ("invariant", "rule", "before", "after", "fields", "plan", "step"),
        ),
    },
    "Gates": {
        EventType.refused_by(gate): Told(
            f"The gate *{gate}* refused; `tool.denied` follows.", "`deny`", REFUSED
        )
        for gate in (one.name for one in GATES)
    },
    "Ways on": {
        EventType.RETRIED: Told("Another attempt is made.", "`retry`", ("attempt", "code")),
        EventType.REPAIR_ASKED: Told(
            "The agent was told to mend the call.", "`repair`", ("code", "next_action")
        ),
        EventType.REPLAN_ASKED: Told(
            "The agent was told to think again.", "`replan`", ("code", "next_action")
        ),
        EventType.ESCALATED: Told(
            "A person has to look: the agent was told so, or a worker gave up finding out.",
            "`escalate`",
            ("code", "next_action", "exhausted", "reason", "looks"),
        ),
    },
    "Approvals": {
        EventType.APPROVAL_REQUIRED: Told(
            "It waits for people.",
            "`require_approval`",
            ("rule", "approval_id", "config", *KIND[:-1], *ASKED, *KEPT),
        ),
        EventType.APPROVAL_VOTED: Told(
            "An approver voted.",
            "`approve`, `reject`",
            ("approval_id", *VOTE),
        ),
        EventType.APPROVAL_GRANTED: Told("It is approved.", "`approved`", ("approval_id", "by")),
        EventType.APPROVAL_REJECTED: Told("It is rejected.", "`rejected`", ("approval_id", "by")),
        EventType.APPROVAL_EXPIRED: Told(
            "The request was not decided in time, or was replaced.",
            "`expired`",
            ("approval_id", "reason"),
        ),
        EventType.UNPROVEN: Told(
            "The caller's approval token proves no approval of this call.", "`refuse`", ("rule",)
        ),
        EventType.APPROVAL_VOID: Told(
            "What was shown has changed, or the approval was not used in time.",
            "`void`",
            ("approval_id", "reason"),
        ),
        EventType.APPROVAL_NOT_EXECUTED: Told(
            "It was approved, and refused when a worker was to execute it.",
            "`deny`",
            ("approval_id", "by", "code"),
        ),
    },
    "Afterwards": {
        EventType.RECONCILED: Told(
            "It was found out what became of it: by asking, or by a person's word.",
            "the code; of a person `happened`, `did_not_happen`, `again`, `dismissed`",
            (*END, "verify", "redactions", "began", "unknown", "error", "trace", "reason"),
        ),
        EventType.VERIFIED: Told("The world is as expected.", "`verified`", ("tries",)),
        EventType.UNVERIFIED: Told("It is not.", "`unverified`", ("code", "wrong")),
        EventType.OVERTAKEN: Told(
            "The target was changed by others, so the call can't be verified.",
            "`overtaken`",
            ("tries", "wrong"),
        ),
        EventType.COMPENSATION_REQUIRED: Told(
            "It is to be reversed.", "`compensate`", ("reason", "by", "code", "tool")
        ),
        EventType.COMPENSATED: Told("It was reversed.", "`compensated`", ("by",)),
        EventType.COMPENSATION_FAILED: Told(
            "It could not be reversed.", "`failed`", ("code", "reason", "call_id")
        ),
    },
    "Operators and people": {
        EventType.REGISTRY_CHANGED: Told(
            "An operator changed something, for the tenant `*`.",
            f"what: {', '.join(f'`{op.value}`' for op in Op)}",
            ("number", "op", "by", "reason", "at", "…"),
        ),
        EventType.VERSION_HELD: Told(
            "A new version widens what its tool may do, and waits for an operator; for the tenant "
            "`*`.",
            "`hold`",
            ("contract_hash", "changes"),
        ),
        EventType.SIGNED_IN: Told("A person signed in.", "`signed in`", ("source",)),
        EventType.SIGN_IN_REFUSED: Told(
            "A sign-in was refused.", "`refused`", ("source", "reason", "name", "locked_for")
        ),
    },
    "The gateway": {
        EventType.QUARANTINED: Told(
            "An upstream's tool is kept out, for the tenant `*`.",
            "why, or `refused` by a person",
            ("server", "definition", "why", "name", "tool", "pinned", "reason"),
        ),
        EventType.RELEASED: Told("It is let in again.", "`accepted`", ("server", "definition")),
        EventType.PASSED_ON: Told(
            "Something that is no call went to an upstream, like a subscription.",
            "the method",
            ("failed",),
        ),
    },
    "The record itself": {
        EventType.ARGUMENTS_READ: Told(
            "A person looked at what was proposed in a call, or exported it.",
            "`read`",
            ("by", "exported"),
        ),
        EventType.ARGUMENTS_ERASED: Told(
            "A person erased what was kept of a call's proposal.", "`erase`", ("by", "reason")
        ),
        EventType.ERASED: Told(
            "What events said is erased: their time was over.", "`erase`", ("events", "until")
        ),
    },
}
FIELDS = {
    "changes": "the changes of a contract that hold a version, each with its id",
    "after": "the changed arguments afterwards, redacted; `null` for a dropped step",
    "again": "the agent had been refused this tool before, and had not got it right since",
    "announced": "its start was put on record before",
    "approval_id": "the request for approval",
    "approver": "who voted",
    "at": "when the change was made",
    "attempt": "which attempt comes",
    "attempts": "how many attempts it took, if more than one",
    "before": "the changed arguments as proposed, of a dropped step all of them; redacted",
    "began": "`false`: the tool was not called",
    "by": "who: approvers, an operator, or the call that reversed it",
    "captured": "where in the vault the arguments are kept, with what the decision depended on",
    "call_id": "the reversal's own call",
    "code": "one of the [codes](codes.md)",
    "comment": "what the voter said, redacted",
    "config": "the config that the decision rests on, redacted",
    "consequence": "what the call does, in a sentence, redacted",
    "contract_hash": "the hash of the contract that decided",
    "corrections": "how many corrections were made to the arguments",
    "cost": "`cost_per_call` of the contract",
    "currency": "the currency of the cost",
    "amount": "what the call spends, if its contract says so",
    "decision": "the vote",
    "definition": "the hash of what the upstream says of the tool",
    "effect": "the contract's effect",
    "error": "the class of what was raised",
    "events": "how many were erased",
    "executed_by": "`client`: the call was handed to the client",
    "exported": "the calls whose arguments were exported; `*`: all that matched",
    "exhausted": "the agent has used up its tries",
    "failed": "what went wrong",
    "fields": "the names of wrong or corrected fields; never their values",
    "gate": "which gate, or `ledger`",
    "gates": "each gate with its nanoseconds, and its verdict and rule where it said more than yes",
    "invariant": "the id of the invariant",
    "key_fingerprint": "a fingerprint of the key, the same in one tenant",
    "justification": "why the voter may approve it",
    "latency_ms": "milliseconds from the proposal to its answer",
    "locked_for": "seconds until the next attempt is allowed",
    "looks": "how often the outcome was looked up",
    "mutates": "the tool changes something",
    "name": "a fingerprint of the name that was tried; of a tool, its name here",
    "next_action": "what the agent was told to do",
    "gaps": (
        "the parts that the capture lacks for a replay, each with the reason: `redacted`, `cut`"
        " or `unreadable`"
    ),
    "not_captured": "why the arguments are not kept: `opted_out`, `limit` or `failed`",
    "number": "the change's number, in the registry's order",
    "of": "the call whose answer it was",
    "op": "what was changed",
    "path": "which [way on](../runs.md#four-paths) was pointed out",
    "payload_hash": "a fingerprint of the arguments as proposed, the same in one tenant",
    "pinned": "the hash of what was accepted",
    "plan": "the plan, if it was judged as part of one",
    "reason": "why, in words",
    "redactions": "what was taken out of the observation: where, and which rule",
    "reported_by": "`client`: the outcome is what the client reported",
    "resource": "what the call acts on, redacted",
    "resumed": "a worker did it later; no agent proposed it now",
    "retry_blocked": "it was not tried again because it may have taken effect",
    "roles": "the voter's roles",
    "rule": "the id of the rule that was decisive",
    "seen": "of a read: where in the vault lies what the model saw; `null`: it could not be kept",
    "server": "the upstream",
    "settled": "`false`: another worker had settled the call by then",
    "source": "where the request came from",
    "status": "`CANCELLED`: the caller did not wait for the answer; the code says how far it came",
    "step": "the step's number in the plan",
    "system": "Counterseal made the call itself, to reverse another",
    "parents": "The agents that its agent works for, outermost first.",
    "tool": "the tool that reverses it; of a quarantine, the upstream's name for it",
    "trace": "where in the vault the trace lies",
    "tries": "how often it was looked at",
    "unknown": "the outcome is unknown; what the contract says to do",
    "until": "up to which event",
    "verify": "the call has to be verified",
    "voted_at": "when",
    "why": "why it is kept out",
    "wrong": "where the world is otherwise, as JSON Pointers; never values",
}


def page() -> str:
    _complete()
    tables = "\n".join(
        f"## {title}\n\n{table(['type', 'when', 'decision', 'body'], map(_row, types.items()))}"
        for title, types in GROUPS.items()
    )
    fields = table(["field", "what it is"], ((f"`{name}`", said) for name, said in FIELDS.items()))
    return f"""# Events

What is put on record. The fields that all events have, and how they are kept from being changed,
are told in [audit](../audit.md); `counterseal audit list --type TYPE` finds them. Outputs and
secrets are in none of them, and arguments only where they were corrected or dropped, redacted. A
field of a body is there only where it has something to say.

{tables}
A change of the registry also carries what it is about: the tool, the version, the effect, the
grant, the percentage, the user; never a key, a password or a hash of one.

## What bodies hold

{fields}"""


def _row(item: tuple[EventType, Told]) -> tuple[str, str, str, str]:
    kind, told = item
    named = [name if name == "…" else f"`{name}`" for name in told.body]
    return f"`{kind.value}`", told.when, told.decision, ", ".join(dict.fromkeys(named))


def documented() -> dict[EventType, Told]:
    return {kind: told for types in GROUPS.values() for kind, told in types.items()}


def _complete() -> None:
    """Every type has its row, and every field its words."""
    told = documented()
    used = {name for one in told.values() for name in one.body} - {"…"}
    missing = [*(set(EventType) - set(told)), *(used ^ set(FIELDS))]
    if missing:
        raise SystemExit(f"the page of events does not fit the catalogue: {sorted(missing)}")
