"""Proposes the effect of an imported tool from its name, texts and annotations.

Some words are always verbs of change: delete, cancel, revoke. Others are often nouns, so they count
only in the place of a verb: GET /charges lists charges, "Charge the card" does not. In doubt it is
a change: a reviewer sees the reason and may lower the effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Final

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.schemas import word_set
from counterseal.contract.sources.foreign_text import clean, words
from counterseal.contract.sources.mcp.definition import Definition

_CERTAIN = word_set(
    "delete remove purge destroy cancel reset revoke terminate erase wipe expunge overwrite "
    "truncate deactivate disable invalidate unsubscribe unregister uninstall deprovision "
    "decommission reboot restart shutdown"
)
_VERBS = _CERTAIN | word_set(
    "withdraw pay send create update approve trigger add insert upload write save submit publish "
    "execute enable activate register subscribe assign unassign deny reject accept confirm unlock "
    "unblock move rename refresh rotate notify buy redeem restore apply generate retry resend "
    "requeue clear flush kill suspend resume modify edit change replace provision deploy login "
    "logout signup"
)
_OFTEN_NOUNS = word_set(
    "charge transfer refund drop set post put order open block issue import process run start "
    "stop book mark lock sign close invite email archive merge sync grant void ban"
)
"""Verbs that are often nouns: GET /order/7 and "Charge details" only read."""
_ACTION_NOUNS = word_set(
    "deletion removal destruction cancellation cancelation termination revocation erasure "
    "deactivation invalidation decommissioning"
)
"""Nouns for a change: "User deletion" changes something, "List deletions" does not."""
_DETERMINERS = word_set("a an the all this that these your one new it them each every any")
_READERS = word_set(
    "get list find fetch search read retrieve show count check describe query download export "
    "view lookup return"
)
_BEFORE_VERBS = word_set(
    "bulk batch mass force forced soft hard quick auto async please deprecated beta experimental "
    "internal legacy admin obsolete also then now"
)
"""Words that may precede the verb at the start of a sentence, like all words in -ly."""
_AND = word_set("and or then also")
_ENABLED = word_set("you us one users clients callers customers developers anyone")
"""Objects of "enable" that make it harmless: "Enables you to list charges" changes nothing."""


# The forms of a verb -----------------------------------------------------------------------------


def _plain(word: str) -> Iterator[str]:
    """Yield the possible base forms of a word: delete for `deletes`, reset for `resetting`."""
    yield word
    for end in ("s", "es"):
        if word.endswith(end):
            yield word.removesuffix(end)
    if word.endswith("ing"):
        stem = word.removesuffix("ing")
        yield from (stem, f"{stem}e", stem[:-1])


def _certain(word: str) -> str:
    return next((plain for plain in _plain(word) if plain in _CERTAIN), "")


def _passive(word: str) -> str:
    """Return the base form of a passive verb of change, like delete for `deleted`; or empty."""
    stem = word.removesuffix("ed") if word.endswith("ed") else ""
    forms = (stem, f"{stem}e", stem[:-1]) if stem else ()
    verb = next((plain for plain in forms if plain in _CERTAIN), "")
    return verb or {"reset": "reset", "overwritten": "overwrite"}.get(word, "")


def _verb(word: str, *, noun: bool) -> str:
    """Return the base form of a verb of change, or empty. `noun`: the word could be a noun here."""
    known = _VERBS if noun else _VERBS | _OFTEN_NOUNS
    for plain in (word, word.removesuffix("s"), word.removesuffix("es")):
        if plain in known:
            return plain
    return ""


def _acting(tokens: list[str], at: int) -> str:
    """Return the verb at a verb's place, or empty if the next word shows that it is a noun."""
    word, *acts_on = tokens[at : at + 2] or [""]
    verb = _verb(word, noun=_DETERMINERS.isdisjoint(acts_on))
    return "" if verb == "enable" and not _ENABLED.isdisjoint(acts_on) else verb


def _action_nouns(tokens: list[str]) -> list[str]:
    return [word for word in tokens if word in _ACTION_NOUNS and _READERS.isdisjoint(tokens)]


