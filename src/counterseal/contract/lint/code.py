"""What sounds as if code were run: names of arguments and tools, and what is said of them.

Some words leave no doubt (`python_code`, "the script to execute"), some do (`expression`, "runs the
nightly script"): those are for the author to answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from counterseal.contract.lint.words import words_of

__all__ = ["Sounds", "argument_sounds", "tool_sounds"]


class Sounds(NamedTuple):
    what: str
    certain: bool


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SHELL = _set("shell bash zsh powershell cmd command argv")
_LANGUAGES = _set("python javascript js typescript perl ruby lua")
_CODE = _LANGUAGES | _set("script code eval exec")
_DOUBTFUL = _set("snippet expression formula program notebook macro lambda")
_RUN = _set("run execute exec eval evaluate interpret")
_RUNNERS = _SHELL | _LANGUAGES | _set("repl terminal interpreter eval exec")
_FILLERS = _set("a an the my some in tool")
_OTHER_CODES = _set(
    "access account airport area auth authorization bank bar branch campaign category center "
    "centre city color colour confirmation cost country coupon currency customer department "
    "diagnosis dial discount error exit facility gift industry invitation invite iso item language "
    "locale location offer otp phone pin plan postal product project promo promotion qr reason "
    "referral region response security site sms sort state station status supplier swift tariff "
    "tax tracking trade vat vendor verification voucher zip"
)
"""Codes that stand for something, and are never run."""
_OTHER_DOUBTS = _set("cron regular facial gene loyalty")
_ABOUT = _set(
    "author category count date format hash id index key kind label language length level limit "
    "name number owner page path ref size state status tag time title type uri url uuid version"
)
"""The last word of a name that tells of a thing, and is not the thing."""

_NOUN = r"(?:code|scripts?|commands?(?: line)?|snippets?|programs?)"
_DOUBTFUL_NOUN = r"(?:expressions?|formulas?|source|statements?|macros?|cells?|notebooks?)"
_LANGUAGE = r"(?:python|javascript|js|typescript|bash|powershell|shell|perl|ruby|lua)"
_RUNS = r"(?:runs?|running|executes?|executed|evals?|evaluates?|evaluated|interprets?|interpreted)"
_GAP = r"(?:[^\w.;!?]+\w+){0,5}?[^\w.;!?]+"
_NOT = re.compile(
    r"(?:\b(?:not|never|no|without|nothing|none|cannot)|n['\u2019]t)(?: +[\w'\u2019]+){0,4} *\Z"
)


def _near(one: str, other: str) -> str:
    """Both in one sentence, a few words apart, either first."""
    return rf"{one}{_GAP}{other}|{other}{_GAP}{one}"


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(alternatives)})\b", re.IGNORECASE)


_SURELY_RUN = _pattern(
    _near(_LANGUAGE, _RUNS),
    rf"{_NOUN} +(?:to|to be|that is|that will be|which is|will be|is|are|gets) +{_RUNS}",
    rf"{_RUNS}(?: +(?:as|the|a|an|this|that|given|your|any|arbitrary))* +{_NOUN}",
)
_MAYBE_RUN = _pattern(_near(_NOUN, _RUNS), _near(_DOUBTFUL_NOUN, _RUNS))
_A_LANGUAGE_RUN = _pattern(_near(_LANGUAGE, _RUNS))
_IN_A_LANGUAGE = _pattern(rf"{_LANGUAGE} +(?:source +)?(?:{_NOUN}|{_DOUBTFUL_NOUN})")


def argument_sounds(name: str, description: str) -> Sounds | None:
    """What an argument sounds like, by its name and by what is said of it; None for nothing."""
    words = set(words_of(name))
    about = not _ABOUT.isdisjoint(words_of(name)[-1:])
    code = _CODE & words
    other = code == {"code"} and not _OTHER_CODES.isdisjoint(words)
    if _SHELL & words:
        return Sounds("a shell command", certain=True)
    if code and not about and not other:
        return Sounds("code", certain=True)
    if _said(_A_LANGUAGE_RUN if about or other else _SURELY_RUN, description):
        return Sounds("code", certain=not about)
    if about or other:
        return None
    doubtful = _DOUBTFUL & words and not _OTHER_DOUBTS & words
    if doubtful or _said(_MAYBE_RUN, description) or _said(_IN_A_LANGUAGE, description):
        return Sounds("what may be code", certain=False)
    return None


def tool_sounds(
    name: str, description: str, arguments: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Sounds]]:
    """What a tool sounds like that takes these texts, and the place that says so."""
    # An argument that only tells which script is run holds none.
    writes = any(_ABOUT.isdisjoint(words_of(argument)[-1:]) for argument in arguments)
    words = [word for word in words_of(name) if word not in _FILLERS]
    runs, rest = _RUN & set(words), set(words) - _RUN
    if words and (_RUNNERS | _CODE).issuperset(words) and _RUNNERS & set(words):
        yield ("identity", "name"), Sounds("code", certain=writes)
    elif runs and rest & (_CODE | _SHELL | _DOUBTFUL):
        plain = rest <= _CODE | _SHELL or "eval" in runs
        yield ("identity", "name"), Sounds("code", certain=writes and plain)
    place = ("affordance", "model_description")
    if _said(_A_LANGUAGE_RUN, description):
        yield place, Sounds("code", certain=writes)
    elif _said(_MAYBE_RUN, description):
        yield place, Sounds("what may be code", certain=False)


def _said(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a text says so, and does not deny it: "no code is run", "code that is never run"."""
    text = text[:4_000].lower()
    return any(
        not _NOT.search(text[: found.start()]) and not _NOT.search(found[0].rpartition(" ")[0])
        for found in pattern.finditer(text)
    )
