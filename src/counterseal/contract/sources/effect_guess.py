"""Words that say that something is changed, in what a document says of a request that should read.

Some words are verbs of change wherever they stand: delete, cancel, revoke. Others are as often the
names of things, so that they count only where a verb stands: GET /charges lists charges, "Charge
the card" does not. When in doubt it is a change: a person reads why, and may lower it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.sources.foreign_text import clean, words
from counterseal.contract.sources.review_notes import Notes

__all__ = [
    "changes_in_name",
    "changes_in_path",
    "changes_in_prose",
    "contradiction",
    "propose_mcp_effect",
    "propose_operation_effect",
    "strictest",
]


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


# --- OpenAPI operations ---------------------------------------------------------------------------


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


def propose_operation_effect(
    method: str, path: str, operation: Mapping[str, Any], notes: Notes
) -> Effect:
    """The effect to write down, and in the notes why."""
    effect = usual = _BY_METHOD.get(method, Effect.EXTERNAL_NOTIFICATION)
    why = f"proposed from {method}"
    word, place = _telling_word(method, path, operation)
    if word:
        told = Effect.IRREVERSIBLE if _is_final(word) else Effect.EXTERNAL_NOTIFICATION
        if _ORDER.index(told) > _ORDER.index(effect):
            effect, why = told, f"raised above {method}, for {word!r} in the {place}"
    raised = effect is not usual
    notes.add("/effect", f"{why}; set it to what the operation does", raised=raised)
    return _raised(effect, operation.get("x-counterseal-effect"), notes)


def _raised(effect: Effect, wanted: object, notes: Notes) -> Effect:
    """A document may ask for more care, never for less."""
    if wanted is None:
        return effect
    known = next((one for one in Effect if one == wanted), None)
    if known is not None and _ORDER.index(known) > _ORDER.index(effect):
        notes.add("/effect", "raised by the document's x-counterseal-effect", raised=True)
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


# --- MCP tools ------------------------------------------------------------------------------------


_READING_WORDS: Final = _set(
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
_UNAMBIGUOUS: Final = _FINAL - _set(
    "clear command script sql charge refund transfer trade release run merge force void flush "
    "order sell"
)
"""Not the names of things that a reader lists: `list_runs` runs nothing."""

_MCP_ORDER: Final = (
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


class AnnotatedTool(Protocol):
    """The parts of an MCP tool's definition that tell its effect."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    def hint(self, name: str) -> bool | None: ...


def propose_mcp_effect(definition: AnnotatedTool) -> tuple[Effect, tuple[str, ...]]:
    """The effect to write down for a person to review, and the reasons in the order they came."""
    effect, why = _by_name(definition.name)
    reasons = [why]
    for told, reason in (*_by_prose(definition), *_by_hints(definition, effect)):
        if _MCP_ORDER.index(told) > _MCP_ORDER.index(effect):
            effect = told
            reasons.append(reason)
    if not EFFECTS[effect].mutates and definition.hint("readOnlyHint") is False:
        effect = Effect.INTERNAL_MUTATION
        reasons.append("raised, for it says readOnlyHint: false")
    elif EFFECTS[effect].mutates and definition.hint("readOnlyHint"):
        reasons.append("its readOnlyHint: true was not followed")
    return effect, tuple(reasons)


def strictest(definition: AnnotatedTool) -> Effect:
    """The effect of a tool that nobody has described: a person approves each call."""
    if definition.hint("destructiveHint"):
        return Effect.IRREVERSIBLE
    return Effect.EXTERNAL_NOTIFICATION


def contradiction(definition: AnnotatedTool, effect: Effect) -> str:
    """The annotation that says more than an effect admits; empty when none does."""
    if EFFECTS[effect].mutates:
        return ""
    if definition.hint("destructiveHint"):
        return "destructiveHint: true"
    return "readOnlyHint: false" if definition.hint("readOnlyHint") is False else ""


def _by_name(name: str) -> tuple[Effect, str]:
    spoken = words(name)
    reader = next((at for at, word in enumerate(spoken) if word in _READING_WORDS), None)
    acting = spoken if reader is None else spoken[:reader]
    for effect, verbs in _KINDS:
        found = next((word for word in acting if word in verbs), None)
        later = next((word for word in spoken if word in _UNAMBIGUOUS & verbs), None)
        if found or later:
            return effect, f"proposed for {found or later!r} in its name"
    if reader is not None:
        return Effect.RETRIEVE, f"proposed for {spoken[reader]!r} in its name"
    counted = next((word for word in spoken if word in _COMPUTING), None)
    if counted:
        return Effect.COMPUTE, f"proposed for {counted!r} in its name"
    return Effect.EXTERNAL_NOTIFICATION, "its name does not say what it does"


def _by_prose(definition: AnnotatedTool) -> Iterator[tuple[Effect, str]]:
    """What a description admits of a tool whose name only reads."""
    for word in changes_in_prose(definition.description):
        effect = next((one for one, verbs in _KINDS if word in verbs), Effect.EXTERNAL_NOTIFICATION)
        yield effect, f"raised, for {word!r} in its description"


def _by_hints(definition: AnnotatedTool, effect: Effect) -> Iterator[tuple[Effect, str]]:
    if definition.hint("destructiveHint"):
        yield Effect.IRREVERSIBLE, "raised, for it says destructiveHint: true"
    if EFFECTS[effect].mutates and definition.hint("openWorldHint"):
        yield Effect.EXTERNAL_NOTIFICATION, "raised, for it says openWorldHint: true"
