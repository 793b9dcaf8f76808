"""The packet: everything that an approver reads before deciding, as one record.

Built from a contract, a demand and the held call. Values are redacted first, so that no sentence
and no difference can contain a secret. `packet_formats` renders it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from counterseal.approvals.display import Part, fill, leaves, money, name_of, stamp, visible
from counterseal.approvals.terms import Choice, Demand, PendingApproval, Vote, still_needed, who_may
from counterseal.canonical import at, freeze, thaw, unused_key
from counterseal.contract.effects import Effect, Semantics
from counterseal.contract.fill import (
    TemplateError,
    consequence_slots,
    differences,
    expected_state,
    resource_of,
)
from counterseal.contract.fill import fill as fill_template
from counterseal.contract.model import Contract
from counterseal.contract.money import AmountError

Origin = Literal["user", "trusted", "untrusted"]
"""Where an argument came from: the user's words, a trusted observation, or an untrusted one."""

REJECTED: Final = (
    "Nothing is executed. The agent is told that the call was rejected, and reads your comment."
)
_NOTIFIES: Final = frozenset({Effect.EXTERNAL_NOTIFICATION, Effect.IRREVERSIBLE})
_IN_FALLBACK: Final = 4
_MISSING: Final = object()
_KEPT: Final = ("\n", "\t")
"""Line breaks and tabs, which JSON escapes itself."""
_LAYOUT: Final = re.compile(r"([\n\t])")


class ExpectedChange(NamedTuple):
    """A value of the target that the call is expected to change; None where there is none."""

    pointer: str
    before: Any
    after: Any


class OtherField(NamedTuple):
    """A value of the target that the call is not expected to change."""

    pointer: str
    value: Any
    stated: bool
    """Whether the contract or its preview says that it stays; False: they say nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """The page that an approver reads and decides on."""

    approval_id: str
    trace_id: str
    tenant: str
    status: str = "waiting"
    tool: str
    version: str
    contract_hash: str
    effect: str | None
    risk: str
    sentence: tuple[Part, ...]
    """The consequence, with the values in it marked."""
    target: str | None
    """The resource that the call acts on."""
    amount: str | None
    """What the call spends."""
    spent: tuple[str, ...] = ()
    """What was spent of each limit of money when the call was held."""
    arguments: Mapping[str, Any]
    config: Mapping[str, Any]
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """JSON Pointers into the arguments, with the origin of each value as far as it is known."""
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    """As far as it is known before the call."""
    changes: tuple[ExpectedChange, ...]
    fingerprint: str
    demand: Demand
    votes: tuple[Vote, ...] = ()
    agent: str
    user: str | None
    created_at: float
    expires_at: float
    compensation_tool: str | None
    reversibility: str
    reverses: Mapping[str, str | None] | None = None
    """The call that this one reverses: `call_id`, `tool`, and the destination's `external_ref`."""
    if_rejected: str = REJECTED

    @property
    def consequence(self) -> str:
        """What happens after an approval, in a sentence."""
        return "".join(part.text for part in self.sentence)

    def other_fields(self) -> Iterator[OtherField]:
        """Yield the values of the target that are not among the changes."""
        changed = [change.pointer for change in self.changes]
        for place, value in leaves(self.before) if self.before else ():
            if not any(f"{place}/".startswith(f"{one}/") for one in changed):
                yield OtherField(place, value, at(self.after, place, _MISSING) is not _MISSING)

    @property
    def approved(self) -> int:
        """How many different people have approved."""
        return len({vote.approver for vote in self.votes if vote.decision is Choice.APPROVE})

    @property
    def so_far(self) -> str:
        """How many have approved: "1 of 2"."""
        return f"{self.approved} of {self.demand.approvers}"

    @property
    def needed(self) -> str:
        """Which role an approver must still have, in a sentence; empty if none."""
        return still_needed(self.demand, self.votes) if self.status == "waiting" else ""

    @property
    def pending(self) -> PendingApproval:
        """Return the parts of the packet that voting depends on."""
        return PendingApproval(
            tenant=self.tenant,
            agent=self.agent,
            user=self.user,
            expires_at=self.expires_at,
            votes=self.votes,
            decided=self.status != "waiting",
        )

    def record(self) -> dict[str, Any]:
        """Return plain JSON data."""
        demand = self.demand.record()
        return {
            "approval_id": self.approval_id,
            "status": self.status,
            "consequence": self.consequence,
            "action": {
                "tool": self.tool,
                "version": self.version,
                "effect": self.effect,
                "contract_hash": self.contract_hash,
            },
            "target": self.target,
            **({"spends": {"amount": self.amount, "spent": [*self.spent]}} if self.amount else {}),
            "reverses": None if self.reverses is None else dict(self.reverses),
            "arguments": thaw(self.arguments),
            "config": thaw(self.config),
            "origins": dict(self.origins),
            "before": thaw(self.before),
            "after": thaw(self.after),
            "changes": [change._asdict() for change in self.changes],
            "fingerprint": self.fingerprint,
            "risk_class": self.risk,
            "why": {"reason": demand.pop("reason"), "rule": demand.pop("rule")},
            "approval": {
                **demand,
                "who": "".join(text for text, _ in who_may(self.demand, self.user)),
            },
            "votes": {"so_far": self.so_far, "cast": [vote.record() for vote in self.votes]},
            "requester": {"tenant": self.tenant, "agent": self.agent, "user": self.user},
            "reversibility": {
                "text": self.reversibility,
                "compensation_tool": self.compensation_tool,
            },
            "if_rejected": self.if_rejected,
            "created_at": stamp(self.created_at),
            "expires_at": stamp(self.expires_at),
            "trace_id": self.trace_id,
        }


