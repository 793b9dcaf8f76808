import ast
import base64
import json
import random
import sysconfig
import uuid
from pathlib import Path

import pytest
import re2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from counterseal.observation import Redaction, Redactor
from counterseal.observation.redact import PII, rules_for
from tests.unit.observation.secret_samples import (
    BARE,
    PLAIN,
    PREFIXED,
    TELLING,
    ids,
    lines,
    made,
    planted,
)

SECRETS = Redactor()
EVERYTHING = Redactor(pii=PII)
RULES = [rule for rule in rules_for(PII) if rule.id != "password"]


def of(letters, size):
    return st.text(letters, min_size=size, max_size=size)


LOWER, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
ALNUM = LOWER + LOWER.upper() + DIGITS

# Put together from halves, so that no scanner takes this file for a leak.
PLANTED = {
    "aws-access-key": of(LOWER.upper() + "234567", 16).map(lambda t: "AK" + "IA" + t),
    "github-token": of(ALNUM, 36).map(lambda t: "gh" + "p_" + t),
    "gitlab-token": of(ALNUM, 20).map(lambda t: "gl" + "pat-" + t),
    "slack-token": of(ALNUM, 24).map(lambda t: "xo" + "xb-1234567890-" + t),
    "stripe-key": of(ALNUM, 24).map(lambda t: "sk_" + "live_" + t),
    "openai-key": of(ALNUM, 48).map(lambda t: "sk-" + "proj-" + t),
    "anthropic-key": of(ALNUM, 40).map(lambda t: "sk-" + "ant-api03-" + t),
    "google-key": of(ALNUM, 35).map(lambda t: "AI" + "za" + t),
    "jwt": of(ALNUM, 20).map(lambda t: f"eyJhbGciOiJIUzI1NiJ9.eyJz{t}.{t[::-1]}"),
    "private-key": of(ALNUM, 64).map(
        lambda t: f"-----BEGIN RSA PRIVATE KEY-----\n{t}\n-----END RSA PRIVATE KEY-----"
    ),
}
INSIDE = {
    "authorization": of(ALNUM, 12).map(lambda t: ("Authorization: Bearer ", "q7" + t)),
    "bearer": of(ALNUM, 30).map(lambda t: ("curl -H bearer ", "q7" + t)),
    "basic": of(ALNUM, 12).map(
        lambda t: ("Basic ", base64.b64encode(f"user:{t}".encode()).decode())
    ),
    "connection-string": of(ALNUM, 12).map(lambda t: ("postgresql://app:", t + "@db:5432/x")),
    "password": of(ALNUM, 12).map(lambda t: ("DB_PASSWORD = ", "q7" + t)),
}
AROUND = st.text(max_size=40)
GLUE = st.sampled_from([" ", "\n", "\t", '"', "(", ": ", "="])


@pytest.mark.parametrize("rule", PLANTED)
@given(data=st.data(), before=AROUND, after=AROUND, glue=GLUE)
def test_planted_secret_survives_neither_in_values_nor_in_keys(rule, data, before, after, glue):
    secret = data.draw(PLANTED[rule])
    text = before + glue + secret + glue + after
    clean, redactions = SECRETS.redact({"list": [{"text": text}], text: 1})
    assert secret not in str(clean)
    assert secret not in str(redactions)
    assert {"/list/0/text"} < {redaction.pointer for redaction in redactions}


@pytest.mark.parametrize("rule", INSIDE)
@given(data=st.data(), before=AROUND)
def test_planted_credential_is_cut_out_of_its_surroundings(rule, data, before):
    name, secret = data.draw(INSIDE[rule])
    clean, redactions = SECRETS.redact(f"{before} {name}{secret}")
    value = secret.split("@")[0]
    assert clean.count(value) == before.count(value)
    assert any(redaction.rule == rule for redaction in redactions)


