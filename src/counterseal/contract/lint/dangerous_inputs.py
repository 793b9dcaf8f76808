"""Rules on dangerous inputs: commands, code, SQL, URLs, paths, credentials and authority.

Names and descriptions are all there is to judge by. Some leave no doubt (`python_code`, "the script
to execute") and are errors; doubtful ones (`expression`, "runs the nightly script") are warnings
for the author to answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from counterseal.contract.lint.rule import Breach, rule
from counterseal.contract.lint.schema_rules import INPUT, fields, is_bounded
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

_LANGUAGES = word_set("python javascript js typescript perl ruby lua")
_SHELL = word_set("shell bash zsh powershell cmd command argv")
_CODE = _LANGUAGES | _SHELL | word_set("script eval exec")
_DOUBTFUL = word_set("snippet expression formula program notebook macro lambda")
_RUN = word_set("run execute exec eval evaluate interpret")
_RUNNERS = _SHELL | _LANGUAGES | word_set("repl terminal interpreter eval exec")
_BEFORE_CODE = _LANGUAGES | _SHELL | word_set("source program input user my custom raw")
"""What makes a code one that runs: `source_code` is, `country_code` is not."""
_ABOUT = word_set(
    "author category count date format hash id index key kind label language length level limit "
    "name number owner page path ref size state status tag time title type uri url uuid version"
)
"""Last words of names for a property of something: `script_name` is not a script."""

_NOUN = r"(?:code|scripts?|commands?(?: line)?|snippets?|programs?)"
_DOUBTFUL_NOUN = r"(?:expressions?|formulas?|source|statements?|macros?|cells?|notebooks?)"
_LANGUAGE = rf"(?:{'|'.join(sorted(_LANGUAGES))}|bash|powershell|shell)"
_RUNS = r"(?:runs?|running|executes?|executed|evals?|evaluates?|evaluated|interprets?|interpreted)"
_GAP = r"(?:[^\w.;!?]+\w+){0,5}?[^\w.;!?]+"
_NOT = re.compile(
    r"(?:\b(?:not|never|no|without|nothing|none|cannot)|n['\u2019]t)(?: +[\w'\u2019]+){0,4} *\Z"
)


def _near(one: str, other: str) -> str:
    """Return a pattern for both in one sentence, a few words apart, in any order."""
    return rf"{one}{_GAP}{other}|{other}{_GAP}{one}"


_A_LANGUAGE_RUN = _near(_LANGUAGE, _RUNS)
_SURELY_RUN = (
    rf"{_A_LANGUAGE_RUN}|{_NOUN} +(?:to|to be|(?:that |which )?(?:is|are|will be)) +{_RUNS}"
    rf"|{_RUNS}(?: +(?:as|the|a|an|this|that|given|your|any|arbitrary))* +{_NOUN}"
)
_MAYBE_RUN = rf"{_near(_NOUN, _RUNS)}|{_near(_DOUBTFUL_NOUN, _RUNS)}"
_IN_A_LANGUAGE = rf"{_LANGUAGE} +(?:source +)?(?:{_NOUN}|{_DOUBTFUL_NOUN})"


def _affirms(pattern: str, text: str) -> bool:
    """Return whether a text matches and does not deny it: "no code is run", "never run"."""
    text = text[:4_000].lower()
    return any(
        not _NOT.search(text[: match.start()]) and not _NOT.search(match[0].rpartition(" ")[0])
        for match in re.finditer(rf"\b(?:{pattern})\b", text)
    )


def argument_runs(name: str, description: str) -> bool | None:
    """Return whether an argument is code: True if surely, False if maybe, None if not."""
    words = words_of(name)
    about = not _ABOUT.isdisjoint(words[-1:])
    at = words.index("code") if "code" in words else -1
    is_code = at == 0 or (at > 0 and words[at - 1] in _BEFORE_CODE)
    if not _SHELL.isdisjoint(words) or ((is_code or _CODE & {*words}) and not about):
        return True
    if about or at > 0:  # a name for something else
        return not about if _affirms(_A_LANGUAGE_RUN, description) else None
    if _affirms(_SURELY_RUN, description):
        return True
    doubtful = not _DOUBTFUL.isdisjoint(words) and "cron" not in words and "regular" not in words
    return False if doubtful or _affirms(f"{_MAYBE_RUN}|{_IN_A_LANGUAGE}", description) else None


def tool_runs(
    name: str, description: str, arguments: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield each place that says that a tool with these text arguments runs code: True if surely.

    An argument that only selects a script has no code in it.
    """
    writes = any(_ABOUT.isdisjoint(words_of(argument)[-1:]) for argument in arguments)
    words = {*words_of(name)} - word_set("a an the my some in tool")
    runs, rest = _RUN & words, words - _RUN
    code = _CODE | {"code"}
    if words & _RUNNERS and words <= _RUNNERS | code:
        yield ("identity", "name"), writes
    elif runs and rest & (code | _DOUBTFUL):
        yield ("identity", "name"), writes and (rest <= code or "eval" in runs)
    place = ("affordance", "model_description")
    if _affirms(_A_LANGUAGE_RUN, description):
        yield place, writes
    elif _affirms(_MAYBE_RUN, description):
        yield place, False


