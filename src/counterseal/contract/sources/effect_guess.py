"""Proposes the effect of an imported tool from its name, HTTP method, annotations and texts.

A name counts most. In a description only plain claims count: "deletes it", "is used to delete",
"will be revoked". In doubt it is a change: a reviewer sees the reason and may lower the effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.schemas import word_set
from counterseal.contract.sources.foreign_text import clean, words
from counterseal.contract.sources.mcp.definition import Definition

# --- words ----------------------------------------------------------------------------------------

_FILE: Final = Path(__file__).with_name("effect_words.txt").read_text("utf-8")
_WORDS: Final = {
    name: word_set(text) for name, text in re.findall(r"^(\w+):((?:\s.*\n)+)", _FILE, re.MULTILINE)
}
_READING: Final = _WORDS["reading"]
_COMPUTING: Final = _WORDS["computing"]
_WRITING: Final = _WORDS["writing"]
_NOTIFYING: Final = _WORDS["notifying"]
_GONE: Final = _WORDS["gone"]
"""What is deleted, cancelled or paid is final in every text; the words below only as a verb."""
_FINAL: Final = _GONE | _WORDS["final"]
_NOUNS: Final = _WORDS["nouns"]
"""Verbs that are also nouns: `list_runs` runs nothing, "Charge details" charges nothing."""
_KINDS: Final = (
    (Effect.IRREVERSIBLE, _FINAL),
    (Effect.EXTERNAL_NOTIFICATION, _NOTIFYING),
    (Effect.INTERNAL_MUTATION, _WRITING),
)
_HARMLESS: Final = ((Effect.RETRIEVE, _READING), (Effect.COMPUTE, _COMPUTING))
_VERBS: Final = _FINAL | _NOTIFYING | _WRITING
_CERTAIN: Final = _FINAL - _NOUNS | word_set("disable restart")
_ENDINGS: Final = ("", "s", "es", "d", "ed", "ing", "ion", "ation", "al", "ment", "ments")


def _verb_of(word: str, known: frozenset[str]) -> str:
    """Return the verb that a word is a form of: delete for `deletes` and `deletion`; or empty."""
    for ending in _ENDINGS:
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            for verb in (stem, f"{stem}e", stem[:-1]):  # resett(ing) has a letter too many
                if verb in known:
                    return verb
    return ""


def _in_name(tokens: list[str]) -> str:
    """Return the strictest verb of change in a name: those before a reading one, and sure ones."""
    reader = next((at for at, word in enumerate(tokens) if word in _READING), None)
    acting = tokens[:reader] + [word for before, word in pairwise(tokens) if before == "and"]
    for _, verbs in _KINDS:
        if verb := next((word for word in acting if word in verbs), ""):
            return verb
        if sure := next((word for word in tokens if word in verbs & _CERTAIN), ""):
            return sure
    nouns = (_verb_of(word, _GONE) for word in tokens) if reader is None else ()
    return next(filter(None, nouns), "")


def _in_path(path: str) -> Iterator[str]:
    """Yield the verbs of change in a path, like `/users/{id}/send-email`; plurals are things."""
    segments = path.strip("/").split("/")
    for at, segment in enumerate(segments):
        thing, _, action = re.sub(r"\{[^{}]*\}", " ", segment).partition(":")
        # A colon marks an action, as in `/users:batchSend`.
        yield from (word for word in words(action) if word in _VERBS)
        tokens = words(thing)
        yield from (word for word in tokens if word in _CERTAIN)
        after_an_id = at > 0 and segments[at - 1].startswith("{") and len(tokens) == 1
        if tokens and tokens[0] in (_VERBS if after_an_id else _VERBS - _NOUNS):
            yield tokens[0]


# --- sentences ------------------------------------------------------------------------------------


def _one_of(words: frozenset[str]) -> str:
    return f"(?:{'|'.join(sorted(words, key=len, reverse=True))})"


_THE: Final = r"(?= (?:an?|the|all|this|that|these|your|one|new|it|them|each|every|any)\b)"
_BEFORE: Final = (
    r"(?:(?:bulk|batch|mass|forced?|soft|hard|auto|please|deprecated|internal|legacy|\w+ly) )*"
)
_LEADS: Final = (
    r"(?:\w (?:to|and|or|then|also|will|can|may|it|this|which)|(?:lets?|helps) (?:you|users)) "
)
_CLAIMS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # "which this deletes"
        rf"\b(?P<verb>{_one_of(_CERTAIN)})e?s\b",
        # "Permanently delete users", "Sends a mail"
        rf"^(?!enables? (?:you|users)\b){_BEFORE}(?P<verb>{_one_of(_VERBS - _NOUNS)})(?:e?s)?\b",
        rf"^{_BEFORE}(?P<verb>{_one_of(_NOUNS)})(?:e?s)?{_THE}",
        # "is used to delete users", "will trigger a build"; not "To delete it, call …"
        rf"{_LEADS}{_BEFORE}(?P<verb>{_one_of(_CERTAIN)})\b",
        rf"{_LEADS}{_BEFORE}(?P<verb>{_one_of(_VERBS)})(?:e?s)?{_THE}",
    )
)
_PASSIVE: Final = re.compile(r"\b(is|are|be|gets) (?:\w+ly )*(\w+ed|reset|overwritten)\b")
_NO_CLAIM: Final = _WORDS["no_claim"]
"""Before a passive: "orders that are cancelled", "HTML tags are removed" say what is returned."""
_HEADING: Final = 4


def _in_prose(text: object) -> Iterator[tuple[str, str]]:
    """Yield each verb of change that a text claims, with its sentence."""
    for line in text.splitlines() if isinstance(text, str) else ():
        for sentence in re.split(r"[.!?;:]+(?=\s|$)", clean(line, len(line) + 2)):
            tokens = words(sentence)
            spaced = " ".join(tokens)
            found = [match["verb"] for claim in _CLAIMS for match in claim.finditer(spaced)]
            for passive in _PASSIVE.finditer(spaced):
                before = spaced[: passive.start()].split()
                if passive[1] == "be" or _NO_CLAIM.isdisjoint(before):
                    found.append(_verb_of(passive[2], _CERTAIN - {"truncate"}))
            if len(tokens) <= _HEADING and _READING.isdisjoint(tokens):  # "User deletion"
                nouns = (word for word in tokens if word.endswith(("ion", "al")))
                found += [_verb_of(word, _GONE) for word in nouns]
            yield from ((verb, sentence) for verb in found if verb)


# --- proposals ------------------------------------------------------------------------------------

_ORDER = (
    *(Effect.READ_ONLY, Effect.COMPUTE, Effect.RETRIEVE, Effect.DRAFT, Effect.INTERNAL_MUTATION),
    *(Effect.EXTERNAL_NOTIFICATION, Effect.IRREVERSIBLE, Effect.META),
)
_BY_METHOD = {"GET": Effect.RETRIEVE, "HEAD": Effect.RETRIEVE, "DELETE": Effect.IRREVERSIBLE}


def propose_operation_effect(
    method: str, path: str, operation: Mapping[str, Any]
) -> tuple[Effect, dict[str, bool]]:
    """Return the proposed effect of an operation, and the reasons; True for one that raised it."""
    effect = _BY_METHOD.get(method, Effect.EXTERNAL_NOTIFICATION)
    why, raised = f"proposed from {method}", False
    names = ("operationId", "summary", "path", "description")
    texts = {name: path if name == "path" else operation.get(name) for name in names}
    hits = [(word, place) for place in texts for word in _evidence(method, place, texts[place])]
    for word, place in hits:
        final = word == "permanently" or _verb_of(word, _GONE)
        implied = Effect.IRREVERSIBLE if final else Effect.EXTERNAL_NOTIFICATION
        if _ORDER.index(implied) > _ORDER.index(effect):
            effect, raised = implied, True
            why = f"raised above {method}, for {word!r} in the {place}"
    reasons = {f"{why}; set it to what the operation does": raised}
    wanted = operation.get("x-counterseal-effect")
    known = next((member for member in Effect if member == wanted), None)
    if known is not None and _ORDER.index(known) > _ORDER.index(effect):
        return known, {**reasons, "raised by the document's x-counterseal-effect": True}
    if wanted is not None and known is not effect:
        shown = clean(str(wanted), 40)
        reasons[f"the document's x-counterseal-effect {shown!r} was not followed"] = False
    return effect, reasons


def _evidence(method: str, place: str, text: object) -> Iterator[str]:
    """Yield the words of a text that may raise the effect of a method."""
    if method not in ("GET", "HEAD"):  # it changes something anyway; any form of a final word
        known = _GONE | {"permanently"}
        yield from (word for word in words(text) if _verb_of(word, known))
    elif place == "operationId":
        yield from filter(None, [_in_name(words(text))])
    elif place == "path":
        yield from _in_path(str(text))
    else:
        yield from (verb for verb, _ in _in_prose(text))


def propose_mcp_effect(definition: Definition) -> tuple[Effect, tuple[str, ...]]:
    """Return the proposed effect of an MCP tool for review, and the reasons in order."""
    tokens = words(definition.name)
    verb = _in_name(tokens)
    kinds, named = (_KINDS, [verb]) if verb else (_HARMLESS, tokens)
    hits = [(kind, word) for kind, known in kinds for word in named if word in known]
    effect, word = hits[0] if hits else (Effect.EXTERNAL_NOTIFICATION, "")
    said = f"proposed for {word!r} in its name" if word else "its name does not say what it does"
    reasons = [said]
    implications = [
        (
            next(kind for kind, verbs in _KINDS if verb in verbs),
            f'raised, for {verb!r} in its description: "{clean(sentence, 120)}"',
        )
        for verb, sentence in _in_prose(definition.description)
    ]
    if definition.hint("destructiveHint"):
        implications.append((Effect.IRREVERSIBLE, "raised, for it says destructiveHint: true"))
    if EFFECTS[effect].mutates and definition.hint("openWorldHint"):
        said = "raised, for it says openWorldHint: true"
        implications.append((Effect.EXTERNAL_NOTIFICATION, said))
    if definition.hint("readOnlyHint") is False:
        implications.append((Effect.INTERNAL_MUTATION, "raised, for it says readOnlyHint: false"))
    for implied, reason in implications:
        if _ORDER.index(implied) > _ORDER.index(effect):
            effect = implied
            reasons.append(reason)
    if EFFECTS[effect].mutates and definition.hint("readOnlyHint"):
        reasons.append("its readOnlyHint: true was not followed")
    return effect, tuple(reasons)


def strictest(definition: Definition) -> Effect:
    """Return the effect of a tool without an entry: one for which a person approves each call."""
    if definition.hint("destructiveHint"):
        return Effect.IRREVERSIBLE
    return Effect.EXTERNAL_NOTIFICATION


def contradiction(definition: Definition, effect: Effect) -> str:
    """Return the annotation that contradicts an effect, or empty if none does."""
    if EFFECTS[effect].mutates:
        return ""
    if definition.hint("destructiveHint"):
        return "destructiveHint: true"
    return "readOnlyHint: false" if definition.hint("readOnlyHint") is False else ""