@given(
    st.recursive(
        st.text() | st.sampled_from(["password=hunter22;", "\u200b", "sk-" + "a1" * 20]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
@example({"password": "x"})
@example("[redacted:jwt]password=[redacted:password]x")
def test_redacting_twice_changes_nothing_more(value):
    clean, _ = EVERYTHING.redact(value)
    assert EVERYTHING.redact(clean) == (clean, ())


HINTED = st.one_of(
    st.text(),
    *PLANTED.values(),
    *(pair.map("".join) for pair in INSIDE.values()),
    st.sampled_from(
        ["a@b.example", "+49 30 1234567", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111"]
    ),
    st.sampled_from(["123-45-6789", "10.0.0.1", "2001:db8::1", "\x1b[0m", "\r", "\x9b", "\ufeff"]),
)


@given(st.dictionaries(HINTED | st.sampled_from(["Set-Cookie", "apiKey", "x-api-key"]), HINTED))
def test_quick_search_never_overlooks_what_the_walk_would_find(value):
    clean, redactions = EVERYTHING.redact(value)
    try:
        text = to_json(value)
    except ValueError:
        return
    if redactions or clean != value:
        assert EVERYTHING.suspects(text)


TOLD = st.one_of(
    st.sampled_from(["x", "4711", "two words", "q7aB3dE5fG7h", "hf3K9q2LmXz81TbVw4Rp"]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = """my db pass Pass password secret key Key api token Auth sid seed phrase of prod"""


@given(
    parts=st.lists(st.sampled_from(NAMES.split()) | st.text(max_size=3), min_size=1, max_size=4),
    joint=st.sampled_from(["", "_", "-", " ", ".", " ("]),
    value=TOLD | st.lists(TOLD | st.lists(TOLD, max_size=2), max_size=3),
)
def test_quick_search_never_overlooks_a_value_under_a_telling_key(parts, joint, value):
    data = {joint.join(parts): value}
    clean, redactions = EVERYTHING.redact(data)
    try:
        text = to_json(data)
    except ValueError:
        return
    if redactions or clean != data:
        assert EVERYTHING.suspects(text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
@settings(max_examples=4)
@given(data=st.data())
def test_hint_of_a_rule_matches_wherever_its_pattern_does(rule, data):
    text = data.draw(st.from_regex(rule.pattern, alphabet=st.characters(max_codepoint=126)))
    if re2.search(rule.pattern, text):
        assert re2.search(rule.hint, text)


def test_redactions_say_rule_place_and_count_and_never_the_value():
    token = "gh" + "p_" + "a1" * 18
    clean, redactions = SECRETS.redact({"a/b": [f"{token} and {token}"]})
    assert clean == {"a/b": ["[redacted:github-token] and [redacted:github-token]"]}
    assert redactions == (Redaction("github-token", "/a~1b/0", 2),)


def test_value_under_the_name_of_a_secret_is_redacted_whatever_it_looks_like():
    given_data = {"password": "correct horse", "headers": {"Authorization": "abc"}, "apiKey": "k"}
    clean, redactions = SECRETS.redact(given_data)
    assert "correct" not in str(clean)
    assert clean["headers"] == {"Authorization": "[redacted:password]"}
    assert len(redactions) == 3


def test_keys_that_become_alike_are_both_kept():
    first, second = ("gh" + "p_" + letter * 36 for letter in "ab")
    clean, _ = SECRETS.redact({first: 1, second: 2})
    assert list(clean.values()) == [1, 2]


def test_secret_in_json_inside_a_string_is_found():
    inner = json.dumps(json.dumps({"client_secret": "correct-horse"}))
    assert "horse" not in SECRETS.redact(inner)[0]


@pytest.mark.parametrize("escape", ["\x1b[", "\x1b[ ", "\x1b", "\x9b", "\x1b]", "\x1b[1;3"])
def test_terminal_escape_cannot_eat_the_start_of_a_secret(escape):
    secret = "AK" + "IA" + "ABCDEFGH" * 2
    assert "ABCDEFGH" not in SECRETS.redact(f"{escape}{secret}\x07")[0]


def test_secret_split_by_invisible_characters_is_put_together_and_found():
    token = "gh" + "p_" + "a1" * 18
    assert "a1a1" not in SECRETS.redact("\u200b".join(token))[0]


HARMLESS = [
    "550e8400-e29b-41d4-a716-446655440000",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "task-0123456789abcdef0123456789abcdef",
    "risk-proj-0123456789-quarterly-review-of-everything",
    "task-ant-colony-optimisation-with-a-very-long-name",
    "2024-05-01T12:30:45.123456+00:00",
    "1700000000000 4111111111111112 999999999999999999",
    "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 40).decode(),
    "Password: must be at least 8 characters and hold 1 digit.",
    "password = get_password()",
    "def login(user: str, password: str = None) -> Token: ...",
    "connect(user=user, password=pwd_value, host=host)",
    'api_key = os.environ["API_KEY"]',
    "const apiKey = process.env.API_KEY_2;",
    "PWD=/home/user1/project",
    "A basic understanding of bearer instruments is required.",
    "Bearer token-authentication is described in RFC 6750.",
    "Authorization: Bearer <token>",
    "postgres://app:${DB_PASSWORD}@db/x",
    "https://example.org:8080/a@b?c=d",
    "git@github.com:example/repo.git",
    "The secret of good prose: short words. Secret: none.",
    "Two tokens per request; the key is in the drawer.",
    "eyJust kidding.",
    "The token is base64-encoded, and the key is a 32-character string.",
    'client = Client(api_key="your-api-key", token="<token>")',
    "token = sha256hexdigest(text)",
    "fields: ['username', 'password', 'repository']",
    "--password TEXT  The password of the account. --token-file PATH",
    "Press the Enter key: version 1.2.3 starts on 2026-03-01T10:00:00Z.",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_realistic_text_without_secrets_stays_as_it_is(text):
    assert SECRETS.redact({"text": text}) == ({"text": text}, ())


MODULES = """ast configparser ftplib getpass hashlib hmac imaplib netrc pickle random secrets
shelve smtplib ssl tokenize typing urllib/request uuid"""


def paragraphs():
    """The paragraphs of our documentation, and of docstrings that speak of keys and tokens."""
    for page in Path(__file__).parents[3].joinpath("docs").rglob("*.md"):
        yield from page.read_text().split("\n\n")
    for name in MODULES.split():
        source = Path(sysconfig.get_path("stdlib"), f"{name}.py").read_text()
        documented = ast.Module | ast.ClassDef | ast.FunctionDef
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield from text.split("\n\n")


def test_fewer_than_one_in_two_hundred_paragraphs_of_documentation_is_altered():
    benign = [text for text in paragraphs() if len(text) > 40]
    altered = [text for text in benign if SECRETS.redact(text) != (text, ())]
    assert len(benign) > 1000
    assert len(altered) < 0.005 * len(benign), altered


@given(st.uuids(), st.binary(max_size=2000), st.integers(), st.datetimes())
def test_identifiers_hashes_numbers_and_dates_are_no_secrets(identifier, blob, number, moment):
    text = f"{identifier} {blob.hex()} {number} {moment.isoformat()} {uuid.UUID(int=1)}"
    assert SECRETS.redact(text) == (text, ())


@pytest.mark.parametrize(
    ("formats", "surroundings", "least"),
    [(PREFIXED, BARE, 0.99), (PREFIXED, TELLING, 0.99), (PLAIN, TELLING, 0.98)],
    ids=["a prefix alone", "a prefix and a name", "a name alone"],
)
def test_vendors_secrets_are_found_in_files_headers_urls_logs_and_prose(
    formats, surroundings, least
):
    samples = list(planted(formats, surroundings))[::7]
    missed = [text for _, _, secret, text in samples if secret in SECRETS.redact(text)[0]]
    assert len(missed) <= (1 - least) * len(samples), missed[:20]


@pytest.mark.parametrize("line", lines(PREFIXED))
def test_every_format_with_a_prefix_is_found_on_its_own(line):
    rng = random.Random(line)
    samples = [made(line.split(" ", 1)[1], rng) for _ in range(5)]
    assert [secret for secret in samples if secret in SECRETS.redact(f"({secret})")[0]] == []


KEYS = """token jwt session_id sessionId GITHUB_TOKEN PGPASSWORD api_key apiKey x-api-key
clientSecret Cookie authToken id_token refreshToken private_key stripe_key
credentials DB_PASS pass sid csrf_token encryptionKey license_key SECRET_KEY_BASE
webhook_secret"""


@pytest.mark.parametrize("key", KEYS.split())
def test_secret_without_a_prefix_is_found_under_a_telling_key(key):
    rng = random.Random(key)
    samples = [made(line.split(" ", 1)[1], rng) for line in lines(PLAIN)]
    missed = [secret for secret in samples if SECRETS.redact({key: secret})[0] == {key: secret}]
    assert len(missed) <= 3, missed  # letters only, which may be a word


@pytest.mark.parametrize("name", ["token", "MY_TOKEN", "sessionId", "session_id"])
@pytest.mark.parametrize("letters", [ALNUM, LOWER + DIGITS])
@given(data=st.data(), letter=st.sampled_from(LOWER), digit=st.sampled_from(DIGITS))
def test_letters_and_digits_under_the_name_of_a_token_are_a_secret(
    name, letters, data, letter, digit
):
    secret = letter + data.draw(of(letters, 10)) + digit
    assert SECRETS.redact({name: secret})[0] == {name: "[redacted:password]"}
    assert SECRETS.redact(f"{name}={secret}")[0] == f"{name}=[redacted:password]"


def test_value_whose_closing_quote_is_cut_off_is_found():
    assert "horse" not in SECRETS.redact('{"id": 7, "client_secret": "correct-horse')[0]
    assert "horse" not in SECRETS.redact({"log": 'db_password: "correct-horse'})[0]["log"]


@pytest.mark.parametrize("token", ["gh" + "p_" + "c" * 36, "xo" + "xb-" + "abcdef" * 3])
def test_known_prefix_is_enough_however_plain_the_rest_is(token):
    assert token not in SECRETS.redact(f"I used {token} there")[0]


def test_password_in_a_data_source_name_is_found():
    clean, redactions = SECRETS.redact("https://9a1b2c3d4e5f60718293a4b5c6d7e8f9@o1.sentry.io/2")
    assert clean == "https://[redacted:connection-string]@o1.sentry.io/2"
    assert redactions == (Redaction("connection-string", "", 1),)
    github = "https://" + "gh" + "p_" + "a1" * 18
    clean = "https://[redacted:github-token]:[redacted:connection-string]@github.com"
    assert SECRETS.redact(f"{github}:tiger7@github.com")[0] == clean
    assert "tiger7" not in SECRETS.redact("scott:tiger7@tcp(db:3306)/shop")[0]


def test_none_of_many_thousand_ids_hashes_and_images_is_altered():
    altered = [text for text in list(ids(26))[::4] if SECRETS.redact(text) != (text, ())]
    assert altered == []


@pytest.mark.parametrize(
    "value",
    [
        {"next_page_token": "CAUQAA3f9a1b2c3d4e5f6", "token_count": 12, "max_tokens": 4096},
        {
            "idempotency_key": "9a1b2c3d4e5f6071",
            "cache_key": "u:9a1b2c3d4e5f6071",
            "key": "PROJ-12",
        },
        {"token": "quick", "start_offset": 4, "token_type": "bearer", "secret_name": "smtp1"},
        {"key": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "keys": ["a", "b"], "session": "Monday 9:30"},
        {"session_id": "20261118093000", "token": "authentication", "next_token": "page2of12345"},
    ],
)
def test_names_that_only_resemble_those_of_secrets_keep_their_values(value):
    assert SECRETS.redact(value) == (value, ())


PERSONAL = {
    "email": "ada.lovelace+x@mail.example.org",
    "phone": "+49 30 901820-15",
    "iban": "DE89 3704 0044 0532 0130 00",
    "credit_card": "4111 1111 1111 1111",
    "ssn": "123-45-6789",
    "ip_address": "2001:db8::8a2e:370:7334",
}


@pytest.mark.parametrize("name", PERSONAL)
def test_personal_data_is_redacted_only_where_a_policy_names_its_class(name):
    text = f"Contact: {PERSONAL[name]}, thanks."
    assert SECRETS.redact(text) == (text, ())
    assert Redactor(pii=[name]).redact(text)[0] == f"Contact: [redacted:{name}], thanks."
    others = Redactor(pii=PERSONAL.keys() - {name, "phone"})
    assert others.redact(text)[0] == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("credit_card", "order 4111 1111 1111 1112"),
        ("iban", "DE00 3704 0044 0532 0130 00"),
        ("ssn", "000-12-3456"),
        ("ip_address", "version 1.2.3.999 at 12:30:45"),
        ("email", "@property and foo@bar"),
        ("phone", "2024-05-01 and 12345"),
    ],
)
def test_what_fails_its_checksum_or_form_is_not_personal_data(name, text):
    assert Redactor(pii=[name]).redact(text) == (text, ())


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("credit_card", "4111 1111 1111 1111 12/26", "[redacted:credit_card] 12/26"),
        ("credit_card", "1234 4111 1111 1111 1111", "1234 [redacted:credit_card]"),
        ("iban", "ES91 2100 0418 4502 0005 1332 BANK", "[redacted:iban] BANK"),
    ],
)
def test_neighbours_do_not_hide_a_number(name, text, left):
    assert Redactor(pii=[name]).redact(text)[0] == left


def test_unknown_class_of_personal_data_is_refused():
    with pytest.raises(ValueError, match="shoe_size"):
        Redactor(pii=["shoe_size"])
