"""Redacts secrets, chosen classes of personal data and invisible characters in JSON values.

Redactions are reported by rule, place and count, never by value. `text` defines which characters
are invisible.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import re2

from counterseal.canonical import pointer, unused_key
from counterseal.observation.invisible import SUSPECT, neutralise
from counterseal.observation.secret_formats import (
    FORMATS,
    SURE_WORDS,
    UNSURE_WORDS,
    is_token,
    looks_random,
    telling,
)

# --- patterns of secrets and personal data --------------------------------------------------------


class Found(NamedTuple):
    """A match of a rule's pattern, for a check that looks at more than the value."""

    raw: bytes
    start: int
    first: int
    """Where the value begins; what is between `start` and here is its name."""
    last: int

    @property
    def value(self) -> str:
        return self.raw[self.first : self.last].decode()


class Rule(NamedTuple):
    id: str
    pattern: str
    """The RE2 pattern; `(?P<v>…)` marks the part to replace, if not the whole match."""
    hint: str
    """An RE2 pattern that matches at least every JSON text whose value `pattern` matches."""
    check: Callable[[str], bool] | None = None
    within: Callable[[str], int] | None = None
    """Returns how many characters of a match to replace; 0 rejects the match."""
    context: Callable[[Found], bool] | None = None
    """Like `check`, for a check that looks around the value too."""


_PLACEHOLDER = re.compile(
    r"\$\{?\w+\}?|\{+[^{}]*\}+|<[^<>]*>|%\w+%|\*+|x{3,}|\.{3,}|…|\[[^\[\]]*\]"
    r"|(?:your|my|the|some|an?|example|sample|dummy|fake|test|insert|replace|change|enter|todo)[\W_].*"
    r"|string|password|secret|token|key|required|optional|none|null|true|false|undefined|example"
    r"|changeme|placeholder|hidden|masked|redacted",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?:\$|process\.env|os\.environ|self\.|this\.|config\.|env\.|~?/|\./).*")


def _is_value(text: str) -> bool:
    """Return whether a value is not a placeholder, a path, or the name of a type."""
    if _PLACEHOLDER.fullmatch(text):
        return False
    return not _CODE.fullmatch(text) or (text[0] == "/" and looks_random(text.lstrip("/")))


def _is_basic(text: str) -> bool:
    """Return whether a value is the base64 form of `user:password`."""
    try:
        plain = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


_BASE64 = re.compile(rb"[A-Za-z0-9+/_\-]*")


def _is_apart(found: Found) -> bool:
    """Return whether a match is not a part of a longer base64 text, as of an image."""
    before = found.raw[max(0, found.start - 24) : found.start]
    behind = found.raw[found.last : found.last + 64]
    return not (
        (len(before) == 24 and _BASE64.fullmatch(before))
        or (len(behind) == 64 and _BASE64.fullmatch(behind))
    )


def _is_no_phrase(text: str) -> bool:
    """Return whether a match of a format is more than lower-case words with signs between them."""
    return _PHRASE.fullmatch(text) is None


_PHRASE = re.compile(r"[a-z]+(?:[_.\-]+[a-z]+){2,}")


def _has_digit(text: str) -> bool:
    return any(char.isdigit() for char in text)


_BEFORE = re.compile(r"[\w.\-]*(?: [A-Za-z]{2,12})?", re.ASCII)
"""The part of a name that stands before its telling word, read backwards."""


def _is_named(found: Found) -> bool:
    """Return whether a value behind a name is a secret: the better the name, the less it takes."""
    raw, start = found.raw, found.start
    lead, plain = raw[start : found.first].decode(), found.value.rstrip(".,;:!?*")
    if not _is_value(plain):
        return False
    left = _BEFORE.match(raw[max(0, start - 40) : start].decode(errors="replace")[::-1])
    name = (left.group()[::-1] if left else "") + _NAME_END.sub("", lead, count=1)
    sure = telling(name)
    if not sure:
        return False
    if sure == 1 or lead.rstrip(_AROUND).endswith((",", "(", "|")):
        called = raw[found.last : found.last + 1] == b"("
        return looks_random(plain) if called else is_token(name, plain)
    if lead.endswith(('"', "'", "`")):
        return plain.count(" ") < 2
    if lead.endswith("="):
        return looks_random(plain) or not _EXPRESSION.fullmatch(plain)
    return len(plain) > 5 and not _WORDS.fullmatch(plain)


