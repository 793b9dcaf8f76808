"""Rules on a tool's name, version, owner and texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from packaging.version import InvalidVersion, Version

from counterseal.contract.effects import EFFECTS
from counterseal.contract.lint.rule import Breach, breach, rule
from counterseal.contract.model import NAME_PATTERN, Contract, LifecycleStatus

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_VAGUE = {"do", "execute", "handle", "manage", "misc", "process", "run", "tool", "update", "utils"}
_WRITING = re.compile(
    r"^(approve|cancel|charge|create|delete|disable|drop|enable|grant|insert|pay|post|publish|"
    r"refund|remove|revoke|send|set|submit|transfer|update|void|write)(_|$)"
)
_READING = re.compile(r"^(check|count|describe|fetch|find|get|list|look_?up|read|search|show)(_|$)")


@rule("name-invalid", "name is 1 to 128 letters, digits, dots, dashes and underscores")
def name_invalid(contract: Contract) -> Iterator[Breach]:
    if not re.fullmatch(NAME_PATTERN[1:-1], contract.name):
        yield breach(
            "/identity/name",
            f"{ascii(contract.name)[:80]} is not a tool name",
            "Use 1 to 128 of a-z, A-Z, 0-9, '_', '.', '-'.",
        )


@rule("version-invalid", "version is one that can be ordered, like 1.4.0")
def version_invalid(contract: Contract) -> Iterator[Breach]:
    try:
        Version(contract.version)
    except InvalidVersion:
        yield breach(
            "/identity/version",
            f"{ascii(contract.version)[:40]} is not a version that can be ordered",
            "Write it like 1.4.0.",
        )


@rule("owner-unassigned", "owner is set", warning=True)
def owner_unassigned(contract: Contract) -> Iterator[Breach]:
    if contract.identity.owner.strip() in ("", "unassigned"):
        yield breach(
            "/identity/owner", "the tool has no owner", "Name the team that is responsible for it."
        )


@rule("description-empty", "description is not empty")
def description_empty(contract: Contract) -> Iterator[Breach]:
    if not contract.affordance.model_description.strip():
        yield breach(
            "/affordance/model_description",
            "the description is empty",
            "Say in a sentence what the tool does, and what it does not do.",
        )


@rule("usage-empty", "usage is not empty")
def usage_empty(contract: Contract) -> Iterator[Breach]:
    if not contract.usage.strip():
        yield breach("/usage", "the usage text is empty", "Say when a model should call this tool.")


@rule("text-hidden", "texts have no control or invisible characters")
def text_hidden(contract: Contract) -> Iterator[Breach]:
    texts = {
        "/affordance/model_description": contract.affordance.model_description,
        "/usage": contract.usage,
        **{f"/invariants/{i}/rule": inv.rule for i, inv in enumerate(contract.invariants)},
    }
    for place, text in texts.items():
        hidden = _CONTROL.search(text)
        if hidden:
            yield breach(
                place,
                f"the text has the invisible character U+{ord(hidden[0]):04X}",
                "Remove it: a reviewer can't see what the model would read.",
            )


@rule("name-vague", "name says what it acts on", warning=True)
def name_vague(contract: Contract) -> Iterator[Breach]:
    words = [word for word in re.split(r"[_.-]+", contract.name.lower()) if word]
    if words and (all(word in _VAGUE for word in words) or words[-1] == "stuff"):
        yield breach(
            "/identity/name",
            f"{contract.name} does not say what it acts on",
            "Name the action and its object, like create_notice_draft.",
        )


@rule("name-dishonest", "name does not hide or promise a change", warning=True)
def name_dishonest(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        return
    mutates = EFFECTS[contract.effect].mutates
    name = contract.name.lower().rpartition(".")[2]
    if mutates and _READING.match(name):
        yield breach(
            "/identity/name",
            f"{contract.name} sounds like it reads, but its effect is {contract.effect}",
            "Name it after what it changes, or split reading from writing.",
        )
    if not mutates and _WRITING.match(name):
        yield breach(
            "/effect",
            f"{contract.name} sounds like it writes, but its effect is {contract.effect}",
            "Declare the effect that it has, or name it after what it reads.",
        )


@rule("lifecycle-incomplete", "deprecation has an end or a replacement", warning=True)
def lifecycle_incomplete(contract: Contract) -> Iterator[Breach]:
    life = contract.identity.lifecycle
    deprecated = life.status is not LifecycleStatus.ACTIVE
    if deprecated and life.sunset_date is None and life.replacement is None:
        yield breach(
            "/identity/lifecycle",
            f"the tool is {life.status}, but has neither an end nor a replacement",
            "Give a sunset_date, a replacement, or both.",
        )
    if life.status is LifecycleStatus.ACTIVE and life.sunset_date not in (None, date.max):
        yield breach(
            "/identity/lifecycle/status",
            "a sunset date is set, but the status is still active",
            "Set the status to deprecated.",
        )
