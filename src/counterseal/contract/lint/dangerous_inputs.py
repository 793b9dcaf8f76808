"""Rules on dangerous inputs: commands, code, SQL, URLs, paths, credentials and authority.

Names and descriptions are all there is to judge by. Some leave no doubt (`python_code`, "the script
to execute") and are errors; doubtful ones (`expression`, "runs the nightly script") are warnings
for the author to answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from counterseal.contract.lint.regex import is_bounded
from counterseal.contract.lint.rule import Breach, rule
from counterseal.contract.lint.schema_rules import INPUT, fields
from counterseal.contract.model import Contract, Isolation
from counterseal.contract.schemas import listed, properties_of, types_of, without_refs, word_set

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case and singular: `fileUrls` is file, url."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return [
        word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word
        for word in words
    ]


# --- what sounds like code ------------------------------------------------------------------------


class Sounds(NamedTuple):
    what: str
    certain: bool


_SHELL = word_set("shell bash zsh powershell cmd command argv")
_LANGUAGES = word_set("python javascript js typescript perl ruby lua")
_CODE = _LANGUAGES | word_set("script code eval exec")
_DOUBTFUL = word_set("snippet expression formula program notebook macro lambda")
_RUN = word_set("run execute exec eval evaluate interpret")
_RUNNERS = _SHELL | _LANGUAGES | word_set("repl terminal interpreter eval exec")
_FILLERS = word_set("a an the my some in tool")
_OTHER_CODES = word_set(
    "access account airport area auth authorization bank bar branch campaign category center "
    "centre city color colour confirmation cost country coupon currency customer department "
    "diagnosis dial discount error exit facility gift industry invitation invite iso item language "
    "locale location offer otp phone pin plan postal product project promo promotion qr reason "
    "referral region response security site sms sort state station status supplier swift tariff "
    "tax tracking trade vat vendor verification voucher zip"
)
"""Words that make a code a plain identifier: `country_code`."""
_OTHER_DOUBTS = word_set("cron regular facial gene loyalty")
_ABOUT = word_set(
    "author category count date format hash id index key kind label language length level limit "
    "name number owner page path ref size state status tag time title type uri url uuid version"
)
"""Last words of names for a property of something: `script_name` is not a script."""

_NOUN = r"(?:code|scripts?|commands?(?: line)?|snippets?|programs?)"
_DOUBTFUL_NOUN = r"(?:expressions?|formulas?|source|statements?|macros?|cells?|notebooks?)"
_LANGUAGE = r"(?:python|javascript|js|typescript|bash|powershell|shell|perl|ruby|lua)"
_RUNS = r"(?:runs?|running|executes?|executed|evals?|evaluates?|evaluated|interprets?|interpreted)"
_GAP = r"(?:[^\w.;!?]+\w+){0,5}?[^\w.;!?]+"
_NOT = re.compile(
    r"(?:\b(?:not|never|no|without|nothing|none|cannot)|n['\u2019]t)(?: +[\w'\u2019]+){0,4} *\Z"
)


def _near(one: str, other: str) -> str:
    """Return a pattern for both in one sentence, a few words apart, in any order."""
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
    """Return what an argument sounds like by its name and description; None if harmless."""
    words = set(words_of(name))
    about = not _ABOUT.isdisjoint(words_of(name)[-1:])
    code = _CODE & words
    other = code == {"code"} and not _OTHER_CODES.isdisjoint(words)
    if _SHELL & words:
        return Sounds("a shell command", certain=True)
    if code and not about and not other:
        return Sounds("code", certain=True)
    if _affirms(_A_LANGUAGE_RUN if about or other else _SURELY_RUN, description):
        return Sounds("code", certain=not about)
    if about or other:
        return None
    doubtful = _DOUBTFUL & words and not _OTHER_DOUBTS & words
    if doubtful or _affirms(_MAYBE_RUN, description) or _affirms(_IN_A_LANGUAGE, description):
        return Sounds("what may be code", certain=False)
    return None


def tool_sounds(
    name: str, description: str, arguments: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Sounds]]:
    """Yield what a tool with these text arguments sounds like, and where it says so."""
    # An argument that only selects a script has no code in it.
    writes = any(_ABOUT.isdisjoint(words_of(argument)[-1:]) for argument in arguments)
    words = [word for word in words_of(name) if word not in _FILLERS]
    runs, rest = _RUN & set(words), set(words) - _RUN
    if words and (_RUNNERS | _CODE).issuperset(words) and _RUNNERS & set(words):
        yield ("identity", "name"), Sounds("code", certain=writes)
    elif runs and rest & (_CODE | _SHELL | _DOUBTFUL):
        plain = rest <= _CODE | _SHELL or "eval" in runs
        yield ("identity", "name"), Sounds("code", certain=writes and plain)
    place = ("affordance", "model_description")
    if _affirms(_A_LANGUAGE_RUN, description):
        yield place, Sounds("code", certain=writes)
    elif _affirms(_MAYBE_RUN, description):
        yield place, Sounds("what may be code", certain=False)


def _affirms(pattern: re.Pattern[str], text: str) -> bool:
    """Return whether a text matches and does not deny it: "no code is run", "never run"."""
    text = text[:4_000].lower()
    return any(
        not _NOT.search(text[: match.start()]) and not _NOT.search(match[0].rpartition(" ")[0])
        for match in pattern.finditer(text)
    )


_URL = {"url", "uri", "href", "endpoint", "webhook"}
_PATH = {"path", "filepath", "filename", "directory", "dir"}
_SQL_WORDS = re.compile(r"\bSQL\b")
_CREDENTIAL = re.compile(
    r"(^|_)(password|passwd|passphrase|api_?key|secret|access_token|auth_token|bearer|private_key|"
    r"refresh_token|session_token|credentials?)$"
)
_AUTHORITY = re.compile(
    r"^(roles?|scopes?|permissions?|is_admin|acting_as|on_behalf_of|tenant(_id)?|as_user)$"
)


def is_credential(name: str) -> bool:
    """Return whether a name is one of a credential."""
    return _CREDENTIAL.search("_".join(words_of(name))) is not None


def _kinds(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    words = words_of(name)
    last = words[-1] if words else ""
    if "sql" in words or _SQL_WORDS.search(str(schema.get("description", ""))):
        yield "SQL"
    if last in _URL or schema.get("format") in ("uri", "uri-reference", "iri"):
        yield "a URL"
    if last in _PATH:
        yield "a file path"


def _texts(contract: Contract) -> Iterator[tuple[tuple[str | int, ...], str, Mapping[str, Any]]]:
    """Yield every field whose value is text that the model writes."""
    schema = contract.affordance.input_schema
    for path, name, value in fields(schema):
        full = without_refs(schema, value)
        for part in (full, *_parts(schema, full)):
            if "string" in types_of(part):
                yield (*INPUT, *path), name, {**full, **part}
                break


def _parts(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the branches of a union and the items of a list."""
    for word in ("anyOf", "oneOf"):
        for branch in listed(schema, word):
            yield without_refs(root, branch)
    if isinstance(schema.get("items"), Mapping):
        yield without_refs(root, schema["items"])


