"""Which effect an operation has, as far as its document tells. Guesses upwards, never downwards.

The method decides first: GET and HEAD retrieve somebody else's data, POST, PUT and PATCH reach
somebody else's system, DELETE can't be undone. Then the words: whatever speaks of deleting, paying
or cancelling can't be undone either; and a GET whose words say that it changes something does. How
those words are found is in `verbs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from counterseal.contract.effects import Effect
from counterseal.contract.sources.openapi.notes import Notes
from counterseal.contract.sources.openapi.texts import clean, words
from counterseal.contract.sources.openapi.verbs import (
    changes_in_name,
    changes_in_path,
    changes_in_prose,
)

__all__ = ["propose_effect"]

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
    read = _READING if method in ("GET", "HEAD") else dict.fromkeys(texts, _final_words)
    told = [(word, place) for place, text in texts.items() for word in read[place](text)]
    return next((pair for pair in told if _is_final(pair[0])), told[0] if told else ("", ""))


def _is_final(word: str) -> bool:
    return _FINAL_WORD.fullmatch(word) is not None


def _final_words(text: object) -> Iterator[str]:
    return filter(_is_final, words(text))


_READING: dict[str, Callable[[object], Iterator[str]]] = {
    "operationId": changes_in_name,
    "summary": partial(changes_in_prose, brief=True),
    "path": changes_in_path,
    "description": changes_in_prose,
}
"""How a request that should only read is read: its nouns must not count."""