_CREDENTIAL = re.compile(
    r"(^|_)(password|passwd|passphrase|api_?key|secret|access_token|auth_token|bearer|private_key|"
    r"refresh_token|session_token|credentials?)$"
)
_AUTHORITY = re.compile(
    r"^(roles?|scopes?|permissions?|is_admin|acting_as|on_behalf_of|tenant(_id)?|as_user)$"
)

Place = tuple[str | int, ...]


def is_credential(name: str) -> bool:
    """Return whether a name is one of a credential."""
    return _CREDENTIAL.search("_".join(words_of(name))) is not None


def _kinds(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    words = words_of(name)
    if "sql" in words or re.search(r"\bSQL\b", str(schema.get("description", ""))):
        yield "SQL"
    is_uri = schema.get("format") in ("uri", "uri-reference", "iri")
    if is_uri or not {"url", "uri", "href", "endpoint", "webhook"}.isdisjoint(words[-1:]):
        yield "a URL"
    if not {"path", "filepath", "filename", "directory", "dir"}.isdisjoint(words[-1:]):
        yield "a file path"


def written_texts(root: Mapping[str, Any]) -> Iterator[tuple[Place, str, Mapping[str, Any]]]:
    """Yield every field whose value is text that the model writes: alone, in a union or a list."""
    for path, name, value in fields(root):
        full = without_refs(root, value)
        inner = [*listed(full, "anyOf"), *listed(full, "oneOf"), full.get("items")]
        for part in (full, *(without_refs(root, one) for one in inner)):
            if "string" in types_of(part):
                yield path, name, {**full, **part}
                break


def _closed(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema limits the text to what its author chose."""
    pattern = schema.get("pattern")
    chosen = is_bounded(pattern) and ".{" not in str(pattern)
    return chosen or "enum" in schema or "const" in schema


def _code(contract: Contract) -> list[tuple[Place, str, bool]]:
    """Return every place that sounds like code, a sentence about it, and whether it is sure."""
    texts = written_texts(contract.affordance.input_schema)
    free = [field for field in texts if not _closed(field[2])]
    what = {True: "code", False: "what may be code"}
    places: list[tuple[Place, str, bool]] = [
        ((*INPUT, *path), f"{name} takes {what[sure]} that the model writes", sure)
        for path, name, schema in free
        if (sure := argument_runs(name, str(schema.get("description", "")))) is not None
    ]
    # Without text that the model writes, there is no code to run.
    if free and not any(sure for _, _, sure in places):
        names, description = [name for _, name, _ in free], contract.affordance.model_description
        places += [
            (place, f"the tool's texts say that it runs {what[sure]}", sure)
            for place, sure in tool_runs(contract.name, description, names)
        ]
    return places


@rule("code-unsandboxed", "code runs in a sandbox")
def code_unsandboxed(contract: Contract) -> Iterator[Breach]:
    if contract.isolation is Isolation.SANDBOX or contract.runs_code is False:
        return
    places = [(place, what) for place, what, sure in _code(contract) if sure]
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
    if any(sure for _, _, sure in places):
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
        ((*INPUT, *path), f"{name} takes {kind} that the model writes")
        for path, name, schema in written_texts(contract.affordance.input_schema)
        for kind in (() if _closed(schema) else _kinds(name, schema))
    ]
    if contract.runs_code is False:  # otherwise code-unsandboxed says so
        places += [(place, what) for place, what, sure in _code(contract) if sure]
    for place, what in places:
        yield Breach(
            place,
            what,
            "Offer the business operation instead, limit the value with an enum or a pattern, "
            "or set isolation to sandbox.",
        )


@rule("credential-argument", "credentials are injected, not passed as arguments")
def credential_argument(contract: Contract) -> Iterator[Breach]:
    for path, name, _ in written_texts(contract.affordance.input_schema):
        if is_credential(name):
            fault = f"{name} would let a model see and pass a credential"
            yield Breach((*INPUT, *path), fault, 'Inject it: Annotated[str, Secret("name")].')


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