_AROUND = "\"'`\\ \n\r\t"
_EXPRESSION = re.compile(r"[A-Za-z_]\w*(?:[.(].*|_\w*)")
_WORDS = re.compile(r"[A-Za-z_.\-/]*|\w+\(.*")
_NAME_END = re.compile(r"[^\w.\-].*|[.\-]*\Z", re.DOTALL)
_GAP = r"(?:\s|\\[nrt])"
_QUOTES = r"[\"'`\\*]"
_VALUE_OF = rf"{_QUOTES}*,?{_GAP}+{_QUOTES}*value{_QUOTES}*{_GAP}*[:=]"
_IS = (
    rf"(?:{_QUOTES}*[\])]?{_GAP}*(?:=>|:=|==?|::?|->|%3[Dd]|→)[*_]*|{_VALUE_OF}"
    rf"|{_QUOTES}*,?{_QUOTES}*value{_QUOTES}+{_GAP}*[:=]| (?:(?:for|of) [\w.\-]+ )?(?:is|was):?"
    rf"|: ?[\w<>?.]+ ?=|{_GAP}*\||\(|>"
    rf"|{_QUOTES}+{_GAP}*,)"
)
"""The separator between a name and its value: in code, JSON, quoted JSON, XML and prose."""
_SCHEME = r"(?:(?i:bearer|basic|token|bot|apikey|ssws)\s+)?"
_TAIL = r"[\w.\-]*"
_NAME = rf"(?i:{SURE_WORDS}|{UNSURE_WORDS}){_TAIL}"
_WORD = r"[^\s\"'`,;&<>{}()\[\]\\]"
_SURE_KEY = SURE_WORDS.replace(r"[ _.\-]?", '[^A-Za-z0-9"]*')
_KEY_END = r'(?:[^"\\]|\\.)*":'
_TELLING_KEY = (
    rf'(?i:{_SURE_KEY}){_KEY_END}["\[\d\-]'
    rf'|(?i:{UNSURE_WORDS}){_KEY_END}(?:\[|"[^"]{{8}})'
)
"""A hint for JSON text only: a key that may be `telling`, with a text, a list or a number."""


def _named(opening: str, value: str, closing: str = "") -> Rule:
    name = rf"(?i:{SURE_WORDS}){_TAIL}{_IS}{_GAP}*"
    pattern = rf"{name}{opening}{_SCHEME}(?P<v>{value}){closing}"
    hint = rf"{name}\\*{opening or _WORD + '{4}'}"
    return Rule("password", pattern, hint, context=_is_named)


_COUNT = re.compile(r"\{(\d+)(?:,\d*)?\}(\||\Z)?")
_ANY_HEAD = re.compile(r"(?:\[[^\]]*\])?\[[^\]]*\]\{[\d,]+\}")


def _fewer(count: re.Match[str]) -> str:
    """Return a shorter count for a hint: it need not see the end of a match."""
    before, end = count.string[: count.start()], count[2]
    if int(count[1]) <= 6:
        return count[0]
    at_end = end is not None and before.count("(") == before.count(")")
    return ("{4}" if at_end else "{6,}") + (end or "")


def _format(name: str, pattern: str, check: Callable[[str], bool] = _is_no_phrase) -> Rule:
    """Return the rule of a format, at the start of a word unless nothing else looks like it.

    Its hint counts less far and leaves out a head of any characters, so that the search for hints
    needs few states, and takes the `n` of an escaped newline for the end of a word.
    """
    short = _COUNT.sub(_fewer, pattern.replace(r"\b", ""))
    if name in _UNMISTAKABLE:
        return Rule(name, pattern, short)
    head = _ANY_HEAD.match(short)
    hint = short[head.end() :] if head else rf"{_WORD_START}(?:{short})"
    context = _is_apart if name in _LIKE_BASE64 else None
    return Rule(name, rf"\b(?:{pattern})", hint, check, context=context)


