"""Which effect an operation has, as far as its document tells. Guesses upwards, never downwards.

The method decides first: GET and HEAD retrieve somebody else's data, POST, PUT and PATCH reach
somebody else's system, DELETE can't be undone. Then the words: whatever speaks of deleting, paying
or cancelling can't be undone either; and a GET whose words say that it changes something does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from counterseal.contract.effects import Effect
from counterseal.contract.openapi.notes import Notes
from counterseal.contract.openapi.texts import clean, words

__all__ = ["propose_effect"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ORDER = (
    Effect.READ_ONLY,
    Effect.COMPUTE,
    Effect.RETRIEVE,
    Effect.DRAFT,
    Effect.INTERNAL_MUTATION,
    Effect.EXTERNAL_NOTIFICATION,
    Effect.IRREVERSIBLE,
    Effect.META,
)
_BY_METHOD = {"GET": Effect.RETRIEVE, "HEAD": Effect.RETRIEVE, "DELETE": Effect.IRREVERSIBLE}

# The beginnings of words: delet is delete, deletes, deleted, deleting, deletion.
_STEMS = "delet|remov|purg|charg|terminat|revok|revoc|eras|wip|overwrit|expung|irrevers"
_WORDS = "destroy|cancell?|transferr?|refund|dropp?|withdraw|payout|deduct|debit"
_ENDS = "e|es|ed|ing|al|als|ion|ions|ation|ations|ible|ibly"
_FINAL_WORD = re.compile(
    rf"(?:{_STEMS})(?:{_ENDS})|(?:{_WORDS})(?:{_ENDS}|s)?|withdrawn|overwritten"
    r"|pay|pays|paid|paying|payments?|permanently"
)
_VERBS = _set(
    "delete remove purge destroy cancel terminate revoke erase wipe withdraw overwrite pay send "
    "create update reset approve trigger add insert upload write save submit publish restart "
    "execute enable disable activate deactivate register subscribe unsubscribe assign unassign "
    "deny reject accept confirm unlock unblock move rename refresh rotate notify buy redeem "
    "restore apply generate retry resend requeue clear flush kill suspend resume modify edit "
    "change replace provision deploy reboot shutdown login logout signup"
)
_OFTEN_NOUNS = _set(
    "charge transfer refund drop set post put order open block issue import process run start "
    "stop book mark lock sign close invite email archive merge sync grant void ban"
)
"""Verbs too, but GET /order/7 shows one, and "Charge details" are for reading."""
_DETERMINERS = _set("a an the all this that these your one new it them each every any")
_READERS = _set(
    "get list find fetch search read retrieve show count check describe query download export "
    "view lookup return"
)


def propose_effect(method: str, path: str, operation: Mapping[str, Any], notes: Notes) -> Effect:
    """The effect to write down, and in the notes why."""
    effect = _BY_METHOD.get(method, Effect.EXTERNAL_NOTIFICATION)
    why = f"proposed from {method}"
    word, place = _telling_word(method, path, operation)
    if word:
        told = Effect.IRREVERSIBLE if _is_final(word) else Effect.EXTERNAL_NOTIFICATION
        if _ORDER.index(told) > _ORDER.index(effect):
            effect, why = told, f"raised above {method}, for {word!r} in the {place}"
    notes.add("/effect", f"{why}; set it to what the operation does")
    return _raised(effect, operation.get("x-counterseal-effect"), notes)


def _raised(effect: Effect, wanted: object, notes: Notes) -> Effect:
    """A document may ask for more care, never for less."""
    if wanted is None:
        return effect
    known = next((one for one in Effect if one == wanted), None)
    if known is not None and _ORDER.index(known) > _ORDER.index(effect):
        notes.add("/effect", "raised by the document's x-counterseal-effect")
        return known
    if known is not effect:
        shown = clean(str(wanted), 40)
        notes.add("/effect", f"the document's x-counterseal-effect {shown!r} was not followed")
    return effect


def _telling_word(method: str, path: str, operation: Mapping[str, Any]) -> tuple[str, str]:
    """The word that says most, and where it stands."""
    texts = {
        "operationId": operation.get("operationId"),
        "summary": operation.get("summary"),
        "path": path,
        "description": operation.get("description"),
    }
    read = _word_of_a_reader if method in ("GET", "HEAD") else _final_word
    found = [(read(place, text), place) for place, text in texts.items()]
    told = [(word, place) for word, place in found if word]
    return next((pair for pair in told if _is_final(pair[0])), told[0] if told else ("", ""))


def _is_final(word: str) -> bool:
    return _FINAL_WORD.fullmatch(word) is not None


def _final_word(_place: str, text: object) -> str:
    return next((word for word in words(text) if _is_final(word)), "")


def _word_of_a_reader(place: str, text: object) -> str:
    """A verb of change where a verb stands. Nouns must not count: GET /charges lists them."""
    if place == "path":
        return _acting_segment(str(text))
    spoken = words(text)
    if place == "operationId":
        reads = not _READERS.isdisjoint(spoken)
        ends = [*spoken[:1], *([] if reads else spoken[-1:])]
        return next((_verb(word, noun=reads) for word in ends if _verb(word, noun=reads)), "")
    for start in (0, 2) if spoken[1:2] and spoken[1] in ("and", "or", "then") else (0,):
        word, *acts_on = spoken[start : start + 2] or [""]
        found = _verb(word, noun=_DETERMINERS.isdisjoint(acts_on))
        if found:
            return found
    return _claimed(spoken)


def _verb(word: str, *, noun: bool) -> str:
    """A verb of change in its plain form, for `send` and for `sends`; `noun` if it could be one."""
    known = _VERBS if noun else _VERBS | _OFTEN_NOUNS
    for plain in (word, word.removesuffix("s"), word.removesuffix("es")):
        if plain in known:
            return plain
    return ""


def _acting_segment(path: str) -> str:
    """`/users/{id}/send-email`: an action on something, written as if it were a part of it."""
    segments = path.strip("/").split("/")
    for index, segment in enumerate(segments):
        spoken = [] if segment.startswith("{") else words(segment)
        after_an_id = index > 0 and segments[index - 1].startswith("{")
        noun = not (after_an_id and len(spoken) == 1)
        # In the plural it would be a collection.
        if spoken and _verb(spoken[0], noun=noun) == spoken[0]:
            return spoken[0]
    return ""


_SUBJECTS = _set("this it which that will also")
_BETWEEN = _set("endpoint operation call method request api resource route")
_MODALS = _set("will can may also then immediately permanently automatically")


def _claimed(spoken: list[str]) -> str:
    """The verb after a subject: "this endpoint also resets …", "which will delete …"."""
    for index, word in enumerate(spoken):
        if word not in _SUBJECTS:
            continue
        after = [other for other in spoken[index : index + 5] if other not in _BETWEEN]
        modal = any(other in _MODALS for other in after[:-1])
        rest = [other for other in after[1:] if other not in _MODALS]
        # "this post" is a noun, "this posts" and "this will post" are not.
        if rest and _verb(rest[0], noun=False) and (modal or rest[0].endswith("s")):
            return _verb(rest[0], noun=False)
    return ""