def make_packet(
    contract: Contract,
    demand: Demand,
    *,
    arguments: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    redact: Callable[[Any], Any],
    **about: Any,
) -> Packet:
    """Return the packet of a held call.

    `redact` returns a JSON value without its secrets. `after` is the result of the contract's
    preview; without one, the packet shows the expected state as far as it is known before the call.
    `about` are the fields of `Packet` that are shown as they are. The risk class is the one that
    the call was judged by.
    """
    shown, state = _clean(arguments, redact), _clean(before, redact)
    expected = _clean(_expected(contract, arguments) if after is None else after, redact)
    known = state is not None and expected is not None
    changed = differences(expected, state) if known else ()
    changes = tuple(ExpectedChange(place, now, then) for place, then, now in changed)
    about.setdefault("risk", contract.risk_floor.value)
    about.setdefault("expires_at", about["created_at"] + demand.expires_after)
    return Packet(
        tool=contract.name,
        version=contract.version,
        contract_hash=contract.hash,
        effect=contract.effect.value if contract.effect else None,
        sentence=tuple(_sentence(contract, shown, state)),
        target=resource_of(contract, shown),
        amount=amount_of(contract, arguments),
        arguments=shown,
        config=_clean(config or {}, redact),
        before=state,
        after=expected,
        changes=changes,
        demand=demand,
        compensation_tool=contract.transactional.compensation_tool,
        reversibility=_reversibility(contract),
        **about,
    )


# --- values ---------------------------------------------------------------------------------------


def _clean(value: Any, redact: Callable[[Any], Any]) -> Any:
    """Redact a value, and write invisible characters as code points.

    An approver must see them, because they will be part of the executed call.
    """
    return None if value is None else freeze(redact(_with_code_points(value, redact)))


def _with_code_points(value: Any, redact: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        copy: dict[str, Any] = {}
        for key, item in value.items():
            copy[unused_key(_with_code_points(key, redact), copy)] = _with_code_points(item, redact)
        return copy
    if isinstance(value, list | tuple):
        return [_with_code_points(item, redact) for item in value]
    if not isinstance(value, str) or (value.isascii() and value.isprintable()):
        return value
    pieces = _LAYOUT.split(value)
    spelled = "".join(piece if piece in _KEPT else visible(piece) for piece in pieces)
    # Invisible characters may hide a secret from the redactor; then the redacted text is shown.
    bare = "".join(char for char in value if char in _KEPT or visible(char) == char)
    return spelled if redact(bare) == bare else bare


# --- what happens ---------------------------------------------------------------------------------


def consequence_of(
    contract: Contract, arguments: Mapping[str, Any], before: Mapping[str, Any] | None
) -> str:
    """Return what a call does, in a sentence."""
    return "".join(part.text for part in _sentence(contract, arguments, before))


def amount_of(contract: Contract, arguments: Mapping[str, Any]) -> str | None:
    """Return what a call spends, as people read it; None if nothing, or if it can't be told."""
    try:
        return None if contract.spends is None else str(contract.spends.of(arguments))
    except AmountError:
        return None


def _sentence(
    contract: Contract, arguments: Mapping[str, Any], before: Mapping[str, Any] | None
) -> Iterator[Part]:
    try:
        pieces = list(consequence_slots(contract, arguments, before))
    except TemplateError:  # registration refuses such contracts, but the packet must not fail
        pieces = []
    if not (contract.consequence or "").strip() or not pieces:
        yield from _fallback(contract, arguments)
        return
    for piece in pieces:
        if isinstance(piece, str):
            yield Part(visible(" ".join(piece.split("\n"))))
        elif piece.present and piece.currency is not None:
            yield from money(piece.value, piece.currency)
        elif piece.present:
            yield from fill(piece.value)
        else:
            yield Part("(not given)" if piece.reference.source == "argument" else "(unknown)")


def _fallback(contract: Contract, arguments: Mapping[str, Any]) -> Iterator[Part]:
    """Yield a plain sentence for a contract without a consequence."""
    yield Part(f"Calls {visible(contract.name)}")
    first = list(arguments.items())[:_IN_FALLBACK]
    for index, (name, value) in enumerate(first):
        yield Part(" with " if index == 0 else ", ")
        yield Part(name_of(name), value=True)
        yield Part(" ")
        yield from fill(value, 60)
    more = len(arguments) - len(first)
    yield Part(f" and {more} more argument{'' if more == 1 else 's'}." if more else ".")


def _reversibility(contract: Contract) -> str:
    transactional = contract.transactional
    if not contract.mutates:
        return "Not needed: the call changes nothing."
    if transactional.compensation_tool:
        sent = " Messages already sent can't be unsent." if contract.effect in _NOTIFIES else ""
        return f"Yes, with {visible(transactional.compensation_tool)}.{sent}"
    if transactional.semantics is Semantics.IRREVERSIBLE_PIVOT:
        return "No. The effect is hard or impossible to undo."
    return "Not automatically: the contract declares no tool that reverses it."


# --- before and after -----------------------------------------------------------------------------


def _expected(contract: Contract, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the expected state, without values that depend on the output."""
    if contract.expected is None:
        return None
    try:
        return expected_state(contract, arguments, None)
    except TemplateError:
        known = {}
        for name, template in contract.expected.items():
            try:
                known[name] = fill_template(template, arguments, None)
            except TemplateError:
                continue
        return known or None