# Names -------------------------------------------------------------------------------------------


def changes_in_name(text: object) -> Iterator[str]:
    """Yield the verbs of change in an operation's name, like `user_delete_by_id`."""
    tokens = words(text)
    reads = not _READERS.isdisjoint(tokens)
    yield from filter(None, map(_certain, tokens))
    for word in (*tokens[:1], *([] if reads else tokens[-1:])):
        yield from filter(None, [_verb(word, noun=reads)])
    for before, word in pairwise(tokens):
        if before in _AND and word in _VERBS:
            yield word
    yield from _action_nouns(tokens)


def changes_in_path(text: object) -> Iterator[str]:
    """Yield the verbs of change in a path, like `/users/{id}/send-email`."""
    segments = str(text).strip("/").split("/")
    plain = [re.sub(r"\{[^{}]*\}", " ", segment) for segment in segments]
    # A plural would be a collection.
    yield from (word for segment in plain for word in words(segment) if word in _CERTAIN)
    for index, segment in enumerate(plain):
        thing, _, action = segment.partition(":")
        # A colon marks an action, as in `/users:batchSend`.
        yield from filter(None, (_verb(word, noun=False) for word in words(action)))
        tokens = [] if segments[index].startswith("{") else words(thing)
        after_an_id = index > 0 and segments[index - 1].startswith("{")
        noun = not (after_an_id and len(tokens) == 1)
        if tokens and _verb(tokens[0], noun=noun) == tokens[0]:
            yield tokens[0]


# Sentences ---------------------------------------------------------------------------------------


def changes_in_prose(text: object, *, brief: bool = False) -> Iterator[str]:
    """Yield the verbs of change in a description. In a summary (`brief`) any position counts."""
    for sentence in _sentences(text):
        yield from filter(None, _verbs_in(words(sentence), brief=brief))


def _sentences(text: object) -> Iterator[str]:
    for line in text.splitlines() if isinstance(text, str) else ():
        yield from re.split(r"[.!?;:]+(?=\s|$)", clean(line, len(line) + 2))


_HEADING = 4


def _verbs_in(tokens: list[str], *, brief: bool) -> Iterator[str]:
    # "To delete it, call …" is about another request, "deletes" about this one.
    yield from (_certain(word) for word in tokens if brief or word.endswith("s"))
    if brief or len(tokens) <= _HEADING:
        yield from _action_nouns(tokens)
    start = _past_adverbs(tokens, 0)
    yield from (_acting(tokens, 0), _acting(tokens, start), _certain("".join(tokens[start:][:1])))
    for at, (before, _) in enumerate(pairwise(tokens), start=1):
        if before in _AND and not _DETERMINERS.isdisjoint(tokens[at + 1 : at + 2]):
            yield _acting(tokens, at)
    if tokens[1:2] and tokens[1] in _AND:
        yield _verb("".join(tokens[2:3]), noun=True)
    yield from _purposes(tokens)
    yield from _claims(tokens)
    yield from _passive_verbs(tokens)


def _leads_to_a_verb(word: str) -> bool:
    return word in _BEFORE_VERBS or word.endswith("ly")


def _past_adverbs(tokens: list[str], at: int) -> int:
    while at < len(tokens) - 1 and _leads_to_a_verb(tokens[at]):
        at += 1
    return at


_PURPOSES = word_set(
    "used allows allow lets let enables enable permits permit serves intended designed"
)
_PURPOSES |= word_set("meant helps endpoint operation method call request api")
_NO_PURPOSE = word_set("access link links reference references path url uri key due according back")


def _purposes(tokens: list[str]) -> Iterator[str]:
    """Yield the verbs of a purpose: "is used to delete …", "allows you to cancel …"."""
    for at in range(2, len(tokens)):
        *before, whom, last = tokens[max(0, at - 5) : at]
        if last == "to":
            means = whom not in _NO_PURPOSE and not _PURPOSES.isdisjoint([*before, whom])
        else:
            means = whom in ("lets", "let", "helps")
        if means:
            yield _acting(tokens, _past_adverbs(tokens, at))