_WORD_START = r"(?:\b|\\[nt])"
_UNMISTAKABLE = (
    "aws-access-key", "github-token", "gitlab-token", "npm-token", "slack-token", "stripe-key",
    "password-hash",
)  # fmt: skip
_LIKE_BASE64 = (
    "adobe-secret", "adyen-key", "aws-token", "facebook-token", "intercom-token", "jfrog-token",
    "modal-token", "nats-seed", "okta-token", "prefixed-secret", "square-token", "tencent-key",
    "twitter-token", "voyage-key", "yandex-token",
)  # fmt: skip
_PREFIXED = (
    r"[a-z][a-z0-9]{1,14}[_\-](?:live|prod|sk|pat|apikey|api_key|token|tok|secret)[_\-][\w\-]{20,}",
    r"sk[_\-][\w\-]{24,}|pat[_\-][A-Za-z0-9]{24,}",
)
"""Tokens of any vendor whose prefix says what they are."""

SECRETS = (
    Rule(
        "private-key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?s:.*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\]{16,})",
        r"-----BEGIN ",
    ),
    Rule(
        "private-key",
        r"-----BEGIN OpenVPN Static key V1-----[0-9A-Fa-f\s\\nr]{16,}"
        r"|Private-Lines: \d+\s[A-Za-z0-9+/=\s]{16,}|LS0tLS1CRUdJTi[A-Za-z0-9+/]{0,20}"
        r"(?:QUklWQVRF|BSSVZBVE|UFJJVkFUR)[A-Za-z0-9+/=]{16,}",
        r"-----BEGIN |Private-Lines|LS0tLS1CRUdJTi",
    ),
    *(_format(name, pattern) for name, pattern, _ in FORMATS),
    *(_format("prefixed-secret", pattern, looks_random) for pattern in _PREFIXED),
    Rule(
        "jwt",
        r"eyJ[A-Za-z0-9_\-]{8,}\.(?:eyJ[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)?"
        r"|[A-Za-z0-9_\-]*(?:\.[A-Za-z0-9_\-]{8,}){1,3})",
        r"eyJ[A-Za-z0-9_\-]{8,}\.",
    ),
    Rule(
        "authorization",
        r"(?i:authorization)[\"'\\]{0,4}\s*[:=,]\s*[\"'\\]{0,4}"
        r"(?i:bearer|basic|token|digest|apikey|negotiate|bot|ssws|splunk|key)[ \t=]+"
        r"(?P<v>[A-Za-z0-9][A-Za-z0-9._~+/=:\-]{5,})",
        r"(?i:authorization)",
        _is_value,
    ),
    Rule("bearer", r"(?i:\bbearer)\s+(?P<v>[A-Za-z0-9._~+/=\-]{20,})", r"(?i:bearer)", _has_digit),
    Rule("basic", r"(?i:\bbasic)\s+(?P<v>[A-Za-z0-9+/]{6,}={0,2})", r"(?i:basic)", _is_basic),
    Rule(
        "connection-string",
        r"[A-Za-z][A-Za-z0-9+.\-]*://(?:\[redacted:[a-z_\-]+\]|[^\s:@/?#\"'<>])*:"
        r"(?P<v>[^\s/\"'<>]+)@",
        r"://[^\s/\"]*@",
        _is_value,
        context=lambda found: not found.raw[found.start : found.first].endswith(b"[redacted:"),
    ),
    Rule(
        "connection-string",
        r"[A-Za-z][A-Za-z0-9+.\-]*://(?P<v>[^\s:@/?#\"'<>]{12,})@",
        r"://[^\s/\"]*@",
        looks_random,
    ),
    Rule("connection-string", r"\w:(?P<v>[^\s:@/\"'<>]{4,})@(?:tcp|unix)\(", r"@(?:tcp|unix)\("),
    Rule(
        "signature",
        r"[?&](?i:sig|signature|x-amz-signature|x-goog-signature|x-amz-security-token|hmac)"
        r"=(?P<v>[\w%+/=\-]{16,})",
        r"[?&](?i:sig|signature|x-amz-|x-goog-|hmac)",
        looks_random,
    ),
    Rule(
        "cookie",
        r"(?i:\bcookie)[\"']?\s*:\s*[\"']?(?P<v>[\w.\-]+=[^\r\n\"']{4,})",
        r"(?i:cookie)",
        lambda value: any(map(looks_random, re.split("[=; ]+", value))),
    ),
    Rule(  # the command line: --api-key VALUE, ENV API_KEY VALUE
        "password",
        rf"(?:--|\b(?:ENV|setx|set) +)[\w.\-]*{_NAME} +[\"']?(?P<v>[^\s\"']{{6,}})",
        rf"(?:--|(?:ENV|setx|set) +)[\w.\-]*{_NAME} ",
        looks_random,
    ),
    Rule(  # .netrc
        "password",
        r"\blogin\s+\S+\s+password\s+(?P<v>[^\s\"']{4,})",
        r"login(?:\s|\\[nrt])",
        _has_digit,
    ),
    Rule(
        "password",
        r"\bcurl [^\n]*(?:-u|--user)[ =][\"']?[^\s:\"']+:(?P<v>[^\s\"']{4,})",
        r"curl .*-u",
        _is_value,
    ),
    _named(r'\\{0,3}"', r'[^"\n]{3,}?[^"\n\\]', r'(?:\\{0,3}"|\z)'),
    _named("'", r"[^'\n]{4,}?", "'"),
    _named("`", r"[^`\n]{4,}?", "`"),
    _named("", rf"{_WORD}{{4,}}"),
    Rule(
        "password",
        rf"(?i:{UNSURE_WORDS}){_TAIL}{_IS}{_GAP}*{_QUOTES}{{0,4}}{_SCHEME}"
        rf"(?P<v>{_WORD}*\d{_WORD}*|{_WORD}{{20,}})",
        rf"(?i:{UNSURE_WORDS}){_TAIL}{_IS}{_GAP}*{_QUOTES}*{_SCHEME}{_WORD}{{8}}",
        context=_is_named,
    ),
)


