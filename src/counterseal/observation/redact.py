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
from typing import Any, NamedTuple

import re2

from counterseal.canonical import pointer
from counterseal.observation.invisible import SUSPECT, neutralise

# --- patterns of secrets and personal data --------------------------------------------------------


class Rule(NamedTuple):
    id: str
    pattern: str
    """The RE2 pattern; `(?P<v>…)` marks the part to replace, if not the whole match."""
    hint: str
    check: Callable[[str], bool] | None = None
    within: Callable[[str], int] | None = None
    """Returns how many characters of a match to replace; 0 rejects the match."""


_PLACEHOLDER = re.compile(
    r"\$\{?\w+\}?|\{+[^{}]*\}+|<[^<>]*>|%\w+%|\*+|x{3,}|\.{3,}|…|\[[^\[\]]*\]", re.IGNORECASE
)
_WORDS = re.compile(
    "string|password|secret|required|optional|none|null|true|false|undefined|example"
    "|placeholder|hidden|masked|redacted",
    re.IGNORECASE,
)


def _is_value(text: str) -> bool:
    """Return whether a value is not a placeholder, a path, or the name of a type."""
    return not (
        _PLACEHOLDER.fullmatch(text)
        or _WORDS.fullmatch(text)
        or text.startswith(("/", "~/", "./", "process.env", "os.environ"))
    )


def _is_strong(text: str) -> bool:
    """Return whether a value has more than letters, as prose and code words do."""
    plain = text.rstrip(".,;:!?")
    return _is_value(plain) and not re.fullmatch(r"[A-Za-z_.\-]*", plain)


def _has_digit(text: str) -> bool:
    return any(char.isdigit() for char in text)


def _is_basic(text: str) -> bool:
    """Return whether a value is the base64 form of `user:password`."""
    try:
        plain = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


_KEY_NAMES = (
    r"passw(?:or)?d|passphrase|client[_-]?secret|app[_-]?secret|api[_-]?secret|secret"
    r"|secret[_-]?(?:access[_-]?)?key"
    r"|(?:api|access|private|account|encryption|signing)[_-]?key"
    r"|(?:access|auth|refresh|bearer|session|csrf)[_-]?token"
)
_NAMES = rf"(?:{_KEY_NAMES}|pwd)"
_NAME_HINT = (
    r"(?i:passw|passphrase|pwd|secret|cookie"
    r"|(?:api|access|private|account|encryption|signing)[_\-]?key"
    r"|(?:access|auth|refresh|bearer|session|csrf)[_\-]?token)"
)
_SECRET_KEY = re.compile(
    rf"(?:[\w.-]*[_.-])?(?:{_KEY_NAMES}|pwd)|(?:proxy-)?authorization|(?:set-)?cookie",
    re.IGNORECASE,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IS = r"[\"'\\]{0,4}\s*(?:=>|:=|==?|:)\s*"
"""The separator between a name and its value, also in JSON and in quoted JSON."""

SECRETS = (
    Rule(
        "private-key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?s:.*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\]{16,})",
        r"-----BEGIN ",
    ),
    Rule(
        "aws-access-key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16,}", r"A(?:KI|SI|BI|CC)A[A-Z0-9]{16}"
    ),
    Rule(
        "github-token",
        r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}",
        r"gh[pousr]_|github_pat_",
    ),
    Rule("npm-token", r"npm_[A-Za-z0-9]{36}", r"npm_"),
    Rule("hugging-face-token", r"\bhf_[A-Za-z0-9]{30,}", r"hf_[A-Za-z0-9]{30}"),
    Rule(
        "sendgrid-key", r"\bSG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}", r"SG\.[A-Za-z0-9_\-]{16}"
    ),
    Rule(
        "gitlab-token",
        r"gl(?:pat|ptt|rt|dt|ft|soat|agent|cbt|imt|oas|rtr|ffct)-[A-Za-z0-9_\-]{20,}",
        r"gl[a-z]{2,5}-[A-Za-z0-9_\-]{20}",
    ),
    Rule(
        "slack-token",
        r"xox[abceoprs](?:\.xox[a-z])?-[A-Za-z0-9\-]{10,}|xapp-\d-[A-Za-z0-9\-]{10,}"
        r"|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{20,}",
        r"xox[abceoprs]|xapp-|hooks\.slack",
    ),
    Rule(
        "stripe-key",
        r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,}",
        r"k_live_|k_test_|whsec_",
    ),
    Rule(
        "anthropic-key",
        r"sk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_\-]{20,}|\bsk-ant-[A-Za-z0-9_\-]{32,}",
        r"sk-ant-",
    ),
    Rule(
        "openai-key",
        r"\bsk-(?:proj|svcacct|admin|or-v1)-[A-Za-z0-9_\-]{32,}|\bsk-[A-Za-z0-9]{32,}"
        r"|sk-[A-Za-z0-9_\-]{20,}T3BlbkFJ[A-Za-z0-9_\-]{16,}",
        r"sk-[A-Za-z0-9_\-]{32}",
    ),
    Rule(
        "google-key",
        r"\bAIza[0-9A-Za-z_\-]{35}|\bya29\.[0-9A-Za-z_\-]{20,}|GOCSPX-[0-9A-Za-z_\-]{20,}",
        r"AIza|ya29\.|GOCSPX-",
    ),
    Rule(
        "jwt",
        r"eyJ[A-Za-z0-9_\-]{8,}\.(?:eyJ[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)?"
        r"|[A-Za-z0-9_\-]*(?:\.[A-Za-z0-9_\-]{8,}){1,3})",
        r"eyJ[A-Za-z0-9_\-]{8,}\.",
    ),
    Rule(
        "authorization",
        r"(?i:authorization)[\"']?\s*[:=]\s*[\"']?"
        r"(?i:bearer|basic|token|digest|apikey|negotiate)\s+"
        r"(?P<v>[A-Za-z0-9][A-Za-z0-9._~+/=\-]{5,})",
        r"(?i:authorization)",
    ),
    Rule("bearer", r"(?i:\bbearer)\s+(?P<v>[A-Za-z0-9._~+/=\-]{20,})", r"(?i:bearer)", _has_digit),
    Rule("basic", r"(?i:\bbasic)\s+(?P<v>[A-Za-z0-9+/]{6,}={0,2})", r"(?i:basic)", _is_basic),
    Rule(
        "connection-string",
        r"[A-Za-z][A-Za-z0-9+.\-]{1,30}://[^\s:@/?#\"'<>]{0,128}:(?P<v>[^\s/\"'<>]{1,256})@",
        r"://[^\s/\"]*@",
        _is_value,
    ),
    Rule(
        "password",
        rf'(?i:{_NAMES}){_IS}\\{{0,3}}"(?P<v>[^"]{{3,}}[^"\\])\\{{0,3}}"',
        _NAME_HINT,
        _is_value,
    ),
    Rule("password", rf"(?i:{_NAMES}){_IS}'(?P<v>[^']{{4,}})'", _NAME_HINT, _is_value),
    # Before the next rule: it accepts plain words too, where the context is an assignment.
    Rule(
        "password",
        rf"(?i:{_NAMES})=(?P<v>[^\s\"',;&<>{{}}()\[\]]{{4,}})(?:[;&\r\n]|\z)",
        _NAME_HINT,
        _is_value,
    ),
    Rule(
        "password",
        rf"(?i:{_NAMES}){_IS}(?P<v>[^\s\"',;&<>{{}}()]{{6,}})(?:[\s\"',;&]|\z)",
        _NAME_HINT,
        _is_strong,
    ),
)