_SUBJECTS = word_set("this it which that will also")
_BETWEEN = word_set("endpoint operation call method request api resource route")
_MODALS = word_set("will can may also then immediately permanently automatically")


def _claims(tokens: list[str]) -> Iterator[str]:
    """Yield the verbs after a subject: "this endpoint also resets …", "which will delete …"."""
    for index, word in enumerate(tokens):
        if word not in _SUBJECTS:
            continue
        after = [other for other in tokens[index : index + 5] if other not in _BETWEEN]
        modal = any(other in _MODALS for other in after[:-1])
        rest = [other for other in after[1:] if other not in _MODALS]
        # "this post" is a noun, "this posts" and "this will post" are not.
        if rest and (modal or rest[0].endswith("s")):
            yield _verb(rest[0], noun=False)


_IS = word_set("is are be gets get being")
_SUBORDINATORS = word_set("that which who if whether when where once until not")


_OUTPUT = word_set(
    "output outputs result results response responses content text markdown html markup tags "
    "whitespace boilerplate duplicates characters excerpt excerpts snippet snippets"
)
"""What a tool returns. "HTML tags are removed" says how, and not what the tool does elsewhere."""


def _passive_verbs(tokens: list[str]) -> Iterator[str]:
    """Yield passive verbs of main clauses: "all sessions are revoked".

    Not those of subordinate clauses: "orders that are cancelled", and not those that say what
    becomes of the answer: "long tables are truncated".
    """
    for index, word in enumerate(tokens):
        rest = [other for other in tokens[index + 1 : index + 4] if not _leads_to_a_verb(other)]
        subordinate = word != "be" and not _SUBORDINATORS.isdisjoint(
            tokens[max(0, index - 3) : index]
        )
        if word in _IS and rest and not subordinate and _OUTPUT.isdisjoint(tokens[:index]):
            verb = _passive(rest[0])
            yield "" if verb == "truncate" else verb


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

# Word stems: delet is delete, deletes, deleted, deleting, deletion.
_STEMS = "delet|remov|purg|charg|terminat|revok|revoc|eras|wip|overwrit|expung|irrevers"
_WORDS = "destroy|cancell?|transferr?|refund|dropp?|withdraw|payout|deduct|debit"
_ENDS = "e|es|ed|ing|al|als|ion|ions|ation|ations|ible|ibly"
_FINAL_WORD = re.compile(
    rf"(?:{_STEMS})(?:{_ENDS})|(?:{_WORDS})(?:{_ENDS}|s)?|withdrawn|overwritten"
    r"|pay|pays|paid|paying|payments?|permanently"
)


def propose_operation_effect(
    method: str, path: str, operation: Mapping[str, Any]
) -> tuple[Effect, dict[str, bool]]:
    """Return the proposed effect of an operation, and the reasons; True for one that raised it."""
    effect = _BY_METHOD.get(method, Effect.EXTERNAL_NOTIFICATION)
    why, raised = f"proposed from {method}", False
    word, place = _strongest_word(method, path, operation)
    if word:
        implied = Effect.IRREVERSIBLE if _is_final(word) else Effect.EXTERNAL_NOTIFICATION
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


def _strongest_word(method: str, path: str, operation: Mapping[str, Any]) -> tuple[str, str]:
    """Return the word that implies the strictest effect, and its place; empty if there is none."""
    texts = {
        "operationId": operation.get("operationId"),
        "summary": operation.get("summary"),
        "path": path,
        "description": operation.get("description"),
    }
    if method in ("GET", "HEAD"):
        found = {place: list(_READERS_BY_PLACE[place](text)) for place, text in texts.items()}
    else:
        found = {place: [*filter(_is_final, words(text))] for place, text in texts.items()}
    hits = [(word, place) for place, those in found.items() for word in those]
    return next((hit for hit in hits if _is_final(hit[0])), hits[0] if hits else ("", ""))


def _is_final(word: str) -> bool:
    return _FINAL_WORD.fullmatch(word) is not None


_READERS_BY_PLACE: dict[str, Callable[[object], Iterator[str]]] = {
    "operationId": changes_in_name,
    "summary": partial(changes_in_prose, brief=True),
    "path": changes_in_path,
    "description": changes_in_prose,
}
"""How the texts of a GET or HEAD request are searched, so that nouns do not count."""


