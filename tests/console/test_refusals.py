"""What is no page, or not like that: answered in the console's own words and headers, always."""

from counterseal.web.middleware import CSP, bare_page
from tests.console.conftest import client_of

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
BY_ANOTHER_METHOD = {
    ("POST", "/approvals"): "GET, HEAD",
    ("DELETE", "/"): "GET, HEAD",
    ("PUT", "/sign-in"): "GET, HEAD, POST",
    ("GET", "/sign-out"): "POST",
    ("OPTIONS", "/tenant"): "POST",
    ("PROPFIND", "/events"): "GET, HEAD",
    ("PATCH", "/static/x/main.js"): "GET, HEAD",
    ("PUT", "/nowhere"): None,
    ("POST", "/nowhere"): None,
    ("TRACE", "/no/where"): None,
}
"""By which it can be reached; None: not at all."""
UNREADABLE = [
    ({"data": {"name": "x" * 70_000}}, 413),
    ({"json": {"name": "ann"}}, 415),
    ({"content": b"name=%ff", "headers": FORM}, 400),
    ({"content": b"&".join([b"a=b"] * 101), "headers": FORM}, 400),
]


def check_page(answer):
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>" in answer.text


async def test_an_unknown_path_is_answered_with_a_page_of_the_console(bank, ann):
    async with client_of(bank) as stranger:
        for (method, path), allowed in BY_ANOTHER_METHOD.items():
            for client in (ann, stranger):
                answer = await client.request(method, path)
                told = (answer.status_code, answer.headers.get("allow"))
                assert told == (405 if allowed else 404, allowed), (method, path)
                check_page(answer)
                assert ("Method not allowed" if allowed else "Not found") in answer.text


async def test_a_form_that_can_not_be_read_is_answered_with_a_page(bank):
    async with client_of(bank) as stranger:
        for sent, status in UNREADABLE:
            answer = await stranger.post("/sign-in", **sent)
            assert answer.status_code == status
            check_page(answer)


def test_a_page_without_a_session_is_plain():
    answer = bare_page(421, "<b>", headers={"Retry-After": "5"})
    assert answer.headers["retry-after"] == "5"
    assert b"Wrong host" in answer.body
    assert b"<b>" not in answer.body