def secret_name(key: str) -> bool:
    """Return whether a key's name says that its value is a secret."""
    return _SECRET_KEY.fullmatch(_HUMP.sub("_", key)) is not None


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
"""Memory for the quick search's states; with too little it would miss matches."""
Counts = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Redaction:
    rule: str
    pointer: str
    """JSON Pointer into the redacted value."""
    count: int = 1

    def record(self) -> dict[str, Any]:
        return {"rule": self.rule, "pointer": self.pointer, "count": self.count}


class Redactor:
    """Redacts values with one combined pattern in linear time; built once per runtime."""

    __slots__ = ("_inner", "_pattern", "_rules", "suspects")

    suspects: Callable[[bytes], Any]
    """Return whether `redact` could find anything in the value of this JSON text.

    One quick search, so that the common answer needs no walk.
    """

    def __init__(self, *, pii: Collection[str] = ()) -> None:
        self._rules = rules_for(pii)
        named = (
            f"(?P<r{i}>{rule.pattern.replace('?P<v>', f'?P<v{i}>')})"
            for i, rule in enumerate(self._rules)
        )
        self._pattern = re2.compile("|".join(named).encode())
        groups = self._pattern.groupindex
        self._inner: tuple[tuple[Rule, int, int], ...] = tuple(
            (rule, groups[f"r{i}".encode()], groups.get(f"v{i}".encode(), 0))
            for i, rule in enumerate(self._rules)
        )
        options = re2.Options()
        options.never_capture = True
        options.max_mem = _PLENTY
        hints = dict.fromkeys((*(rule.hint for rule in self._rules), SUSPECT))
        # A pattern set tells only whether there is a match, at a third of a search's cost.
        suspect = re2.Set.SearchSet(options)
        suspect.Add("|".join(hints))
        suspect.Compile()
        self.suspects = suspect.Match

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
            shown = _unused(self._text(key, "", key_counts), clean)
            here = at + pointer(shown)
            for (rule, _), count in key_counts.items():
                counts[rule, here] = counts.get((rule, here), 0) + count
            if secret_name(key) and _holds_something(item):
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
        pieces: list[bytes] = []
        end = position = 0
        while match := self._pattern.search(raw, position):
            rule, first, last = self._matched(match)
            value = raw[first:last].decode()
            if rule.within:
                last = first + rule.within(value)
            if first == last or _DONE.fullmatch(value) or (rule.check and not rule.check(value)):
                # A rejected match may overlap a valid one that starts inside it.
                position = _after(raw, match.start())
                continue
            pieces += (raw[end:first], b"[redacted:%s]" % rule.id.encode())
            counts[rule.id, at] = counts.get((rule.id, at), 0) + 1
            end = last
            position = max(last, match.start() + 1)
        return b"".join((*pieces, raw[end:])) if pieces else None

    def _matched(self, match: Any) -> tuple[Rule, int, int]:
        for rule, whole, inner in self._inner:
            if match.start(whole) >= 0:
                group = inner or whole
                return rule, match.start(group), match.end(group)
        raise LookupError("a match belongs to none of the rules")


def _after(raw: bytes, position: int) -> int:
    """Return the start of the next character."""
    position += 1
    while position < len(raw) and raw[position] & 0xC0 == 0x80:
        position += 1
    return position


def _unused(key: str, taken: Mapping[str, Any]) -> str:
    """Return a free key: two keys can become equal by redaction; the second is numbered."""
    shown, number = key, 2
    while shown in taken:
        shown, number = f"{key} ({number})", number + 1
    return shown


def _holds_something(item: Any) -> bool:
    """Return whether a value can be a secret: a text, a number, or a list of them."""
    if isinstance(item, bool) or item is None:
        return False
    if isinstance(item, str):
        return item != "" and not _DONE.fullmatch(item)
    if isinstance(item, list | tuple):
        return any(_holds_something(inner) for inner in item)
    return isinstance(item, int | float)
