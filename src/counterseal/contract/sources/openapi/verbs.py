"""Words that say that something is changed, in what a document says of a request that should read.

Some words are verbs of change wherever they stand: delete, cancel, revoke. Others are as often the
names of things, so that they count only where a verb stands: GET /charges lists charges, "Charge
the card" does not. When in doubt it is a change: a person reads why, and may lower it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from counterseal.contract.sources.openapi.texts import clean, words

__all__ = ["changes_in_name", "changes_in_path", "changes_in_prose"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CERTAIN = _set(
    "delete remove purge destroy cancel reset revoke terminate erase wipe expunge overwrite "
    "truncate deactivate disable invalidate unsubscribe unregister uninstall deprovision "
    "decommission reboot restart shutdown"
)
_VERBS = _CERTAIN | _set(
    "withdraw pay send create update approve trigger add insert upload write save submit publish "
    "execute enable activate register subscribe assign unassign deny reject accept confirm unlock "
    "unblock move rename refresh rotate notify buy redeem restore apply generate retry resend "
    "requeue clear flush kill suspend resume modify edit change replace provision deploy login "
    "logout signup"
)
_OFTEN_NOUNS = _set(
    "charge transfer refund drop set post put order open block issue import process run start "
    "stop book mark lock sign close invite email archive merge sync grant void ban"
)
"""Verbs too, but GET /order/7 shows one, and "Charge details" are for reading."""
_DEEDS = _set(
    "deletion removal destruction cancellation cancelation termination revocation erasure "
    "deactivation invalidation decommissioning"
)
"""What is done, as a noun: "User deletion" does it, "List deletions" doesn't."""
_DETERMINERS = _set("a an the all this that these your one new it them each every any")
_READERS = _set(
    "get list find fetch search read retrieve show count check describe query download export "
    "view lookup return"
)
_BEFORE_VERBS = _set(
    "bulk batch mass force forced soft hard quick auto async please deprecated beta experimental "
    "internal legacy admin obsolete also then now"
)
"""What may stand before the verb at a sentence's beginning; so may whatever ends in -ly."""
_AND = _set("and or then also")
_WHO = _set("you us one users clients callers customers developers anyone")
"""Whoever is enabled to do something: "Enables you to list charges" changes nothing."""


# The forms of a verb -----------------------------------------------------------------------------


def _plain(word: str) -> Iterator[str]:
    """What a word may be a form of: `deletes` of delete, `resetting` of reset."""
    yield word
    for end in ("s", "es"):
        if word.endswith(end):
            yield word.removesuffix(end)
    if word.endswith("ing"):
        stem = word.removesuffix("ing")
        yield from (stem, f"{stem}e", stem[:-1])


def _certain(word: str) -> str:
    return next((plain for plain in _plain(word) if plain in _CERTAIN), "")


def _suffered(word: str) -> str:
    """A verb of change in the passive: `deleted` for delete."""
    stem = word.removesuffix("ed") if word.endswith("ed") else ""
    forms = (stem, f"{stem}e", stem[:-1]) if stem else ()
    found = next((plain for plain in forms if plain in _CERTAIN), "")
    return found or {"reset": "reset", "overwritten": "overwrite"}.get(word, "")


def _verb(word: str, *, noun: bool) -> str:
    """A verb of change in its plain form, for `send` and for `sends`; `noun` if it could be one."""
    known = _VERBS if noun else _VERBS | _OFTEN_NOUNS
    for plain in (word, word.removesuffix("s"), word.removesuffix("es")):
        if plain in known:
            return plain
    return ""


def _acting(spoken: list[str], at: int) -> str:
    """The verb where one must stand, unless what follows shows that it is a thing."""
    word, *acts_on = spoken[at : at + 2] or [""]
    found = _verb(word, noun=_DETERMINERS.isdisjoint(acts_on))
    return "" if found == "enable" and not _WHO.isdisjoint(acts_on) else found


def _deeds(spoken: list[str]) -> list[str]:
    return [word for word in spoken if word in _DEEDS and _READERS.isdisjoint(spoken)]


# Names -------------------------------------------------------------------------------------------


def changes_in_name(text: object) -> Iterator[str]:
    """The verbs of an operation's name: `user_delete_by_id`, `getAndResetCounters`."""
    spoken = words(text)
    reads = not _READERS.isdisjoint(spoken)
    yield from filter(None, map(_certain, spoken))
    for word in (*spoken[:1], *([] if reads else spoken[-1:])):
        yield from filter(None, [_verb(word, noun=reads)])
    for before, word in pairwise(spoken):
        if before in _AND and word in _VERBS:
            yield word
    yield from _deeds(spoken)


