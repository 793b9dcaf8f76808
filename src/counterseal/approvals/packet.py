"""The packet: everything that an approver reads before deciding, as one record.

Made from a contract, a demand and the held call. Values are redacted by whoever makes it, before
anything else is done with them, so that no sentence and no difference can hold a secret. How it
looks is the renderers' business: `text`, `markdown`, `html`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from counterseal.approvals.display import Part, fill, name_of, stamp, visible
from counterseal.approvals.terms import Demand, who_may
from counterseal.approvals.votes import Choice, Vote
from counterseal.canonical import freeze, thaw
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

__all__ = ["REJECTED", "Origin", "Packet", "StateChange", "make_packet"]

Origin = Literal["user", "trusted", "untrusted"]
"""Where an argument came from: the user's own words, a trusted observation, or an untrusted one."""

REJECTED: Final = (
    "Nothing is executed. The agent is told CONFIRMATION_MISSING and your comment, and can replan."
)
_SEEN: Final = frozenset({Effect.EXTERNAL_NOTIFICATION, Effect.IRREVERSIBLE})
_IN_FALLBACK: Final = 4
_KEPT: Final = ("\n", "\t")
"""Layout, which JSON spells out in its own way."""
_LAYOUT: Final = re.compile(r"([\n\t])")


class StateChange(NamedTuple):
    """A place where the state is expected to become another. What is not there is None."""

    pointer: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What a person says yes or no to."""

    approval_id: str
    trace_id: str
    tenant: str
    status: str
    tool: str
    version: str
    contract_hash: str
    effect: str | None
    risk: str
    sentence: tuple[Part, ...]
    """The consequence, with the values in it marked."""
    target: str | None
    """The resource that the call acts on."""
    arguments: Mapping[str, Any]
    config: Mapping[str, Any]
    origins: Mapping[str, Origin]
    """JSON Pointer into the arguments to where the value came from, as far as known."""
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    """As far as it can be told before the call."""
    changes: tuple[StateChange, ...]
    fingerprint: str
    demand: Demand
    votes: tuple[Vote, ...]
    agent: str
    user: str | None
    created_at: float
    expires_at: float
    compensation_tool: str | None
    reversibility: str
    if_rejected: str = REJECTED

    @property
    def consequence(self) -> str:
        """What happens if it is approved, in a sentence."""
        return "".join(part.text for part in self.sentence)

    @property
    def so_far(self) -> str:
        """How many have approved it: "1 of 2"."""
        said = {vote.approver for vote in self.votes if vote.decision is Choice.APPROVE}
        return f"{len(said)} of {self.demand.approvers}"

    def record(self) -> dict[str, Any]:
        """As plain JSON data."""
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
    approval_id: str,
    trace_id: str,
    tenant: str,
    agent: str,
    user: str | None,
    arguments: Mapping[str, Any],
    fingerprint: str,
    created_at: float,
    expires_at: float | None = None,
    config: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    origins: Mapping[str, Origin] | None = None,
    votes: Iterable[Vote] = (),
    status: str = "waiting",
    redact: Callable[[Any], Any],
) -> Packet:
    """The packet of a held call.

    `redact` gives a JSON value back without its secrets. `after` is what the contract's preview
    says; without one it is what the contract expects, as far as that does not wait for the output.
    """
    given, seen = _clean(arguments, redact), _clean(before, redact)
    then = _clean(_expected(contract, arguments) if after is None else after, redact)
    return Packet(
        approval_id=approval_id,
        trace_id=trace_id,
        tenant=tenant,
        status=status,
        tool=contract.name,
        version=contract.version,
        contract_hash=contract.hash,
        effect=contract.effect.value if contract.effect else None,
        risk=contract.risk.value,
        sentence=tuple(_sentence(contract, given, seen)),
        target=resource_of(contract, given),
        arguments=given,
        config=_clean(config or {}, redact),
        origins=dict(origins or {}),
        before=seen,
        after=then,
        changes=tuple(_changes(seen, then)),
        fingerprint=fingerprint,
        demand=demand,
        votes=tuple(votes),
        agent=agent,
        user=user,
        created_at=created_at,
        expires_at=created_at + demand.expires_after if expires_at is None else expires_at,
        compensation_tool=contract.transactional.compensation_tool,
        reversibility=_reversibility(contract),
    )


# --- values ---------------------------------------------------------------------------------------


def _clean(value: Any, redact: Callable[[Any], Any]) -> Any:
    """Redacted, and with hidden characters spelt out that a redactor might just take away.

    Whoever approves must see that they are there: they will be executed.
    """
    return None if value is None else freeze(redact(_spelt(value, redact)))


def _spelt(value: Any, redact: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for key, item in value.items():
            made[_unused(_spelt(key, redact), made)] = _spelt(item, redact)
        return made
    if isinstance(value, list | tuple):
        return [_spelt(item, redact) for item in value]
    if not isinstance(value, str) or (value.isascii() and value.isprintable()):
        return value
    pieces = _LAYOUT.split(value)
    spelt = "".join(piece if piece in _KEPT else visible(piece) for piece in pieces)
    # They may also be there to hide a secret from a redactor: then it is the secret that matters.
    bare = "".join(char for char in value if char in _KEPT or visible(char) == char)
    return spelt if redact(bare) == bare else bare


def _unused(key: str, taken: Mapping[str, Any]) -> str:
    """Two keys can look alike once they are spelt out; neither may hide the other."""
    shown, number = key, 2
    while shown in taken:
        shown, number = f"{key} ({number})", number + 1
    return shown


# --- what happens ---------------------------------------------------------------------------------


def _sentence(
    contract: Contract, arguments: Mapping[str, Any], before: Mapping[str, Any] | None
) -> Iterator[Part]:
    try:
        pieces = list(consequence_slots(contract, arguments, before))
    except TemplateError:  # such a contract is refused at registration, but a person asks here
        pieces = []
    if not (contract.consequence or "").strip() or not pieces:
        yield from _fallback(contract, arguments)
        return
    for piece in pieces:
        if isinstance(piece, str):
            yield Part(visible(" ".join(piece.split("\n"))))
        elif piece.there:
            yield from fill(piece.value)
        else:
            yield Part("(not given)" if piece.reference.source == "argument" else "(not known)")


def _fallback(contract: Contract, arguments: Mapping[str, Any]) -> Iterator[Part]:
    """A plain sentence where the contract has none."""
    yield Part(f"Calls {visible(contract.name)}")
    told = list(arguments.items())[:_IN_FALLBACK]
    for index, (name, value) in enumerate(told):
        yield Part(" with " if index == 0 else ", ")
        yield Part(name_of(name), value=True)
        yield Part(" ")
        yield from fill(value, 60)
    more = len(arguments) - len(told)
    yield Part(f" and {more} more argument{'' if more == 1 else 's'}." if more else ".")


def _reversibility(contract: Contract) -> str:
    transactional = contract.transactional
    if not contract.mutates:
        return "It changes nothing."
    if transactional.compensation_tool:
        stays = " What has reached others by then stays known." if contract.effect in _SEEN else ""
        return f"Yes, by {visible(transactional.compensation_tool)}.{stays}"
    if transactional.semantics is Semantics.IRREVERSIBLE_PIVOT:
        return "No. It is hard or impossible to undo."
    return "Not by a tool: none is declared that reverses it."


# --- before and after -----------------------------------------------------------------------------


def _expected(contract: Contract, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the contract expects, without what only the output will tell."""
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


def _changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> Iterator[StateChange]:
    if after is None or before is None:
        return
    for place, expected, found in differences(after, before):
        yield StateChange(place, found, expected)
