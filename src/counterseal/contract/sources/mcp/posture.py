"""Which effect a stranger's tool has, as far as its definition tells. Guesses upwards.

The verbs of its name decide first, then what its description says it changes. Annotations are hints
from a stranger: those that confess something raise the effect, those that reassure are not
followed. What an upstream reads is somebody else's data, so reading is `retrieve`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.openapi.texts import words
from counterseal.contract.sources.openapi.verbs import changes_in_prose

__all__ = ["contradiction", "propose", "strictest"]


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_READING: Final = _set(
    "get list search find fetch read retrieve show count check describe query view lookup status "
    "diff log inspect download export browse ls cat head tail tree stat info ping echo history"
)
_COMPUTING: Final = _set(
    "calculate compute convert format parse validate hash encode decode translate estimate compare "
    "sum think thinking"
)
_WRITING: Final = _set(
    "create write update add insert edit modify set save commit move rename copy upload put patch "
    "merge append replace store stage checkout branch tag fork clone import apply assign enable "
    "disable open close start stop restart mark toggle archive restore init register schedule "
    "change configure sync link unlink upsert make mkdir touch click type fill press navigate"
)
_TELLING: Final = _set(
    "send post notify publish email mail message tweet reply comment share invite submit push "
    "broadcast announce call dial book order request trigger subscribe alert forward"
)
_FINAL: Final = _set(
    "delete remove drop purge destroy erase wipe truncate reset revoke terminate kill cancel "
    "uninstall overwrite expunge clear flush execute exec run eval evaluate shell bash command "
    "script sql pay charge refund transfer withdraw buy sell purchase trade deploy merge release "
    "shutdown reboot deactivate void unsubscribe rm rmdir force"
)
_CERTAIN: Final = _FINAL - _set(
    "clear command script sql charge refund transfer trade release run merge force void flush "
    "order sell"
)
"""Not the names of things that a reader lists: `list_runs` runs nothing."""

_ORDER: Final = (
    Effect.COMPUTE,
    Effect.RETRIEVE,
    Effect.INTERNAL_MUTATION,
    Effect.EXTERNAL_NOTIFICATION,
    Effect.IRREVERSIBLE,
)
_KINDS: Final = (
    (Effect.IRREVERSIBLE, _FINAL),
    (Effect.EXTERNAL_NOTIFICATION, _TELLING),
    (Effect.INTERNAL_MUTATION, _WRITING),
)


def propose(definition: Definition) -> tuple[Effect, tuple[str, ...]]:
    """The effect to write down for a person to review, and the reasons in the order they came."""
    effect, why = _by_name(definition.name)
    reasons = [why]
    for told, reason in (*_by_prose(definition), *_by_hints(definition, effect)):
        if _ORDER.index(told) > _ORDER.index(effect):
            effect = told
            reasons.append(reason)
    if not EFFECTS[effect].mutates and definition.hint("readOnlyHint") is False:
        effect = Effect.INTERNAL_MUTATION
        reasons.append("raised, for it says readOnlyHint: false")
    elif EFFECTS[effect].mutates and definition.hint("readOnlyHint"):
        reasons.append("its readOnlyHint: true was not followed")
    return effect, tuple(reasons)


def strictest(definition: Definition) -> Effect:
    """The effect of a tool that nobody has described: a person approves each call."""
    if definition.hint("destructiveHint"):
        return Effect.IRREVERSIBLE
    return Effect.EXTERNAL_NOTIFICATION


def contradiction(definition: Definition, effect: Effect) -> str:
    """The annotation that says more than an effect admits; empty when none does."""
    if EFFECTS[effect].mutates:
        return ""
    if definition.hint("destructiveHint"):
        return "destructiveHint: true"
    return "readOnlyHint: false" if definition.hint("readOnlyHint") is False else ""


def _by_name(name: str) -> tuple[Effect, str]:
    spoken = words(name)
    reader = next((at for at, word in enumerate(spoken) if word in _READING), None)
    acting = spoken if reader is None else spoken[:reader]
    for effect, verbs in _KINDS:
        found = next((word for word in acting if word in verbs), None)
        later = next((word for word in spoken if word in _CERTAIN & verbs), None)
        if found or later:
            return effect, f"proposed for {found or later!r} in its name"
    if reader is not None:
        return Effect.RETRIEVE, f"proposed for {spoken[reader]!r} in its name"
    counted = next((word for word in spoken if word in _COMPUTING), None)
    if counted:
        return Effect.COMPUTE, f"proposed for {counted!r} in its name"
    return Effect.EXTERNAL_NOTIFICATION, "its name does not say what it does"


def _by_prose(definition: Definition) -> Iterator[tuple[Effect, str]]:
    """What a description admits of a tool whose name only reads."""
    for word in changes_in_prose(definition.description):
        effect = next((one for one, verbs in _KINDS if word in verbs), Effect.EXTERNAL_NOTIFICATION)
        yield effect, f"raised, for {word!r} in its description"


def _by_hints(definition: Definition, effect: Effect) -> Iterator[tuple[Effect, str]]:
    if definition.hint("destructiveHint"):
        yield Effect.IRREVERSIBLE, "raised, for it says destructiveHint: true"
    if EFFECTS[effect].mutates and definition.hint("openWorldHint"):
        yield Effect.EXTERNAL_NOTIFICATION, "raised, for it says openWorldHint: true"
