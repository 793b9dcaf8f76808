"""What browsers send and get: cookies that stay here, requests from here, ways that lead here."""

from http.cookies import SimpleCookie
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from starlette.responses import Response

from counterseal.web.identity import (
    cookie_name,
    drop_session_cookie,
    origin_of,
    safe_next,
    same_origin,
    session_cookie,
    set_session_cookie,
)

OWN = ["https://tools.example.org"]


def sent(given):
    response = Response()
    given(response)
    (cookie,) = SimpleCookie(response.headers["set-cookie"]).values()
    return cookie


@pytest.mark.parametrize("https", [True, False])
def test_cookie_is_kept_from_scripts_from_other_sites_and_from_other_hosts(https):
    cookie = sent(lambda response: set_session_cookie(response, "abc", https=https))
    assert (cookie.key, cookie.value) == (cookie_name(https=https), "abc")
    assert (cookie["path"], cookie["max-age"], cookie["domain"]) == ("/", "28800", "")
    assert cookie["httponly"] is True
    assert cookie["samesite"].lower() == "lax"
    assert bool(cookie["secure"]) is https
    assert cookie.key.startswith("__Host-") is https


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        (["counterseal=abc"], "abc"),
        (["a=b; counterseal=abc ;c=d"], "abc"),
        (["counterseal="], ""),
        (["xcounterseal=abc"], None),
        (["a=counterseal=abc"], None),
        (["__Host-counterseal=abc"], None),
        (["counterseal=abc; counterseal=def"], None),
        (["counterseal=abc", "counterseal=def"], None),
        ([], None),
    ],
)
def test_session_is_read_from_one_cookie_and_from_none_of_two(headers, secret):
    raw = [(b"cookie", one.encode()) for one in headers]
    assert session_cookie(HTTPConnection({"type": "http", "headers": raw}), https=False) == secret


def test_dropped_cookie_is_over_and_otherwise_the_same():
    cookie = sent(lambda response: drop_session_cookie(response, https=True))
    assert (cookie.key, cookie.value, cookie["max-age"]) == ("__Host-counterseal", "", "0")
    assert cookie["secure"] is True


@pytest.mark.parametrize(
    "url",
    ["/", "/approvals", "/calls?tool=a&since=2026-01-01T00:00:00%2B00:00#top", "/a/b/?next=//x"],
)
def test_path_of_ours_is_gone_to(url):
    assert safe_next(url) == url


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "approvals",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/a//evil.example",
        "https://evil.example/",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/\r\nSet-Cookie: a=b",
        " /approvals",
        "/appr ovals",
        "/é",
        "/" + "a" * 2000,
        "/sign-in",
        "/sign-in/?next=/",
        "/sign-out",
    ],
)
def test_anything_else_leads_home(url):
    assert safe_next(url) == "/"
    assert safe_next(url, "/approvals") == "/approvals"


@given(st.text(max_size=40) | st.text(alphabet="/\\:@.?#%\t\r\nae", max_size=20))
@example("/%2f/evil.example")
@example("/.//evil.example")
def test_wherever_it_leads_is_here_and_fits_a_header(url):
    found = safe_next(url)
    assert urlsplit(urljoin("https://tools.example.org/sign-in", found)).netloc == (
        "tools.example.org"
    )
    assert found.isascii()
    assert found.isprintable()


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://tools.example.org/a?b", "https://tools.example.org"),
        ("HTTPS://Tools.Example.org:443", "https://tools.example.org"),
        ("http://127.0.0.1:8787/", "http://127.0.0.1:8787"),
        ("http://[::1]:80/", "http://[::1]"),
        ("https://user:x@tools.example.org", "https://tools.example.org"),
        ("null", None),
        ("https://", None),
        ("file:///etc", None),
        ("https://a:99999999", None),
        ("", None),
    ],
)
def test_origin_is_what_a_browser_would_write(url, origin):
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, True),
        ({"origin": "https://tools.example.org"}, True),
        ({"origin": "https://tools.example.org", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "http://tools.example.org"}, False),
        ({"origin": "https://tools.example.org:444"}, False),
        ({"origin": "https://tools.example.org.evil.example"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "whatever"}, False),
        ({"origin": "https://tools.example.org", "sec-fetch-site": "cross-site"}, False),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, False),
    ],
)
def test_only_what_comes_from_here_changes_something(headers, taken):
    assert same_origin(headers, OWN) is taken


def test_origin_that_is_none_of_ours_is_not_taken_where_we_have_none():
    assert not same_origin({"origin": "null"}, ["nonsense"])
    assert not same_origin({"origin": "nonsense"}, ["nonsense"])