# --- MCP tools ------------------------------------------------------------------------------------


_READING_WORDS: Final = word_set(
    "get list search find fetch read retrieve show count check describe query view lookup status "
    "diff log inspect download export browse ls cat head tail tree stat info ping echo history"
)
_COMPUTING: Final = word_set(
    "calculate compute convert format parse validate hash encode decode translate estimate compare "
    "sum think thinking"
)
_WRITING: Final = word_set(
    "create write update add insert edit modify set save commit move rename copy upload put patch "
    "merge append replace store stage checkout branch tag fork clone import apply assign enable "
    "disable open close start stop restart mark toggle archive restore init register schedule "
    "change configure sync link unlink upsert make mkdir touch click type fill press navigate"
)
_NOTIFYING: Final = word_set(
    "send post notify publish email mail message tweet reply comment share invite submit push "
    "broadcast announce call dial book order request trigger subscribe alert forward"
)
_FINAL: Final = word_set(
    "delete remove drop purge destroy erase wipe truncate reset revoke terminate kill cancel "
    "uninstall overwrite expunge clear flush execute exec run eval evaluate shell bash command "
    "script sql pay charge refund transfer withdraw buy sell purchase trade deploy merge release "
    "shutdown reboot deactivate void unsubscribe rm rmdir force"
)
_UNAMBIGUOUS: Final = _FINAL - word_set(
    "clear command script sql charge refund transfer trade release run merge force void flush "
    "order sell"
)
"""Without words that are also nouns: `list_runs` runs nothing."""

_KINDS: Final = (
    (Effect.IRREVERSIBLE, _FINAL),
    (Effect.EXTERNAL_NOTIFICATION, _NOTIFYING),
    (Effect.INTERNAL_MUTATION, _WRITING),
)


def propose_mcp_effect(definition: Definition) -> tuple[Effect, tuple[str, ...]]:
    """Return the proposed effect of an MCP tool for review, and the reasons in order."""
    effect, why = _by_name(definition.name)
    reasons, implications = [why], []
    for sentence in _sentences(definition.description):
        for word in filter(None, _verbs_in(words(sentence), brief=False)):
            known = (kind for kind, verbs in _KINDS if word in verbs)
            said = f'raised, for {word!r} in its description: "{clean(sentence, 120)}"'
            implications.append((next(known, Effect.EXTERNAL_NOTIFICATION), said))
    if definition.hint("destructiveHint"):
        said = "raised, for it says destructiveHint: true"
        implications.append((Effect.IRREVERSIBLE, said))
    if EFFECTS[effect].mutates and definition.hint("openWorldHint"):
        said = "raised, for it says openWorldHint: true"
        implications.append((Effect.EXTERNAL_NOTIFICATION, said))
    for implied, reason in implications:
        if _ORDER.index(implied) > _ORDER.index(effect):
            effect = implied
            reasons.append(reason)
    if not EFFECTS[effect].mutates and definition.hint("readOnlyHint") is False:
        effect = Effect.INTERNAL_MUTATION
        reasons.append("raised, for it says readOnlyHint: false")
    elif EFFECTS[effect].mutates and definition.hint("readOnlyHint"):
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


def _by_name(name: str) -> tuple[Effect, str]:
    tokens = words(name)
    reader = next((at for at, word in enumerate(tokens) if word in _READING_WORDS), None)
    acting = tokens if reader is None else tokens[:reader]
    for effect, verbs in _KINDS:
        verb = next((word for word in acting if word in verbs), None)
        later = next((word for word in tokens if word in _UNAMBIGUOUS & verbs), None)
        if verb or later:
            return effect, f"proposed for {verb or later!r} in its name"
    if reader is not None:
        return Effect.RETRIEVE, f"proposed for {tokens[reader]!r} in its name"
    computing = next((word for word in tokens if word in _COMPUTING), None)
    if computing:
        return Effect.COMPUTE, f"proposed for {computing!r} in its name"
    return Effect.EXTERNAL_NOTIFICATION, "its name does not say what it does"