def changes_in_path(text: object) -> Iterator[str]:
    """`/users/{id}/send-email`: an action on something, written as if it were a part of it."""
    segments = str(text).strip("/").split("/")
    plain = [re.sub(r"\{[^{}]*\}", " ", segment) for segment in segments]
    # In the plural it would be a collection.
    yield from (word for segment in plain for word in words(segment) if word in _CERTAIN)
    for index, segment in enumerate(plain):
        thing, _, action = segment.partition(":")
        # `/users:batchSend` is an action by its form.
        yield from filter(None, (_verb(word, noun=False) for word in words(action)))
        spoken = [] if segments[index].startswith("{") else words(thing)
        after_an_id = index > 0 and segments[index - 1].startswith("{")
        noun = not (after_an_id and len(spoken) == 1)
        if spoken and _verb(spoken[0], noun=noun) == spoken[0]:
            yield spoken[0]


# Sentences ---------------------------------------------------------------------------------------


def changes_in_prose(text: object, *, brief: bool = False) -> Iterator[str]:
    """The verbs of a description; in a summary (`brief`) they need no place of their own."""
    for line in text.splitlines() if isinstance(text, str) else ():
        for sentence in re.split(r"[.!?;:]+(?=\s|$)", clean(line, len(line) + 2)):
            spoken = words(sentence)
            yield from filter(None, _said(spoken, brief=brief))


_HEADING = 4


def _said(spoken: list[str], *, brief: bool) -> Iterator[str]:
    # "To delete it, call …" speaks of another request, "deletes" of this one.
    yield from (_certain(word) for word in spoken if brief or word.endswith("s"))
    if brief or len(spoken) <= _HEADING:
        yield from _deeds(spoken)
    start = _past_adverbs(spoken, 0)
    yield from (_acting(spoken, 0), _acting(spoken, start), _certain("".join(spoken[start:][:1])))
    for at, (before, _) in enumerate(pairwise(spoken), start=1):
        if before in _AND and not _DETERMINERS.isdisjoint(spoken[at + 1 : at + 2]):
            yield _acting(spoken, at)
    if spoken[1:2] and spoken[1] in _AND:
        yield _verb("".join(spoken[2:3]), noun=True)
    yield from _purposes(spoken)
    yield from _claims(spoken)
    yield from _deeds_done(spoken)


def _leads_to_a_verb(word: str) -> bool:
    return word in _BEFORE_VERBS or word.endswith("ly")


def _past_adverbs(spoken: list[str], at: int) -> int:
    while at < len(spoken) - 1 and _leads_to_a_verb(spoken[at]):
        at += 1
    return at


_MEANS = _set("used allows allow lets let enables enable permits permit serves intended designed")
_MEANS |= _set("meant helps endpoint operation method call request api")
_NO_MEANS = _set("access link links reference references path url uri key due according back")


def _purposes(spoken: list[str]) -> Iterator[str]:
    """The verbs of what it is for: "is used to delete …", "allows you to cancel …"."""
    for at in range(2, len(spoken)):
        *before, whom, last = spoken[max(0, at - 5) : at]
        if last == "to":
            means = whom not in _NO_MEANS and not _MEANS.isdisjoint([*before, whom])
        else:
            means = whom in ("lets", "let", "helps")
        if means:
            yield _acting(spoken, _past_adverbs(spoken, at))


_SUBJECTS = _set("this it which that will also")
_BETWEEN = _set("endpoint operation call method request api resource route")
_MODALS = _set("will can may also then immediately permanently automatically")


def _claims(spoken: list[str]) -> Iterator[str]:
    """The verbs after a subject: "this endpoint also resets …", "which will delete …"."""
    for index, word in enumerate(spoken):
        if word not in _SUBJECTS:
            continue
        after = [other for other in spoken[index : index + 5] if other not in _BETWEEN]
        modal = any(other in _MODALS for other in after[:-1])
        rest = [other for other in after[1:] if other not in _MODALS]
        # "this post" is a noun, "this posts" and "this will post" are not.
        if rest and (modal or rest[0].endswith("s")):
            yield _verb(rest[0], noun=False)


_IS = _set("is are be gets get being")
_ASKS = _set("that which who if whether when where once until not")


def _deeds_done(spoken: list[str]) -> Iterator[str]:
    """The verbs of what is done: "all sessions are revoked", not "orders that are cancelled"."""
    for index, word in enumerate(spoken):
        rest = [other for other in spoken[index + 1 : index + 4] if not _leads_to_a_verb(other)]
        asks = word != "be" and not _ASKS.isdisjoint(spoken[max(0, index - 3) : index])
        if word in _IS and rest and not asks:
            yield _suffered(rest[0])