def _closed(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema limits the text to what its author chose."""
    pattern = schema.get("pattern")
    bounded = isinstance(pattern, str) and is_bounded(pattern) and ".{" not in pattern
    return bounded or "enum" in schema or "const" in schema


_Place = tuple[tuple[str | int, ...], str, Sounds]


def _code(contract: Contract) -> list[_Place]:
    """Return every place that sounds like code."""
    free = [field for field in _texts(contract) if not _closed(field[2])]
    places: list[_Place] = [
        (place, f"{name} takes {sounds.what} that the model writes", sounds)
        for place, name, schema in free
        if (sounds := argument_sounds(name, str(schema.get("description", ""))))
    ]
    # Without text that the model writes, there is no code to run.
    if free and not any(sounds.certain for _, _, sounds in places):
        names = [name for _, name, _ in free]
        places += [
            (place, f"the tool's texts say that it runs {sounds.what}", sounds)
            for place, sounds in tool_sounds(
                contract.name, contract.affordance.model_description, names
            )
        ]
    return places


@rule("code-unsandboxed", "code runs in a sandbox")
def code_unsandboxed(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX or contract.runs_code is False:
        return
    places = [(place, what) for place, what, sounds in _code(contract) if sounds.certain]
    if contract.runs_code and not places:
        places = [(("runs_code",), "the tool runs code")]
    for place, what in places:
        fault = f"{what}, but isolation is {contract.isolation}"
        fix = "Set isolation to sandbox; or set runs_code to false, if the text is never run."
        yield Breach(place, fault, fix)


@rule("code-suspected", "runs_code is set when it may run code", warning=True)
def code_suspected(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX or contract.runs_code is not None:
        return
    places = _code(contract)
    if any(sounds.certain for _, _, sounds in places):
        return  # code-unsandboxed says so
    for place, what, _ in places:
        fault = f"{what}; it may be run"
        fix = "Set runs_code to true and isolation to sandbox, or runs_code to false."
        yield Breach(place, fault, fix)


@rule("raw-power", "inputs are business values, not SQL, shell, code, URLs or paths", warning=True)
def raw_power(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX:
        return
    places = [
        (place, f"{name} takes {kind} that the model writes")
        for place, name, schema in _texts(contract)
        for kind in (() if _closed(schema) else _kinds(name, schema))
    ]
    if contract.runs_code is False:  # otherwise code-unsandboxed says so
        places += [(place, what) for place, what, sounds in _code(contract) if sounds.certain]
    for place, what in places:
        yield Breach(
            place,
            what,
            "Offer the business operation instead, limit the value with an enum or a pattern, "
            "or set isolation to sandbox.",
        )


@rule("credential-argument", "credentials are injected, not passed as arguments")
def credential_argument(contract: Contract) -> Iterator[Breach]:
    for place, name, _ in _texts(contract):
        if is_credential(name):
            fault = f"{name} would let a model see and pass a credential"
            yield Breach(place, fault, 'Inject it: Annotated[str, Secret("name")].')


@rule("authority-argument", "authority comes from the principal", warning=True)
def authority_argument(contract: Contract) -> Iterator[Breach]:
    for path, name, _ in fields(contract.affordance.input_schema):
        if _AUTHORITY.match(name.lower()) and name != contract.tenant_argument:
            fault = f"{name} lets the model choose the authority that it acts with"
            fix = "Take it from the context; mark a tenant with tenant_argument."
            yield Breach((*INPUT, *path), fault, fix)


@rule("identifier-ambiguous", "identifier arguments say what they identify", warning=True)
def identifier_ambiguous(contract: Contract) -> Iterator[Breach]:
    for name in properties_of(contract.affordance.input_schema):
        if name in ("id", "ids", "uuid", "key"):
            fault = f"{name} does not say what it identifies"
            fix = "Name the thing: case_id, invoice_id."
            yield Breach((*INPUT, "properties", name), fault, fix)
