"""Lint of HTTP tools and of egress: a clean one passes, and every rule is shown to fire."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.bindings import CALL_KEY, HttpBinding, Placeholder, template
from counterseal.contract.egress import Egress, entry_for
from counterseal.contract.lint import RULES, examine
from counterseal.contract.model import EgressPolicy
from counterseal.errors import EgressError

TEXT = {"type": "string", "maxLength": 40, "description": "A text."}
CLEAN = {
    "effect": "external_notification",
    "identity": {"name": "send_notice", "version": "1.0.0", "owner": "case-platform"},
    "affordance": {
        "model_description": "Send a notice.",
        "input_schema": {
            "type": "object",
            "properties": {
                "case_id": TEXT,
                "tags": {"type": "array", "items": TEXT, "maxItems": 5, "description": "Tags."},
                "options": {
                    "type": "object",
                    "description": "How.",
                    "additionalProperties": {"type": "boolean"},
                },
                "language": TEXT,
            },
            "required": ["case_id"],
            "additionalProperties": False,
        },
        "output_schema": {
            "type": "object",
            "properties": {"notice_id": {"type": "string"}},
            "additionalProperties": False,
        },
    },
    "usage": "When a notice is due.",
    "consequence": "A notice about {case_id} is sent.",
    "probe": "read_case",
    "secrets": ["api_token"],
    "egress": ["api.example.org"],
    "http": {
        "method": "POST",
        "url": "https://api.example.org/cases/{case_id}/notices",
        "query": {"tag": "{tags}"},
        "headers": {
            "Authorization": "Bearer {secret:api_token}",
            "Accept-Language": "{language}",
        },
        "body": {"options": "{options}"},
    },
}


def changed(*changes):
    """The clean contract with some of its places set; None takes a place out."""
    data = copy.deepcopy(CLEAN)
    for place, value in changes:
        *path, last = place.split("/")
        part = data
        for step in path:
            part = part.setdefault(step, {})
        if value is None:
            del part[last]
        else:
            part[last] = value
    return data


def to(url, *egress):
    return (("http/url", url), ("egress", list(egress)))


def header(name, value):
    return (f"http/headers/{name}", value)


CASE = "cases/{case_id}"
GET = ("http/method", "GET")
READS = ("effect", "retrieve")
JUSTIFIED = ("risk_justification", "A search: POST only carries the question.")

BREACHES = {
    "egress-unreadable": [
        changed(("egress", ["api.example.org", entry]))
        for entry in (
            "https://api.example.org",
            "api.example.org/v1",
            "api.*.org",
            "*",
            "*.",
            "api.example.org:0",
            "api.example.org:99999",
            "api.example.org:https",
            "10.0.0.300",
            "10.1.2.3/16",
            "127.1",
            "0x7f000001",
            "::ffff:10.0.0.1",
            "::1:x",
            "a b",
            "",
        )
    ],
    "egress-contradictory": [changed(("security", {"egress_policy": "none"}))],
    "http-unreachable": [
        changed(("egress", None)),
        changed(("security", {"egress_policy": "none"})),
        changed(*to(f"https://other.example.org/{CASE}", "api.example.org")),
        changed(*to(f"https://example.org/{CASE}", "*.example.org")),
        changed(*to(f"https://notexample.org/{CASE}", "*.example.org")),
        changed(*to(f"https://api.example.org:8443/{CASE}", "api.example.org")),
        changed(*to(f"https://api.example.org/{CASE}", "api.example.org:8443")),
        changed(*to(f"https://10.2.0.1/{CASE}", "10.1.0.0/16")),
        changed(*to(f"https://localhost/{CASE}", "localhost")),
        changed(
            *to(f"https://8.8.8.8/{CASE}"),
            ("security", {"egress_policy": "private_network_only"}),
        ),
    ],
    "http-isolation": [changed(("isolation", "process")), changed(("isolation", "sandbox"))],
    "http-argument-unknown": [
        changed(*to("https://api.example.org/cases/{case}", "api.example.org")),
        changed(("http/query/q", "by {author}")),
        changed(header("X-By", "{author}")),
        changed(("http/body", {"a": [{"b": "{author}"}]})),
    ],
    "http-path-optional": [
        changed(*to("https://api.example.org/{case_id}/{language}", "api.example.org"))
    ],
    "http-argument-misfit": [
        changed(*to("https://api.example.org/{case_id}/{tags}", "api.example.org")),
        changed(header("X-Tags", "{tags}")),
        changed(("http/query/q", "all {tags}")),
        changed(("http/query/options", "{options}")),
        changed(("http/body", None), ("http/form", {"options": "{options}"})),
    ],
    "http-argument-unsent": [changed(("http/query", {}))],
    "http-secret-mismatch": [
        changed(header("X-Other", "{secret:other}")),
        changed(("secrets", ["api_token", "other"])),
        changed(("secrets", None)),
    ],
    "http-secret-plain": [
        changed(*to(f"http://api.example.org/{CASE}", "api.example.org")),
        changed(*to(f"http://10.1.0.7/{CASE}", "10.1.0.8")),
        changed(*to(f"http://8.8.8.8/{CASE}", "8.8.8.8")),
    ],
    "http-secret-in-url": [
        changed(("http/query/key", "{secret:api_token}")),
        changed(*to("https://api.example.org/{secret:api_token}/{case_id}", "api.example.org")),
    ],
    "http-key-unsent": [
        {**changed(), "idempotency": {"key_header": ""}},
        {**changed(), "idempotency": {"key_header": None}},
    ],
    "http-header-invalid": [
        changed(header("Host", "evil.example.org")),
        changed(header("content-LENGTH", "0")),
        changed(header("Transfer-Encoding", "chunked")),
        changed(header("X Bad", "a")),
        changed(header("X:Bad", "a")),
        changed(header("X-Bad\r\nX-Worse", "a")),
        changed(header("X-Lines", "a\r\nX-Worse: b")),
        changed(header("X-Text", "grüezi")),
        changed(header("X-Text", " a")),
        changed(header("authorization", "a")),
        changed(header("idempotency-key", "a")),
        changed(("idempotency", {"key_header": "not a header"})),
    ],
    "http-body-misplaced": [
        changed(GET),
        changed(("http/method", "HEAD")),
        changed(GET, ("http/body", None), ("http/form", {"a": "{language}"})),
    ],
    "http-absent-misplaced": [
        changed(("http/absent", [404])),
        changed(GET, ("http/body", None), ("http/absent", [404])),
        changed(GET, READS, ("http/body", None), ("http/absent", [404, 403])),
        changed(READS, JUSTIFIED, ("http/absent", [404])),
    ],
    "http-effect-low": [
        changed(READS, ("http/method", method)) for method in ("POST", "PUT", "PATCH", "DELETE")
    ],
}

CASES = [(rule, data) for rule, cases in BREACHES.items() for data in cases]


def found(data):
    return {problem.rule for problem in examine(data)[1]}


def test_a_well_declared_http_tool_has_no_problem():
    assert examine(CLEAN)[1] == ()


def test_every_rule_on_requests_and_egress_is_shown_to_fire():
    own = {rule for rule in RULES if rule.startswith(("http-", "egress-"))}
    assert set(BREACHES) == own


@pytest.mark.parametrize(("rule", "data"), CASES)
def test_a_breach_is_found_and_says_where(rule, data):
    problems = [problem for problem in examine(data)[1] if problem.rule == rule]
    assert problems
    for problem in problems:
        assert problem.pointer.startswith("/")
        assert problem.severity is RULES[rule].severity


@pytest.mark.parametrize(
    ("url", "egress"),
    [
        ("https://api.example.org/{case_id}", ["*.example.org"]),
        ("https://API.example.org/{case_id}", ["api.EXAMPLE.org"]),
        ("https://api.example.org:8443/{case_id}", ["api.example.org:8443"]),
        ("https://10.1.2.3/{case_id}", ["10.1.0.0/16"]),
        ("http://10.1.2.3/{case_id}", ["10.1.2.3"]),
        ("http://127.0.0.1:9000/{case_id}", ["127.0.0.1:9000"]),
        ("http://[::1]:9000/{case_id}", ["[::1]:9000"]),
        ("http://localhost:9000/{case_id}", ["localhost:9000", "127.0.0.0/8:9000"]),
    ],
)
def test_a_url_that_egress_covers_passes(url, egress):
    assert found(changed(*to(url, *egress))) == set()


def test_rules_on_requests_leave_other_tools_alone():
    assert found(changed(("http", None))) == set()


def test_a_search_by_post_passes_with_a_written_reason():
    assert "http-effect-low" not in found(changed(READS, JUSTIFIED))


def test_an_argument_that_only_identifies_the_call_need_not_be_sent():
    data = changed(("http/query", {}), ("business_key", ["case_id", "tags"]))
    assert "http-argument-unsent" not in found(data)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("url", "https://{case_id}/x", "in the path only"),
        ("url", "https://api.example.org:{case_id}/x", "in the path only"),
        ("url", "{case_id}://api.example.org/x", "write http"),
        ("url", "https://user:word@api.example.org/", "without user"),
        ("url", "https://api.example.org/x?key={case_id}", "move a query to"),
        ("url", "https://api.example.org/x#part", "percent-encoded"),
        ("url", "https://api.example.org/a\\b", "percent-encoded"),
        ("url", "https://api.example.org/a/../b", "segment . or .."),
        ("url", "https://api.example.org:99999/", "not a port"),
        ("url", "ftp://api.example.org/", "write http"),
        ("url", "https://api.example.org/{case_id", "a single {"),
        ("query/a", "{}", "has no name"),
        ("query/a", "{secret:}", "has no name"),
        ("headers/a", "a}b", "a single }"),
        ("body", {"a": ["{"]}, "a single {"),
        ("form", {"a": "b"}, "both set"),
        ("method", "TRACE", "TRACE"),
        ("response", "data", "response"),
        ("statuses", {"404": "SUCCESS"}, "not the code of a failure"),
        ("statuses", {"4x": "TIMEOUT"}, "pattern"),
        ("query/a", "{call:}", "has no name"),
        ("query/a", "{call:run_id}", "the only value of the call is {call:key}"),
        ("absent", [500], "less than or equal"),
        ("absent", ["404"], "integer"),
    ],
)
def test_a_binding_that_makes_no_sense_is_refused_at_its_place(place, value, says):
    contract, problems = examine(changed((f"http/{place}", value)))
    assert contract is None
    problem = next(p for p in problems if p.rule == "field-invalid")
    assert problem.pointer.startswith("/http")
    assert says in problem.message or place == "method"


def test_a_status_is_either_absence_or_a_failure():
    told = (("http/absent", [404]), ("http/statuses", {"404": "STALE_STATE"}))
    contract, problems = examine(changed(GET, READS, *told))
    assert contract is None
    assert any("status 404 is in both" in problem.message for problem in problems)


def test_a_read_that_asks_by_the_key_of_a_call_passes():
    data = changed(
        GET,
        READS,
        ("identity/name", "find_notice"),
        ("consequence", None),
        ("http/body", None),
        ("http/url", "https://api.example.org/cases/{case_id}/by-key/{call:key}"),
        ("http/query", {"tag": "{tags}", "key": "{call:key}"}),
        ("http/headers/X-Of", "call {call:key}"),
        ("http/absent", [404, 410]),
        ("affordance/input_schema/properties/options", None),
    )
    assert found(data) == set()
    binding = examine(data)[0].http
    assert binding.carries_key
    assert binding.arguments == {"case_id", "tags", "language"}
    assert binding.secrets == {"api_token"}


def test_the_exact_status_is_asked_before_its_hundred():
    binding = HttpBinding(
        url="https://api.example.org/",
        statuses={"4xx": "SEMANTIC_INVALIDITY", "404": "STALE_STATE"},
    )
    assert binding.code_for(404) == "STALE_STATE"
    assert binding.code_for(418) == "SEMANTIC_INVALIDITY"
    assert binding.code_for(500) is None


def test_a_template_is_taken_apart():
    parts = template("a{{{x}}}{secret:y}{z:1}").parts
    assert parts == ("a{", Placeholder("x"), "}", Placeholder("y", secret=True), Placeholder("z:1"))
    assert template("{x}").alone == Placeholder("x")
    assert template("{x} ").alone is None
    assert template("").parts == ()
    assert template("{call:key}").alone == Placeholder("key", call=True)
    assert str(CALL_KEY) == "{call:key}"


NAMES = st.text("xy", min_size=1)
PARTS = st.text("ab{}", min_size=1) | st.builds(Placeholder, NAMES, st.booleans(), st.just(False))
PARTS |= st.just(CALL_KEY)


@given(st.lists(PARTS))
def test_what_a_template_spells_is_what_is_read_from_it(parts):
    written = "".join(
        part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else str(part)
        for part in parts
    )
    read = template(written).parts
    assert "".join(map(str, read)) == "".join(map(str, parts))
    assert [p for p in read if isinstance(p, Placeholder)] == [
        p for p in parts if isinstance(p, Placeholder)
    ]


@given(
    st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6, network="2000::/3").map(str),
        st.from_regex(r"[a-z][a-z0-9]{0,9}(\.[a-z][a-z0-9]{0,9}){0,3}", fullmatch=True),
    ),
    st.integers(1, 65535),
)
def test_an_entry_that_is_written_for_a_place_covers_it_and_no_other_port(host, port):
    egress = Egress(EgressPolicy.ALLOWLISTED_DOMAINS, (entry_for(host, port),))
    egress.check_url("https", host, port)
    for elsewhere in ((host, 8081 if port != 8081 else 8082), (f"x{host}", port)):
        with pytest.raises(EgressError):
            egress.check_url("https", *elsewhere)