def _digits(text: str) -> list[int]:
    return [int(char) for char in text if char in "0123456789"]


def _is_card(text: str) -> bool:
    """Return whether a card number passes Luhn's checksum."""
    digits = _digits(text)
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = (d * 2 - 9 if d > 4 else d * 2 for d in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    """Return whether an IBAN passes the checksum of ISO 13616."""
    plain = text.replace(" ", "")
    if not 15 <= len(plain) <= 34:
        return False
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


def _iban_within(text: str) -> int:
    """Return the length of the IBAN: a capital word behind it looks like another group."""
    while text and not _is_iban(text):
        text = text.rpartition(" ")[0]
    return len(text)


def _is_ssn(text: str) -> bool:
    area, group, serial = text.split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text not in ("::", "0.0.0.0")  # noqa: S104 - compared with, never bound to


def _is_phone(text: str) -> bool:
    return 8 <= len(_digits(text)) <= 15


PII: dict[str, tuple[Rule, ...]] = {
    "email": (
        Rule(
            "email",
            r"[A-Za-z0-9._%+\-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,62})\.)+[A-Za-z]{2,24}",
            "@",
        ),
    ),
    "phone": (
        Rule("phone", r"\+[0-9][0-9 ().\-]{6,20}[0-9]\b", r"\+[0-9]", _is_phone),
        Rule("phone", r"(?:\(\d{3}\) ?|\b\d{3}[\-. ])\d{3}[\-. ]\d{4}\b", r"\d{3}[\-. ]\d{4}"),
    ),
    "iban": (
        Rule(
            "iban",
            r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
            r"[A-Z]{2}[0-9]{2} ?[A-Z0-9]{4}",
            within=_iban_within,
        ),
    ),
    "credit_card": (
        Rule(
            "credit_card",
            r"\b(?:[0-9]{13,19}|[0-9]{4}(?:[ \-][0-9]{4}){3}|[0-9]{4}[ \-][0-9]{6}[ \-][0-9]{5})\b",
            r"[0-9]{4}",
            _is_card,
        ),
    ),
    "ssn": (Rule("ssn", r"\b\d{3}-\d{2}-\d{4}\b", r"\d{3}-\d{2}-\d{4}", _is_ssn),),
    "ip_address": (
        Rule("ip_address", r"\b(?:\d{1,3}\.){3}\d{1,3}\b", r"(?:\d{1,3}\.){3}", _is_address),
        Rule(
            "ip_address",
            r"(?:[0-9A-Fa-f]{1,4})?(?::[0-9A-Fa-f]{0,4}){2,7}",
            r":[0-9A-Fa-f]{0,4}:",
            _is_address,
        ),
    ),
}
"""The classes of personal data that a policy may name."""


def rules_for(pii: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules for secrets and for the named classes of personal data."""
    unknown = sorted(set(pii) - PII.keys())
    if unknown:
        known = ", ".join(PII)
        raise ValueError(f"unknown class of personal data: {', '.join(unknown)}; known are {known}")
    return (*SECRETS, *(rule for name in PII if name in set(pii) for rule in PII[name]))


NEUTRALISED = "neutralised"
"""The rule name for invisible and control characters."""

_DONE = re.compile(r"(?:\[redacted:[a-z_-]+\])+")
_PASSES = 4
_PLENTY = 64 * 1024 * 1024
"""Memory for the states of the search for hints; with too little it would miss matches."""
Counts = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Redaction:
    rule: str
    pointer: str
    """JSON Pointer into the redacted value."""
    count: int = 1

    def record(self) -> dict[str, Any]:
        return {"rule": self.rule, "pointer": self.pointer, "count": self.count}


@cache
def _compiled(pattern: str) -> tuple[Callable[[bytes, int], Any], int]:
    """Return the search for a pattern, and the number of the group that marks the value."""
    compiled = re2.compile(pattern.encode())
    return compiled.search, compiled.groups


def _next(rule: Rule, raw: bytes, position: int) -> Found | None:
    """Return the rule's first match that begins at or behind a position and is accepted."""
    search, group = _compiled(rule.pattern)
    while match := search(raw, position):
        start = match.start()
        if found := _accepted(rule, Found(raw, start, *match.span(group))):
            return found
        # A rejected match may overlap a valid one that starts inside it.
        position = _after(raw, start)
    return None


def _accepted(rule: Rule, found: Found) -> Found | None:
    value = found.value
    if rule.within:
        found = found._replace(last=found.first + rule.within(value))
    if (
        found.first == found.last
        or _DONE.fullmatch(value)
        or (rule.check and not rule.check(value))
        or (rule.context and not rule.context(found))
    ):
        return None
    return found


@lru_cache(maxsize=64)
def _search_for(*patterns: str) -> Callable[[bytes], list[int] | None]:
    """Return a search that tells which of the patterns match somewhere in a text.

    Kept, because compiling takes longer than everything else of a new runtime together.
    """
    options = re2.Options()
    options.max_mem = _PLENTY
    options.log_errors = False
    found = re2.Set.SearchSet(options)
    for pattern in patterns:
        found.Add(pattern)
    found.Compile()
    return found.Match  # type: ignore[no-any-return]


class Redactor:
    """Redacts values in linear time; built once per runtime.

    One search of a text for the hints of all rules tells which rules can match there: mostly none.
    Only the patterns of those are searched for. One pattern of all rules would need new states for
    almost every character of a random secret, and building a state costs more than such a search.
    """

    __slots__ = ("_hinted", "_hints", "suspects")

    suspects: Callable[[bytes], Any]
    """Return whether `redact` could find anything in the value of a JSON text.

    One quick search, so that the common answer needs no walk.
    """

    def __init__(self, *, pii: Collection[str] = ()) -> None:
        hinted: dict[str, dict[int, Rule]] = {}
        for order, rule in enumerate(rules_for(pii)):
            hinted.setdefault(rule.hint, {})[order] = rule
        self._hinted = tuple(hinted.values())
        self._hints = _search_for(*hinted)
        self.suspects = _search_for("|".join((*hinted, SUSPECT, _TELLING_KEY)))

    def redact(self, value: Any) -> tuple[Any, tuple[Redaction, ...]]:
        """Return the redacted value and the list of redactions."""
        counts: Counts = {}
        clean = self._walk(value, "", counts)
        return clean, tuple(Redaction(rule, at, count) for (rule, at), count in counts.items())

    def _walk(self, value: Any, at: str, counts: Counts) -> Any:
        if isinstance(value, str):
            return self._text(value, at, counts)
        if isinstance(value, Mapping):
            return self._object(value, at, counts)
        if isinstance(value, list | tuple):
            return [self._walk(item, f"{at}/{i}", counts) for i, item in enumerate(value)]
        return value

    def _object(self, value: Mapping[str, Any], at: str, counts: Counts) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for key, item in value.items():
            key_counts: Counts = {}
            shown = unused_key(self._text(key, "", key_counts), clean)
            here = at + pointer(shown)
            for (rule, _), count in key_counts.items():
                counts[rule, here] = counts.get((rule, here), 0) + count
            if (sure := telling(key)) and _holds_secret(key, item, sure):
                counts["password", here] = counts.get(("password", here), 0) + 1
                clean[shown] = "[redacted:password]"
            else:
                clean[shown] = self._walk(item, here, counts)
        return clean

    def _text(self, text: str, at: str, counts: Counts) -> str:
        shown, changes = neutralise(text)
        if changes:
            # Invisible characters can hide a secret, and removing them can damage one: so the text
            # is searched before and after.
            before = self._secrets(text.encode(errors="surrogatepass"), at, counts)
            shown, changes = neutralise(before.decode(errors="surrogatepass"))
            counts[NEUTRALISED, at] = counts.get((NEUTRALISED, at), 0) + changes
        return self._secrets(shown.encode(), at, counts).decode()

    def _secrets(self, raw: bytes, at: str, counts: Counts) -> bytes:
        # The remaining text can form a new match with its new neighbours, so it is searched again.
        for _ in range(_PASSES):
            clean = self._once(raw, at, counts)
            if clean is None:
                return raw
            raw = clean
        return raw if self._once(raw, at, counts) is None else b"[redacted:text]"

    def _once(self, raw: bytes, at: str, counts: Counts) -> bytes | None:
        """Redact a text once. Return None if there was nothing to redact."""
        rules: dict[int, Rule] = {}
        for hint in self._hints(raw) or ():
            rules |= self._hinted[hint]
        ahead = {i: found for i, rule in rules.items() if (found := _next(rule, raw, 0))}
        pieces: list[bytes] = []
        end = 0
        while ahead:
            first = min(ahead, key=lambda i: (ahead[i].start, i))
            rule, found = rules[first], ahead[first]
            pieces += (raw[end : found.first], b"[redacted:%s]" % rule.id.encode())
            counts[rule.id, at] = counts.get((rule.id, at), 0) + 1
            end = found.last
            position = max(end, found.start + 1)
            for i in [i for i, other in ahead.items() if other.start < position]:
                if further := _next(rules[i], raw, position):
                    ahead[i] = further
                else:
                    del ahead[i]
        return b"".join((*pieces, raw[end:])) if pieces else None


def _after(raw: bytes, position: int) -> int:
    """Return the start of the next character."""
    position += 1
    while position < len(raw) and raw[position] & 0xC0 == 0x80:
        position += 1
    return position


def _holds_secret(key: str, item: Any, sure: int) -> bool:
    """Return whether a value under a telling name can be a secret: a text, a number, a list."""
    if isinstance(item, bool) or item is None:
        return False
    if isinstance(item, str):
        if sure == 1:
            return is_token(key, item)
        return item != "" and not _DONE.fullmatch(item)
    if isinstance(item, list | tuple):
        return any(_holds_secret(key, inner, sure) for inner in item)
    return sure == 2 and isinstance(item, int | float)
